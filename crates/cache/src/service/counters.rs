//! Counters of the protocols. The store counts hits and misses itself.

use std::sync::atomic::{AtomicU64, Ordering};

use session::Shards;

/// Counted events.
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

/// A number for each [`Count`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    shards: Shards<[AtomicU64; COUNT]>,
}

impl Counters {
    /// Adds `by`.
    #[inline]
    pub(crate) fn add(&self, count: Count, by: u64) {
        self.shards.own()[count as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// The sum over all threads.
    pub(crate) fn get(&self, count: Count) -> u64 {
        let of_thread = |shard: &[AtomicU64; COUNT]| shard[count as usize].load(Ordering::Relaxed);
        self.shards.iter().map(of_thread).sum()
    }

    /// `stats reset`
    pub(crate) fn reset(&self) {
        for count in self.shards.iter().flatten() {
            count.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_add_up() {
        let counters = Counters::default();
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
