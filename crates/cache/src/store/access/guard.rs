use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

use crate::store::access::handle::Store;
use crate::store::access::item::Item;
use crate::store::index::Locked;
use crate::store::memory::arena::Chunk;
use crate::store::pool::counters::{CounterStripe, add};
use crate::store::pool::{Pinned, Pool, thread_stripe};
use crate::store::rule::{Miss, Seconds};
use crate::store::slab::{Clock, Victim};

/// Maximum number of keys of one [`Guard::prefetch`]: the number of concurrent cache misses of a
/// processor.
pub const PREFETCHED_MAX: usize = 16;

/// Access to the store for one call of a session. Short; not `Send`.
///
/// The epoch is pinned from the first read until a write or the drop of the guard: a batch of
/// pipelined gets pays once.
pub struct Guard<'s> {
    pub(crate) store: &'s Store,
    pub(crate) now: Seconds,
    stripe: usize,
    pinned: Cell<Option<Pinned<'s>>>,
    is_pinned: Cell<bool>,
    /// Hits of one class that are not counted yet: a batch of gets counts once.
    run: Cell<(u8, u32)>,
    not_send: PhantomData<*const ()>,
}

impl Store {
    /// Takes a guard. `now` is at least 2.
    #[inline]
    pub fn access(&self, now: Seconds) -> Guard<'_> {
        Guard::new(self, now)
    }
}

impl<'s> Guard<'s> {
    #[inline]
    pub(crate) fn new(store: &'s Store, now: Seconds) -> Guard<'s> {
        Guard {
            store,
            now,
            stripe: thread_stripe(),
            pinned: Cell::new(None),
            is_pinned: Cell::new(false),
            run: Cell::new((0, 0)),
            not_send: PhantomData,
        }
    }

    /// Finds an item and marks it as used.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Item<'_>, Miss> {
        let found = self.find(key, self.pool().hash(key));
        match found {
            Ok(chunk) => {
                self.count_hit(self.pool().owners.class_of(chunk));
                Ok(Item::hit(self.store, chunk, self.now))
            }
            Err(miss) => {
                self.stripe().count_miss(miss);
                Err(miss)
            }
        }
    }

    /// Finds an item, marks it as used and sets its expiry time (`gat`).
    pub fn get_and_touch(&self, key: &[u8], exptime: Seconds) -> Result<Item<'_>, Miss> {
        self.pin();
        let chunk =
            self.touch_found(key, exptime).inspect_err(|miss| self.stripe().count_miss(*miss))?;
        self.count_hit(self.pool().owners.class_of(chunk));
        Ok(Item::hit(self.store, chunk, self.now))
    }

    /// Prefetches the items of the first [`PREFETCHED_MAX`] keys, so that their cache misses
    /// overlap. Has no other effect.
    #[inline]
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let pool = self.pool();
        let mut hashes = [0; PREFETCHED_MAX];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = pool.hash(key);
            pool.index.prefetch(*hash);
            count += 1;
        }
        for &hash in &hashes[..count] {
            if let Some(chunk) = pool.index.guess(hash) {
                pool.arena.prefetch(chunk);
            }
        }
    }

    /// Finds an item without marking a use (`me`).
    pub fn peek(&self, key: &[u8]) -> Option<Item<'_>> {
        let chunk = self.find(key, self.pool().hash(key)).ok()?;
        Some(Item::new(self.store, chunk))
    }

    /// Sets an item's expiry time, which is a use of it (`touch`).
    pub fn touch(&mut self, key: &[u8], exptime: Seconds) -> Result<(), Miss> {
        self.pin();
        let chunk = self.touch_found(key, exptime)?;
        Item::hit(self.store, chunk, self.now);
        Ok(())
    }

    /// Sets the expiry time without marking a use (`mg` with `u` and `T`).
    pub fn peek_and_touch(&self, key: &[u8], exptime: Seconds) -> Option<Item<'_>> {
        let item = self.peek(key)?;
        let _ = self.touch_found(key, exptime);
        Some(item)
    }

    /// Sets the time under the bucket's lock: an item being copied must not lose it.
    fn touch_found(&self, key: &[u8], exptime: Seconds) -> Result<Chunk, Miss> {
        let pool = self.pool();
        let (locked, clock) = self.lock(pool.hash(key));
        let found = locked.find(|chunk| pool.key(chunk) == key).ok_or(Miss::NotFound);
        match found.and_then(|(_, chunk)| self.alive(chunk, clock)) {
            Ok(chunk) => {
                pool.arena.header(chunk).exptime.store(exptime, Relaxed);
                let class = usize::from(pool.owners.class_of(chunk)) - 1;
                add(&self.stripe().touch_hits[class]);
                Ok(chunk)
            }
            Err(miss) => {
                add(&self.stripe().touch_misses);
                Err(miss)
            }
        }
    }

    /// Finds a live item; removes a dead one.
    #[inline]
    pub(crate) fn find(&self, key: &[u8], hash: u64) -> Result<Chunk, Miss> {
        self.pin();
        let pool = self.pool();
        let chunk = pool.index.find(hash, |chunk| pool.key(chunk) == key).ok_or(Miss::NotFound)?;
        self.alive(chunk, self.clock()).inspect_err(|_| self.take_out_dead(chunk))
    }

    #[cold]
    fn take_out_dead(&self, chunk: Chunk) {
        let pool = self.pool();
        let clock = self.clock();
        let locked = pool.index.lock(pool.hash_of(chunk));
        // It may have been touched meanwhile.
        if let Some((at, _)) = locked.find(|found| found == chunk)
            && clock.is_dead(&pool.arena, chunk)
        {
            let dead = Victim { chunk, is_dead: true };
            pool.class_of(chunk).count_victim(&pool.arena, dead, self.now);
            pool.remove(&locked, at, chunk);
        }
    }

    #[inline]
    fn alive(&self, chunk: Chunk, clock: Clock) -> Result<Chunk, Miss> {
        let header = self.pool().arena.header(chunk);
        if clock.is_flushed(header) {
            return Err(Miss::Flushed);
        }
        if clock.is_expired(header.exptime.load(Relaxed)) { Err(Miss::Expired) } else { Ok(chunk) }
    }

    /// Locks the bucket of a hash, and makes the clock under the lock: no item in the bucket is of
    /// a newer generation, which would look flushed.
    #[inline]
    pub(crate) fn lock(&self, hash: u64) -> (Locked<'s>, Clock) {
        // A due flush takes locks of buckets: before this one.
        let clock = self.clock();
        let locked = self.pool().index.lock(hash);
        (locked, self.pool().clock_under_lock(clock))
    }

    #[inline]
    pub(crate) fn clock(&self) -> Clock {
        self.pool().clock(self.now)
    }

    #[inline]
    pub(crate) fn pool(&self) -> &'s Pool {
        self.store.pool()
    }

    pub(crate) fn stripe(&self) -> &'s CounterStripe {
        self.pool().counters.stripe(self.stripe)
    }

    #[inline]
    pub(crate) fn pin(&self) {
        if !self.is_pinned.get() {
            self.is_pinned.set(true);
            self.pinned.set(Some(self.pool().pin()));
        }
    }

    /// Unpins before memory is allocated: pinned memory could not be freed. No item of the guard is
    /// borrowed at this point, because the caller has `&mut`.
    #[inline]
    pub(crate) fn unpin(&mut self) {
        if self.is_pinned.get() {
            self.is_pinned.set(false);
            self.pinned.set(None);
        }
    }

    #[inline]
    fn count_hit(&self, class: u8) {
        let (run_class, count) = self.run.get();
        if run_class == class {
            return self.run.set((class, count + 1));
        }
        self.settle_run();
        self.run.set((class, 1));
    }

    fn settle_run(&self) {
        let (class, count) = self.run.replace((0, 0));
        if count > 0 {
            self.stripe().get_hits[usize::from(class) - 1].fetch_add(u64::from(count), Relaxed);
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.settle_run();
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("now", &self.now).finish_non_exhaustive()
    }
}
