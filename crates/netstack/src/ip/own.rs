//! Queue of the frames that the interface itself sends. Its buffers are reused.

use std::collections::VecDeque;

/// Limit on frames that wait for a transmit. More are dropped; the asker repeats its question.
pub const OWN_FRAMES_MAX: usize = 64;

pub(super) struct OwnFrames {
    queue: VecDeque<OwnFrame>,
    spare: Vec<Box<[u8]>>,
    frame_len_max: usize,
    /// True if the device had no space for the first frame.
    is_held_up: bool,
}

/// A buffer with a frame at its beginning.
pub(super) struct OwnFrame {
    pub(super) buffer: Box<[u8]>,
    pub(super) len: usize,
}

impl OwnFrames {
    pub(super) fn new(frame_len_max: usize) -> OwnFrames {
        OwnFrames {
            queue: VecDeque::with_capacity(OWN_FRAMES_MAX),
            spare: Vec::new(),
            frame_len_max,
            is_held_up: false,
        }
    }

    /// A buffer for a frame that will be pushed; `None` if the queue is full.
    pub(super) fn take_buffer(&mut self) -> Option<Box<[u8]>> {
        if self.queue.len() == OWN_FRAMES_MAX {
            return None;
        }
        let spare = self.spare.pop();
        Some(spare.unwrap_or_else(|| vec![0; self.frame_len_max].into()))
    }

    pub(super) fn push(&mut self, frame: OwnFrame) {
        self.queue.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<OwnFrame> {
        self.is_held_up = false;
        self.queue.pop_front()
    }

    /// Puts back a frame that was taken and has not left.
    pub(super) fn push_front(&mut self, frame: OwnFrame) {
        self.is_held_up = true;
        self.queue.push_front(frame);
    }

    pub(super) fn is_held_up(&self) -> bool {
        self.is_held_up
    }

    /// Number of frames that still fit.
    pub(super) fn free(&self) -> usize {
        OWN_FRAMES_MAX - self.queue.len()
    }

    pub(super) fn reuse(&mut self, buffer: Box<[u8]>) {
        self.spare.push(buffer);
    }
}
