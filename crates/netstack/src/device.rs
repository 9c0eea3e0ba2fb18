//! Devices: sources and sinks of frames.
//!
//! A device is one queue of a network interface. The caller owns the memory: frames are received
//! into its [`ReceiveBurst`], one behind the other, and are transmitted from wherever its headers
//! and payload lie.
//!
//! ```text
//!   ReceiveBurst   | frame | frame | frame |   room for at least one of the longest   |
//!                  0                       used                                memory.len()
//!
//!   OutgoingFrame  headers | payload[0] | payload[1] | …      one frame, gathered by the device
//! ```
//!
//! A receive or a transmit never waits. [`Device::descriptor`] becomes readable when frames have
//! arrived; [`Device::wakes_at`] is the same for devices in virtual time. [`Capabilities`] lists
//! the device's abilities beyond carrying frames; callers request nothing else.

mod bpf;
pub mod impair;
mod mapping;
pub mod mem;
pub mod name;
mod others;
pub mod packet;
pub mod siblings;
mod steering;
mod sys;
pub mod tap;
mod vnet;
pub mod xdp;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use crate::time::Instant;
use crate::wire::ethernet::{self, EthernetAddress};

/// Capabilities of a device beyond carrying frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The longest IP packet that fits into a frame.
    pub mtu: usize,
    /// The device completes checksums: [`Offload::Checksum`].
    pub has_checksum_offload: bool,
    /// Longest IP packet that the device cuts into segments, or 0 if it cuts none:
    /// [`Offload::Segmentation`]. Such a device completes checksums as well.
    pub segmentation_len_max: usize,
    /// Longer IPv4 packets that the device cuts as well.
    pub big_tcp: Option<BigTcp>,
    /// Longest frame that the device may deliver, Ethernet header included: beyond the MTU if it
    /// merges segments.
    pub receive_len_max: usize,
}

impl Capabilities {
    /// Capabilities of a device that only carries frames of this MTU.
    pub const fn plain(mtu: usize) -> Capabilities {
        Capabilities {
            mtu,
            has_checksum_offload: false,
            segmentation_len_max: 0,
            big_tcp: None,
            receive_len_max: ethernet::HEADER_LEN + mtu,
        }
    }

    /// Frames of this MTU, checksums, and segments merged and cut up to 64 KiB, both ways.
    pub const fn offloading(mtu: usize) -> Capabilities {
        Capabilities {
            mtu,
            has_checksum_offload: true,
            segmentation_len_max: SEGMENTATION_LEN_MAX,
            big_tcp: None,
            receive_len_max: ethernet::HEADER_LEN + SEGMENTATION_LEN_MAX,
        }
    }

    /// # Panics
    ///
    /// If the device does not do what `frame` asks for: its user has not read the capabilities.
    fn assert_fit(&self, frame: &OutgoingFrame<'_>) {
        let (has_offload, packet_len_max) = match frame.offload {
            Offload::None => (true, self.mtu),
            Offload::Checksum(_) => (self.has_checksum_offload, self.mtu),
            Offload::Segmentation(cut) => {
                let big = self.big_tcp.filter(|_| !cut.is_v6);
                let len_max = big.map_or(self.segmentation_len_max, |big| big.len_max);
                (self.segmentation_len_max > 0, len_max)
            }
        };
        assert!(has_offload, "{:?} with {self:?}", frame.offload);
        let len_max = ethernet::HEADER_LEN + packet_len_max;
        assert!(
            frame.len() <= len_max && frame.payload.len() <= OutgoingFrame::PIECES_MAX,
            "a frame of {} bytes in {} pieces, above {len_max} in {}",
            frame.len(),
            frame.payload.len(),
            OutgoingFrame::PIECES_MAX
        );
    }
}

/// Packets of IPv4 above 64 KiB, as Linux calls them: their length field says 0, and they are as
/// long as their frame. One system call and one wake-up of the receiver carry several times as
/// much.
///
/// A host that forwards such packets must cut them into segments, while it forwards packets up to
/// 64 KiB whole. So they are used only for connections with the host that owns the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BigTcp {
    /// The longest, up to [`BigTcp::LEN_MAX`].
    pub len_max: usize,
    /// Ethernet address of that host.
    pub host: EthernetAddress,
}

impl BigTcp {
    /// Longest packet that this crate sends; Linux accepts [twice as
    /// much](crate::wire::ipv4::BIG_PACKET_LEN_MAX). Copying it delays other work by some 30 µs,
    /// and longer ones were not seen to carry more.
    pub const LEN_MAX: usize = 256 << 10;
}

/// Largest value of IPv4's length field.
const SEGMENTATION_LEN_MAX: usize = 0xffff;

/// One queue of a network interface.
pub trait Device {
    /// Capabilities of the device. They do not change; but see [`TransmitError::TooLong`].
    fn capabilities(&self) -> Capabilities;

    /// Appends arrived frames to `burst` until none are left or no more fit.
    ///
    /// # Errors
    ///
    /// Errors of the system call; an empty queue is none. Frames that were received before
    /// are in `burst`.
    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()>;

    /// Takes a frame. It leaves at the latest with [`Device::flush`].
    ///
    /// # Errors
    ///
    /// [`TransmitError::Full`] if the device has no room; it has not taken the frame.
    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError>;

    /// Ends a burst: all accepted frames leave.
    ///
    /// # Errors
    ///
    /// Errors of the system call.
    fn flush(&mut self, _now: Instant) -> io::Result<()> {
        Ok(())
    }

    /// Becomes readable when there are frames.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Time at which frames may arrive, for a device in virtual time with frames in flight; or at
    /// which [`Device::flush`] may continue.
    fn wakes_at(&self) -> Option<Instant> {
        None
    }

    /// True if segments from `remote_port` to `local_port` arrive at this queue. `None` if that is
    /// unknown, because the queue is one of several and something else distributes the frames.
    fn takes(&self, _local_port: u16, _remote_port: u16) -> Option<bool> {
        Some(true)
    }

    /// Frames lost so far. Costs a system call, so it is not for every round.
    fn losses(&mut self) -> Losses {
        Losses::default()
    }
}

/// Frames that arrived and could not be received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The device's ring or queue was full.
    pub overflowed: u64,
    /// Frames beyond the limit on frames that are not TCP.
    pub refused: u64,
    /// Frames with an invalid virtio-net header.
    pub malformed: u64,
}

/// Verdict on the checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verified {
    /// No checksum was checked: the receiver does it.
    No,
    /// The device has checked TCP's or UDP's checksum; or the frame has not been on a wire, and its
    /// checksum is only that of the pseudo header. IP's header checksum is not included.
    Transport,
}

/// A frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// From the Ethernet header on.
    pub bytes: &'a [u8],
    /// Verdict on its checksum.
    pub verified: Verified,
    /// Payload length of each merged segment but the last, if the device has merged some.
    pub segment_len: Option<u16>,
}

/// The memory of one receive, which is used again for the next.
pub struct ReceiveBurst {
    memory: Box<[u8]>,
    used: usize,
    slots: Vec<FrameSlot>,
    frames_max: usize,
    frame_len_max: usize,
}

struct FrameSlot {
    start: usize,
    len: usize,
    verified: Verified,
    segment_len: Option<u16>,
}

/// Average length that a short frame gets before the memory ends the burst.
const LEN_USUAL: usize = 2048;
/// Frames begin at cache lines.
const ALIGNMENT: usize = 64;

impl ReceiveBurst {
    /// Room for up to `frames_max` frames, each of up to `frame_len_max` bytes: the device's
    /// [`Capabilities::receive_len_max`]. If they are long, fewer fit; one always does.
    pub fn new(frames_max: usize, frame_len_max: usize) -> ReceiveBurst {
        let usual = frames_max * LEN_USUAL.min(frame_len_max.next_multiple_of(ALIGNMENT));
        ReceiveBurst {
            memory: vec![0; usual + frame_len_max].into(),
            used: 0,
            slots: Vec::with_capacity(frames_max),
            frames_max,
            frame_len_max,
        }
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.used = 0;
        self.slots.clear();
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if there is no frame.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The frame at `index`, in the order in which they came.
    ///
    /// # Panics
    ///
    /// If there is no such frame.
    pub fn frame(&self, index: usize) -> Frame<'_> {
        let slot = &self.slots[index];
        Frame {
            bytes: &self.memory[slot.start..slot.start + slot.len],
            verified: slot.verified,
            segment_len: slot.segment_len,
        }
    }

    /// The frames, in the order in which they came.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        (0..self.len()).map(|index| self.frame(index))
    }

    /// Buffer into which a device receives the next frame, as long as the longest; `None` if full.
    pub fn spare_buffer(&mut self) -> Option<&mut [u8]> {
        let has_space = self.slots.len() < self.frames_max;
        let end = self.used + self.frame_len_max;
        if has_space { self.memory.get_mut(self.used..end) } else { None }
    }

    /// Adds the frame of `len` bytes that the device has written to the start of that memory.
    ///
    /// # Panics
    ///
    /// If it is longer than that buffer, or there was none.
    pub fn push(&mut self, len: usize, verified: Verified, segment_len: Option<u16>) {
        assert!(
            len <= self.frame_len_max && self.slots.len() < self.frames_max,
            "a frame of {len} bytes in a buffer of {}, after {} of {}",
            self.frame_len_max,
            self.slots.len(),
            self.frames_max
        );
        self.slots.push(FrameSlot { start: self.used, len, verified, segment_len });
        self.used += len.next_multiple_of(ALIGNMENT);
    }
}

/// A frame to transmit.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingFrame<'a> {
    /// All headers, from Ethernet's to TCP's.
    pub headers: &'a [u8],
    /// Payload behind the headers: up to [`OutgoingFrame::PIECES_MAX`] pieces.
    pub payload: &'a [&'a [u8]],
    /// Work that is left to the device.
    pub offload: Offload,
}

impl OutgoingFrame<'_> {
    /// The most pieces of a payload.
    pub const PIECES_MAX: usize = 36;

    /// Headers and payload.
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.iter().map(|piece| piece.len()).sum::<usize>()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes headers and payload behind one another, and returns how much that was.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter.
    pub fn gather(&self, buffer: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in [self.headers].iter().chain(self.payload) {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        at
    }
}

/// Work that is left to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// No work: the frame is complete.
    None,
    /// The checksum: its field has the sum of the pseudo header.
    Checksum(PartialChecksum),
    /// Segmentation, and the checksum of each segment.
    Segmentation(Segmentation),
}

/// Range of a checksum, and the place of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset in the frame of the first summed byte: TCP's header.
    pub start: u16,
    /// Offset of the field from `start`.
    pub offset: u16,
}

/// Segmentation of a long TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Checksum of each segment.
    pub checksum: PartialChecksum,
    /// Over IPv6, else IPv4.
    pub is_v6: bool,
    /// Payload length of each segment but the last.
    pub segment_len: u16,
    /// True if the congestion window was reduced: only the first segment carries CWR.
    pub has_cwr: bool,
}

/// Reason why a device has not taken a frame.
#[derive(Debug)]
pub enum TransmitError {
    /// The device is full. The caller drops the frame, or retries.
    Full,
    /// The MTU was lowered: the device will never take a packet longer than this.
    TooLong {
        /// The present MTU.
        mtu: usize,
    },
    /// The system call failed.
    Io(io::Error),
}

impl fmt::Display for TransmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransmitError::Full => f.write_str("the device has no room"),
            TransmitError::TooLong { mtu } => write!(f, "the device's MTU is {mtu} by now"),
            TransmitError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TransmitError {}
