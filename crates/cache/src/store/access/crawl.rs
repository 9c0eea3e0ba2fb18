//! Walks over the whole table: the crawler, and `lru_crawler metadump`.

use std::ops::ControlFlow;

use crate::store::access::handle::Store;
use crate::store::access::item::Item;
use crate::store::index::Cursor;
use crate::store::pool::counters::add;
use crate::store::pool::thread_stripe;
use crate::store::rule::Seconds;
use crate::store::slab::Victim;

/// Seconds between two walks of the crawler when nothing was flushed.
const SWEEP_EVERY: Seconds = 60;

impl Store {
    /// Flushes all items that exist at the time `at`; immediately if it is not in the future
    /// (`flush_all`, `flush_all DELAY`). A later call replaces one that is still pending.
    pub fn flush(&self, at: Seconds, now: Seconds) {
        self.pool().flush_at(at, now);
    }

    /// Visits items after `cursor` until `budget` were seen: removes dead ones and passes the
    /// others to `visit`. Returns the position to continue at, or `None` after the last item or
    /// when `visit` breaks. An item that exists throughout is seen at least once, and perhaps twice
    /// if the table grows meanwhile.
    ///
    /// `visit` runs within a guard, so it must not write to the store.
    pub fn crawl(
        &self,
        cursor: Cursor,
        budget: usize,
        now: Seconds,
        mut visit: impl FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        // A flush that is due takes effect first.
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
            let chunks = pool.index.chunks(number);
            // After they were found: none of them is of a newer generation.
            let clock = pool.clock_as_is(now);
            for chunk in chunks {
                seen += 1;
                add(checked);
                if clock.is_dead(&pool.arena, chunk) {
                    pool.take_out_dead(Victim { chunk, is_dead: true }, clock);
                } else if visit(&Item::new(self, chunk)).is_break() {
                    return None;
                }
            }
            number += 1;
            // Buckets without items count too, at an eighth of the cost.
            seen += usize::from(number.is_multiple_of(8));
            if seen >= budget {
                return pool.index.has_bucket(number).then_some(Cursor(number));
            }
        }
        None
    }

    /// True while a sweep for dead items is in progress.
    pub fn is_sweeping(&self) -> bool {
        let sweep = self.pool().sweep.try_lock();
        sweep.map_or(true, |sweep| sweep.cursor.is_some())
    }

    /// Does up to `budget` steps of housekeeping: removes dead items, moves pages to the classes
    /// that need them, gives memory back. Returns whether more remains to do now. To be called when
    /// idle.
    pub fn maintain(&self, budget: usize, now: Seconds) -> bool {
        let sweeps = self.sweep(budget, now);
        let moves = self.pool().maintain_pages(budget, self.pool().clock(now));
        sweeps || moves
    }

    fn sweep(&self, budget: usize, now: Seconds) -> bool {
        let pool = self.pool();
        // A flush takes the crawler's lock, so a due flush is done before it.
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
            sweep.next_at = now.saturating_add(SWEEP_EVERY);
        }
        sweep.cursor.is_some() || sweep.oldest != generation
    }
}
