use std::sync::atomic::Ordering::Relaxed;

use crate::store::access::handle::Store;
use crate::store::figures::{ClassStats, Eviction, Stats};
use crate::store::memory::arena::PAGE_LEN;
use crate::store::pool::Pool;
use crate::store::rule::Seconds;
use crate::store::slab::Class;

impl Store {
    /// Figures of `stats`.
    pub fn stats(&self) -> Stats {
        let pool = self.pool();
        let mut stats = Stats {
            curr_items: pool.index.items(),
            limit_maxbytes: u64::from(pool.pages_limit()) * PAGE_LEN as u64,
            total_malloced: u64::from(pool.pages_in_use()) * PAGE_LEN as u64,
            get_hits: (1..=pool.lens.last()).map(|id| pool.get_hits(id)).sum(),
            touch_hits: (1..=pool.lens.last()).map(|id| pool.touch_hits(id)).sum(),
            slabs_moved: pool.counters.sum(|stripe| &stripe.pages_moved),
            upload_bytes: pool.upload_len.load(Relaxed),
            slab_reassign_running: pool.is_moving.load(Relaxed),
            slab_reassign_rescues: pool.counters.sum(|stripe| &stripe.rescues),
            hash_power_level: pool.index.power(),
            hash_bytes: pool.index.memory_len(),
            ..Stats::default()
        };
        macro_rules! sums {
            ($($count:ident)*) => {
                $(stats.$count = pool.counters.sum(|stripe| &stripe.$count);)*
            };
        }
        sums! {
            get_misses get_expired get_flushed touch_misses delete_misses incr_misses decr_misses
            cas_misses crawler_items_checked reader_waits refused_behind_readers uploads_refused
        }
        pool.class_ids().for_each(|id| stats.add(&pool.class(id)));
        stats
    }

    /// Figures of `stats items` and `stats slabs`: the classes that own a page.
    pub fn class_stats(&self, now: Seconds) -> Vec<ClassStats> {
        let pool = self.pool();
        let with_page = pool.class_ids().filter(|id| pool.class(*id).page_count() > 0);
        with_page
            .map(|id| ClassStats {
                get_hits: pool.get_hits(id),
                touch_hits: pool.touch_hits(id),
                ..pool.class(id).stats(&pool.arena, now)
            })
            .collect()
    }

    /// Sets a callback for each eviction. It runs on the storing thread, so it must be quick and
    /// must not use the store. Only one can be set; false for a second one.
    pub fn observe_evictions(
        &self,
        observe: impl Fn(Eviction<'_>) + Send + Sync + 'static,
    ) -> bool {
        self.pool().observer.set(Box::new(observe)).is_ok()
    }

    /// Sets the counters to 0 (`stats reset`).
    pub fn reset_stats(&self) {
        let pool = self.pool();
        pool.counters.reset();
        pool.class_ids().for_each(|id| pool.class(id).counts = ClassStats::default());
    }
}

impl Stats {
    fn add(&mut self, class: &Class) {
        let counts = &class.counts;
        self.bytes += class.mem_requested;
        self.limbo_chunks += class.limbo_len();
        self.ghost_bytes += class.ghosts_len() as u64;
        self.total_items += counts.stored;
        self.evictions += counts.evicted;
        macro_rules! add {
            ($($count:ident)*) => { $(self.$count += counts.$count;)* };
        }
        add! {
            cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval reclaimed
            expired_unfetched evicted_unfetched crawler_reclaimed out_of_memory
        }
    }
}

impl Pool {
    fn get_hits(&self, id: u8) -> u64 {
        self.counters.sum(|stripe| &stripe.get_hits[usize::from(id) - 1])
    }

    fn touch_hits(&self, id: u8) -> u64 {
        self.counters.sum(|stripe| &stripe.touch_hits[usize::from(id) - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Arithmetic, Config, DeleteRule, Direction, Mode, NEVER, Rule};

    const NOW: Seconds = 10;

    /// Does each operation a different number of times, on small items and a big one.
    fn busy_store() -> Store {
        let store = Store::new(Config::default()).unwrap();
        let mut guard = store.access(NOW);
        let mut set = |key: &str, len, exptime, rule: Rule| {
            let value = vec![b'7'; len];
            let _ = guard.store(key.as_bytes(), &value, 0, exptime, rule);
        };
        let any = Rule::from(Mode::Set);
        let with_cas = |cas| Rule { cas: Some(cas), ..any };
        set("flushed", 10, NEVER, any);
        store.flush(NOW, NOW);
        for key in ["a", "b", "c", "d", "gone-1", "gone-2", "old", "older", "oldest"] {
            let exptime = if key.starts_with("old") { 5 } else { NEVER };
            set(key, 10, exptime, any);
        }
        set("big", 1_000, NEVER, any);
        set("big", 1_000, NEVER, with_cas(11));
        (0..2).for_each(|_| set("a", 10, NEVER, with_cas(1_000)));
        (0..3).for_each(|_| set("none", 10, NEVER, with_cas(1)));
        drop(guard);
        let mut guard = store.access(NOW);
        (0..4).for_each(|_| assert!(guard.get(b"a").is_ok()));
        (0..2).for_each(|_| assert!(guard.get(b"big").is_ok()));
        (0..5).for_each(|_| assert!(guard.get(b"none").is_err()));
        for key in ["flushed", "old", "older"] {
            assert!(guard.get(key.as_bytes()).is_err());
        }
        (0..6).for_each(|_| guard.touch(b"b", NEVER).unwrap());
        (0..7).for_each(|_| assert!(guard.touch(b"none", NEVER).is_err()));
        for key in ["gone-1", "gone-2", "none", "none-2", "none-3"] {
            guard.delete(key.as_bytes(), DeleteRule::default());
        }
        let by =
            |direction| Arithmetic { direction, delta: 1, cas: None, new_cas: None, exptime: None };
        for (key, direction, times) in [
            ("c", Direction::Up, 8),
            ("none", Direction::Up, 9),
            ("c", Direction::Down, 5),
            ("none", Direction::Down, 4),
        ] {
            for _ in 0..times {
                guard.count(key.as_bytes(), by(direction)).unwrap();
            }
        }
        drop(guard);
        while store.maintain(1_000, NOW) {}
        store
    }

    #[test]
    fn store_figures_count_operations() {
        let store = busy_store();
        let stats = store.stats();
        let expected = Stats {
            curr_items: 5,
            // Flushed item, 9 small ones, the big one twice, and 13 numbers.
            total_items: 1 + 9 + 2 + 13,
            bytes: 4 * 51 + 1_043,
            limit_maxbytes: 64 << 20,
            total_malloced: 2 << 20,
            get_hits: 6,
            get_misses: 8,
            get_expired: 2,
            get_flushed: 1,
            touch_hits: 6,
            touch_misses: 7,
            delete_hits: 2,
            delete_misses: 3,
            incr_hits: 8,
            incr_misses: 9,
            decr_hits: 5,
            decr_misses: 4,
            cas_hits: 1,
            cas_misses: 3,
            cas_badval: 2,
            cmd_set: 1 + 9 + 2 + 2 + 3,
            reclaimed: 3,
            expired_unfetched: 3,
            crawler_reclaimed: 1,
            crawler_items_checked: 6,
            hash_power_level: 14,
            hash_bytes: 4 * 4096 * 64,
            limbo_chunks: 0,
            ..Stats::default()
        };
        assert_eq!(stats, expected);
    }

    #[test]
    fn class_figures_count_operations() {
        let store = busy_store();
        let [small, big] = &store.class_stats(NOW + 3)[..] else {
            panic!("{:?}", store.class_stats(NOW));
        };
        let expected = ClassStats {
            id: 1,
            chunk_size: 88,
            chunks_per_page: 11_915,
            total_pages: 1,
            total_chunks: 11_915,
            used_chunks: 4,
            free_chunks: small.free_chunks,
            free_chunks_end: 11_915 - 4 - small.free_chunks,
            mem_requested: 4 * 51,
            number: 4,
            number_small: 4,
            age: 3,
            reclaimed: 3,
            expired_unfetched: 3,
            crawler_reclaimed: 1,
            stored: 1 + 9 + 13,
            get_hits: 4,
            cmd_set: 1 + 9 + 2 + 3,
            delete_hits: 2,
            incr_hits: 8,
            decr_hits: 5,
            cas_badval: 2,
            touch_hits: 6,
            ..ClassStats::default()
        };
        assert_eq!(*small, expected);
        assert!(small.free_chunks > 0);
        let figures = (big.stored, big.get_hits, big.cmd_set, big.cas_hits);
        assert_eq!(figures, (2, 2, 2, 1));
        assert_eq!((big.number, big.touch_hits, big.used_chunks), (1, 0, 1));
    }

    #[test]
    fn refused_appends_count_as_stores() {
        let store = Store::new(Config::default()).unwrap();
        let mut guard = store.access(NOW);
        let half = vec![b'v'; 600_000];
        guard.store(b"long", &half, 0, NEVER, Mode::Set.into()).unwrap();
        for (key, value) in [(b"none", &b"v"[..]), (b"long", &half[..])] {
            for mode in [Mode::Append, Mode::Prepend] {
                let _ = guard.store(key, value, 0, NEVER, mode.into());
            }
        }
        drop(guard);
        assert_eq!(store.stats().cmd_set, 1 + 4);
    }

    #[test]
    fn reset_clears_counters_keeps_gauges() {
        let store = busy_store();
        let before = store.stats();
        store.reset_stats();
        let expected = Stats {
            curr_items: before.curr_items,
            bytes: before.bytes,
            limit_maxbytes: before.limit_maxbytes,
            total_malloced: before.total_malloced,
            hash_power_level: before.hash_power_level,
            hash_bytes: before.hash_bytes,
            ..Stats::default()
        };
        assert_eq!(store.stats(), expected);
        let class = &store.class_stats(NOW)[0];
        assert_eq!((class.number, class.get_hits, class.touch_hits), (4, 0, 0));
        assert_eq!((class.stored, class.cmd_set), (0, 0));
    }
}
