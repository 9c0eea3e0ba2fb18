//! Number of items of each size (`stats sizes`), updated with each store and removal: walking over
//! all items would block others for milliseconds.

use std::collections::BTreeMap;

/// Sizes are rounded up to this, as in memcached.
const STEP: u64 = 32;

/// Sizes in one slab class: few distinct ones, except in the last class, which has the long items.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// Steps below the class's smallest item.
    base: u64,
    short: Vec<u64>,
    long: BTreeMap<u64, u64>,
}

impl Sizes {
    /// For a class of items longer than `len_below` and at most `chunk_len`, or of long items.
    pub(crate) fn new(len_below: usize, chunk_len: usize) -> Sizes {
        let base = len_below as u64 / STEP;
        let steps = (chunk_len as u64).div_ceil(STEP) - base + 1;
        Sizes { base, short: vec![0; steps as usize], long: BTreeMap::new() }
    }

    #[inline]
    pub(crate) fn add(&mut self, size: u64) {
        *self.count(size) += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, size: u64) {
        *self.count(size) -= 1;
        let steps = size.div_ceil(STEP);
        if self.long.get(&steps) == Some(&0) {
            self.long.remove(&steps);
        }
    }

    fn count(&mut self, size: u64) -> &mut u64 {
        let steps = size.div_ceil(STEP);
        let short = steps.checked_sub(self.base).and_then(|at| self.short.get_mut(at as usize));
        short.unwrap_or_else(|| self.long.entry(steps).or_default())
    }

    /// Sizes, each with its number of items.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        let short = (self.base..).zip(self.short.iter().copied());
        let long = self.long.iter().map(|(steps, count)| (*steps, *count));
        let all = short.chain(long).filter(|(_, count)| *count > 0);
        all.map(|(steps, count)| (steps * STEP, count))
    }
}
