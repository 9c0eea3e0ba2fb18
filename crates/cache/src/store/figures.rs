//! The store's figures: the numbers of `stats`, and evictions.

use super::rule::Seconds;

/// Item figures of `stats`. Counters start at 0 with
/// [`Store::reset_stats`](super::Store::reset_stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items in the table now, including expired ones that were not yet removed.
    pub curr_items: u64,
    /// Items stored since the start.
    pub total_items: u64,
    /// Bytes of all items: headers, keys and values, without rounding up to chunks.
    pub bytes: u64,
    /// Current memory limit (`-m`) in bytes.
    pub limit_maxbytes: u64,
    /// Memory in pages, in bytes: never above the limit, except for pages that `cache_memlimit` has
    /// yet to free.
    pub total_malloced: u64,
    /// Gets that found the item.
    pub get_hits: u64,
    /// Gets that did not find it, for any reason.
    pub get_misses: u64,
    /// Misses because the item had expired.
    pub get_expired: u64,
    /// Misses because the item had been flushed.
    pub get_flushed: u64,
    /// Touches that found the item (get-and-touch included).
    pub touch_hits: u64,
    /// Touches that did not find it.
    pub touch_misses: u64,
    /// Deletes that found the item.
    pub delete_hits: u64,
    /// Deletes that did not find it.
    pub delete_misses: u64,
    /// Increments.
    pub incr_hits: u64,
    /// Increments of items that do not exist.
    pub incr_misses: u64,
    /// Decrements.
    pub decr_hits: u64,
    /// Decrements of items that do not exist.
    pub decr_misses: u64,
    /// Stores with the right cas.
    pub cas_hits: u64,
    /// Stores with a cas of items that do not exist.
    pub cas_misses: u64,
    /// Stores with a wrong cas.
    pub cas_badval: u64,
    /// Started stores (`cmd_set`).
    pub cmd_set: u64,
    /// Items evicted for new ones.
    pub evictions: u64,
    /// Expired items whose memory went to new ones.
    pub reclaimed: u64,
    /// Expired items that were never fetched.
    pub expired_unfetched: u64,
    /// Evicted items that were never fetched.
    pub evicted_unfetched: u64,
    /// Items removed by the crawler.
    pub crawler_reclaimed: u64,
    /// Items visited by the crawler.
    pub crawler_items_checked: u64,
    /// Stores refused because no memory was free.
    pub out_of_memory: u64,
    /// Pages moved to another slab class.
    pub slabs_moved: u64,
    /// True while a page moves to another class.
    pub slab_reassign_running: bool,
    /// Items copied out of moving pages (memcached's `slab_reassign_chunk_rescues`).
    pub slab_reassign_rescues: u64,
    /// log2 of the buckets of the table, rounded down.
    pub hash_power_level: u32,
    /// Memory of the table in bytes. It is not part of `-m`, as in memcached.
    pub hash_bytes: u64,
    /// Memory of the ghost queues in bytes: two for each item that fits. It is not part of `-m`.
    pub ghost_bytes: u64,
    /// Removed chunks that still have readers.
    pub limbo_chunks: u64,
    /// Stores that waited for readers, which held all reclaimable memory.
    pub reader_waits: u64,
    /// Stores refused because readers did not finish in time: part of `out_of_memory`.
    pub refused_behind_readers: u64,
    /// Memory of incomplete values, in bytes.
    pub upload_bytes: u64,
    /// Stores refused because incomplete values already take half of the memory.
    pub uploads_refused: u64,
}

/// An evicted item, as passed to an observer (`watch evictions`).
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'a> {
    /// The key.
    pub key: &'a [u8],
    /// True if it was ever fetched.
    pub was_fetched: bool,
    /// Expiry time, or [`NEVER`](super::NEVER).
    pub exptime: Seconds,
    /// Time of the last use.
    pub last_access: Seconds,
    /// The number of its slab class.
    pub class_id: u8,
    /// ItemHeader, key and value, in bytes.
    pub size: u64,
    /// Time of the eviction.
    pub now: Seconds,
}

/// The figures of one slab class for `stats items` and `stats slabs`.
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
    /// Chunks in use: items, parts of long items, reservations, limbo.
    pub used_chunks: u64,
    /// Chunks not in use.
    pub free_chunks: u64,
    /// Chunks that were never in use.
    pub free_chunks_end: u64,
    /// Bytes requested by items.
    pub mem_requested: u64,
    /// Items in the class's queues.
    pub number: u64,
    /// Items in the small queue (on probation; closest to memcached's hot list).
    pub number_small: u64,
    /// Items in the main queue (closest to memcached's warm list).
    pub number_main: u64,
    /// Seconds since the last use of the next item to evict.
    pub age: Seconds,
    /// Items evicted.
    pub evicted: u64,
    /// Evicted items with an expiry time.
    pub evicted_nonzero: u64,
    /// Seconds since the last use of the most recently evicted item.
    pub evicted_time: Seconds,
    /// Evicted items that were never fetched.
    pub evicted_unfetched: u64,
    /// Stores refused because no memory was free.
    pub out_of_memory: u64,
    /// Expired items whose memory went to new ones.
    pub reclaimed: u64,
    /// Expired items that were never fetched.
    pub expired_unfetched: u64,
    /// Items removed by the crawler.
    pub crawler_reclaimed: u64,
    /// Items moved from the small queue to the main one.
    pub promoted: u64,
    /// Items that returned while the ghost queue remembered them.
    pub ghost_hits: u64,
    /// Items stored since the start, new versions included.
    pub stored: u64,
    /// Gets that found an item of the class.
    pub get_hits: u64,
    /// Stores into the class.
    pub cmd_set: u64,
    /// Deletes.
    pub delete_hits: u64,
    /// Increments.
    pub incr_hits: u64,
    /// Decrements.
    pub decr_hits: u64,
    /// Stores with the right cas.
    pub cas_hits: u64,
    /// Stores with a wrong cas.
    pub cas_badval: u64,
    /// Touches.
    pub touch_hits: u64,
}
