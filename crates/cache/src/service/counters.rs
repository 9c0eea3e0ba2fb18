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
    /// Values above the size limit.
    StoreTooLarge,
    /// Values without memory for them.
    StoreNoMemory,
    /// Attempts to authenticate.
    AuthCommands,
    /// Failed attempts to authenticate.
    AuthErrors,
    /// Gets without marking a use (`mg` with `u`) that found the item.
    PeekHits,
    /// Gets without marking a use that did not find the item.
    PeekMisses,
    /// Crawls requested by clients.
    CrawlerStarts,
    /// Conversations that yielded to others with commands still unanswered.
    Yields,
}

const COUNT: usize = Count::Yields as usize + 1;

/// One number per [`Count`].
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
