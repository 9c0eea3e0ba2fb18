//! Where the pieces of an item lie: in one chunk, or in a first one and as many half pages as it
//! takes.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::store::memory::arena::{Arena, Chunk, HEADER_LEN};
use crate::store::memory::classes::CHUNK_LEN_MAX;

/// What fits into a further chunk.
const PART_ROOM: usize = CHUNK_LEN_MAX - HEADER_LEN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    value_len: usize,
    /// Where the names of the further chunks begin, behind the first header.
    table_at: usize,
    /// Where the value begins, behind the first header.
    pub(crate) value_at: usize,
    /// How much of the value lies in the first chunk.
    first_len: usize,
    /// How many further chunks there are.
    pub(crate) parts: usize,
}

impl Layout {
    pub(crate) fn new(key_len: usize, value_len: usize) -> Layout {
        if HEADER_LEN + key_len + value_len <= CHUNK_LEN_MAX {
            let table_at = key_len;
            let value_at = key_len;
            return Layout {
                value_len,
                table_at,
                value_at,
                first_len: value_len,
                parts: 0,
            };
        }
        let table_at = key_len.next_multiple_of(8);
        let room = PART_ROOM - table_at;
        // Each further chunk costs 8 bytes of the first: so many are enough, and the last is never
        // empty.
        let parts = (value_len - room).div_ceil(PART_ROOM - 8);
        let value_at = table_at + 8 * parts;
        Layout {
            value_len,
            table_at,
            value_at,
            first_len: PART_ROOM - value_at,
            parts,
        }
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

    /// Which bytes of the value lie in further chunk `at`.
    pub(crate) fn part(&self, at: usize) -> Range<usize> {
        let start = self.first_len + at * PART_ROOM;
        start..(start + PART_ROOM).min(self.value_len)
    }

    /// Which further chunk (none: the first) holds the byte `at`, and which bytes lie there.
    pub(crate) fn piece_at(&self, at: usize) -> (Option<usize>, Range<usize>) {
        match at.checked_sub(self.first_len) {
            None => (None, 0..self.first_len),
            Some(_) if self.parts == 0 => (None, 0..self.first_len),
            Some(behind) => (Some(behind / PART_ROOM), self.part(behind / PART_ROOM)),
        }
    }

    /// Where the name of further chunk `at` lies, behind the first header.
    pub(crate) fn name_at(&self, at: usize) -> usize {
        self.table_at + 8 * at
    }

    /// How many pieces the value has.
    pub(crate) fn pieces(&self) -> usize {
        1 + self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_every_length_join_up() {
        let edge = CHUNK_LEN_MAX - HEADER_LEN - 10;
        let lens = (edge - 20..edge + 40).chain([1 << 20, 3 << 20, (1 << 30) - 300]);
        for value_len in lens.chain((1..6).flat_map(|n| n * PART_ROOM - 40..n * PART_ROOM + 40)) {
            let layout = Layout::new(10, value_len);
            let mut at = layout.first_len;
            for part in 0..layout.parts {
                let range = layout.part(part);
                assert_eq!(range.start, at, "{value_len}");
                assert!(
                    !range.is_empty() && range.len() <= PART_ROOM,
                    "{value_len}: {range:?}"
                );
                assert_eq!(layout.piece_at(range.start), (Some(part), range.clone()));
                assert_eq!(layout.piece_at(range.end - 1), (Some(part), range.clone()));
                at = range.end;
            }
            assert_eq!(at, value_len);
            assert!(HEADER_LEN + layout.value_at + layout.first_len <= CHUNK_LEN_MAX);
        }
    }

    #[test]
    fn what_fits_in_one_chunk_lies_in_one() {
        let layout = Layout::new(30, 200);
        assert_eq!((layout.parts, layout.first_chunk_len()), (0, 270));
    }
}
