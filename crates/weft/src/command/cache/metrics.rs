//! The cache's counters for Prometheus: under the names of memcached_exporter, which dashboards and
//! alerts for memcached use, and under weft's own. The former are tables over `stats`, as in that
//! exporter; its metrics of external storage and of the proxy are absent.

use std::collections::HashMap;
use std::sync::Arc;

use ::serve::datagrams::DatagramCounters;
use ::serve::metrics::MetricsWriter;
use cache::Service;
use cache::store::Stats;
use session::Now;

/// Rows of name, help text and value.
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
    // `total_malloced` is part of `stats slabs`.
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

    /// A value as a number: `yes` is 1, any other word 0.
    fn number(&self, name: &str) -> f64 {
        match self.text(name) {
            "yes" => 1.0,
            text => text.parse().unwrap_or(0.0),
        }
    }

    fn count(&self, name: &str) -> u64 {
        self.number(name) as u64
    }

    /// Number of sets without cas: memcached counts a cas as a set, and the exporter subtracts it.
    fn sets(&self) -> u64 {
        let cas = ["cas_hits", "cas_misses", "cas_badval"].map(|name| self.count(name));
        self.count("cmd_set").saturating_sub(cas.iter().sum())
    }

    /// Writes the metric of a table row.
    fn put(&self, row: &str, labels: &[(&str, &str)], out: &mut MetricsWriter) {
        let mut words = row.splitn(4, ' ');
        let [stat, name, kind, help] = [(); 4].map(|()| words.next().unwrap_or_default());
        let name = format!("memcached_{name}");
        match kind {
            "counter" => out.counter(&name, help, labels, self.count(stat)),
            "seconds" => out.seconds(&name, help, labels, self.number(stat)),
            _ => out.gauge(&name, help, labels, self.number(stat)),
        }
    }
}

/// Metrics of the whole cache. A row of such a table is the name in `stats`, the exporter's name
/// without its prefix, the kind (`seconds` is a counter with a fraction), and the help text.
///
/// A counter whose name does not end in `_total` is a gauge here: dashboards use the name, and
/// promtool refuses it for a counter.
const GENERAL: &str = include_str!("metrics/general.txt");

/// Metrics of each slab class, from `stats items` and `stats slabs`.
const CLASSES: &str = include_str!("metrics/classes.txt");

/// Commands with hits and misses.
const COMMANDS: [&str; 6] = ["get", "delete", "incr", "decr", "cas", "touch"];

/// The list of memcached's segmented LRU that a hit was in. No such lists exist here.
const LISTS: [&str; 4] = ["hot", "warm", "cold", "temporary"];

fn write_general(figures: &Figures, out: &mut MetricsWriter) {
    out.gauge("memcached_up", "Always 1: the cache itself answers.", &[], 1.0);
    let version = [("version", figures.text("version"))];
    out.gauge("memcached_version", "The version.", &version, 1.0);
    GENERAL.lines().for_each(|row| figures.put(row, &[], out));
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

/// Writes class metrics. Samples of a metric must be adjacent, so rows are the outer loop.
fn write_classes(classes: &[(String, Figures)], out: &mut MetricsWriter) {
    for row in CLASSES.lines() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tables_are_whole() {
        for line in GENERAL.lines().chain(CLASSES.lines()) {
            let [_, name, kind, help] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            assert!(["counter", "gauge", "seconds"].contains(&kind), "{line}");
            assert!(help.ends_with('.'), "{line}");
            assert!(kind == "gauge" || name.ends_with("_total"), "{line}");
        }
    }
}
