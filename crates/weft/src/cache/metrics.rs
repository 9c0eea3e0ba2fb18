//! The cache's counters for Prometheus, under the names that dashboards for memcached know (those
//! of memcached_exporter).

use std::sync::Arc;

use ::serve::datagrams::DatagramCounters;
use ::serve::metrics::MetricsWriter;
use cache::Service;
use cache::store::Stats;
use session::Now;

/// Rows of a name, what it says, and a value.
macro_rules! rows {
    ($($name:literal $help:literal $value:expr;)*) => { [$(($name, $help, $value)),*] };
}

pub(crate) fn write(
    service: &Service,
    datagrams: &[Arc<DatagramCounters>],
    out: &mut MetricsWriter,
) {
    let stats = service.store().stats();
    write_items(&stats, out);
    write_commands(&stats, out);
    write_classes(service, out);
    write_datagrams(datagrams, out);
}

fn write_items(stats: &Stats, out: &mut MetricsWriter) {
    for (name, help, value) in rows! {
        "memcached_current_items" "Items stored now." stats.curr_items;
        "memcached_current_bytes" "Bytes of the items stored now." stats.bytes;
        "memcached_limit_bytes" "The limit of item memory." stats.limit_maxbytes;
        "memcached_malloced_bytes" "Item memory in use." stats.total_malloced;
        "weft_cache_table_bytes" "Memory of the table of keys." stats.hash_bytes;
        "weft_cache_limbo_chunks" "Chunks that are freed when their last reader is done." stats.limbo_chunks;
        "weft_cache_upload_bytes" "Memory of values that are not whole yet." stats.upload_bytes;
    } {
        out.gauge(name, help, &[], value as f64);
    }
    for (name, help, value) in rows! {
        "memcached_items_total" "Items stored since the start." stats.total_items;
        "memcached_items_evicted_total" "Items evicted." stats.evictions;
        "memcached_items_reclaimed_total" "Expired items whose memory was taken." stats.reclaimed;
        "memcached_lru_crawler_reclaimed_total" "Expired items that a lookup found." stats.crawler_reclaimed;
        "memcached_lru_crawler_items_checked_total" "Items looked at for expiry." stats.crawler_items_checked;
        "memcached_slabs_moved_total" "Pages that changed their slab class." stats.slabs_moved;
        "weft_cache_out_of_memory_total" "Stores refused because no memory was free." stats.out_of_memory;
        "weft_cache_uploads_refused_total" "Stores refused because unfinished ones had half of the memory." stats.uploads_refused;
        "weft_cache_reader_waits_total" "Stores that waited for readers to leave memory." stats.reader_waits;
        "weft_cache_refused_behind_readers_total" "Stores refused because readers did not leave in time." stats.refused_behind_readers;
    } {
        out.counter(name, help, &[], value);
    }
}

fn write_commands(stats: &Stats, out: &mut MetricsWriter) {
    for (command, status, value) in [
        ("get", "hit", stats.get_hits),
        ("get", "miss", stats.get_misses),
        ("touch", "hit", stats.touch_hits),
        ("touch", "miss", stats.touch_misses),
        ("delete", "hit", stats.delete_hits),
        ("delete", "miss", stats.delete_misses),
        ("incr", "hit", stats.incr_hits),
        ("incr", "miss", stats.incr_misses),
        ("decr", "hit", stats.decr_hits),
        ("decr", "miss", stats.decr_misses),
        ("cas", "hit", stats.cas_hits),
        ("cas", "miss", stats.cas_misses),
        ("cas", "badval", stats.cas_badval),
        ("set", "hit", stats.cmd_set),
    ] {
        let labels = [("command", command), ("status", status)];
        out.counter(
            "memcached_commands_total",
            "Commands, by result.",
            &labels,
            value,
        );
    }
}

fn write_classes(service: &Service, out: &mut MetricsWriter) {
    let classes = service.store().class_stats(service.seconds(Now::read()));
    let ids: Vec<_> = classes.iter().map(|class| class.id.to_string()).collect();
    // All samples of a metric stand together, so the name is the outer loop.
    for (name, help, value) in rows! {
        "memcached_slab_current_items" "Items of a slab class." (|class| class.number) as fn(&cache::store::ClassStats) -> u64;
        "memcached_slab_current_pages" "Pages of a slab class." |class| class.total_pages.into();
        "memcached_slab_current_chunks" "Chunks of a slab class." |class| class.total_chunks;
        "memcached_slab_chunks_used" "Chunks of a slab class that are used." |class| class.used_chunks;
        "memcached_slab_chunk_size_bytes" "Size of its chunks." |class| class.chunk_size.into();
        "memcached_slab_items_age_seconds" "Age of the item of a slab class that is evicted next." |class| class.age.into();
    } {
        for (class, id) in classes.iter().zip(&ids) {
            out.gauge(name, help, &[("slab", id)], value(class) as f64);
        }
    }
    for (class, id) in classes.iter().zip(&ids) {
        let help = "Items of a slab class that were evicted.";
        out.counter(
            "memcached_slab_items_evicted_total",
            help,
            &[("slab", id)],
            class.evicted,
        );
    }
}

fn write_datagrams(datagrams: &[Arc<DatagramCounters>], out: &mut MetricsWriter) {
    let sum = |of: fn(&DatagramCounters) -> u64| datagrams.iter().map(|one| of(one)).sum();
    for (name, help, value) in rows! {
        "weft_datagrams_received_total" "Datagrams received." sum(DatagramCounters::received);
        "weft_datagrams_sent_total" "Datagrams sent." sum(DatagramCounters::sent);
        "weft_datagrams_unsent_total" "Datagrams that could not be sent." sum(DatagramCounters::unsent);
        "weft_datagrams_panicked_total" "Datagrams whose answer ended in a panic, which is a mistake in this program." sum(DatagramCounters::panicked);
    } {
        out.counter(name, help, &[], value);
    }
}
