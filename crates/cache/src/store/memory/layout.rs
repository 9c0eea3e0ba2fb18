//! Layout of an item: one chunk, or a first one and as many half pages as needed.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::store::memory::arena::{Arena, Chunk, HEADER_LEN};
use crate::store::memory::classes::CHUNK_LEN_MAX;

/// Bytes that fit into a further chunk.
const PART_LEN_MAX: usize = CHUNK_LEN_MAX - HEADER_LEN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    value_len: usize,
    /// Offset of the names of the further chunks, after the first header.
    table_at: usize,
    /// Offset of the value, after the first header.
    pub(crate) value_at: usize,
    /// Bytes of the value in the first chunk.
    first_len: usize,
    /// Number of further chunks.
    pub(crate) parts: usize,
}

impl Layout {
    pub(crate) fn new(key_len: usize, value_len: usize) -> Layout {
        if HEADER_LEN + key_len + value_len <= CHUNK_LEN_MAX {
            let table_at = key_len;
            let value_at = key_len;
            return Layout { value_len, table_at, value_at, first_len: value_len, parts: 0 };
        }
        let table_at = key_len.next_multiple_of(8);
        let first_space = PART_LEN_MAX - table_at;
        // Each further chunk costs 8 bytes of the first one. This number suffices, and the last
        // chunk is never empty.
        let parts = (value_len - first_space).div_ceil(PART_LEN_MAX - 8);
        let value_at = table_at + 8 * parts;
        Layout { value_len, table_at, value_at, first_len: PART_LEN_MAX - value_at, parts }
    }

    pub(crate) fn of(arena: &Arena, chunk: Chunk) -> Layout {
        let header = arena.header(chunk);
        let value_len = header.value_len.load(Relaxed) as usize;
        Layout::new(usize::from(header.key_len.load(Relaxed)), value_len)
    }

    pub(crate) fn first_chunk_len(&self) -> usize {
        match self.parts {
            0 => HEADER_LEN + self.value_at + self.value_len,
            _ => CHUNK_LEN_MAX,
        }
    }

    /// Range of the value in further chunk `at`.
    pub(crate) fn part(&self, at: usize) -> Range<usize> {
        let start = self.first_len + at * PART_LEN_MAX;
        start..(start + PART_LEN_MAX).min(self.value_len)
    }

    /// Further chunk (none: the first one) that contains byte `at`, and its range of the value.
    pub(crate) fn piece_at(&self, at: usize) -> (Option<usize>, Range<usize>) {
        match at.checked_sub(self.first_len) {
            None => (None, 0..self.first_len),
            Some(_) if self.parts == 0 => (None, 0..self.first_len),
            Some(behind) => (Some(behind / PART_LEN_MAX), self.part(behind / PART_LEN_MAX)),
        }
    }

    /// Offset of the name of further chunk `at`, after the first header.
    pub(crate) fn name_at(&self, at: usize) -> usize {
        self.table_at + 8 * at
    }

    /// Number of pieces of the value.
    pub(crate) fn pieces(&self) -> usize {
        1 + self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_at_every_length() {
        let edge = CHUNK_LEN_MAX - HEADER_LEN - 10;
        let lens = (edge - 20..edge + 40).chain([1 << 20, 3 << 20, (1 << 30) - 300]);
        for value_len in
            lens.chain((1..6).flat_map(|n| n * PART_LEN_MAX - 40..n * PART_LEN_MAX + 40))
        {
            let layout = Layout::new(10, value_len);
            let mut at = layout.first_len;
            for part in 0..layout.parts {
                let range = layout.part(part);
                assert_eq!(range.start, at, "{value_len}");
                assert!(!range.is_empty() && range.len() <= PART_LEN_MAX, "{value_len}: {range:?}");
                assert_eq!(layout.piece_at(range.start), (Some(part), range.clone()));
                assert_eq!(layout.piece_at(range.end - 1), (Some(part), range.clone()));
                at = range.end;
            }
            assert_eq!(at, value_len);
            assert!(HEADER_LEN + layout.value_at + layout.first_len <= CHUNK_LEN_MAX);
        }
    }

    #[test]
    fn short_items_have_one_chunk() {
        let layout = Layout::new(30, 200);
        assert_eq!((layout.parts, layout.first_chunk_len()), (0, 270));
    }
}
