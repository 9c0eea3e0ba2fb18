//! TAP: an Ethernet interface of the kernel whose other end is a descriptor.
//! Documentation/networking/tuntap.rst
//!
//! ```text
//!   kernel's TCP/IP ── interface "tap0" ══ /dev/net/tun, queue 0 ── Tap ── netstack
//!                      (up, with an        /dev/net/tun, queue 1 ── Tap ── its other shard
//!                       address)
//! ```
//!
//! The kernel's end is an ordinary interface: `ip` brings it up, gives it an address, bridges or
//! routes it. This end is a host on the same link, with an address of its own.
//!
//! A frame costs a system call of about a microsecond at any length, so long frames pay off. With
//! the virtio-net header one `writev` carries up to 64 KiB of a TCP stream, which the kernel cuts
//! only if it must, and one `readv` brings as much. Streams that end in this kernel use 256 KiB
//! over IPv4 ([`BigTcp`]).
//!
//! With several queues the kernel distributes frames by their ports (`steering.rs`), so that a
//! connection stays on its shard, whichever end has opened it. Without `CAP_BPF` the kernel sends a
//! flow to the queue that sent one of its frames within the last three seconds, and other flows by
//! a hash: then a connection that a peer has opened stays on its queue, and one that this end opens
//! would not. A persistent interface keeps the rule.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::others::Lag;
use super::steering::{self, Share};
use super::{
    BigTcp, Capabilities, Device, Losses, OutgoingFrame, ReceiveBurst, TransmitError, bpf, sys,
    vnet,
};
use crate::time::Instant;
use crate::wire::ethernet;
use crate::wire::ipv4::BIG_PACKET_LEN_MAX;
use crate::wire::vnet::HEADER_LEN;

/// The most queues of an interface. `MAX_TAP_QUEUES` in `drivers/net/tun.c`
pub const QUEUES_MAX: usize = 256;

/// One queue of a TAP interface.
pub struct Tap {
    fd: OwnedFd,
    capabilities: Capabilities,
    lag: Lag,
    share: Share,
    losses: Losses,
    /// Overflow counts of all queues, which the first queue reports.
    overflows: Option<Overflows>,
}

impl Tap {
    /// Opens the interface `name` with `queues` queues, one device for each. A missing interface is
    /// created, and removed with the last of them. The MTU is read here once.
    ///
    /// Without `offloads` frames are as on a wire: no longer than the MTU, with checksums.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an invalid name or number of queues; `EPERM` without
    /// `CAP_NET_ADMIN`, unless it was made for this user; `EBUSY` if it is in use and has one queue
    /// (with several, two programs would each have a part of its frames); `EINVAL` if it is there
    /// and has another number of queues; `ENOENT` without `/dev/net/tun`.
    pub fn open(name: &str, queues: usize, offloads: bool) -> io::Result<Vec<Tap>> {
        if !(1..=QUEUES_MAX).contains(&queues) {
            let why =
                format!("{queues} queues were asked for; the device can have 1 to {QUEUES_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // All are attached before one is used: the first makes the interface.
        let attach = |_| attach(name, queues, offloads);
        let attached: Vec<OwnedFd> = (0..queues).map(attach).collect::<io::Result<_>>()?;
        let mtu = sys::mtu_of(name)?;
        let capabilities = if offloads {
            Capabilities {
                big_tcp: big_tcp(name),
                receive_len_max: ethernet::HEADER_LEN + BIG_PACKET_LEN_MAX,
                ..Capabilities::offloading(mtu)
            }
        } else {
            Capabilities::plain(mtu)
        };
        let is_steered = queues > 1 && steer(attached[0].as_fd()).is_ok();
        let tap = |(queue, fd)| Tap {
            fd,
            capabilities,
            lag: Lag::default(),
            share: Share::of(queue, queues, is_steered),
            losses: Losses::default(),
            overflows: (queue == 0).then(|| Overflows::of(name)),
        };
        Ok(attached.into_iter().enumerate().map(tap).collect())
    }
}

/// Linux knows IPv4 packets above 64 KiB since 6.3, and its TAP interfaces accept them since 6.6:
/// before, a copy had space for 17 pages, and more was `EMSGSIZE` (`tun_alloc_skb` in
/// `drivers/net/tun.c`). The build options of the kernel are not considered.
fn big_tcp(name: &str) -> Option<BigTcp> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let host = sys::mac_of(name).ok()?;
    takes_big_tcp(&release).then_some(BigTcp { len_max: BigTcp::LEN_MAX, host })
}

fn takes_big_tcp(release: &str) -> bool {
    let mut numbers = release.split(|at: char| !at.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (next(), next()) else {
        return false;
    };
    (major, minor) >= (6, 6)
}

/// Count of the kernel's frames that found a queue of the interface full.
struct Overflows {
    interface: String,
    /// Count at the last read. It starts when the interface is made.
    seen: u64,
    before: u64,
}

impl Overflows {
    fn of(interface: &str) -> Overflows {
        let mut overflows = Overflows { interface: interface.to_owned(), seen: 0, before: 0 };
        overflows.before = overflows.count();
        overflows
    }

    /// Number of overflows; the last one read if the kernel does not tell. proc_pid_net(5)
    fn count(&mut self) -> u64 {
        const TRANSMIT_DROPS_AT: usize = 8 + 3;
        let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let of_this = |line: &str| {
            let (name, fields) = line.split_once(':')?;
            let is_this = name.trim_start() == self.interface;
            let mut fields = fields.split_whitespace().filter(|_| is_this);
            fields.nth(TRANSMIT_DROPS_AT)?.parse::<u64>().ok()
        };
        let count = table.lines().find_map(of_this).unwrap_or(self.seen);
        self.seen = self.seen.max(count);
        self.seen - self.before
    }
}

fn attach(name: &str, queues: usize, offloads: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let several = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    sys::attach_tun(fd.as_fd(), name, kind | several)?;
    sys::set_vnet_header_len(fd.as_fd(), HEADER_LEN)?;
    let offload = if offloads {
        libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN
    } else {
        0
    };
    sys::set_tun_offload(fd.as_fd(), offload)?;
    Ok(fd)
}

/// Makes the kernel steer frames by the rule of [`steering`].
fn steer(tun: BorrowedFd<'_>) -> io::Result<()> {
    let loaded = bpf::load(bpf::PROGRAM_SOCKET_FILTER, &steering::program(), 0)?;
    sys::set_tun_steering(tun, loaded.as_fd())
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, _now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        let others_max = self.lag.others_max();
        let is_drained = vnet::receive(&self.fd, burst, others_max, &mut self.losses)?;
        self.lag.was_received(is_drained);
        Ok(())
    }

    fn transmit(&mut self, _now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.capabilities.assert_fit(frame);
        vnet::transmit(&self.fd, frame)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn takes(&self, local_port: u16, remote_port: u16) -> Option<bool> {
        self.share.takes(local_port, remote_port)
    }

    fn losses(&mut self) -> Losses {
        Losses { overflowed: self.overflows.as_mut().map_or(0, Overflows::count), ..self.losses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_tcp_needs_a_kernel_that_knows_it() {
        for release in ["6.6.0", "6.18.44-fc-v669\n", "6.10-rc1", "7.0", "10.1.2"] {
            assert!(takes_big_tcp(release), "{release}");
        }
        for release in ["6.5.0-45-generic", "6.3.0", "5.15.0", "4.19", "", "next-20261101", "6"] {
            assert!(!takes_big_tcp(release), "{release}");
        }
    }

    /// Seen in a review: the counter fell to zero when the kernel's table could not be read, which
    /// a reader of differences takes for a restart. Cure: the last count stays.
    #[test]
    fn overflow_counts_never_decrease() {
        let mut overflows = Overflows::of("no interface has this name");
        (overflows.before, overflows.seen) = (3, 10);
        assert_eq!(overflows.count(), 7);
    }
}
