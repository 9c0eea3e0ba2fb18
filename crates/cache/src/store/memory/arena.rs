//! Memory of the items: one address range, handed out in pages, cut into chunks.
//!
//! ```text
//!  page 0 (never used)  page 1: class 5            page 2: class 9        ...  addresses without memory
//!  ┌───────────────────┬───────┬───────┬───────┬──┬───────────┬──────────┬──────────────────────────────
//!  │                   │ chunk │ chunk │ chunk │..│   chunk   │  chunk   │
//!  └───────────────────┴───────┴───────┴───────┴──┴───────────┴──────────┴──────────────────────────────
//!                      ▲ 1 MiB
//!  chunk   ┌────────┬─────┬───────────────────────────┐
//!          │ header │ key │ value                     │     40 bytes, at most 250, the rest
//!          └────────┴─────┴───────────────────────────┘
//!  a long item's first chunk (512 KiB), and its others
//!          ┌────────┬─────┬──────────────┬────────────┐     ┌────────┬──────────────┐
//!          │ header │ key │ other chunks │ value ...  │     │ header │ ... value    │
//!          └────────┴─────┴──────────────┴────────────┘     └────────┴──────────────┘
//! ```
//!
//! Every field of a header is atomic, so reading one is never a data race. Locks determine the
//! values: `links` and `place` belong to the slab class's lock; key, value and lengths are written
//! before the item is published, and not again until its memory is reused.

#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::prefetch::prefetch;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

pub(crate) const PAGE_LEN: usize = 1 << 20;
pub(crate) const HEADER_LEN: usize = size_of::<ItemHeader>();

/// Name of a chunk: its offset in units of 8 bytes. Never 0, because page 0 is never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk(u64);

/// Names of chunks have 38 bits: 2 TiB of memory.
pub(crate) const CHUNK_BITS: u32 = 38;

impl Chunk {
    pub(crate) fn new(page: u32, offset: usize) -> Chunk {
        Chunk(((page as usize * PAGE_LEN + offset) / 8) as u64)
    }

    #[inline]
    pub(crate) fn from_units(units: u64) -> Option<Chunk> {
        (units != 0).then_some(Chunk(units))
    }

    #[inline]
    pub(crate) fn units(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn page(self) -> u32 {
        (self.0 / (PAGE_LEN as u64 / 8)) as u32
    }

    #[inline]
    pub(crate) fn offset_in_page(self) -> usize {
        (self.0 % (PAGE_LEN as u64 / 8)) as usize * 8
    }

    #[inline]
    fn offset(self) -> usize {
        self.0 as usize * 8
    }
}

/// Header at the start of every chunk.
#[derive(Default)]
#[repr(C, align(8))]
pub(crate) struct ItemHeader {
    /// References, marks, generation: see `mark`.
    pub(crate) state: AtomicU32,
    pub(crate) exptime: AtomicU32,
    pub(crate) last_access: AtomicU32,
    pub(crate) flags: AtomicU32,
    /// Length of the whole value; in the further chunks of a long item, of the part in the chunk.
    pub(crate) value_len: AtomicU32,
    pub(crate) key_len: AtomicU8,
    /// Use of the chunk: see `slab::Use`.
    pub(crate) place: AtomicU8,
    prev_high: AtomicU8,
    next_high: AtomicU8,
    prev_low: AtomicU32,
    next_low: AtomicU32,
    /// The item's cas; in the further chunks of a long item, the name of its first chunk.
    pub(crate) cas: AtomicU64,
}

impl ItemHeader {
    pub(crate) fn prev(&self) -> Option<Chunk> {
        join(&self.prev_high, &self.prev_low)
    }

    pub(crate) fn next(&self) -> Option<Chunk> {
        join(&self.next_high, &self.next_low)
    }

    pub(crate) fn set_prev(&self, prev: Option<Chunk>) {
        split(prev, &self.prev_high, &self.prev_low);
    }

    pub(crate) fn set_next(&self, next: Option<Chunk>) {
        split(next, &self.next_high, &self.next_low);
    }
}

fn join(high: &AtomicU8, low: &AtomicU32) -> Option<Chunk> {
    Chunk::from_units(u64::from(high.load(Relaxed)) << 32 | u64::from(low.load(Relaxed)))
}

fn split(chunk: Option<Chunk>, high: &AtomicU8, low: &AtomicU32) {
    let units = chunk.map_or(0, Chunk::units);
    high.store((units >> 32) as u8, Relaxed);
    low.store(units as u32, Relaxed);
}

/// The address range. The kernel provides memory when a page is first touched; [`Arena::give_back`]
/// returns it.
pub(crate) struct Arena {
    base: NonNull<u8>,
    /// Highest usable page; the first is 1.
    pub(crate) pages_max: u32,
}

// SAFETY: the arena is an address and a length; shared behind it are only atomics, and bytes
// under the contracts of `bytes` and `bytes_mut`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves addresses for `pages_wanted` pages; if the kernel refuses (`RLIMIT_AS`, strict
    /// overcommit), for `pages_needed`.
    pub(crate) fn reserve(
        pages_needed: u32,
        pages_wanted: u32,
        huge_pages: bool,
    ) -> io::Result<Arena> {
        let arena = Arena::map(pages_wanted).or_else(|_| Arena::map(pages_needed))?;
        if huge_pages {
            // SAFETY: the range belongs to the arena, and this advice changes no contents.
            unsafe { madvise(arena.base.as_ptr().cast(), arena.len(), Advice::LinuxHugepage)? };
        }
        Ok(arena)
    }

    fn map(pages_max: u32) -> io::Result<Arena> {
        let len = (pages_max as usize + 1) * PAGE_LEN;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let kind = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address chosen by the kernel overlaps nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, kind)? };
        let base = NonNull::new(base.cast()).expect("mmap(2) returns no null mapping");
        Ok(Arena { base, pages_max })
    }

    fn len(&self) -> usize {
        (self.pages_max as usize + 1) * PAGE_LEN
    }

    #[inline]
    pub(crate) fn header(&self, chunk: Chunk) -> &ItemHeader {
        debug_assert!((1..=self.pages_max).contains(&chunk.page()));
        // SAFETY: a `Chunk` lies within the range (they are made from page numbers up to
        // `pages_max`), is aligned to 8 and has space for a header; memory reads as zeros before
        // the first write; all fields are atomic, so threads may read and write concurrently.
        unsafe { self.base.add(chunk.offset()).cast().as_ref() }
    }

    /// Prefetches a chunk's header and its first bytes.
    #[inline]
    pub(crate) fn prefetch(&self, chunk: Chunk) {
        const LINE_LEN: usize = 64;
        // A key and a short value. For longer copies the hardware prefetcher takes over.
        const LINES: usize = 4;
        let start = self.base.as_ptr().wrapping_add(chunk.offset());
        (0..LINES).for_each(|line| prefetch(start.wrapping_add(line * LINE_LEN)));
    }

    /// Bytes of a chunk after its header.
    ///
    /// # Safety
    /// `offset + len` lies within the chunk; the bytes were written, the writing happened before,
    /// and nothing writes them while the slice lives: the chunk belongs to the caller, or is
    /// published and either pinned through `Epochs`, held by a reference, kept in the table by its
    /// bucket's lock, or kept in a queue by its class's lock.
    #[inline]
    pub(crate) unsafe fn bytes(&self, chunk: Chunk, offset: usize, len: usize) -> &[u8] {
        debug_assert!(chunk.offset_in_page() + HEADER_LEN + offset + len <= PAGE_LEN);
        // SAFETY: within the mapping, initialized (zeros or written bytes) and not written
        // meanwhile, by the caller's contract.
        unsafe {
            let start = self.base.add(chunk.offset() + HEADER_LEN + offset);
            slice::from_raw_parts(start.as_ptr(), len)
        }
    }

    /// Bytes of a chunk after its header, for writing.
    ///
    /// # Safety
    /// `offset + len` lies within the chunk, the chunk belongs to the caller alone, and no other
    /// slice of these bytes lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self, chunk: Chunk, offset: usize, len: usize) -> &mut [u8] {
        debug_assert!(chunk.offset_in_page() + HEADER_LEN + offset + len <= PAGE_LEN);
        // SAFETY: within the mapping and exclusive, by the caller's contract.
        unsafe {
            let start = self.base.add(chunk.offset() + HEADER_LEN + offset);
            slice::from_raw_parts_mut(start.as_ptr(), len)
        }
    }

    /// Returns a page's memory to the kernel. Its addresses stay, and read as zeros.
    ///
    /// # Safety
    /// No chunk of the page is in use or being read.
    pub(crate) unsafe fn give_back(&self, page: u32) {
        // SAFETY: the page is within the mapping and unused.
        unsafe {
            let start = self.base.add(page as usize * PAGE_LEN);
            // Failed advice costs memory only.
            let _ = madvise(start.as_ptr().cast(), PAGE_LEN, Advice::LinuxDontNeed);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the arena, and every thread that reads it holds the store
        // and thus the arena.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_weighs_forty_bytes() {
        assert_eq!(HEADER_LEN, 40);
    }

    #[test]
    fn links_hold_every_chunk() {
        let header = ItemHeader::default();
        for units in [1, u64::from(u32::MAX), (1 << CHUNK_BITS) - 1] {
            header.set_next(Chunk::from_units(units));
            header.set_prev(None);
            assert_eq!(header.next().unwrap().units(), units);
            assert!(header.prev().is_none());
        }
    }

    #[test]
    fn returned_page_reads_zeros() {
        let arena = Arena::reserve(2, 2, false).unwrap();
        let chunk = Chunk::new(2, 0);
        arena.header(chunk).cas.store(7, Relaxed);
        // SAFETY: no other code knows the arena.
        unsafe { arena.give_back(2) };
        assert_eq!(arena.header(chunk).cas.load(Relaxed), 0);
    }
}
