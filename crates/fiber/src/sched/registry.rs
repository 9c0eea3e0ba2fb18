//! The registry of a cluster's fibers, started or not: a list in shards, by number.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::lock::lock;

/// Number of shards. Fibers start and end on all processors at once.
pub(crate) const SHARDS: usize = 16;

/// Items with a number each. An item's owner keeps the slot, so it comes and goes in constant time.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
}

#[derive(Debug)]
struct Shard<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T: Copy + Debug + Eq> Shard<T> {
    fn add(&mut self, item: T, slot: &AtomicU32) {
        let free = match self.free.pop() {
            Some(free) => free,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 fibers")
            }
        };
        self.slots[free as usize] = Some(item);
        slot.store(free, Ordering::Relaxed);
    }

    fn remove(&mut self, item: T, slot: &AtomicU32) {
        let slot = slot.load(Ordering::Relaxed);
        let was = self.slots[slot as usize].take();
        assert_eq!(was, Some(item), "slot {slot} of the registry is another's");
        self.free.push(slot);
    }

    fn items(&self) -> impl Iterator<Item = T> {
        self.slots.iter().flatten().copied()
    }
}

impl<T: Copy + Debug + Eq> Registry<T> {
    pub(crate) fn new() -> Registry<T> {
        Registry {
            shards: std::array::from_fn(|_| {
                Mutex::new(Shard { slots: Vec::new(), free: Vec::new() })
            }),
        }
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
            shard.add(item, slot);
        }
        admitted
    }

    pub(super) fn remove(&self, id: u64, item: T, slot: &AtomicU32) {
        lock(self.shard_of(id)).remove(item, slot);
    }

    /// Calls `f` with each item of shard `shard`, under its lock.
    pub(super) fn map<R>(&self, shard: usize, f: impl FnMut(T) -> R) -> Vec<R> {
        lock(&self.shards[shard]).items().map(f).collect()
    }

    /// Same as [`map`](Registry::map), without waiting for the lock: `None` if another thread has
    /// it.
    pub(super) fn try_map<R>(&self, shard: usize, f: impl FnMut(T) -> R) -> Option<Vec<R>> {
        let shard = self.shards[shard].try_lock().ok()?;
        Some(shard.items().map(f).collect())
    }

    /// Returns the first `Some` of `f`, of the items that may have number `id`, under the lock.
    pub(super) fn find<R>(&self, id: u64, f: impl FnMut(T) -> Option<R>) -> Option<R> {
        lock(self.shard_of(id)).items().find_map(f)
    }

    fn shard_of(&self, id: u64) -> &Mutex<Shard<T>> {
        &self.shards[id as usize % SHARDS]
    }
}
