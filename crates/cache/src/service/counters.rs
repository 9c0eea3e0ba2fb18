//! What the protocols count. The store counts hits and misses by itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Meta commands.
    Meta,
    /// `flush_all`.
    Flush,
    /// Values above the limit.
    StoreTooLarge,
    /// Values for which there was no memory.
    StoreNoMemory,
    /// Tries to authenticate.
    AuthCommands,
    /// Failed ones.
    AuthErrors,
    /// Gets that leave no mark (`mg` with `u`) and found the item.
    PeekHits,
    /// Gets that leave no mark and did not find the item.
    PeekMisses,
    /// Crawls that clients asked for.
    CrawlerStarts,
    /// Conversations that gave way to others, with commands still to answer.
    Yields,
}

const COUNT: usize = Count::Yields as usize + 1;

/// Counters that any number of kernel threads add to. Each thread has a shard, so that a count
/// costs one uncontended atomic addition and no cache line travels between processors.
#[derive(Debug)]
pub(crate) struct Counters {
    shards: [Shard; SHARD_COUNT],
}

/// More processors than this share shards, which is slower and still right.
const SHARD_COUNT: usize = 32;

/// 128 bytes: x86 prefetches cache lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Shard([AtomicU64; COUNT]);

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            shards: std::array::from_fn(|_| Shard(std::array::from_fn(|_| AtomicU64::new(0)))),
        }
    }

    /// Adds `by`.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: u64) {
        let mut at = SHARD.get();
        if at >= SHARD_COUNT {
            at = assign_shard();
        }
        self.shards[at].0[count as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// The sum over all threads.
    pub(crate) fn get(&self, count: Count) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.0[count as usize].load(Ordering::Relaxed))
            .sum()
    }

    /// `stats reset`
    pub(crate) fn reset(&self) {
        for count in self.shards.iter().flat_map(|shard| &shard.0) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

#[cold]
fn assign_shard() -> usize {
    let at = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARD_COUNT;
    SHARD.set(at);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_add_up() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| counters.add(Count::Meta, 2)));
            }
        });
        assert_eq!(counters.get(Count::Meta), 16_000);
        counters.reset();
        assert_eq!(counters.get(Count::Meta), 0);
    }
}
