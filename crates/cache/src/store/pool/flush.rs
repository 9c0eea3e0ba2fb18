//! `flush_all` takes one step: each item carries the generation in which it was stored, and a flush
//! begins the next one, if anything was stored since the last. Items of older generations are dead
//! at once, and are removed when a get, an eviction, or the crawler meets them.
//!
//! Generations have 15 bits, so the crawler must have visited the whole table before they wrap. If
//! it has not for half of them, each further flush walks over its share of the table, so that no
//! single flush pays for all.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::store::index::Cursor;
use crate::store::pool::counters::add;
use crate::store::pool::state::Sweep;
use crate::store::pool::{Pool, thread_stripe};
use crate::store::rule::Seconds;
use crate::store::slab::{Clock, GENERATIONS, Victim};

/// Age of the oldest item, in generations, from which each flush walks over its share.
const SHARED_FROM: u16 = GENERATIONS / 2;

/// Age by which the shares have covered the whole table.
const SHARED_UNTIL: u16 = GENERATIONS - 1;

/// The word of `Pool::flush`: the generation in the low 15 bits, then whether anything was stored
/// in it; above, the time of the next flush, or 0.
#[derive(Clone, Copy)]
struct Flush(u64);

impl Flush {
    const STORED: u64 = 1 << 15;

    fn generation(self) -> u16 {
        self.0 as u16 % GENERATIONS
    }

    fn due(self) -> u64 {
        self.0 >> 16
    }
}

/// Number of flushes between two generations.
fn between(older: u16, newer: u16) -> u16 {
    newer.wrapping_sub(older) % GENERATIONS
}

impl Pool {
    /// The criteria for live items at this time. Executes a flush that has become due, which takes
    /// the crawler's lock and those of buckets, so the caller must hold none.
    #[inline]
    pub(crate) fn clock(&self, now: Seconds) -> Clock {
        let flush = Flush(self.flush.load(Acquire));
        if flush.due() != 0 && flush.due() <= u64::from(now) {
            self.settle_flush(now);
            return self.clock_as_is(now);
        }
        Clock { now, generation: flush.generation() }
    }

    pub(crate) fn clock_as_is(&self, now: Seconds) -> Clock {
        let generation = Flush(self.flush.load(Acquire)).generation();
        Clock { now, generation }
    }

    /// The clock with the current generation, under a lock that an item is published under. A flush
    /// may have begun a generation since `clock` was made; items of it would look flushed.
    pub(crate) fn clock_under_lock(&self, clock: Clock) -> Clock {
        self.clock_as_is(clock.now)
    }

    /// Time at which a flush is due, or 0.
    pub(crate) fn flush_due(&self) -> Seconds {
        Flush(self.flush.load(Acquire)).due() as Seconds
    }

    /// The generation for an item about to be published: marked as used, so that the next flush
    /// begins another. A due flush was executed when the caller took its [`clock`](Pool::clock); it
    /// must not be done here, under the lock of a bucket.
    #[inline]
    pub(crate) fn generation_to_store_in(&self) -> u16 {
        let mut word = self.flush.load(Acquire);
        // Once per generation. The item becomes visible after the mark, and a flush that misses
        // the mark precedes the item.
        while word & Flush::STORED == 0 {
            let stored = word | Flush::STORED;
            match self.flush.compare_exchange(word, stored, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        Flush(word).generation()
    }

    /// Flushes at the time `at`; immediately if it is not in the future.
    pub(crate) fn flush_at(&self, at: Seconds, now: Seconds) {
        self.settle_flush(now);
        if at <= now { self.flush_now(0) } else { self.delay_flush(at) }
    }

    #[cold]
    fn settle_flush(&self, now: Seconds) {
        let due = Flush(self.flush.load(Acquire)).due();
        if due != 0 && due <= u64::from(now) {
            self.flush_now(due);
        }
    }

    /// Begins the next generation. `due` is the delayed flush that this executes, or 0 for an
    /// immediate one.
    fn flush_now(&self, due: u64) {
        let mut sweep = self.lock_sweep();
        let begin = |word| {
            let flush = Flush(word);
            let next = match word & Flush::STORED {
                0 => flush.generation(),
                _ => (flush.generation() + 1) % GENERATIONS,
            };
            (due == 0 || flush.due() == due).then_some(u64::from(next))
        };
        let Ok(_) = self.flush.fetch_update(AcqRel, Acquire, begin) else {
            // Another thread has executed it.
            return;
        };
        self.walk_share(&mut sweep);
    }

    fn delay_flush(&self, at: Seconds) {
        let _sweep = self.lock_sweep();
        let delay = |word| Some(u64::from(at) << 16 | word & 0xffff);
        self.flush.fetch_update(AcqRel, Acquire, delay).expect("the closure returns Some");
    }

    fn lock_sweep(&self) -> MutexGuard<'_, Sweep> {
        let sweep = self.sweep.lock();
        sweep.expect("no panic under the crawler's lock")
    }

    /// A flush's share of the crawler's walk, if the crawler is far behind.
    fn walk_share(&self, sweep: &mut Sweep) {
        let clock = self.clock_as_is(0);
        let age = between(sweep.oldest, clock.generation);
        if age < SHARED_FROM {
            return;
        }
        // After an old walk too few generations would be left for the next.
        let is_old = between(sweep.oldest, sweep.began_in) < SHARED_FROM;
        let cursor = match sweep.cursor {
            Some(cursor) if !is_old => cursor,
            _ => {
                sweep.began_in = clock.generation;
                Cursor::START
            }
        };
        let left = self.index.bucket_count().saturating_sub(cursor.0);
        let end = cursor.0 + left / u64::from(SHARED_UNTIL.saturating_sub(age).max(1)) + 1;
        let checked = &self.counters.stripe(thread_stripe()).crawler_items_checked;
        for number in (cursor.0..end).take_while(|number| self.index.has_bucket(*number)) {
            let _pinned = self.pin();
            for chunk in self.index.chunks(number) {
                add(checked);
                if clock.is_flushed(self.arena.header(chunk)) {
                    let is_dead = true;
                    self.take_out_dead(Victim { chunk, is_dead }, clock);
                }
            }
        }
        sweep.cursor = self.index.has_bucket(end).then_some(Cursor(end));
        if sweep.cursor.is_none() {
            sweep.oldest = sweep.began_in;
        }
    }

    /// Removes a dead item, for the crawler. The epoch must have been pinned before it was found.
    pub(crate) fn take_out_dead(&self, victim: Victim, clock: Clock) {
        let locked = self.index.lock(self.hash_of(victim.chunk));
        let found = locked.find(|chunk| chunk == victim.chunk);
        // It may have been touched meanwhile.
        if let Some((at, chunk)) = found.filter(|_| clock.is_dead(&self.arena, victim.chunk)) {
            self.class_of(chunk).counts.crawler_reclaimed += 1;
            self.remove(&locked, at, chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, Mode, NEVER, Store};

    const NOW: Seconds = 2;

    fn set(store: &Store, key: &str) {
        let mut guard = store.access(NOW);
        guard.store(key.as_bytes(), b"v", 0, NEVER, Mode::Set.into()).unwrap();
    }

    #[test]
    fn flushes_visit_all_before_wrap() {
        // Without a crawler, an item from 32,768 flushes ago would be alive again.
        let store = Store::new(Config::default()).unwrap();
        (0..60_000).for_each(|at| set(&store, &format!("old-{at}")));
        let items = |store: &Store| store.stats().curr_items;
        for flushes in 1..=32_766 {
            store.flush(NOW, NOW);
            set(&store, "new");
            match flushes {
                // The crawler has had the time of half of the generations.
                16_383 => assert_eq!(items(&store), 60_001),
                16_384 => assert!(items(&store) < 60_001 && items(&store) > 59_000),
                24_575 => assert!((25_000..35_000).contains(&items(&store))),
                _ => {}
            }
        }
        assert_eq!(items(&store), 1);
    }

    #[test]
    fn empty_flush_keeps_the_generation() {
        let store = Store::new(Config::default()).unwrap();
        let generation = |store: &Store| store.pool().clock(NOW).generation;
        (0..3).for_each(|_| store.flush(NOW, NOW));
        assert_eq!(generation(&store), 0);
        for flushes in 1..=3 {
            set(&store, "a");
            (0..3).for_each(|_| store.flush(NOW, NOW));
            assert_eq!(generation(&store), flushes);
        }
    }

    #[test]
    fn delayed_flush_waits() {
        let store = Store::new(Config::default()).unwrap();
        let pool = store.pool();
        (0..5).for_each(|_| {
            set(&store, "a");
            store.flush(NOW, NOW);
        });
        set(&store, "a");
        store.flush(NOW + 9, NOW);
        assert_eq!((pool.flush_due(), pool.clock(NOW + 8).generation), (NOW + 9, 5));
        assert!(store.access(NOW + 8).get(b"a").is_ok());
        // A later flush replaces it.
        store.flush(NOW + 7, NOW);
        assert_eq!(pool.flush_due(), NOW + 7);
        assert!(store.access(NOW + 7).get(b"a").is_err());
        assert_eq!((pool.flush_due(), pool.clock(NOW + 9).generation), (0, 6));
    }

    #[test]
    fn generation_distance() {
        for (older, newer, flushes) in [(0, 0, 0), (3, 5, 2), (5, 3, 32_766), (32_767, 0, 1)] {
            assert_eq!(between(older, newer), flushes);
        }
    }
}
