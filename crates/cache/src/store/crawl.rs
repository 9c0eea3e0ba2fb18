//! Walks over the whole table: flush, the crawler, `lru_crawler metadump`, `stats sizes`.
//!
//! `flush_all` is one step: each item carries the generation in which it was stored, and a flush begins the next.
//! What is of an older one is dead at once, and is taken out when somebody meets it: a get, an eviction, or
//! the crawler. Generations have 8 bits, so before they come round again the crawler must have been everywhere.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::counters::add;
use super::pool::{Pool, thread_stripe};
use super::slab::{Clock, Victim};
use super::{Item, Seconds, Store};

/// Where a crawl goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// The first item.
    pub const START: Cursor = Cursor(0);
}

/// The crawler's own walk.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Where it is, if it walks.
    cursor: Option<Cursor>,
    /// The generation when it began.
    began_in: u8,
    /// No item is of a generation before this one.
    oldest: u8,
    next_at: Seconds,
}

/// Seconds between two walks of the crawler when nothing was flushed.
const SWEEP_EVERY: Seconds = 60;

/// So many flushes without a whole walk between them, and the flush walks itself.
const GENERATIONS_MAX: u8 = 200;

impl Store {
    /// Flushes all items that are there at the time `at`; at once when that is not in the future
    /// (`flush_all`, `flush_all DELAY`). A later call replaces one that is still to come.
    pub fn flush(&self, at: Seconds, now: Seconds) {
        let pool = self.pool();
        pool.settle_flush(now);
        match at <= now {
            true => pool.flush_now(0),
            false => pool.delay_flush(at),
        }
    }

    /// Looks at items after `cursor` until `budget` were seen, takes out what is dead, and shows the others to `visit`.
    /// Returns where to go on, or `None` after the last or when `visit` breaks. An item that is there
    /// throughout is seen at least once, and may be seen twice when the table grows meanwhile.
    ///
    /// `visit` runs within a turn, so it must not write to the store.
    pub fn crawl(
        &self,
        cursor: Cursor,
        budget: usize,
        now: Seconds,
        mut visit: impl FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        // A flush that has become due is carried out first.
        self.pool().clock(now);
        self.walk(cursor, budget, now, &mut visit)
    }

    fn walk(
        &self,
        cursor: Cursor,
        budget: usize,
        now: Seconds,
        visit: &mut dyn FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let pool = self.pool();
        let checked = &pool.counters.stripe(thread_stripe()).crawler_items_checked;
        let (Cursor(mut number), mut seen) = (cursor, 0);
        while pool.index.has_bucket(number) {
            let _pinned = pool.pin();
            let clock = pool.clock_as_is(now);
            for chunk in pool.index.chunks(number) {
                seen += 1;
                add(checked);
                if clock.is_dead(&pool.arena, chunk) {
                    pool.take_out_dead(
                        Victim {
                            chunk,
                            is_dead: true,
                        },
                        clock,
                    );
                } else if visit(&Item::new(self, chunk)).is_break() {
                    return None;
                }
            }
            number += 1;
            // An empty table has buckets as well, at an eighth of the price.
            seen += usize::from(number.is_multiple_of(8));
            if seen >= budget {
                return pool.index.has_bucket(number).then_some(Cursor(number));
            }
        }
        None
    }

    /// Does up to `budget` steps of housekeeping: takes out dead items, moves pages to the classes that
    /// need them, gives memory back. Returns whether there is more to do now. For an idle moment.
    pub fn maintain(&self, budget: usize, now: Seconds) -> bool {
        let sweeps = self.sweep(budget, now);
        let moves = self.pool().tend_pages(budget, self.pool().clock(now));
        sweeps || moves
    }

    fn sweep(&self, budget: usize, now: Seconds) -> bool {
        let pool = self.pool();
        // A flush takes the crawler's lock, so what is due comes before it.
        pool.clock(now);
        let Ok(mut sweep) = pool.sweep.try_lock() else {
            return false;
        };
        let generation = pool.clock_as_is(now).generation;
        let cursor = match sweep.cursor {
            Some(cursor) => cursor,
            None if sweep.oldest != generation || sweep.next_at <= now => {
                sweep.began_in = generation;
                Cursor::START
            }
            None => return false,
        };
        sweep.cursor = self.walk(cursor, budget, now, &mut |_| ControlFlow::Continue(()));
        if sweep.cursor.is_none() {
            sweep.oldest = sweep.began_in;
            sweep.next_at = now + SWEEP_EVERY;
        }
        sweep.cursor.is_some() || sweep.oldest != generation
    }
}

impl Pool {
    /// By what items are alive at this time. Carries out a flush that has become due.
    #[inline]
    pub(super) fn clock(&self, now: Seconds) -> Clock {
        let word = self.flush.load(Acquire);
        let due = word >> 8;
        if due != 0 && due <= u64::from(now) {
            self.settle_flush(now);
            return Clock {
                now,
                generation: self.flush.load(Acquire) as u8,
            };
        }
        Clock {
            now,
            generation: word as u8,
        }
    }

    fn clock_as_is(&self, now: Seconds) -> Clock {
        Clock {
            now,
            generation: self.flush.load(Acquire) as u8,
        }
    }

    #[cold]
    fn settle_flush(&self, now: Seconds) {
        let due = self.flush.load(Acquire) >> 8;
        if due != 0 && due <= u64::from(now) {
            self.flush_now(due);
        }
    }

    /// Begins the next generation. `due` is the delayed flush which that settles, or 0 for a flush of its own.
    fn flush_now(&self, due: u64) {
        let mut sweep = self
            .sweep
            .lock()
            .expect("no panic under the crawler's lock");
        let word = self.flush.load(Acquire);
        if due != 0 && word >> 8 != due {
            return;
        }
        let next = (word as u8).wrapping_add(1);
        // Only flushes write the word, under the crawler's lock.
        self.flush
            .store(u64::from(next), std::sync::atomic::Ordering::Release);
        if next.wrapping_sub(sweep.oldest) >= GENERATIONS_MAX {
            self.sweep_whole(next);
            (sweep.oldest, sweep.cursor) = (next, None);
        }
    }

    fn delay_flush(&self, at: Seconds) {
        let _sweep = self
            .sweep
            .lock()
            .expect("no panic under the crawler's lock");
        let generation = self.flush.load(Acquire) & 0xff;
        self.flush.swap(u64::from(at) << 8 | generation, AcqRel);
    }

    /// Takes out all that is not of this generation.
    fn sweep_whole(&self, generation: u8) {
        let clock = Clock { now: 0, generation };
        let mut number = 0;
        while self.index.has_bucket(number) {
            let _pinned = self.pin();
            for chunk in self.index.chunks(number) {
                if clock.is_flushed(self.arena.header(chunk).state.load(Relaxed)) {
                    self.take_out_dead(
                        Victim {
                            chunk,
                            is_dead: true,
                        },
                        clock,
                    );
                }
            }
            number += 1;
        }
    }

    /// Takes a dead item out, for the crawler. The epoch is pinned since before it was found.
    fn take_out_dead(&self, victim: Victim, clock: Clock) {
        let locked = self.index.lock(self.hash_of(victim.chunk));
        let found = locked.find(|chunk| chunk == victim.chunk);
        // Somebody may have touched it since.
        if let Some((at, chunk)) = found.filter(|_| clock.is_dead(&self.arena, victim.chunk)) {
            self.class_of(chunk).counts.crawler_reclaimed += 1;
            self.remove(&locked, at, chunk);
        }
    }
}
