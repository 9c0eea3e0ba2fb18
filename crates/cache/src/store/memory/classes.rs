//! Lengths of chunks by memcached's rule (see slabs.c; `memcached -vv` prints the table).

use crate::store::config::Config;
use crate::store::memory::arena::{HEADER_LEN, PAGE_LEN};

/// Longest chunk, as in memcached: half a page. A longer item uses several.
pub(crate) const CHUNK_LEN_MAX: usize = PAGE_LEN / 2;

/// memcached numbers its classes from 1 to 63.
pub(crate) const CLASSES_MAX: usize = 63;

/// The chunk lengths of the classes, ascending; class 1 is the first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChunkLens(Vec<usize>);

impl ChunkLens {
    /// Each class is `growth` times the one before it, rounded up to 8 bytes; the last is half a
    /// page.
    pub(crate) fn new(config: &Config) -> ChunkLens {
        // A growth of 1 would give endless classes of equal length.
        let growth = config.chunk_growth.max(1.01);
        let mut lens = Vec::new();
        let mut len = (HEADER_LEN + config.chunk_space_min.max(1) as usize).next_multiple_of(8);
        while lens.len() + 1 < CLASSES_MAX && len as f64 <= CHUNK_LEN_MAX as f64 / growth {
            lens.push(len);
            let next = (len as f64 * growth) as usize;
            len = next.max(len + 1).next_multiple_of(8);
        }
        lens.push(CHUNK_LEN_MAX);
        ChunkLens(lens)
    }

    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// The class with the shortest sufficient chunks; the last one if no chunk is long enough.
    #[inline]
    pub(crate) fn class_for(&self, len: usize) -> u8 {
        let at = self.0.partition_point(|chunk_len| *chunk_len < len);
        at.min(self.0.len() - 1) as u8 + 1
    }

    pub(crate) fn last(&self) -> u8 {
        self.0.len() as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_by_the_factor() {
        let lens = ChunkLens::new(&Config::default());
        assert_eq!(lens.as_slice()[..4], [88, 112, 144, 184]);
        assert_eq!(*lens.as_slice().last().unwrap(), CHUNK_LEN_MAX);
        assert!(lens.as_slice().len() <= CLASSES_MAX);
    }

    #[test]
    fn item_goes_to_the_smallest_class() {
        let lens = ChunkLens::new(&Config::default());
        assert_eq!((lens.class_for(1), lens.class_for(88), lens.class_for(89)), (1, 1, 2));
        assert_eq!(lens.class_for(CHUNK_LEN_MAX * 9), lens.last());
    }

    #[test]
    fn small_factor_is_bounded() {
        let config = Config { chunk_growth: 1.02, ..Config::default() };
        assert_eq!(ChunkLens::new(&config).as_slice().len(), CLASSES_MAX);
    }
}
