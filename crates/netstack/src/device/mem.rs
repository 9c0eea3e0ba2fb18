//! Pair of devices in memory: each receives the frames that the other transmits.
//!
//! ```text
//!             ┌─ pipe: frames_max at most ─▶┐
//!       Mem ──┤                             ├── Mem
//!             └◀─ pipe: frames_max at most ─┘
//! ```
//!
//! A frame arrives at once, at the same virtual time; [`Impair`](super::impair::Impair) adds a
//! link. Buffers are reused: a pipe allocates only while it fills for the first time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use super::{
    Capabilities, Device, Frame, Offload, OutgoingFrame, ReceiveBurst, TransmitError, Verified,
};
use crate::time::Instant;

/// One end of a pair.
pub struct Mem {
    capabilities: Capabilities,
    outgoing: Rc<RefCell<Pipe>>,
    incoming: Rc<RefCell<Pipe>>,
}

/// Two devices that are connected, each of which holds up to `frames_max` frames that it has
/// transmitted and the other not received. With offloads, checksums and long segments go across as
/// they are.
pub fn pair(capabilities: Capabilities, frames_max: usize) -> (Mem, Mem) {
    let pipe = || Rc::new(RefCell::new(Pipe::new(frames_max)));
    let there = pipe();
    let back = pipe();
    let end = |outgoing: &Rc<_>, incoming: &Rc<_>| Mem {
        capabilities,
        outgoing: Rc::clone(outgoing),
        incoming: Rc::clone(incoming),
    };
    (end(&there, &back), end(&back, &there))
}

impl Mem {
    /// Number of frames that were refused because the pipe was full.
    pub fn refused(&self) -> u64 {
        self.outgoing.borrow().refused
    }
}

impl Device for Mem {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, _now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        let mut pipe = self.incoming.borrow_mut();
        while let Some(buffer) = burst.spare_buffer() {
            let Some(frame) = pipe.frames.pop_front() else {
                break;
            };
            let len = frame.bytes.len();
            buffer[..len].copy_from_slice(&frame.bytes);
            burst.push(len, frame.verified, frame.segment_len);
            pipe.spare.push(frame.bytes);
        }
        Ok(())
    }

    fn transmit(&mut self, _now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        self.capabilities.assert_fit(frame);
        let mut pipe = self.outgoing.borrow_mut();
        if pipe.frames.len() == pipe.frames_max {
            pipe.refused += 1;
            return Err(TransmitError::Full);
        }
        let mut bytes = pipe.spare.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        frame.gather(&mut bytes);
        let (verified, segment_len) = match frame.offload {
            Offload::None => (Verified::No, None),
            Offload::Checksum(_) => (Verified::Transport, None),
            Offload::Segmentation(cut) => (Verified::Transport, Some(cut.segment_len)),
        };
        pipe.frames.push_back(Held { bytes, verified, segment_len });
        Ok(())
    }
}

/// One direction.
struct Pipe {
    frames: VecDeque<Held>,
    /// Buffers of frames that have been received.
    spare: Vec<Vec<u8>>,
    frames_max: usize,
    refused: u64,
}

impl Pipe {
    fn new(frames_max: usize) -> Pipe {
        Pipe {
            frames: VecDeque::with_capacity(frames_max),
            spare: Vec::with_capacity(frames_max),
            frames_max,
            refused: 0,
        }
    }
}

/// A frame that lies in a device's own memory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) verified: Verified,
    pub(super) segment_len: Option<u16>,
}

impl Held {
    /// A copy, in a buffer that is used again.
    pub(super) fn copy(frame: &Frame<'_>, mut buffer: Vec<u8>) -> Held {
        buffer.clear();
        buffer.extend_from_slice(frame.bytes);
        Held { bytes: buffer, verified: frame.verified, segment_len: frame.segment_len }
    }
}
