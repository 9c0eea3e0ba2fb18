use std::sync::atomic::Ordering::Relaxed;

use crate::store::access::handle::Store;
use crate::store::figures::{ClassStats, Eviction, Stats};
use crate::store::memory::arena::PAGE_LEN;
use crate::store::pool::Pool;
use crate::store::rule::Seconds;
use crate::store::slab::Class;

impl Store {
    /// What `stats` says.
    pub fn stats(&self) -> Stats {
        let pool = self.pool();
        let mut stats = Stats {
            curr_items: pool.index.items(),
            limit_maxbytes: u64::from(pool.pages_limit()) * PAGE_LEN as u64,
            total_malloced: u64::from(pool.pages_in_use()) * PAGE_LEN as u64,
            get_hits: (1..=pool.lens.last()).map(|id| pool.get_hits(id)).sum(),
            get_misses: pool.counters.sum(|stripe| &stripe.get_misses),
            get_expired: pool.counters.sum(|stripe| &stripe.get_expired),
            get_flushed: pool.counters.sum(|stripe| &stripe.get_flushed),
            touch_hits: (1..=pool.lens.last()).map(|id| pool.touch_hits(id)).sum(),
            touch_misses: pool.counters.sum(|stripe| &stripe.touch_misses),
            delete_misses: pool.counters.sum(|stripe| &stripe.delete_misses),
            incr_misses: pool.counters.sum(|stripe| &stripe.incr_misses),
            decr_misses: pool.counters.sum(|stripe| &stripe.decr_misses),
            cas_misses: pool.counters.sum(|stripe| &stripe.cas_misses),
            crawler_items_checked: pool.counters.sum(|stripe| &stripe.crawler_items_checked),
            slabs_moved: pool.counters.sum(|stripe| &stripe.pages_moved),
            reader_waits: pool.counters.sum(|stripe| &stripe.reader_waits),
            refused_behind_readers: pool.counters.sum(|stripe| &stripe.refused_behind_readers),
            slab_reassign_running: pool.is_moving.load(Relaxed),
            slab_reassign_rescues: pool.counters.sum(|stripe| &stripe.rescues),
            hash_power_level: pool.index.power(),
            hash_bytes: pool.index.memory_len(),
            ..Stats::default()
        };
        pool.class_ids().for_each(|id| stats.add(&pool.class(id)));
        stats
    }

    /// What `stats items` and `stats slabs` say: the classes that own a page.
    pub fn class_stats(&self, now: Seconds) -> Vec<ClassStats> {
        let pool = self.pool();
        let with_page = pool
            .class_ids()
            .filter(|id| pool.class(*id).page_count() > 0);
        with_page
            .map(|id| ClassStats {
                get_hits: pool.get_hits(id),
                touch_hits: pool.touch_hits(id),
                ..pool.class(id).stats(&pool.arena, now)
            })
            .collect()
    }

    /// Has `observe` told of each eviction, on the thread of whoever stores: it must be quick, and must not use the
    /// store. The first observer stays; false for a second one.
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
        pool.class_ids()
            .for_each(|id| pool.class(id).counts = ClassStats::default());
    }
}

impl Stats {
    fn add(&mut self, class: &Class) {
        let counts = &class.counts;
        self.bytes += class.mem_requested;
        self.limbo_chunks += class.limbo_len();
        self.ghost_bytes += class.ghosts_len() as u64;
        self.total_items += counts.stored;
        self.cmd_set += counts.cmd_set;
        self.delete_hits += counts.delete_hits;
        self.incr_hits += counts.incr_hits;
        self.decr_hits += counts.decr_hits;
        self.cas_hits += counts.cas_hits;
        self.cas_badval += counts.cas_badval;
        self.evictions += counts.evicted;
        self.reclaimed += counts.reclaimed;
        self.expired_unfetched += counts.expired_unfetched;
        self.evicted_unfetched += counts.evicted_unfetched;
        self.crawler_reclaimed += counts.crawler_reclaimed;
        self.out_of_memory += counts.out_of_memory;
    }
}

impl Pool {
    fn get_hits(&self, id: u8) -> u64 {
        self.counters
            .sum(|stripe| &stripe.get_hits[usize::from(id) - 1])
    }

    fn touch_hits(&self, id: u8) -> u64 {
        self.counters
            .sum(|stripe| &stripe.touch_hits[usize::from(id) - 1])
    }
}
