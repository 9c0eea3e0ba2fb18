use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Estimates how often each file was requested recently, in fixed memory: a count-min sketch of
/// 4-bit counters that are halved periodically. Einziger, Friedman, Manes: *TinyLFU* (2017)
///
/// ```text
///  one block (64 bytes, one cache line) per id, in it four rows of 32 counters
///  ┌────────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┐
///  │ row 0           │ row 1           │ row 2           │ row 3           │
///  │ 16 x 4 │ 16 x 4 │ ..     │        │        │        │        │        │
///  └────────┴────────┴────────┴────────┴────────┴────────┴────────┴────────┘
///    one counter of each row counts the id; the least of the four is the estimate
/// ```
/// Counters at 15 are not written, so that a hot file's cache line is only read. Two processors
/// that touch the same word at the same moment may lose a touch, which an estimate tolerates.
#[derive(Debug)]
pub(super) struct Sketch {
    blocks: Box<[Block]>,
    /// Touches since the last halving that changed a counter.
    additions: AtomicU64,
    additions_max: u64,
    aged_ns: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Block([AtomicU64; 8]);

/// The highest estimate.
pub(super) const ESTIMATE_MAX: u8 = 15;

/// Longest time between halvings, however idle the site: it defines "recently". Without it, a site
/// whose files have all reached 15 would never again notice which of them still matter.
const AGE_EVERY: Duration = Duration::from_secs(30);

impl Sketch {
    /// A sketch for a cache that holds about `items` files. Counters are halved after 10 touches
    /// per item (the paper's sample size).
    pub(super) fn new(items: u64) -> Sketch {
        let items = items.clamp(1024, 65_536);
        // Four times as many files may be requested as fit: 8 files fill a quarter of a block.
        let blocks = (items / 2).next_power_of_two().clamp(1024, 8192);
        Sketch {
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            additions: AtomicU64::new(0),
            additions_max: 10 * items,
            aged_ns: AtomicU64::new(0),
        }
    }

    /// Counts a request for the file with this well-mixed id; returns the new estimate.
    #[inline]
    pub(super) fn touch(&self, id: u64, now_ns: u64) -> u8 {
        let mut estimate = ESTIMATE_MAX;
        let mut added = false;
        for (word, shift) in self.counters(id) {
            let value = word.load(Relaxed);
            let mut count = (value >> shift) as u8 & 15;
            if count < ESTIMATE_MAX {
                let more = value + (1 << shift);
                added |= word.compare_exchange(value, more, Relaxed, Relaxed).is_ok();
                count += 1;
            }
            estimate = estimate.min(count);
        }
        if added {
            self.age_if_due(now_ns);
        }
        estimate
    }

    /// Number of recent requests for the file, at most 15.
    pub(super) fn estimate(&self, id: u64) -> u8 {
        let counts =
            self.counters(id).map(|(word, shift)| (word.load(Relaxed) >> shift) as u8 & 15);
        counts.into_iter().min().expect("four rows")
    }

    /// Halves all counters when the interval has passed; called periodically, whatever is touched.
    pub(super) fn age_if_late(&self, now_ns: u64) {
        let aged_ns = self.aged_ns.load(Relaxed);
        if now_ns.saturating_sub(aged_ns) >= AGE_EVERY.as_nanos() as u64
            && self.aged_ns.compare_exchange(aged_ns, now_ns, Relaxed, Relaxed).is_ok()
        {
            self.halve();
        }
    }

    #[inline]
    fn counters(&self, id: u64) -> [(&AtomicU64, u32); 4] {
        // The table's shards and the rows here use different bits of the id.
        let block = &self.blocks[(id >> 40) as usize & (self.blocks.len() - 1)].0;
        std::array::from_fn(|row| {
            let counter = (id >> (5 * row)) as usize & 31;
            (&block[2 * row + (counter >> 4)], 4 * (counter as u32 & 15))
        })
    }

    #[cold]
    fn age_if_due(&self, now_ns: u64) {
        let additions = self.additions.fetch_add(1, Relaxed) + 1;
        // Exactly one thread sees the limit reached.
        if additions == self.additions_max {
            self.aged_ns.store(now_ns, Relaxed);
            self.halve();
        }
    }

    fn halve(&self) {
        for word in self.blocks.iter().flat_map(|block| &block.0) {
            word.store((word.load(Relaxed) >> 1) & 0x7777_7777_7777_7777, Relaxed);
        }
        self.additions.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> u64 {
        // SplitMix64's finisher: ids are hashes.
        let z = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn unknown_is_estimated_zero() {
        let sketch = Sketch::new(1);
        sketch.touch(id(1), 0);
        assert_eq!(sketch.estimate(id(2)), 0);
    }

    #[test]
    fn estimates_count_up_to_fifteen() {
        let sketch = Sketch::new(1);
        for count in 1..=40 {
            assert_eq!(sketch.touch(id(7), 0), count.min(15));
        }
        assert_eq!(sketch.estimate(id(7)), 15);
    }

    #[test]
    fn overload_seldom_inflates_estimates() {
        let sketch = Sketch::new(1024);
        let asked = 4096;
        (0..asked).for_each(|n| _ = sketch.touch(id(n), 0));
        let too_high = (0..asked).filter(|&n| sketch.estimate(id(n)) > 1).count();
        assert!(too_high < asked as usize / 500, "{too_high} of {asked}");
    }

    #[test]
    fn popularity_fades() {
        let sketch = Sketch::new(1024);
        (0..15).for_each(|_| _ = sketch.touch(id(0), 0));
        (15..10 * 1024 - 1).for_each(|n| _ = sketch.touch(id(n), 0));
        assert_eq!(sketch.estimate(id(0)), 15);
        sketch.touch(id(1), 0);
        assert_eq!(sketch.estimate(id(0)), 7);
    }

    #[test]
    fn popularity_fades_with_time() {
        let sketch = Sketch::new(1024);
        (0..15).for_each(|_| _ = sketch.touch(id(0), 0));
        sketch.age_if_late(29_000_000_000);
        assert_eq!(sketch.estimate(id(0)), 15);
        sketch.age_if_late(30_000_000_000);
        sketch.age_if_late(30_000_000_000);
        assert_eq!(sketch.estimate(id(0)), 7);
    }
}
