//! [`Shards`].

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters for any number of kernel threads. Each thread has its own shard, so a count costs one
/// uncontended atomic addition, and no cache line moves between processors.
#[derive(Debug)]
pub struct Shards<T>([Shard<T>; SHARD_COUNT]);

/// Number of shards. Beyond that many threads some share one, which is slower but correct.
const SHARD_COUNT: usize = 32;

/// Aligned to 128 bytes: x86 prefetches cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard<T>(T);

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARD_COUNT;
}

impl<T: Default> Default for Shards<T> {
    fn default() -> Shards<T> {
        Shards(std::array::from_fn(|_| Shard::default()))
    }
}

impl<T> Shards<T> {
    /// The counters of this thread.
    #[inline]
    pub fn own(&self) -> &T {
        &self.0[SHARD.with(|at| *at)].0
    }

    /// The counters of all threads.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &shard.0)
    }
}
