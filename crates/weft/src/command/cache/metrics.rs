//! The cache's counters for Prometheus: under the names of memcached_exporter, which dashboards and
//! alerts for memcached ask for, and our own. The former are a table over what `stats` says, as
//! that
//! exporter makes them; what it tells of external storage and of the proxy is not there.

use std::collections::HashMap;
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
    let now = Now::read();
    let mut figures = Figures::default();
    // `total_malloced` is said by `stats slabs`.
    for group in ["", "settings", "slabs"] {
        service.figures(group, now, |name, value| figures.add(name, value));
    }
    write_general(&figures, out);
    write_commands(&figures, out);
    let classes = classes(service, now);
    write_classes(&classes, out);
    write_class_commands(&classes, out);
    write_own(&service.store().stats(), out);
    write_datagrams(datagrams, out);
}

/// Values of `stats`, by name.
#[derive(Default)]
struct Figures(HashMap<String, String>);

impl Figures {
    fn add(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("0", String::as_str)
    }

    /// `yes` is 1, and what is no number is 0.
    fn number(&self, name: &str) -> f64 {
        match self.text(name) {
            "yes" => 1.0,
            text => text.parse().unwrap_or(0.0),
        }
    }

    fn count(&self, name: &str) -> u64 {
        self.number(name) as u64
    }

    /// memcached counts a cas as a set, and the exporter takes it out again.
    fn sets(&self) -> u64 {
        let cas = ["cas_hits", "cas_misses", "cas_badval"].map(|name| self.count(name));
        self.count("cmd_set").saturating_sub(cas.iter().sum())
    }

    fn put(&self, row: &Row, labels: &[(&str, &str)], out: &mut MetricsWriter) {
        let Row(stat, name, kind, help) = *row;
        let name = format!("memcached_{name}");
        match kind {
            Counter => out.counter(&name, help, labels, self.count(stat)),
            Gauge => out.gauge(&name, help, labels, self.number(stat)),
            Seconds => out.seconds(&name, help, labels, self.number(stat)),
        }
    }
}

#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
    /// A counter with a fraction.
    Seconds,
}

/// The name in `stats`, the exporter's without its prefix, the kind, and what it says.
struct Row(&'static str, &'static str, MetricKind, &'static str);

use MetricKind::{Counter, Gauge, Seconds};

/// Rows of a name in `stats`, the exporter's, a kind, and what it says.
macro_rules! table {
    ($($stat:literal $name:literal $kind:ident $help:literal;)*) => {
        &[$(Row($stat, $name, $kind, $help)),*]
    };
}

// A counter whose name does not end in `_total` is a gauge here: the name is what dashboards ask
// for, and promtool refuses it as a counter.
const GENERAL: &[Row] = table! {
    "uptime" "uptime_seconds" Gauge "Seconds since the start.";
    "time" "time_seconds" Gauge "The time, in seconds since 1970.";
    "rusage_user" "process_user_cpu_seconds_total" Seconds "Processor time in user mode.";
    "rusage_system" "process_system_cpu_seconds_total" Seconds "Processor time in the kernel.";
    "bytes_read" "read_bytes_total" Counter "Bytes received.";
    "bytes_written" "written_bytes_total" Counter "Bytes sent.";
    "curr_connections" "current_connections" Gauge "Connections open now.";
    "maxconns" "max_connections" Gauge "The limit of connections.";
    "total_connections" "connections_total" Counter "Connections since the start.";
    "rejected_connections" "connections_rejected_total" Counter "Connections refused above the limit.";
    "conn_yields" "connections_yielded_total" Counter "Times that a connection let others go first.";
    "listen_disabled_num" "connections_listener_disabled_total" Counter "Times that accepting paused.";
    "accepting_conns" "accepting_connections" Gauge "Whether connections are accepted.";
    "bytes" "current_bytes" Gauge "Bytes of the items stored now.";
    "limit_maxbytes" "limit_bytes" Gauge "The limit of item memory.";
    "total_malloced" "malloced_bytes" Gauge "Item memory in use.";
    "curr_items" "current_items" Gauge "Items stored now.";
    "total_items" "items_total" Counter "Items stored since the start.";
    "evictions" "items_evicted_total" Counter "Items evicted.";
    "reclaimed" "items_reclaimed_total" Counter "Expired items whose memory was taken.";
    "store_too_large" "item_too_large_total" Counter "Stores of an item above the limit.";
    "store_no_memory" "item_no_memory_total" Counter "Stores refused because no memory was free.";
    "direct_reclaims" "direct_reclaims_total" Counter "Always 0: stores evict for themselves.";
    "slabs_moved" "slabs_moved_total" Counter "Pages that changed their slab class.";
    "lru_crawler" "lru_crawler_enabled" Gauge "Whether expired items are looked for.";
    "lru_crawler_sleep" "lru_crawler_sleep" Gauge "Microseconds between two looks, as set.";
    "lru_crawler_tocrawl" "lru_crawler_to_crawl" Gauge "Items looked at in a run, as set.";
    "lru_maintainer_thread" "lru_crawler_maintainer_thread" Gauge "Always 0: there is none.";
    "hot_lru_pct" "lru_crawler_hot_percent" Gauge "Always 0: there are no such lists.";
    "warm_lru_pct" "lru_crawler_warm_percent" Gauge "Always 0: there are no such lists.";
    "hot_max_factor" "lru_crawler_hot_max_factor" Gauge "Always 0: there are no such lists.";
    "warm_max_factor" "lru_crawler_warm_max_factor" Gauge "Always 0: there are no such lists.";
    "lru_crawler_starts" "lru_crawler_starts_total" Counter "Crawls that clients asked for.";
    "crawler_reclaimed" "lru_crawler_reclaimed_total" Counter "Expired items that a crawl took out.";
    "crawler_items_checked" "lru_crawler_items_checked_total" Counter "Items looked at for expiry.";
    "moves_to_cold" "lru_crawler_moves_to_cold_total" Counter "Always 0: there are no such lists.";
    "moves_to_warm" "lru_crawler_moves_to_warm_total" Counter "Always 0: there are no such lists.";
    "moves_within_lru" "lru_crawler_moves_within_lru_total" Counter "Always 0: there are no such lists.";
};

/// Metrics of each slab class, from `stats items` and `stats slabs`.
const CLASSES: &[Row] = table! {
    "number" "slab_current_items" Gauge "Items of a slab class.";
    "age" "slab_items_age_seconds" Gauge "Age of the item of a slab class that is evicted next.";
    "crawler_reclaimed" "slab_items_crawler_reclaimed_total" Counter "Expired items that a crawl took out.";
    "evicted" "slab_items_evicted_total" Counter "Items evicted.";
    "evicted_nonzero" "slab_items_evicted_nonzero_total" Counter "Items evicted that had an expiry time.";
    "evicted_time" "slab_items_evicted_time_seconds" Gauge "Seconds since what was evicted last had been used.";
    "evicted_unfetched" "slab_items_evicted_unfetched_total" Counter "Items evicted that were never read.";
    "expired_unfetched" "slab_items_expired_unfetched_total" Counter "Items expired that were never read.";
    "outofmemory" "slab_items_outofmemory_total" Counter "Stores refused because no memory was free.";
    "reclaimed" "slab_items_reclaimed_total" Counter "Expired items whose memory was taken.";
    "tailrepairs" "slab_items_tailrepairs_total" Counter "Always 0: nothing needs them.";
    "moves_to_cold" "slab_items_moves_to_cold" Gauge "Always 0: there are no such lists.";
    "moves_to_warm" "slab_items_moves_to_warm" Gauge "Items that went to the main queue.";
    "moves_within_lru" "slab_items_moves_within_lru" Gauge "Always 0: there are no such lists.";
    "number_hot" "slab_hot_items" Gauge "Items of the small queue.";
    "number_warm" "slab_warm_items" Gauge "Items of the main queue.";
    "number_cold" "slab_cold_items" Gauge "Always 0: there is no such list.";
    "number_temp" "slab_temporary_items" Gauge "Always 0: there is no such list.";
    "age_hot" "slab_hot_age_seconds" Gauge "Always 0: there is no such list.";
    "age_warm" "slab_warm_age_seconds" Gauge "Always 0: there is no such list.";
    "chunk_size" "slab_chunk_size_bytes" Gauge "Size of a chunk.";
    "chunks_per_page" "slab_chunks_per_page" Gauge "Chunks of a page.";
    "total_pages" "slab_current_pages" Gauge "Pages of a slab class.";
    "total_chunks" "slab_current_chunks" Gauge "Chunks of a slab class.";
    "used_chunks" "slab_chunks_used" Gauge "Chunks that are used.";
    "free_chunks" "slab_chunks_free" Gauge "Chunks that are free.";
    "free_chunks_end" "slab_chunks_free_end" Gauge "Chunks that were never used.";
    "mem_requested" "slab_mem_requested_bytes" Gauge "Bytes of the items of a slab class.";
};

/// Commands that hit or miss.
const COMMANDS: [&str; 6] = ["get", "delete", "incr", "decr", "cas", "touch"];

/// The list of memcached's segmented LRU that a hit was in. There are no such lists here.
const LISTS: [&str; 4] = ["hot", "warm", "cold", "temporary"];

fn write_general(figures: &Figures, out: &mut MetricsWriter) {
    out.gauge("memcached_up", "Always 1: the cache itself answers.", &[], 1.0);
    let version = [("version", figures.text("version"))];
    out.gauge("memcached_version", "The version.", &version, 1.0);
    GENERAL.iter().for_each(|row| figures.put(row, &[], out));
}

fn write_commands(figures: &Figures, out: &mut MetricsWriter) {
    let mut put = |command: &str, status: &str, value: u64| {
        let labels = [("command", command), ("status", status)];
        out.counter("memcached_commands_total", "Commands, by result.", &labels, value);
    };
    for command in COMMANDS {
        put(command, "hit", figures.count(&format!("{command}_hits")));
        put(command, "miss", figures.count(&format!("{command}_misses")));
    }
    put("cas", "badval", figures.count("cas_badval"));
    put("flush", "hit", figures.count("cmd_flush"));
    put("set", "hit", figures.sets());
}

/// The figures of each slab class, with its number.
fn classes(service: &Service, now: Now) -> Vec<(String, Figures)> {
    let mut classes: Vec<(String, Figures)> = Vec::new();
    for group in ["slabs", "items"] {
        service.figures(group, now, |name, value| {
            let name = name.strip_prefix("items:").unwrap_or(name);
            let Some((class, name)) = name.split_once(':') else {
                return;
            };
            match classes.iter_mut().find(|(id, _)| id == class) {
                Some((_, figures)) => figures.add(name, value),
                None => {
                    let mut figures = Figures::default();
                    figures.add(name, value);
                    classes.push((class.to_owned(), figures));
                }
            }
        });
    }
    classes
}

/// All samples of a metric stand together, so the rows are the outer loop.
fn write_classes(classes: &[(String, Figures)], out: &mut MetricsWriter) {
    for row in CLASSES {
        for (id, figures) in classes {
            figures.put(row, &[("slab", id)], out);
        }
    }
    for (id, _) in classes {
        for list in LISTS {
            let labels = [("slab", id.as_str()), ("lru", list)];
            let help = "Always 0: there are no such lists.";
            out.counter("memcached_slab_lru_hits_total", help, &labels, 0);
        }
    }
}

fn write_class_commands(classes: &[(String, Figures)], out: &mut MetricsWriter) {
    for (id, figures) in classes {
        let mut put = |command: &str, status: &str, value: u64| {
            let labels = [("slab", id.as_str()), ("command", command), ("status", status)];
            let help = "Commands, by slab class.";
            out.counter("memcached_slab_commands_total", help, &labels, value);
        };
        for command in COMMANDS {
            put(command, "hit", figures.count(&format!("{command}_hits")));
        }
        put("cas", "badval", figures.count("cas_badval"));
        put("set", "hit", figures.sets());
    }
}

fn write_own(stats: &Stats, out: &mut MetricsWriter) {
    for (name, help, value) in rows! {
        "weft_cache_table_bytes" "Memory of the table of keys." stats.hash_bytes;
        "weft_cache_limbo_chunks" "Chunks that are freed when their last reader is done." stats.limbo_chunks;
        "weft_cache_upload_bytes" "Memory of values that are not whole yet." stats.upload_bytes;
    } {
        out.gauge(name, help, &[], value as f64);
    }
    for (name, help, value) in rows! {
        "weft_cache_out_of_memory_total" "Stores refused because no memory was free." stats.out_of_memory;
        "weft_cache_uploads_refused_total" "Stores refused because unfinished ones had half of the memory." stats.uploads_refused;
        "weft_cache_reader_waits_total" "Stores that waited for readers to leave memory." stats.reader_waits;
        "weft_cache_refused_behind_readers_total" "Stores refused because readers did not leave in time." stats.refused_behind_readers;
    } {
        out.counter(name, help, &[], value);
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
