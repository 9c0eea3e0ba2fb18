//! Input buffers shared by all connections of a ring. The kernel takes one when bytes arrive, and
//! gets it back when they have been read (io_uring_register_buf_ring(3)).
//!
//! A thousand connections read into the few buffers that one iteration needs, which stay in the
//! cache. The kernel cycles through all buffers that it has, so it gets no more than were ever
//! needed.
//!
//! ```text
//! entries ┌ address, length, id │ … ┐  read by the kernel up to the tail
//!         └ the tail lies in the first entry's reserved field ┘
//! memory  ┌ buffer 0 │ buffer 1 │ … ┐  written by the kernel first, read by us after
//! ```

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// Alignment of the entries that the kernel demands.
const PAGE_BYTES: usize = 4096;

/// Number of the ring's only group of buffers.
pub(super) const GROUP: u16 = 0;

pub(super) struct Buffers {
    /// INVARIANT: `count` entries in memory of `layout`, of which this is the only owner on our
    /// side.
    entries: NonNull<BufRingEntry>,
    layout: Layout,
    memory: Box<[u8]>,
    each_bytes: usize,
    count: u16,
    /// Number of buffers in use.
    given: u16,
    tail: u16,
}

impl Buffers {
    /// Creates `count` buffers, a power of two, and gives the first ones to the ring.
    pub(super) fn new(
        ring: &Submitter<'_>,
        first: u16,
        count: u16,
        each_bytes: usize,
    ) -> io::Result<Buffers> {
        assert!(count.is_power_of_two(), "{count} buffers");
        let layout = Layout::array::<BufRingEntry>(count.into())
            .and_then(|layout| layout.align_to(PAGE_BYTES))
            .expect("it is small");
        // SAFETY: the layout has a size above 0. Zeros are an entry: three numbers.
        let entries = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>())
            .unwrap_or_else(|| handle_alloc_error(layout));
        let mut buffers = Buffers {
            entries,
            layout,
            // Not written here, so it has no pages before the kernel uses them (calloc).
            memory: vec![0; usize::from(count) * each_bytes].into(),
            each_bytes,
            count,
            given: 0,
            tail: 0,
        };
        // SAFETY: `count` entries lie there, and stay until `unregister` or, if that was not
        // called, for ever: `Ring::drop` forgets what the kernel may still use.
        unsafe {
            ring.register_buf_ring_with_flags(entries.as_ptr().addr() as u64, count, GROUP, 0)?;
        }
        buffers.give_until(first);
        Ok(buffers)
    }

    /// Doubles the number of buffers in use, up to `count`.
    pub(super) fn grow(&mut self) {
        self.give_until(self.count.min(2 * self.given));
    }

    fn give_until(&mut self, given: u16) {
        (self.given..given).for_each(|id| self.give(id));
        self.given = given;
    }

    /// Gives a buffer to the kernel, which must not have it yet.
    pub(super) fn give(&mut self, id: u16) {
        assert!(id < self.count, "buffer {id} of {}", self.count);
        let place = usize::from(self.tail & (self.count - 1));
        let at = self.memory[usize::from(id) * self.each_bytes..].as_mut_ptr();
        // SAFETY: `place < count`; the kernel reads entries before the tail only, and there are
        // never more buffers before it than there are, so it has read what was here before.
        let entry = unsafe { &mut *self.entries.as_ptr().add(place) };
        entry.set_addr(at.addr() as u64);
        entry.set_len(self.each_bytes as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is a field of the first entry, aligned to 2, written on this side only.
        // Release: the kernel sees the entry before it sees the tail.
        unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr());
            AtomicU16::from_ptr(tail.cast_mut()).store(self.tail, Ordering::Release);
        }
    }

    /// Bytes that the kernel wrote into a buffer that it returned.
    pub(super) fn bytes(&self, id: u16, length: usize) -> &[u8] {
        let begins = usize::from(id) * self.each_bytes;
        assert!(length <= self.each_bytes, "{length} of {}", self.each_bytes);
        &self.memory[begins..begins + length]
    }

    /// Takes the buffers back from a ring without operations in progress.
    pub(super) fn unregister(&self, ring: &Submitter<'_>) -> io::Result<()> {
        ring.unregister_buf_ring(GROUP)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and never elsewhere freed.
        unsafe { dealloc(self.entries.as_ptr().cast(), self.layout) };
    }
}
