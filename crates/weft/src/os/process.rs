//! Metrics of the process, under the standard names of Prometheus client libraries, and of the
//! build.
//! <https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ::serve::metrics::MetricsWriter;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// False after a failed reload, true before the first; as in Prometheus itself.
static LAST_RELOAD_WAS_WHOLE: AtomicBool = AtomicBool::new(true);

/// Records the result of a reload for the metrics.
pub(crate) fn note_reload(is_whole: bool) {
    LAST_RELOAD_WAS_WHOLE.store(is_whole, Ordering::Relaxed);
}

/// Writes the metrics. Values missing in `/proc`, as in some sandboxes, are left out.
pub(crate) fn write_metrics(out: &mut MetricsWriter) {
    let help = "Version of the build; the value is always 1.";
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    out.gauge("weft_build_info", help, &version, 1.0);
    let help = "1 if the last reload succeeded completely, or none happened yet.";
    let is_whole = f64::from(u8::from(LAST_RELOAD_WAS_WHOLE.load(Ordering::Relaxed)));
    out.gauge("weft_config_last_reload_successful", help, &[], is_whole);

    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(stat) = stat.as_deref().and_then(Stat::parse) {
        write_stat(&stat, out);
    }
    let help = "Processor time used, by name of the thread.";
    for (thread, ticks) in ticks_of_threads() {
        let labels = [("thread", &*thread)];
        out.seconds("weft_thread_cpu_seconds_total", help, &labels, seconds(ticks));
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them belongs to the listing itself.
        let open = entries.count().saturating_sub(1) as f64;
        let help = "Open file descriptors.";
        out.gauge("process_open_fds", help, &[], open);
    }
    let max = getrlimit(Resource::Nofile).current;
    let max = max.map_or(f64::INFINITY, |max| max as f64);
    let help = "Limit of open file descriptors.";
    out.gauge("process_max_fds", help, &[], max);
}

/// Most threads whose time is read. A server with a thread per connection has more, and single
/// threads do not matter there.
const THREADS_READ_MAX: usize = 256;

/// Ticks by thread name: the sum of living threads at the last reading, and an offset for ended
/// threads of the name.
static TICKS: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::new(BTreeMap::new());

/// Ticks by thread name. They never decrease.
fn ticks_of_threads() -> BTreeMap<String, u64> {
    let mut ticks: BTreeMap<String, u64> = BTreeMap::new();
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    for thread in threads.take(THREADS_READ_MAX).flatten() {
        let stat = fs::read_to_string(thread.path().join("stat")).ok();
        let stat = stat.as_deref();
        let name = stat.and_then(|stat| stat.split_once('(')?.1.rsplit_once(')'));
        if let (Some((name, _)), Some(stat)) = (name, stat.and_then(Stat::parse)) {
            *ticks.entry(name.to_owned()).or_default() += stat.cpu_ticks;
        }
    }
    let mut known = TICKS.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, ticks) in &mut ticks {
        let (last, ended) = known.entry(name.clone()).or_default();
        *ended += last.saturating_sub(*ticks);
        *last = *ticks;
        *ticks += *ended;
    }
    ticks
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

fn write_stat(stat: &Stat, out: &mut MetricsWriter) {
    let help = "Processor time used, in user and kernel mode.";
    out.seconds("process_cpu_seconds_total", help, &[], seconds(stat.cpu_ticks));
    let bytes = (stat.resident_pages * page_size() as u64) as f64;
    let help = "Resident memory.";
    out.gauge("process_resident_memory_bytes", help, &[], bytes);
    let bytes = stat.virtual_bytes as f64;
    let help = "Virtual memory.";
    out.gauge("process_virtual_memory_bytes", help, &[], bytes);
    let help = "Kernel threads.";
    out.gauge("process_threads", help, &[], stat.threads as f64);
    if let Some(boot) = boot_time_s() {
        let help = "Start time of the process, in seconds since 1970.";
        let started = boot + seconds(stat.start_ticks);
        out.gauge("process_start_time_seconds", help, &[], started);
    }
}

/// Fields of `/proc/self/stat`. proc_pid_stat(5)
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    /// Since boot.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The name may contain spaces and parentheses: field 3 follows the last parenthesis.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Boot time in seconds since 1970. proc_stat(5)
fn boot_time_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_spaces_and_parentheses() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let text = format!("1 (a) S (b c) R {}\n", rest.join(" "));
        let stat = Stat {
            cpu_ticks: 14 + 15,
            threads: 20,
            start_ticks: 22,
            virtual_bytes: 23,
            resident_pages: 24,
        };
        assert_eq!(Stat::parse(&text), Some(stat));
    }

    #[test]
    fn standard_metric_names() {
        let mut out = MetricsWriter::default();
        write_metrics(&mut out);
        let text = String::from_utf8(out.finish()).unwrap();
        for name in [
            "weft_build_info{version=",
            "weft_config_last_reload_successful ",
            "process_cpu_seconds_total ",
            "process_open_fds ",
            "process_max_fds ",
            "process_resident_memory_bytes ",
            "process_virtual_memory_bytes ",
            "process_threads ",
            "process_start_time_seconds ",
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} in {text}");
        }
    }
}
