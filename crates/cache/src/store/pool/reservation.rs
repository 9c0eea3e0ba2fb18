//! Chunks of an item being received, and the pieces of its value.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use crate::store::memory::arena::{Chunk, HEADER_LEN, PAGE_LEN};
use crate::store::memory::classes::CHUNK_LEN_MAX;
use crate::store::memory::layout::Layout;
use crate::store::pool::counters::add;
use crate::store::pool::{Pool, thread_stripe};
use crate::store::rule::{Seconds, StoreError};
use crate::store::slab::Clock;

/// Chunks of a reservation. The owner must commit or discard it.
#[derive(Debug)]
pub(crate) struct RawReservation {
    pub(crate) chunk: Chunk,
    layout: Layout,
    pub(crate) value_len: usize,
    /// INVARIANT: `filled <= value_len`.
    filled: usize,
    /// Number of further chunks allocated; the last of them is being filled.
    parts_made: usize,
    /// Part of the uploads' share; none for a value that was complete from the start.
    share: Option<u64>,
}

impl RawReservation {
    /// Writes header and key into a chunk allocated for them.
    pub(crate) fn new(
        pool: &Pool,
        chunk: Chunk,
        key: &[u8],
        value_len: usize,
        flags: u32,
        exptime: Seconds,
    ) -> RawReservation {
        let header = pool.arena.header(chunk);
        header.state.store(0, Relaxed);
        header.exptime.store(exptime, Relaxed);
        header.last_access.store(0, Relaxed);
        header.flags.store(flags, Relaxed);
        header.value_len.store(value_len as u32, Relaxed);
        header.key_len.store(key.len() as u8, Relaxed);
        header.cas.store(0, Relaxed);
        // SAFETY: the chunk belongs to this reservation alone; its class is for this length.
        unsafe { pool.arena.bytes_mut(chunk, 0, key.len()) }.copy_from_slice(key);
        let layout = Layout::new(key.len(), value_len);
        RawReservation { chunk, layout, value_len, filled: 0, parts_made: 0, share: None }
    }

    pub(crate) fn missing(&self) -> usize {
        self.value_len - self.filled
    }

    pub(crate) fn space<'d>(
        &'d mut self,
        pool: &'d Pool,
        clock: Clock,
    ) -> Result<&'d mut [u8], StoreError> {
        let (part, range) = self.layout.piece_at(self.filled);
        let (chunk, start) = match part {
            None => (self.chunk, self.layout.value_at + self.filled),
            Some(at) => {
                if at == self.parts_made && self.missing() > 0 {
                    self.make_part(pool, at, range.len(), clock)?;
                }
                if self.missing() == 0 {
                    return Ok(&mut []);
                }
                (pool.part(self.chunk, at), self.filled - range.start)
            }
        };
        // SAFETY: the chunk belongs to this reservation alone, and `range` lies in it by the
        // layout. The slice of an earlier call is gone: it borrowed the reservation.
        Ok(unsafe { pool.arena.bytes_mut(chunk, start, range.end - self.filled) })
    }

    fn make_part(
        &mut self,
        pool: &Pool,
        at: usize,
        len: usize,
        clock: Clock,
    ) -> Result<(), StoreError> {
        let class = pool.lens.class_for(HEADER_LEN + len);
        if let Some(share) = &mut self.share {
            *share += pool.take_share(class)?;
        }
        let part = pool.allocate(class, clock)?;
        let header = pool.arena.header(part);
        header.value_len.store(len as u32, Relaxed);
        header.key_len.store(0, Relaxed);
        header.cas.store(self.chunk.units(), Relaxed);
        // From here on a move of the part's page finds the owner through the part.
        pool.class_of(part).set_part(&pool.arena, part);
        let name_at = self.layout.name_at(at);
        // SAFETY: the first chunk belongs to this reservation alone, and the names lie in it by
        // the layout.
        let name = unsafe { pool.arena.bytes_mut(self.chunk, name_at, 8) };
        name.copy_from_slice(&part.units().to_ne_bytes());
        self.parts_made += 1;
        Ok(())
    }

    pub(crate) fn filled(&mut self, len: usize) {
        let (part, range) = self.layout.piece_at(self.filled);
        // A further chunk that is not allocated yet has no space.
        let space_len = match part {
            Some(at) if at >= self.parts_made => 0,
            _ => range.end - self.filled,
        };
        assert!(len <= space_len, "filled {len} of a space of {space_len}");
        self.filled += len;
    }

    pub(crate) fn fill(
        &mut self,
        pool: &Pool,
        input: &[u8],
        clock: Clock,
    ) -> Result<usize, StoreError> {
        let mut used = 0;
        while used < input.len() && self.missing() > 0 {
            let space = self.space(pool, clock)?;
            let len = space.len().min(input.len() - used);
            space[..len].copy_from_slice(&input[used..][..len]);
            self.filled(len);
            used += len;
        }
        Ok(used)
    }

    /// Ends the upload: the value is complete, or is discarded.
    pub(crate) fn end_upload(&mut self, pool: &Pool) {
        if let Some(share) = self.share.take() {
            pool.upload_len.fetch_sub(share, Relaxed);
        }
    }

    /// Frees the memory.
    pub(crate) fn discard(mut self, pool: &Pool) {
        self.end_upload(pool);
        (0..self.parts_made).for_each(|at| pool.free_chunk(pool.part(self.chunk, at)));
        pool.free_chunk(self.chunk);
    }
}

impl Pool {
    /// Allocates the first chunk of a reservation, with its header filled in.
    pub(crate) fn begin(
        &self,
        key: &[u8],
        value_len: usize,
        flags: u32,
        exptime: Seconds,
        clock: Clock,
    ) -> Result<RawReservation, StoreError> {
        self.check_len(key, value_len)?;
        let layout = Layout::new(key.len(), value_len);
        let chunk = self.allocate(self.lens.class_for(layout.first_chunk_len()), clock)?;
        Ok(RawReservation::new(self, chunk, key, value_len, flags, exptime))
    }

    /// The same for a value that arrives in pieces, from the uploads' share of the memory.
    pub(crate) fn begin_upload(
        &self,
        key: &[u8],
        value_len: usize,
        flags: u32,
        exptime: Seconds,
        clock: Clock,
    ) -> Result<RawReservation, StoreError> {
        self.check_len(key, value_len)?;
        let item_len = HEADER_LEN + key.len() + value_len;
        let share = self.take_share(self.lens.class_for(item_len))?;
        let begun = self.begin(key, value_len, flags, exptime, clock);
        match begun {
            Ok(raw) => Ok(RawReservation { share: Some(share), ..raw }),
            Err(error) => {
                self.upload_len.fetch_sub(share, Relaxed);
                Err(error)
            }
        }
    }

    pub(crate) fn check_len(&self, key: &[u8], value_len: usize) -> Result<(), StoreError> {
        // The caller may pass any length: a wrapped sum would look short.
        let item_len = (HEADER_LEN + key.len()).checked_add(value_len);
        let fits = item_len.is_some_and(|len| len <= self.config.item_len_max as usize);
        if !fits || key.len() > usize::from(u8::MAX) {
            return Err(StoreError::TooLarge);
        }
        Ok(())
    }

    /// Takes a chunk of a class from the uploads' share of the memory. A client that never finishes
    /// withholds its memory from all others, so uploads together get half of it, and at least one
    /// item. The newest one is refused, as in a memcached full of uploads: earlier ones are closer
    /// to their end.
    fn take_share(&self, class: u8) -> Result<u64, StoreError> {
        let memory_len = u64::from(self.pages_limit()) * PAGE_LEN as u64;
        let one_len = u64::from(self.config.item_len_max) + 2 * CHUNK_LEN_MAX as u64;
        let len = self.lens.as_slice()[usize::from(class) - 1] as u64;
        let before = self.upload_len.fetch_add(len, Relaxed);
        if before + len <= (memory_len / 2).max(one_len) {
            return Ok(len);
        }
        self.upload_len.fetch_sub(len, Relaxed);
        add(&self.counters.stripe(thread_stripe()).uploads_refused);
        Err(StoreError::OutOfMemory)
    }

    /// Further chunk `at` of a long item.
    pub(crate) fn part(&self, chunk: Chunk, at: usize) -> Chunk {
        let name_at = Layout::of(&self.arena, chunk).name_at(at);
        // SAFETY: the names lie in the first chunk by the layout, and are written once, before the
        // item is published; callers hold the item, or are its reservation.
        let name = unsafe { self.arena.bytes(chunk, name_at, 8) };
        let units = u64::from_ne_bytes(name.try_into().expect("8 bytes"));
        Chunk::from_units(units).expect("a part's name is written before it is read")
    }

    /// Piece `at` of an item's value, from 0.
    pub(crate) fn piece(&self, chunk: Chunk, layout: &Layout, at: usize) -> &[u8] {
        let value_len = self.arena.header(chunk).value_len.load(Relaxed) as usize;
        let (chunk, start, len) = match at.checked_sub(1) {
            None => (chunk, layout.value_at, layout.piece_at(0).1.len().min(value_len)),
            Some(part) => (self.part(chunk, part), 0, layout.part(part).len()),
        };
        // SAFETY: the value was written before the item was published and is not written again;
        // callers hold the item by a pin or a reference.
        unsafe { self.arena.bytes(chunk, start, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, NEVER, Store};

    /// Seen (in review): in a release build a length near 2^64 was reserved in a chunk of the first
    /// class, and the space of its reservation was all memory after that. Cause: the sum of header,
    /// key and value wrapped. Cure: a length whose sum wraps is too large.
    #[test]
    fn wrapping_length_is_too_large() {
        let store = Store::new(Config::default()).unwrap();
        let mut guard = store.access(2);
        let item_len_max = Config::default().item_len_max as usize;
        for value_len in [0, 1, HEADER_LEN, HEADER_LEN + 1, 1 << 20].map(|less| usize::MAX - less) {
            let refused = guard.reserve(b"k", value_len, 0, NEVER).unwrap_err();
            assert_eq!(refused, StoreError::TooLarge, "{value_len}");
        }
        let most = item_len_max - HEADER_LEN - 1;
        assert!(guard.reserve(b"k", most, 0, NEVER).is_ok());
        assert!(guard.reserve(b"k", most + 1, 0, NEVER).is_err());
    }
}
