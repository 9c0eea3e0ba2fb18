//! Packet sockets: frames of an interface that the kernel has, such as a network card's or a
//! veth's. packet(7)
//!
//! ```text
//!                         ┌─ the kernel's own TCP/IP (which should have no address here)
//!   interface "eth0" ──┬──┘
//!                      └───── Packet, member 0 ── netstack
//!                      └───── Packet, member 1 ── its other shard      by ports: steering.rs
//! ```
//!
//! The socket sees every frame that the kernel sees, except those with a VLAN tag, which belong to
//! another link. The netstack has its own Ethernet address, so the kernel drops its frames. The
//! kernel must not have the netstack's IP address, or it answers as well.
//!
//! The virtio-net header is that of [TAP](super::tap): a frame carries up to 64 KiB of a stream in
//! both directions, if the interface has offloads. With offloads turned off (`ethtool -K`), frames
//! are as on a wire, and the kernel cuts long ones that it is given.
//!
//! Frames arrive through a ring in shared memory, without a system call for each: a peer without
//! offloads acknowledges every second segment.

mod filter;
mod ring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::others::Limit;
use super::steering::{self, Share};
use super::{Capabilities, Device, Losses, OutgoingFrame, ReceiveBurst, TransmitError, sys, vnet};
use crate::time::Instant;
use crate::wire::ethernet;
use ring::{PacketRing, RingSlot};

/// The most members of a group: `PACKET_FANOUT_MAX` in `net/packet/internal.h` was this for long.
pub const MEMBERS_MAX: usize = 256;

/// One packet socket of an interface.
pub struct Packet {
    fd: OwnedFd,
    ring: PacketRing,
    others: Option<Limit>,
    interface: String,
    capabilities: Capabilities,
    share: Share,
    losses: Losses,
}

impl Packet {
    /// Opens `members` sockets of the interface `name`, one device for each. With several, the
    /// kernel steers frames by their ports: `steering.rs`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name or a number of members that cannot be, and for an interface that
    /// carries no Ethernet frames; `ENODEV` if there is no such interface; `EPERM` without
    /// `CAP_NET_RAW`.
    pub fn open(name: &str, members: usize) -> io::Result<Vec<Packet>> {
        if !(1..=MEMBERS_MAX).contains(&members) {
            let why = format!("{members} members: from 1 to {MEMBERS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let index = sys::index_of(name)?;
        sys::expect_ethernet(name)?;
        let mtu = sys::mtu_of(name)?;
        let mut group = sys::NEW_GROUP;
        let open = |own| {
            let fd = sys::packet_socket()?;
            let others = filter::attach(fd.as_fd())?;
            let ring = PacketRing::open(fd.as_fd(), ethernet::HEADER_LEN + mtu)?;
            sys::bind_packet(fd.as_fd(), index)?;
            if members > 1 {
                group = sys::join_group(fd.as_fd(), group)?;
            }
            Ok(Packet {
                fd,
                ring,
                others,
                interface: name.to_owned(),
                capabilities: Capabilities::offloading(mtu),
                share: Share::of(own, members, true),
                losses: Losses::default(),
            })
        };
        let opened: Vec<Packet> = (0..members).map(open).collect::<io::Result<_>>()?;
        if members > 1 {
            sys::set_group_program(opened[0].fd.as_fd(), &mut steering::group_program())?;
        }
        Ok(opened)
    }
}

impl Device for Packet {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, _now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        let fd = &self.fd;
        let losses = &mut self.losses;
        // The kernel's program has limited these frames already.
        let mut others_left = usize::MAX;
        let mut is_drained = false;
        let first = burst.len();
        while burst.spare_buffer().is_some() && !is_drained {
            let taken = self.ring.take(|slot| match slot {
                RingSlot::Frame { header, bytes } => {
                    match burst.spare_buffer().and_then(|it| it.get_mut(..bytes.len())) {
                        Some(buffer) => {
                            buffer.copy_from_slice(bytes);
                            vnet::take(header, bytes.len(), burst, losses);
                        }
                        None => losses.overflowed += 1,
                    }
                    Ok(())
                }
                RingSlot::Queued => {
                    vnet::receive_one(fd, burst, &mut others_left, losses).map(drop)
                }
                RingSlot::Lost => {
                    losses.overflowed += 1;
                    Ok(())
                }
            });
            match taken {
                Some(taken) => taken?,
                // Takes an error that waits at the socket, or a frame that was queued behind one:
                // it would keep the socket readable.
                None if burst.len() == first => {
                    vnet::receive_one(fd, burst, &mut others_left, losses)?;
                    is_drained = true;
                }
                None => is_drained = true,
            }
        }
        if let Some(others) = &self.others {
            others.was_received(0, is_drained);
        }
        Ok(())
    }

    fn transmit(&mut self, _now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.capabilities.assert_fit(frame);
        match vnet::transmit(&self.fd, frame) {
            Err(TransmitError::Io(error)) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                let mtu = sys::mtu_of(&self.interface).map_err(TransmitError::Io)?;
                Err(TransmitError::TooLong { mtu })
            }
            transmitted => transmitted,
        }
    }

    fn takes(&self, local_port: u16, remote_port: u16) -> Option<bool> {
        self.share.takes(local_port, remote_port)
    }

    fn losses(&mut self) -> Losses {
        // The kernel's counter restarts at zero with each query.
        self.losses.overflowed += u64::from(sys::packet_drops(self.fd.as_fd()).unwrap_or(0));
        Losses {
            refused: self.others.as_ref().map_or(0, |others| others.refused(0)),
            ..self.losses
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}
