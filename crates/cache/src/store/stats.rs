use std::sync::atomic::Ordering::Relaxed;

use super::arena::PAGE_LEN;
use super::pool::Pool;
use super::slab::Class;
use super::{Seconds, Store};

/// What `stats` says of the items. Counters begin at 0 with [`Store::reset_stats`](super::Store::reset_stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items in the table now, those that expired and were not yet seen to included.
    pub curr_items: u64,
    /// Items stored since the start.
    pub total_items: u64,
    /// Bytes of all items: headers, keys and values, without what rounding up to chunks costs.
    pub bytes: u64,
    /// `-m` as it stands, in bytes.
    pub limit_maxbytes: u64,
    /// Memory in pages, in bytes: never above the limit, but for what `cache_memlimit` has yet to take back.
    pub total_malloced: u64,
    /// Gets that found.
    pub get_hits: u64,
    /// Gets that did not, for whatever reason.
    pub get_misses: u64,
    /// Misses because the item had expired.
    pub get_expired: u64,
    /// Misses because the item had been flushed.
    pub get_flushed: u64,
    /// Touches that found (get-and-touch included).
    pub touch_hits: u64,
    /// Touches that did not.
    pub touch_misses: u64,
    /// Deletes that found.
    pub delete_hits: u64,
    /// Deletes that did not.
    pub delete_misses: u64,
    /// Counted up.
    pub incr_hits: u64,
    /// There was nothing to count up.
    pub incr_misses: u64,
    /// Counted down.
    pub decr_hits: u64,
    /// There was nothing to count down.
    pub decr_misses: u64,
    /// Stores with the right cas.
    pub cas_hits: u64,
    /// Stores with a cas, of what is not there.
    pub cas_misses: u64,
    /// Stores with another cas.
    pub cas_badval: u64,
    /// Stores that were begun (`cmd_set`).
    pub cmd_set: u64,
    /// Items that gave their place to new ones.
    pub evictions: u64,
    /// Expired items that gave their place to new ones.
    pub reclaimed: u64,
    /// Expired items that nobody ever fetched.
    pub expired_unfetched: u64,
    /// Evicted items that nobody ever fetched.
    pub evicted_unfetched: u64,
    /// Items that the crawler took out.
    pub crawler_reclaimed: u64,
    /// Items that the crawler looked at.
    pub crawler_items_checked: u64,
    /// Stores refused because no memory was free.
    pub out_of_memory: u64,
    /// Pages that changed their slab class.
    pub slabs_moved: u64,
    /// Whether a page is on its way to another class now.
    pub slab_reassign_running: bool,
    /// Items copied out of pages on their way (memcached's `slab_reassign_chunk_rescues`).
    pub slab_reassign_rescues: u64,
    /// log2 of the buckets of the table, rounded down.
    pub hash_power_level: u32,
    /// Memory of the table in bytes. It is not part of `-m`, as in memcached.
    pub hash_bytes: u64,
    /// Memory of the ghost queues in bytes: two for each item that fits. It is not part of `-m`.
    pub ghost_bytes: u64,
    /// Chunks that are freed when their last reader is done.
    pub limbo_chunks: u64,
    /// Stores that waited for readers, because all memory that they could have was looked at.
    pub reader_waits: u64,
    /// Stores refused because the readers did not leave in time: part of `out_of_memory`.
    pub refused_behind_readers: u64,
}

/// An item that gave its place to a new one, as an observer is told (`watch evictions`).
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Whether it was ever fetched.
    pub was_fetched: bool,
    /// When it would have expired, or [`NEVER`](super::NEVER).
    pub exptime: Seconds,
    /// When it was last used.
    pub last_access: Seconds,
    /// The number of its slab class.
    pub class_id: u8,
    /// Header, key and value, in bytes.
    pub size: u64,
    /// The time of the turn that evicted it.
    pub now: Seconds,
}

/// What `stats items` and `stats slabs` say of one slab class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// The class's number, from 1.
    pub id: u8,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Chunks of a page.
    pub chunks_per_page: u32,
    /// Pages that belong to the class.
    pub total_pages: u32,
    /// Chunks of these pages.
    pub total_chunks: u64,
    /// Chunks in use: items, parts of long items, drafts, limbo.
    pub used_chunks: u64,
    /// Chunks not in use.
    pub free_chunks: u64,
    /// Chunks that were never in use.
    pub free_chunks_end: u64,
    /// Bytes that items asked for.
    pub mem_requested: u64,
    /// Items in the class's queues.
    pub number: u64,
    /// Of these, in the small queue (items on probation; memcached's nearest word is hot).
    pub number_small: u64,
    /// Of these, in the main queue (memcached's nearest word is warm).
    pub number_main: u64,
    /// Seconds since the item next to be given up was last used.
    pub age: Seconds,
    /// Items evicted.
    pub evicted: u64,
    /// Of these, with an expiry time.
    pub evicted_nonzero: u64,
    /// Seconds since the last evicted item was used.
    pub evicted_time: Seconds,
    /// Evicted items that nobody ever fetched.
    pub evicted_unfetched: u64,
    /// Stores refused because no memory was free.
    pub out_of_memory: u64,
    /// Expired items that gave their place to new ones.
    pub reclaimed: u64,
    /// Expired items that nobody ever fetched.
    pub expired_unfetched: u64,
    /// Items that the crawler took out.
    pub crawler_reclaimed: u64,
    /// Items that moved from the small queue to the main one.
    pub promoted: u64,
    /// Items that the ghost queue knew when they came back.
    pub ghost_hits: u64,
    /// Items stored ever, new versions included.
    pub stored: u64,
    /// Gets that found an item of the class.
    pub get_hits: u64,
    /// Stores into the class.
    pub cmd_set: u64,
    /// Deletes.
    pub delete_hits: u64,
    /// Counted up.
    pub incr_hits: u64,
    /// Counted down.
    pub decr_hits: u64,
    /// Stores with the right cas.
    pub cas_hits: u64,
    /// Stores with another cas.
    pub cas_badval: u64,
    /// Touches.
    pub touch_hits: u64,
}

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
