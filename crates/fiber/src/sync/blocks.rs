//! Memory of the messages in a [channel](super::channel): a circle of blocks. Senders write in one
//! place, receivers read in another, each under a lock of its own; the memory grows by a block when
//! the writer would come round to the block that is read. It stays for the next messages, up to
//! [`BLOCKS_KEPT`]; of more, the writer frees one whenever it moves on to another.
//!
//! ```text
//!        ┌──▶ [ . . m m ] ──▶ [ m m m m ] ──▶ [ m . . . ] ──▶ [ . . . . ] ──┐
//!        │        ▲ reader                        ▲ writer       free       │
//!        └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The writer publishes how many it has written, and the reader reads no further; the reader
//! publishes the block that it is in, and the writer enters no other that has messages.

use std::mem::MaybeUninit;
use std::ptr;

use crate::base::atomic::UnsafeCell;

/// Messages of one block, if the channel may hold so many. In the models one, so that blocks
/// change.
const BLOCK_LEN: usize = if cfg!(loom) { 1 } else { 32 };

/// Blocks of a circle that are kept though they are free: memory of 2,048 messages.
const BLOCKS_KEPT: usize = if cfg!(loom) { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Block<T> {
    /// Changed by the writer, while it is in this block.
    next: UnsafeCell<*mut Block<T>>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

/// Position of the writer, or of the reader.
#[derive(Debug)]
pub(super) struct Cursor<T> {
    block: *mut Block<T>,
    /// Slot of the next message; that behind the last if it is in the next block.
    at: usize,
    /// Blocks of the circle; only the writer's is right, which alone adds and frees them.
    block_count: usize,
}

// SAFETY: it gives access to messages, and is used under a lock.
unsafe impl<T: Send> Send for Cursor<T> {}

impl<T> Block<T> {
    fn allocate(len: usize) -> *mut Block<T> {
        let slot = |_| UnsafeCell::new(MaybeUninit::uninit());
        let block = Box::new(Block {
            next: UnsafeCell::new(ptr::null_mut()),
            slots: (0..len).map(slot).collect(),
        });
        Box::into_raw(block)
    }
}

impl<T> Cursor<T> {
    /// Places of the writer and the reader of an empty circle.
    pub(super) fn pair(capacity: Option<usize>) -> (Cursor<T>, Cursor<T>) {
        let len = capacity.map_or(BLOCK_LEN, |capacity| capacity.min(BLOCK_LEN));
        let block = Block::allocate(len);
        // SAFETY: just made.
        unsafe { &*block }.next.with_mut(|next| unsafe { *next = block });
        let first = || Cursor { block, at: 0, block_count: 1 };
        (first(), first())
    }

    pub(super) fn block(&self) -> *mut Block<T> {
        self.block
    }

    fn here(&self) -> &Block<T> {
        // SAFETY: blocks stay until `free`.
        unsafe { &*self.block }
    }

    fn next(&self) -> *mut Block<T> {
        // SAFETY: for the writer, which alone changes it; for the reader, the writer has left this
        // block.
        self.here().next.with(|next| unsafe { *next })
    }

    /// Writes the next message. `reading` is the block that the reader was in.
    ///
    /// # Safety
    /// This is the writer, and nothing else uses it. The reader has left the blocks before
    /// `reading`, and that happened before this call.
    #[inline]
    pub(super) unsafe fn write(&mut self, message: T, reading: impl FnOnce() -> *mut Block<T>) {
        if self.at == self.here().slots.len() {
            self.enter_next(reading());
        }
        // SAFETY: the slot is free: the reader is in another block, or before it in this one.
        let write = |slot: *mut MaybeUninit<T>| unsafe { (*slot).write(message) };
        self.here().slots[self.at].with_mut(|slot| {
            write(slot);
        });
        self.at += 1;
    }

    #[cold]
    fn enter_next(&mut self, reading: *mut Block<T>) {
        let mut next = self.next();
        if next == reading {
            let new = Block::allocate(self.here().slots.len());
            // SAFETY: just made, and `next` of this block is the writer's while it is here.
            unsafe {
                (*new).next.with_mut(|after| *after = next);
                self.here().next.with_mut(|after| *after = new);
            }
            next = new;
            self.block_count += 1;
        } else if self.block_count > BLOCKS_KEPT {
            next = self.free_next(next, reading);
        }
        self.block = next;
        self.at = 0;
    }

    /// Frees the block `next`, behind the writer's and in front of the reader's, if the one behind
    /// it is free as well; returns the one to enter.
    fn free_next(&mut self, next: *mut Block<T>, reading: *mut Block<T>) -> *mut Block<T> {
        // SAFETY: the reader has left all blocks from the writer's to `reading`, and what it did
        // there happened before this call: they are the writer's until it writes into them.
        let after = unsafe { &*next }.next.with(|after| unsafe { *after });
        if after == reading {
            return next;
        }
        // SAFETY: `next` of this block is the writer's while it is here.
        self.here().next.with_mut(|link| unsafe { *link = after });
        // SAFETY: as above, and nothing leads to it any more. Its messages were read.
        drop(unsafe { Box::from_raw(next) });
        self.block_count -= 1;
        after
    }

    /// Reads the next message.
    ///
    /// # Safety
    /// This is the reader, and nothing else uses it. There is a message, which was written before
    /// this call.
    #[inline]
    pub(super) unsafe fn read(&mut self) -> T {
        if self.at == self.here().slots.len() {
            self.block = self.next();
            self.at = 0;
        }
        // SAFETY: the caller's promise; no message is read twice.
        let read = |slot: *mut MaybeUninit<T>| unsafe { (*slot).assume_init_read() };
        let message = self.here().slots[self.at].with_mut(read);
        self.at += 1;
        message
    }

    /// Frees all blocks. Messages in them are not dropped.
    ///
    /// # Safety
    /// Nothing uses the circle any more.
    pub(super) unsafe fn free(&mut self) {
        let mut block = self.block;
        loop {
            // SAFETY: each block of the circle is freed once.
            let freed = unsafe { Box::from_raw(block) };
            // SAFETY: nothing else uses it.
            block = freed.next.with(|next| unsafe { *next });
            if block == self.block {
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blocks<T>(cursor: &Cursor<T>) -> usize {
        let mut count = 1;
        let mut block = cursor.next();
        while block != cursor.block {
            count += 1;
            // SAFETY: the circle is there, and nothing else uses it.
            block = unsafe { &*block }.next.with(|next| unsafe { *next });
        }
        count
    }

    /// Seen (in review): a channel without a limit kept the memory of its longest backlog for as
    /// long as it was there, which std's gives back. Cause: no block was ever freed. Cure: the
    /// writer frees one each time it enters another, as long as there are many that are free.
    #[test]
    fn circle_shrinks_after_a_backlog() {
        const BACKLOG: usize = 1000 * BLOCK_LEN;
        let (mut writer, mut reader) = Cursor::pair(None);
        let write = |writer: &mut Cursor<usize>, reader: &Cursor<usize>, n| {
            let reading = reader.block();
            // SAFETY: one thread is both.
            unsafe { writer.write(n, || reading) };
        };
        (0..BACKLOG).for_each(|n| write(&mut writer, &reader, n));
        // SAFETY: as above, and each was written.
        (0..BACKLOG).for_each(|n| assert_eq!(unsafe { reader.read() }, n));
        for n in 0..BACKLOG {
            write(&mut writer, &reader, n);
            // SAFETY: as above.
            assert_eq!(unsafe { reader.read() }, n);
        }
        let kept = blocks(&writer);
        assert!(kept < 100, "{kept} blocks of 1,000");
        // SAFETY: nothing uses it any more, and all was read.
        unsafe { writer.free() };
    }

    #[test]
    fn circle_grows_and_is_reused() {
        let (mut writer, mut reader) = Cursor::pair(Some(100));
        for round in 0..50 {
            for n in 0..100 {
                let reading = reader.block();
                // SAFETY: one thread is both, and 100 are between the two at most.
                unsafe { writer.write(round * 100 + n, || reading) };
            }
            for n in 0..100 {
                // SAFETY: as above.
                assert_eq!(unsafe { reader.read() }, round * 100 + n);
            }
        }
        let most = 100 / BLOCK_LEN + 2;
        assert!(blocks(&writer) <= most, "{} blocks", blocks(&writer));
        // SAFETY: nothing uses it any more, and all was read.
        unsafe { writer.free() };
    }
}
