//! Receive buffers that the kernel picks from when data has come, so that a connection that waits
//! holds none.
//!
//! ```text
//!  shared with the kernel: [ addr len id | addr len id | ... ]   tail: runtime   head: kernel
//!                             │             │
//!  the runtime's memory:   [ 16 KiB      | 16 KiB      | ... ]
//! ```
//!
//! The ring belongs to the processor's thread. The memory belongs to the shared half of the
//! processor: a fiber that moves between two steps takes what it received along, reads it on
//! another processor, and sends the buffer home.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue};

/// Receive buffers of a processor. Together they hold what may arrive in one turn; when they are
/// used up, receives wait for readiness and take a buffer of the thread's, so that a receive that
/// holds one for long starves no other.
const LENT_BUFFERS: u16 = 64;
/// A lent buffer holds many requests of many connections, one after the other: see [`Lease`]. Where
/// the kernel cannot do that (before Linux 6.12), it holds one receive.
const LENT_BUFFER_LEN: usize = 16 * 1024;
/// Largest number of bytes that one receive returns.
pub(crate) const RECEIVE_LEN_MAX: usize = LENT_BUFFER_LEN;
/// The buffer group's number; there is one.
pub(crate) const LENT_GROUP: u16 = 0;

const BUFFER_RING_LEN: usize = LENT_BUFFERS as usize * size_of::<BufRingEntry>();
const BUFFER_MEMORY_LEN: usize = LENT_BUFFERS as usize * LENT_BUFFER_LEN;

/// The kernel fills a buffer bit by bit, from receive to receive (io_uring_register_buf_ring(3)).
const IOU_PBUF_RING_INC: u16 = 2;

/// The processor's half: the ring of free buffers, and the state of the lent ones.
pub(super) struct LentBuffers {
    ring: NonNull<BufRingEntry>,
    memory: Arc<LentMemory>,
    tail: Cell<u16>,
    leases: [Cell<Lease>; LENT_BUFFERS as usize],
}

/// A buffer in use: from the moment when the kernel takes it up until it is free again.
///
/// ```text
///   |  read, given back  |  held by 2 steps  |  free for the kernel  |
///                                            ▲ filled
/// ```
///
/// It goes back to the ring when the kernel has had enough of it and no piece is held.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    filled: u32,
    pieces: u32,
    /// True if the kernel fills no more of it.
    is_over: bool,
}

impl LentBuffers {
    pub(super) fn new(
        ring: &IoUring,
        place: &OnceLock<Arc<LentMemory>>,
    ) -> io::Result<LentBuffers> {
        let entries = map(BUFFER_RING_LEN)?;
        // The kernel has pinned it: copy on write after a fork would give this process other pages.
        // SAFETY: advice about an own mapping, of this length.
        unsafe { libc::madvise(entries.as_ptr().cast(), BUFFER_RING_LEN, libc::MADV_DONTFORK) };
        let entries = entries.cast();
        let memory = match place.get() {
            // Memory of an earlier processor, which ended only after every piece was returned.
            Some(memory) => Arc::clone(memory),
            None => {
                let memory = Arc::new(LentMemory::new()?);
                let set = place.set(Arc::clone(&memory));
                assert!(set.is_ok(), "two processors have one place");
                memory
            }
        };
        let buffers = LentBuffers {
            ring: entries,
            memory: Arc::clone(&memory),
            tail: Cell::new(0),
            leases: std::array::from_fn(|_| Cell::default()),
        };
        (0..LENT_BUFFERS).for_each(|id| buffers.put_at_tail(id));
        // SAFETY: the memory is owned, aligned to a page and of the length that the count says; it
        // is unmapped only when no operation is in flight.
        let register = |flags| unsafe {
            let address = entries.as_ptr() as u64;
            ring.submitter().register_buf_ring_with_flags(address, LENT_BUFFERS, LENT_GROUP, flags)
        };
        register(IOU_PBUF_RING_INC).or_else(|_| register(0))?;
        Ok(buffers)
    }

    /// Notes the piece of a buffer that a completed receive has filled, and returns its start. To
    /// be called in the order of the completions.
    pub(super) fn filled(&self, id: u16, len: u32, flags: u32) -> u32 {
        let lease = &self.leases[usize::from(id)];
        let Lease { filled, pieces, .. } = lease.get();
        lease.set(Lease {
            filled: filled + len,
            pieces: pieces + 1,
            is_over: !cqueue::buffer_more(flags),
        });
        filled
    }

    /// Takes back a piece of buffer `id`, which has been read.
    pub(super) fn give_back(&self, id: u16) {
        let lease = &self.leases[usize::from(id)];
        let mut now = lease.get();
        now.pieces = now.pieces.checked_sub(1).expect("each piece goes back only once");
        if now.is_over && now.pieces == 0 {
            now = Lease::default();
            self.put_at_tail(id);
        }
        lease.set(now);
    }

    /// Puts buffer `id` at the tail, where the kernel takes it up again.
    fn put_at_tail(&self, id: u16) {
        let tail = self.tail.get();
        let slot = usize::from(tail % LENT_BUFFERS);
        // SAFETY: `slot` is below the number of entries. The kernel reads an entry only after the
        // tail has passed it, so until the store below this one belongs to this thread.
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

    /// Number of pieces that have not been given back.
    pub(super) fn pieces_held(&self) -> usize {
        let pieces = |lease: &Cell<Lease>| lease.get().pieces as usize;
        self.leases.iter().map(pieces).sum()
    }

    /// Gives the memory's pages back to the kernel until there is another processor. This one has
    /// ended, and nothing reads the memory.
    pub(super) fn give_pages_back(&self) {
        assert_eq!(self.pieces_held(), 0, "pieces of buffers are held");
        let address = self.memory.0.as_ptr().cast();
        // SAFETY: a private anonymous mapping of this length, whose content is not needed.
        // madvise(2)
        unsafe { libc::madvise(address, BUFFER_MEMORY_LEN, libc::MADV_DONTNEED) };
    }

    /// Leaves the memory mapped forever, because the kernel may still write to it.
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

/// The memory of a processor's buffers; it lives as long as anything may read in it.
#[derive(Debug)]
pub(crate) struct LentMemory(NonNull<u8>);

// SAFETY: plain memory. The kernel writes a buffer, then one owner at a time reads it, then it goes
// back.
unsafe impl Send for LentMemory {}
// SAFETY: as above.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    fn new() -> io::Result<LentMemory> {
        map(BUFFER_MEMORY_LEN).map(LentMemory)
    }

    /// Address of a piece of buffer `id`: `len` bytes from `start` on.
    pub(crate) fn piece(&self, id: u16, start: u32, len: u32) -> NonNull<[u8]> {
        let start = start as usize;
        let len = len as usize;
        assert!(start + len <= LENT_BUFFER_LEN, "a piece at {start}, {len} long");
        // SAFETY: inside the buffer, by the assertion.
        let address = unsafe { self.address(id).add(start) };
        NonNull::slice_from_raw_parts(NonNull::new(address).expect("above null"), len)
    }

    fn address(&self, id: u16) -> *mut u8 {
        assert!(id < LENT_BUFFERS, "buffer {id} of {LENT_BUFFERS}");
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.0.as_ptr().add(usize::from(id) * LENT_BUFFER_LEN) }
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no buffer of it is held any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BUFFER_MEMORY_LEN) };
    }
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in
    // use.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("mmap returned null"))
}
