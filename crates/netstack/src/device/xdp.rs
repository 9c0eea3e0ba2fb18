//! AF_XDP: a program in the kernel takes the frames of one queue of an interface away, before the
//! kernel's TCP/IP sees them, and lays them into memory that is shared with this process.
//! Documentation/networking/af_xdp.rst
//!
//! ```text
//!   umem:   | chunk | chunk | chunk | …        CHUNKS of 4 KiB; the first half is for receiving
//!
//!   fill         addresses of empty chunks   ────▶ kernel       chunks go round by four rings of
//!   receive      frames                      ◀──── kernel       numbers in shared memory, each with
//!   transmit     frames                      ────▶ kernel       one writer of its head and one of
//!   completion   addresses that were sent    ◀──── kernel       its tail
//! ```
//!
//! No library and no compiler is involved: the program is some thirty instructions, and the rest
//! are system calls. Frames are copied between umem and the kernel's own buffers (copy mode), which
//! every driver supports, and between umem and the caller's memory, as [`Device`] requires. The
//! gain is one system call less for each frame.
//!
//! The program runs in the driver if that supports it. On a veth with one queue it does not: the
//! driver would first have to convert the kernel's own buffers to frames. With several queues it
//! must: behind a veth's driver each frame is one of the first queue.
//!
//! A frame longer than a chunk takes several, consecutive in each ring; all but the last are marked
//! as continued. Linux 6.6 and later
//!
//! Frames are as on a wire: no longer than the MTU, and with a complete checksum. A veth whose
//! other end leaves checksums to the device delivers wrong ones: turn that off, at the other end,
//! with `ethtool -K NAME tx off`.

mod program;
mod ring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::steering::Share;
use super::{
    Capabilities, Device, Losses, OutgoingFrame, ReceiveBurst, TransmitError, Verified, sys,
};
use crate::time::Instant;
use crate::wire::ethernet;
use program::{AttachMode, Program};
use ring::{Descriptor, Rings, Umem};

/// The length of a chunk: a page, which is what chunks are at most.
const CHUNK_LEN: usize = 4096;

/// Chunks of a queue: for each direction, half.
const CHUNKS: usize = 4096;

/// The kernel takes 32 frames with each call unless an option allows more, or none while its
/// buffers are full: then the next flush continues. `TX_BATCH_SIZE` in `net/xdp/xsk.c`
const KICKS_MAX: usize = CHUNKS / 32;

/// Pause before the next call for frames that the kernel did not take.
const KICK_PAUSE: Duration = Duration::from_millis(1);

/// Bytes that the kernel keeps free at the beginning of a chunk for headers that programs add:
/// XDP_PACKET_HEADROOM in `linux/bpf.h`.
const KERNEL_HEADROOM: usize = 256;

/// Longest frame that fits into one chunk. A longer frame fills several chunks to this length.
const PIECE_LEN_MAX: usize = CHUNK_LEN - KERNEL_HEADROOM;

/// The most queues of an interface that can be opened.
pub const QUEUES_MAX: usize = 64;

/// One queue of an interface.
pub struct Xdp {
    fd: OwnedFd,
    queue: u32,
    umem: Umem,
    rings: Rings,
    /// Chunks that can take a frame to transmit.
    free: Vec<u64>,
    /// True if the ring has frames for which the kernel was not called.
    needs_kick: bool,
    /// Time of the call for them, unless other frames leave before.
    kick_at: Option<Instant>,
    capabilities: Capabilities,
    interface: String,
    /// MTU at the last check. It may have been lowered, and nothing reports that.
    mtu: usize,
    share: Share,
    /// Attached program. It redirects the interface's frames until the last queue is closed.
    program: Arc<Program>,
}

impl Xdp {
    /// Takes the frames of all `queues` queues of the interface `name`, one device for each. The
    /// kernel sees none of them any more, until the last device is dropped.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an invalid name or number of queues, if the interface carries no
    /// Ethernet frames or receives by more queues, and if it has longer frames than the kernel and
    /// the driver can hand over;
    /// `ENODEV` if there is no such interface; `EINVAL` if it has fewer queues; `EBUSY` if another
    /// program has it; `EPERM` without `CAP_NET_RAW` and `CAP_BPF`.
    pub fn open(name: &str, queues: usize) -> io::Result<Vec<Xdp>> {
        let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !(1..=QUEUES_MAX).contains(&queues) {
            return invalid(format!(
                "{queues} queues were asked for; the device can have 1 to {QUEUES_MAX}"
            ));
        }
        let index = sys::index_of(name)?;
        sys::expect_ethernet(name)?;
        let capabilities = Capabilities::plain(sys::mtu_of(name)?);
        let has_pieces = capabilities.receive_len_max > PIECE_LEN_MAX;
        // The program lets the kernel have the frames of queues that are not opened.
        if let Ok(all) = sys::receive_queues_of(name)
            && all > queues
        {
            return invalid(format!(
                "{name} has {all} receive queues, and the kernel would keep the frames of those \
                 beyond {queues}; start {all} workers, or give it fewer queues with ethtool -L \
                 {name}"
            ));
        }
        let mode = match sys::driver_of(name) {
            Ok(driver) if driver == "veth" && queues == 1 => AttachMode::Generic,
            _ => AttachMode::Driver,
        };
        // A kernel before 6.6, or a driver that has a chunk for each frame.
        let explained = |error: io::Error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::ERANGE | libc::EOPNOTSUPP) if has_pieces => io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "frames have up to {} bytes, and AF_XDP takes {PIECE_LEN_MAX} here; lower the \
                     MTU of {name}",
                    capabilities.receive_len_max
                ),
            ),
            _ => error,
        };
        let program = Program::attach(index, queues as u32, mode, has_pieces);
        let program = Arc::new(program.map_err(explained)?);
        let open = |queue| {
            let opened = ring::open(index, queue, CHUNK_LEN, CHUNKS, has_pieces);
            // Another queue may not exist.
            let (fd, umem, rings) = match queue {
                0 => opened.map_err(explained)?,
                _ => opened?,
            };
            program.direct(queue, fd.as_fd())?;
            let mut device = Xdp {
                fd,
                queue,
                umem,
                rings,
                free: (CHUNKS / 2..CHUNKS).map(address_of).collect(),
                needs_kick: false,
                kick_at: None,
                capabilities,
                interface: name.to_owned(),
                mtu: capabilities.mtu,
                // The card steers the frames.
                share: Share::of(queue as usize, queues, false),
                program: Arc::clone(&program),
            };
            for chunk in 0..CHUNKS / 2 {
                device.rings.fill.push(address_of(chunk));
            }
            Ok(device)
        };
        (0..queues as u32).map(open).collect()
    }

    /// Copies the next frame to the beginning of `buffer`, and returns its length. The kernel shows
    /// all chunks of a frame at once.
    fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut len = 0;
        loop {
            let piece = self.rings.receive.pop()?;
            let part = (buffer.len() - len).min(piece.len as usize);
            self.umem.read(piece.address, &mut buffer[len..len + part]);
            len += part;
            // The frame begins behind the headroom; its whole chunk is given back. The fill ring
            // has space for all chunks of this direction.
            let chunk = piece.address / CHUNK_LEN as u64 * CHUNK_LEN as u64;
            self.rings.fill.push(chunk);
            if piece.options & libc::XDP_PKT_CONTD == 0 {
                return Some(len);
            }
        }
    }

    /// Takes one of the chunks that the caller has counted.
    fn empty_chunk(&mut self) -> u64 {
        self.free.pop().expect("the count of free chunks is right")
    }

    /// Puts the first `len` bytes of a chunk into the ring: a frame, or a part of one.
    fn put(&mut self, address: u64, len: usize, options: u32) {
        let is_taken = self.rings.transmit.push(Descriptor { address, len: len as u32, options });
        assert!(is_taken, "a ring that has a mode for each chunk is full");
    }

    /// Takes back the chunks whose frames have left.
    fn reclaim(&mut self) {
        while let Some(address) = self.rings.completion.pop() {
            self.free.push(address);
        }
    }
}

/// Address of a chunk in umem.
fn address_of(chunk: usize) -> u64 {
    (chunk * CHUNK_LEN) as u64
}

impl Device for Xdp {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, _now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        let mut is_drained = false;
        while let Some(buffer) = burst.spare_buffer() {
            let Some(len) = self.take(buffer) else {
                is_drained = true;
                break;
            };
            burst.push(len, Verified::No, None);
        }
        self.program.others.was_received(self.queue, is_drained);
        Ok(())
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.capabilities.assert_fit(frame);
        if frame.len() > ethernet::HEADER_LEN + self.mtu {
            return Err(TransmitError::TooLong { mtu: self.mtu });
        }
        let chunks = frame.len().div_ceil(CHUNK_LEN).max(1);
        if self.free.len() < chunks {
            self.flush(now).map_err(TransmitError::Io)?;
        }
        if self.free.len() < chunks {
            return Err(TransmitError::Full);
        }
        let mut address = self.empty_chunk();
        let mut used = 0;
        for piece in [frame.headers].iter().chain(frame.payload) {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() {
                if used == CHUNK_LEN {
                    self.put(address, used, libc::XDP_PKT_CONTD);
                    address = self.empty_chunk();
                    used = 0;
                }
                let (part, after) = rest.split_at(rest.len().min(CHUNK_LEN - used));
                self.umem.write(address + used as u64, part);
                used += part.len();
                rest = after;
            }
        }
        self.put(address, used, 0);
        self.needs_kick = true;
        Ok(())
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.kick_at = None;
        for _ in 0..KICKS_MAX {
            if !self.needs_kick {
                break;
            }
            match sys::kick(self.fd.as_fd()) {
                Ok(()) => self.needs_kick = !self.rings.transmit.is_taken(),
                // The kernel does not take all frames with one call.
                Err(Errno::AGAIN) => {}
                // The device is full now.
                Err(Errno::BUSY | Errno::NOBUFS) => break,
                Err(error) => return Err(error.into()),
            }
            self.reclaim();
        }
        self.reclaim();
        self.kick_at = self.needs_kick.then(|| now + KICK_PAUSE);
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.kick_at
    }

    fn takes(&self, local_port: u16, remote_port: u16) -> Option<bool> {
        self.share.takes(local_port, remote_port)
    }

    fn losses(&mut self) -> Losses {
        // The kernel accepts a frame that has become too long, and the driver drops it. The last
        // MTU is kept for an interface that is gone.
        self.mtu = sys::mtu_of(&self.interface).unwrap_or(self.mtu);
        Losses {
            overflowed: sys::xdp_drops(self.fd.as_fd()).unwrap_or(0),
            refused: self.program.others.refused(self.queue),
            malformed: 0,
        }
    }
}

/// A frame of the usual MTU has one chunk.
const _: () = assert!(PIECE_LEN_MAX >= ethernet::HEADER_LEN + 1500);
