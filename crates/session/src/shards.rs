//! [`Shards`].

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters that any number of kernel threads add to. Each thread has a shard of its own, so that a
/// count costs one uncontended atomic addition and no cache line travels between processors.
#[derive(Debug)]
pub struct Shards<T>([Shard<T>; SHARD_COUNT]);

/// More threads than this share shards, which is slower and still right.
const SHARD_COUNT: usize = 32;

/// 128 bytes: x86 prefetches cache lines in pairs.
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
    /// The counters to which this thread adds.
    #[inline]
    pub fn own(&self) -> &T {
        &self.0[SHARD.with(|at| *at)].0
    }

    /// The counters of all threads.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &shard.0)
    }
}
