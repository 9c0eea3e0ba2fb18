//! Received bytes in a buffer of the processor's, until they have been read.

use std::ptr::NonNull;

use io_uring::cqueue;

use crate::backend::Completion;
use crate::sched::cluster::{Message, ProcessorShared};
use crate::sched::processor;

/// A piece of a buffer that the kernel filled; goes back to its processor when dropped, from
/// wherever.
pub(crate) struct LentBuffer {
    id: u16,
    start: u32,
    len: u32,
    owner: NonNull<ProcessorShared>,
}

impl LentBuffer {
    /// The buffer that a receive's completion names, if it took one. The receive was one of
    /// `owner`'s, whose cluster must outlive the buffer. It does: buffers stay in frames of fibers,
    /// which keep their clusters, and users only borrow what is in them.
    pub(crate) fn of(
        completion: Completion,
        owner: NonNull<ProcessorShared>,
    ) -> Option<LentBuffer> {
        let id = cqueue::buffer_select(completion.flags)?;
        Some(LentBuffer {
            id,
            start: completion.piece_start,
            len: u32::try_from(completion.result).unwrap_or(0),
            owner,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let memory = self.owner().lent_memory.get();
        let memory = memory.expect("the processor lends no buffers");
        // SAFETY: the kernel filled this piece and leaves it alone until the buffer is free again,
        // which is not before `self` is dropped.
        unsafe { memory.piece(self.id, self.start, self.len).as_ref() }
    }

    fn owner(&self) -> &ProcessorShared {
        // SAFETY: the shared halves live as long as their cluster; see `of`.
        unsafe { self.owner.as_ref() }
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let id = self.id;
        if !processor::at(self.owner(), |processor| processor.backend.take_buffer_back(id)) {
            self.owner().send(Message::Call(give_back, [u64::from(id), 0]));
        }
    }
}

/// Gives a piece back, on the processor that owns it.
fn give_back([id, _]: [u64; 2]) {
    processor::here(|processor| processor.backend.take_buffer_back(id as u16));
}
