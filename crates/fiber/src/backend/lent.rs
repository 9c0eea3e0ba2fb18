//! Receive buffers that the kernel picks from when data has come, so that a connection that waits holds none.
//!
//! ```text
//!  shared with the kernel: [ addr len id | addr len id | ... ]   tail: ours   head: the kernel's
//!                             │             │
//!  our memory:             [ 4 KiB       | 4 KiB       | ... ]
//! ```
//!
//! The ring belongs to the processor's thread. The memory belongs to the shared half of the processor: a fiber that
//! moves between two steps takes what it received along, reads it on another processor, and sends the buffer home.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue};

use super::{Backend, Completion};
use crate::cluster::{Message, ProcessorShared};
use crate::processor;

/// How many receive buffers a processor lends: as many receives may complete in one turn before some have to be
/// repeated. With 256 of them and 1,000 busy connections two receives in three were.
const LENT_BUFFERS: u16 = 1024;
/// A lent buffer holds sixteen pipelined requests, or the head that a browser sends with its cookies; what is longer
/// takes several receives. The buffers are used in turn, so each costs a page.
pub(crate) const LENT_BUFFER_LEN: usize = 4 * 1024;
/// The buffer group's number; there is one.
pub(crate) const LENT_GROUP: u16 = 0;

const BUFFER_RING_LEN: usize = LENT_BUFFERS as usize * size_of::<BufRingEntry>();
const BUFFER_MEMORY_LEN: usize = LENT_BUFFERS as usize * LENT_BUFFER_LEN;

/// The processor's half: the ring of free buffers.
pub(super) struct LentBuffers {
    ring: NonNull<BufRingEntry>,
    memory: Arc<LentMemory>,
    tail: Cell<u16>,
}

impl LentBuffers {
    pub(super) fn new(ring: &IoUring, shared: &ProcessorShared) -> io::Result<LentBuffers> {
        let entries = map(BUFFER_RING_LEN)?.cast();
        let memory = Arc::new(LentMemory::new()?);
        let buffers = LentBuffers {
            ring: entries,
            memory: Arc::clone(&memory),
            tail: Cell::new(0),
        };
        (0..LENT_BUFFERS).for_each(|id| buffers.give_back(id));
        // SAFETY: the memory is ours, aligned to a page and of the length that the count says; it is
        // unmapped only when no operation is in flight.
        unsafe {
            let address = entries.as_ptr() as u64;
            ring.submitter()
                .register_buf_ring_with_flags(address, LENT_BUFFERS, LENT_GROUP, 0)?;
        }
        let set = shared.lent_memory.set(memory);
        assert!(set.is_ok(), "a processor has one back end");
        Ok(buffers)
    }

    /// Puts buffer `id` at the tail, where the kernel takes it up again.
    pub(super) fn give_back(&self, id: u16) {
        let tail = self.tail.get();
        let slot = usize::from(tail % LENT_BUFFERS);
        // SAFETY: `slot` is below the number of entries. The kernel reads an entry only after the tail
        // has passed it, so until the store below this one is ours.
        unsafe {
            let entry = &mut *self.ring.as_ptr().add(slot);
            entry.set_addr(self.memory.address(id) as u64);
            entry.set_len(LENT_BUFFER_LEN as u32);
            entry.set_bid(id);
            let shared_tail = BufRingEntry::tail(self.ring.as_ptr()).cast::<AtomicU16>();
            self.tail.set(tail.wrapping_add(1));
            (*shared_tail).store(self.tail.get(), Ordering::Release);
        }
    }

    /// The kernel may still write into the memory: it stays mapped for ever.
    pub(super) fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for LentBuffers {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the owner saw to it that the kernel is done.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), BUFFER_RING_LEN) };
    }
}

/// The memory of a processor's buffers; it lives as long as anybody may read in it.
#[derive(Debug)]
pub(crate) struct LentMemory(NonNull<u8>);

// SAFETY: plain memory. The kernel writes a buffer, then one owner at a time reads it, then it goes back.
unsafe impl Send for LentMemory {}
// SAFETY: as above.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    fn new() -> io::Result<LentMemory> {
        map(BUFFER_MEMORY_LEN).map(LentMemory)
    }

    fn address(&self, id: u16) -> *mut u8 {
        assert!(id < LENT_BUFFERS, "buffer {id} of {LENT_BUFFERS}");
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.0.as_ptr().add(usize::from(id) * LENT_BUFFER_LEN) }
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nobody holds a buffer of it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BUFFER_MEMORY_LEN) };
    }
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nobody's memory.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("mmap returned null"))
}

/// A buffer that the kernel filled; goes back to its processor's ring when dropped, from wherever.
pub(crate) struct LentBuffer {
    id: u16,
    len: u32,
    owner: NonNull<ProcessorShared>,
}

impl LentBuffer {
    /// The buffer that a receive's completion names, if it took one. The receive was one of `owner`'s, whose cluster
    /// must outlive the buffer: fibers keep theirs alive.
    pub(crate) fn of(
        completion: Completion,
        owner: NonNull<ProcessorShared>,
    ) -> Option<LentBuffer> {
        let id = cqueue::buffer_select(completion.flags)?;
        let len = u32::try_from(completion.result).unwrap_or(0);
        Some(LentBuffer { id, len, owner })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let memory = self.owner().lent_memory.get();
        let memory = memory.expect("a buffer of a processor that lends none");
        // SAFETY: the kernel filled `len` bytes of this buffer and leaves it alone until it is
        // given back, which is when `self` is dropped.
        unsafe { std::slice::from_raw_parts(memory.address(self.id), self.len as usize) }
    }

    fn owner(&self) -> &ProcessorShared {
        // SAFETY: the shared halves live as long as their cluster; see `of`.
        unsafe { self.owner.as_ref() }
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let id = self.id;
        if !processor::at(self.owner(), |processor| processor.take_buffer_back(id)) {
            self.owner().send(Message::Buffer(id));
        }
    }
}

impl processor::Processor {
    /// One of this processor's buffers has been read.
    pub(crate) fn take_buffer_back(&self, id: u16) {
        if let Backend::Uring(uring) = &self.backend {
            uring.buffers.give_back(id);
        }
    }
}
