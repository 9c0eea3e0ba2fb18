//! Live metrics of a load, for Prometheus: `--metrics ADDR`.

use std::sync::{Arc, Mutex, PoisonError};

use serve::listen::{Address, Bound};
use serve::metrics::MetricsWriter;

use ::load::outcome::Histogram;
use ::load::{Plan, Progress, Tally};

use crate::failure::Failure;
use crate::operate::{Admin, Route, bind_all};

/// Upper bounds of the buckets of durations, in seconds.
const BOUNDS_S: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Counts of all runs so far, and the endpoint that serves them.
pub(super) struct LiveMetrics {
    counts: Arc<Mutex<Tally>>,
    _admin: Admin,
}

impl LiveMetrics {
    /// Serves the metrics at `address` until it is dropped.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub(super) fn start(address: &Address, plan: &Plan) -> Result<LiveMetrics, Failure> {
        LiveMetrics::at(bind_all(std::slice::from_ref(address), &[])?, plan)
    }

    fn at(bound: Vec<Bound>, plan: &Plan) -> Result<LiveMetrics, Failure> {
        let counts = Arc::new(Mutex::new(Tally::new(&plan.classes())));
        let shown = Arc::clone(&counts);
        let fill = move |out: &mut MetricsWriter| {
            write(&shown.lock().unwrap_or_else(PoisonError::into_inner), out);
        };
        let admin = Admin::start(bound, vec![Route::metrics(fill)]);
        let admin = admin.map_err(|error| Failure::Running(format!("--metrics: {error}")))?;
        Ok(LiveMetrics { counts, _admin: admin })
    }

    /// Adds an ended interval. Those of a warm-up are left out, as in the report.
    pub(super) fn tick(&self, progress: &Progress<'_>) {
        if !progress.is_warm_up {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            counts.add_later(&progress.interval.tally);
        }
    }
}

fn write(tally: &Tally, out: &mut MetricsWriter) {
    for (name, help, value) in [
        ("intended", "Requests that the arrivals called for.", tally.intended),
        ("sent", "Requests that were sent.", tally.sent),
        ("missed", "Requests dropped because the backlog was full.", tally.missed),
        ("opened_connections", "Connections that were opened.", tally.opened),
        ("hits", "Keys found in a cache.", tally.hits),
        ("misses", "Keys not found in a cache.", tally.misses),
        ("received_bytes", "Bytes received.", tally.received_bytes),
        ("sent_bytes", "Bytes sent.", tally.sent_bytes),
    ] {
        out.counter(&format!("weft_load_{name}_total"), help, &[], value);
    }
    let help = "Complete replies, right or wrong.";
    for (status, count) in tally.replies_by_status() {
        out.counter("weft_load_replies_total", help, &[("status", status)], count);
    }
    let help = "Failed requests and connections.";
    for (class, count) in tally.errors.named() {
        out.counter("weft_load_errors_total", help, &[("class", class)], count);
    }
    let help = "Idle connections.";
    out.gauge("weft_load_idle_connections", help, &[], tally.idle_open as f64);
    for (name, help, times) in [
        ("latency", "From the intended time to the last byte of a reply.", &tally.response_ns()),
        ("raw_latency", "From sending to the last byte of a reply.", &tally.service_ns()),
        ("lag", "Lateness of the generator itself.", &tally.lag_ns),
    ] {
        let (counts, sum) = buckets(times);
        out.histogram(&format!("weft_load_{name}_seconds"), help, &BOUNDS_S, &counts, sum);
    }
}

/// Count of each bucket and of values above all bounds, and the sum in seconds.
fn buckets(times_ns: &Histogram<u64>) -> ([u64; BOUNDS_S.len() + 1], f64) {
    let mut counts = [0; BOUNDS_S.len() + 1];
    let mut sum_ns = 0.0;
    for step in times_ns.iter_recorded() {
        let ns = step.value_iterated_to();
        let bucket = BOUNDS_S.partition_point(|bound_s| ns as f64 > bound_s * 1e9);
        counts[bucket] += step.count_at_value();
        sum_ns += times_ns.median_equivalent(ns) as f64 * step.count_at_value() as f64;
    }
    (counts, sum_ns / 1e9)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use ::load::IntervalRecord;
    use ::load::outcome::record;

    use super::*;

    #[test]
    fn intervals_add_up_in_the_text() {
        let plan = Plan {
            workload: ::load::plan::Workload::Http(::load::plan::Http {
                authority: String::new(),
                method: "GET".to_owned(),
                pages: [::load::plan::Page::new("/")].into(),
                choice: ::load::plan::Choice::InTurn,
                headers: Vec::new(),
                body: [].into(),
                requests_per_connection: None,
            }),
            ..Plan::default()
        };
        let Ok(bound) = bind_all(&["127.0.0.1:0".parse().unwrap()], &[]) else {
            panic!("a port is free");
        };
        let port = bound[0].address.port().expect("the address is TCP");
        let Ok(live) = LiveMetrics::at(bound, &plan) else { panic!("the endpoint has a thread") };
        let mut tally = Tally::new(&plan.classes());
        tally.sent = 3;
        tally.classes[0].replies_by_status[2] = 2;
        tally.errors.refused = 1;
        for ns in [90_000, 2_000_000_000] {
            record(&mut tally.classes[0].response_ns, ns);
        }
        let second = Duration::from_secs(1);
        let interval = IntervalRecord { begins: Duration::ZERO, lasts: second, tally };
        for is_warm_up in [true, false, false] {
            live.tick(&Progress {
                elapsed: second,
                planned: second,
                is_warm_up,
                interval: &interval,
            });
        }
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        for line in [
            "weft_load_sent_total 6",
            "weft_load_replies_total{status=\"2xx\"} 4",
            "weft_load_errors_total{class=\"refused\"} 2",
            "weft_load_latency_seconds_bucket{le=\"0.0001\"} 2",
            "weft_load_latency_seconds_bucket{le=\"2.5\"} 4",
            "weft_load_latency_seconds_count 4",
            "weft_load_raw_latency_seconds_count 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
