//! The figures of one interval, as `--json` prints them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::scrape::{Interval, Scrape};

/// Counters that grow when a limit is reached: `NAME = WORDS`, or `NAME LABEL VALUE = WORDS` if
/// only one value of a label concerns a limit.
const LIMITS: &str = include_str!("limits.txt");

/// Gauges with a gauge for their limit, and a description of each.
const BUDGETS: &[(&str, &str, &str)] = &[
    ("items", "memcached_current_bytes", "memcached_limit_bytes"),
    ("connections", "weft_connection_memory_bytes", "weft_connection_memory_max_bytes"),
    ("file buffers", "weft_file_buffers_bytes", "weft_file_buffers_max_bytes"),
    ("page cache", "weft_site_page_cache_bytes", "weft_site_page_cache_max_bytes"),
];

/// A server during one interval. The keys are stable: scripts read them.
#[derive(Debug, Default, Serialize)]
pub(super) struct Overview {
    /// Seconds since 1970.
    pub(super) time: u64,
    pub(super) target: String,
    /// `serve` or `cache`.
    pub(super) server: &'static str,
    pub(super) version: String,
    pub(super) uptime_s: f64,
    pub(super) interval_s: f64,
    /// Replies, or commands of a cache.
    pub(super) requests_per_s: f64,
    pub(super) received_bytes_per_s: f64,
    pub(super) sent_bytes_per_s: f64,
    /// `None` for a cache, and if there were no replies.
    pub(super) latency: Option<LatencyBounds>,
    /// By status class (`2xx`), or by command and result (`get hit`).
    pub(super) results_per_s: BTreeMap<String, f64>,
    pub(super) hit_ratio: Option<f64>,
    pub(super) connections_open: u64,
    pub(super) connections_lingering: u64,
    pub(super) accepted_per_s: f64,
    /// By reason.
    pub(super) closed_per_s: BTreeMap<String, f64>,
    /// Number of fibers by state and wait.
    pub(super) fibers: BTreeMap<String, u64>,
    /// Waiting requests by queue: stages of a pipeline, jobs.
    pub(super) queues: BTreeMap<String, u64>,
    /// Processors in use.
    pub(super) cpu: f64,
    /// The same by thread name.
    pub(super) cpu_by_thread: BTreeMap<String, f64>,
    pub(super) resident_bytes: u64,
    pub(super) budgets: Vec<MemoryBudget>,
    pub(super) descriptors_open: u64,
    pub(super) descriptors_max: u64,
    /// Number of times that a limit was reached in the interval, by limit.
    pub(super) limits_reached: BTreeMap<String, u64>,
    /// Seconds until a certificate expires, by file.
    pub(super) certificates_expire_s: BTreeMap<String, f64>,
    pub(super) is_reload_failed: bool,
    /// The most requested paths; a sample under load.
    pub(super) paths: Vec<PathRate>,
}

/// Upper bounds of the buckets with these quantiles, and the mean, in seconds.
#[derive(Debug, Serialize)]
pub(super) struct LatencyBounds {
    pub(super) mean_s: f64,
    pub(super) p50_s: f64,
    pub(super) p90_s: f64,
    pub(super) p99_s: f64,
}

/// Memory in use, and its limit.
#[derive(Debug, Serialize)]
pub(super) struct MemoryBudget {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) max_bytes: u64,
}

/// Requests of a path.
#[derive(Debug, Serialize)]
pub(super) struct PathRate {
    pub(super) path: String,
    pub(super) replies_per_s: f64,
    pub(super) body_bytes_per_s: f64,
}

/// Reply to `/paths`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PathCounts {
    paths: Vec<PathCount>,
}

#[derive(Clone, Debug, Deserialize)]
struct PathCount {
    path: String,
    replies: u64,
    body_bytes: u64,
}

/// One reading of a server.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) scrape: Scrape,
    pub(super) paths: PathCounts,
    /// Seconds since 1970.
    pub(super) unix_s: f64,
}

impl Overview {
    /// Figures of the time between two readings, or since the start of the server.
    pub(super) fn new(target: &str, before: Option<&Reading>, now: &Reading) -> Overview {
        let value = |name| now.scrape.value(name).unwrap_or(0.0);
        let started = now.scrape.value("process_start_time_seconds");
        let uptime_s = started.map_or(0.0, |started| (now.unix_s - started).max(0.0));
        let interval = Interval::new(before.map(|before| &before.scrape), &now.scrape, uptime_s);
        let rate = |name| interval.rate(name).unwrap_or(0.0);
        let is_cache = now.scrape.value("memcached_up").is_some();
        let results_per_s = if is_cache {
            commands(&interval)
        } else {
            let by_status = interval.rates("weft_http_replies_total", "status");
            classes(&by_status)
        };
        let version = now.scrape.by_label("weft_build_info", "version");
        Overview {
            time: now.unix_s as u64,
            target: target.to_owned(),
            server: if is_cache { "cache" } else { "serve" },
            version: version.into_keys().next().unwrap_or_default(),
            uptime_s,
            interval_s: interval.lasts_s,
            requests_per_s: results_per_s.values().sum(),
            received_bytes_per_s: rate("weft_received_bytes_total"),
            sent_bytes_per_s: rate("weft_sent_bytes_total"),
            latency: latency(&interval, "weft_http_request_duration_seconds"),
            hit_ratio: hit_ratio(&interval, is_cache),
            results_per_s,
            connections_open: value("weft_connections_active") as u64,
            connections_lingering: value("weft_connections_lingering") as u64,
            accepted_per_s: rate("weft_connections_accepted_total"),
            closed_per_s: seen(interval.rates("weft_connections_closed_total", "reason")),
            fibers: counts(now.scrape.by_label("weft_fibers_by_state", "state")),
            queues: queues(&now.scrape),
            cpu: rate("process_cpu_seconds_total"),
            cpu_by_thread: seen(interval.rates("weft_thread_cpu_seconds_total", "thread")),
            resident_bytes: value("process_resident_memory_bytes") as u64,
            budgets: budgets(&now.scrape),
            descriptors_open: value("process_open_fds") as u64,
            descriptors_max: value("process_max_fds") as u64,
            limits_reached: limits(&interval),
            certificates_expire_s: certificates(now),
            is_reload_failed: now.scrape.value("weft_config_last_reload_successful") == Some(0.0),
            paths: paths(before, now, interval.lasts_s),
        }
    }
}

/// Values other than 0.
fn seen(mut values: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    values.retain(|_, value| *value > 0.0);
    values
}

fn classes(by_status: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut classes = BTreeMap::new();
    for (status, rate) in by_status {
        let class = format!("{}xx", status.get(..1).unwrap_or_default());
        *classes.entry(class).or_default() += rate;
    }
    classes
}

fn commands(interval: &Interval<'_>) -> BTreeMap<String, f64> {
    let mut rates = BTreeMap::new();
    for status in ["hit", "miss", "badval"] {
        for (command, rate) in commands_of(interval, status) {
            rates.insert(format!("{command} {status}"), rate);
        }
    }
    seen(rates)
}

fn commands_of(interval: &Interval<'_>, status: &str) -> Vec<(String, f64)> {
    let known = interval.now.by_label("memcached_commands_total", "command");
    let rate = |command: String| {
        let series =
            format!("memcached_commands_total{{command=\"{command}\",status=\"{status}\"}}");
        interval.rate(&series).map(|rate| (command, rate))
    };
    known.into_keys().filter_map(rate).collect()
}

fn latency(interval: &Interval<'_>, histogram: &str) -> Option<LatencyBounds> {
    let replies = interval.growth(&format!("{histogram}_count"))?;
    let sum = interval.growth(&format!("{histogram}_sum"))?;
    Some(LatencyBounds {
        mean_s: sum / replies,
        p50_s: interval.quantile(histogram, 0.5)?,
        p90_s: interval.quantile(histogram, 0.9)?,
        p99_s: interval.quantile(histogram, 0.99)?,
    })
}

fn hit_ratio(interval: &Interval<'_>, is_cache: bool) -> Option<f64> {
    let get =
        |status: &str| format!("memcached_commands_total{{command=\"get\",status=\"{status}\"}}");
    let [hits, misses] = if is_cache {
        [get("hit"), get("miss")]
    } else {
        ["hits", "misses"].map(|name| format!("weft_site_{name}_total"))
    };
    let [hits, misses] = [hits, misses].map(|series| interval.growth(&series));
    let all = hits? + misses?;
    (all > 0.0).then_some(hits? / all)
}

fn queues(scrape: &Scrape) -> BTreeMap<String, u64> {
    let mut queues = scrape.by_label("weft_stage_queue_length", "stage");
    let jobs = scrape.value("weft_jobs_waiting");
    queues.extend(jobs.map(|jobs| ("jobs".to_owned(), jobs)));
    counts(queues)
}

fn counts(values: BTreeMap<String, f64>) -> BTreeMap<String, u64> {
    let seen = values.into_iter().filter(|(_, value)| *value > 0.0);
    seen.map(|(name, value)| (name, value as u64)).collect()
}

fn budgets(scrape: &Scrape) -> Vec<MemoryBudget> {
    let of = |&(name, bytes, max): &(&'static str, &str, &str)| {
        Some(MemoryBudget {
            name,
            bytes: scrape.value(bytes)? as u64,
            max_bytes: scrape.value(max)? as u64,
        })
    };
    BUDGETS.iter().filter_map(of).collect()
}

fn limits(interval: &Interval<'_>) -> BTreeMap<String, u64> {
    let mut reached = BTreeMap::new();
    for (limit, words) in LIMITS.lines().filter_map(|line| line.split_once(" = ")) {
        let mut parts = limit.split(' ');
        let [name, label, value] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let labelled = interval.rates(name, label);
        let rate = match value {
            "" => interval.rate(name).unwrap_or(0.0) + labelled.into_values().sum::<f64>(),
            _ => labelled.get(value).copied().unwrap_or(0.0),
        };
        let growth = (rate * interval.lasts_s).round();
        if growth > 0.0 {
            reached.insert(words.to_owned(), growth as u64);
        }
    }
    reached
}

fn certificates(now: &Reading) -> BTreeMap<String, f64> {
    let expire = now.scrape.by_label("weft_tls_certificate_not_after_seconds", "certificate");
    let left = |(file, at): (String, f64)| (file, at - now.unix_s);
    expire.into_iter().map(left).collect()
}

/// Growth of each path. A path that is new, or has a lower count, has entered the table since.
fn paths(before: Option<&Reading>, now: &Reading, lasts_s: f64) -> Vec<PathRate> {
    let before: BTreeMap<_, _> = before
        .into_iter()
        .flat_map(|before| &before.paths.paths)
        .map(|count| (&count.path, count))
        .collect();
    let rate = |count: &PathCount| {
        let before = before.get(&count.path);
        let before = before.filter(|before| before.replies <= count.replies);
        let (replies, bytes) = before.map_or((0, 0), |before| (before.replies, before.body_bytes));
        PathRate {
            path: count.path.clone(),
            replies_per_s: (count.replies - replies) as f64 / lasts_s,
            body_bytes_per_s: count.body_bytes.saturating_sub(bytes) as f64 / lasts_s,
        }
    };
    let mut rates: Vec<_> = now.paths.paths.iter().map(rate).collect();
    rates.retain(|path| path.replies_per_s > 0.0);
    rates.sort_by(|one, other| other.replies_per_s.total_cmp(&one.replies_per_s));
    rates
}
