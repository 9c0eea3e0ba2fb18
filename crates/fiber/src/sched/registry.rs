//! The registry of a cluster's fibers, started or not: a list in shards, by number.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use slab::Slab;

use crate::base::lock::lock;

/// Number of shards. Fibers start and end on all processors at once.
pub(crate) const SHARDS: usize = 16;

/// Items with a number each. An item's owner keeps the slot, so it comes and goes in constant time.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    shards: [Mutex<Slab<T>>; SHARDS],
}

impl<T: Copy + Debug + Eq> Registry<T> {
    pub(crate) fn new() -> Registry<T> {
        Registry { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Lists an item if `admit` returns true, under the lock: an item that is refused is never
    /// listed.
    pub(super) fn add(
        &self,
        id: u64,
        item: T,
        slot: &AtomicU32,
        admit: impl FnOnce() -> bool,
    ) -> bool {
        let mut shard = lock(self.shard_of(id));
        let admitted = admit();
        if admitted {
            let added = u32::try_from(shard.insert(item)).expect("fewer than 2^32 fibers");
            slot.store(added, Ordering::Relaxed);
        }
        admitted
    }

    pub(super) fn remove(&self, id: u64, item: T, slot: &AtomicU32) {
        let slot = slot.load(Ordering::Relaxed);
        let was = lock(self.shard_of(id)).remove(slot as usize);
        assert_eq!(was, item, "slot {slot} of the registry holds another fiber");
    }

    /// Calls `f` with each item of shard `shard`, under its lock.
    pub(super) fn map<R>(&self, shard: usize, mut f: impl FnMut(T) -> R) -> Vec<R> {
        lock(&self.shards[shard]).iter().map(|(_, item)| f(*item)).collect()
    }

    /// Same as [`map`](Registry::map), without waiting for the lock: `None` if another thread has
    /// it.
    pub(super) fn try_map<R>(&self, shard: usize, mut f: impl FnMut(T) -> R) -> Option<Vec<R>> {
        let shard = self.shards[shard].try_lock().ok()?;
        Some(shard.iter().map(|(_, item)| f(*item)).collect())
    }

    /// Returns the first `Some` of `f`, of the items that may have number `id`, under the lock.
    pub(super) fn find<R>(&self, id: u64, mut f: impl FnMut(T) -> Option<R>) -> Option<R> {
        lock(self.shard_of(id)).iter().find_map(|(_, item)| f(*item))
    }

    fn shard_of(&self, id: u64) -> &Mutex<Slab<T>> {
        &self.shards[id as usize % SHARDS]
    }
}
