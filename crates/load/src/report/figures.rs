//! Figures of an outcome, under the names that programs read.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::outcome::{Counts, IntervalRecord, Outcome, Tally};
use crate::verdict::Verdict;

/// All figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Requests (or sessions) per second that the arrivals called for; null in a closed loop.
    pub offered_rate_per_s: Option<f64>,
    /// Good replies per second.
    pub achieved_rate_per_s: f64,
    /// Share of the demand that was achieved: see
    /// [`Outcome::achieved_share`](crate::Outcome::achieved_share). Null in a closed loop.
    pub achieved_share: Option<f64>,
    /// Length of the measurement.
    pub elapsed_s: f64,
    /// Counts: `intended`, `sent` and so on.
    #[serde(flatten)]
    pub counts: Counts,
    /// Whole and right replies.
    pub replies: u64,
    /// Latency over all classes, in µs.
    pub latency_us: Pair,
    /// Class by class.
    pub classes: BTreeMap<&'static str, ClassFigures>,
    /// Complete replies, right or wrong, by the first digit of the status.
    pub replies_by_status: BTreeMap<String, u64>,
    /// Errors in httperf's classes and some more, and `total`.
    pub errors: BTreeMap<&'static str, u64>,
    /// Lateness of the generator itself, in µs.
    pub lag_us: Latency,
    /// Times to open a connection, in µs.
    pub connect_us: Latency,
    /// Times of TLS handshakes, in microseconds; absent without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshake_us: Option<Latency>,
    /// TLS handshakes.
    pub handshakes: u64,
    /// Resources that the generator used.
    pub generator: GeneratorFigures,
    /// True if the generator was the bottleneck.
    pub generator_limited: bool,
    /// Evidence for it.
    pub generator_verdict: Option<String>,
    /// Reason why the run tells nothing about the server, if no good reply arrived.
    pub without_replies: Option<String>,
    /// Verdict on the run.
    pub verdict: Verdict,
    /// Reasons why the run failed; empty if it did not.
    pub faults: Vec<String>,
    /// True if the run was stopped early.
    pub stopped_early: bool,
    /// Interval by interval.
    pub intervals: Vec<IntervalFigures>,
}

/// Both latencies.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pair {
    /// Latency from the intended time.
    pub intended: Latency,
    /// Latency from sending.
    pub raw: Latency,
}

/// A distribution of times in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// 75th percentile, and so on.
    pub p75: f64,
    #[allow(missing_docs)]
    pub p90: f64,
    #[allow(missing_docs)]
    pub p95: f64,
    #[allow(missing_docs)]
    pub p99: f64,
    #[allow(missing_docs)]
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    #[allow(missing_docs)]
    #[serde(rename = "p99.99")]
    pub p99_99: f64,
    /// The longest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// One class of requests.
#[derive(Clone, Debug, Serialize)]
pub struct ClassFigures {
    /// Whole and right replies.
    pub replies: u64,
    /// Latency in µs.
    pub latency_us: Pair,
}

/// Resources that the generator used.
#[derive(Clone, Debug, Serialize)]
pub struct GeneratorFigures {
    /// I/O back end.
    pub io: String,
    /// Number of threads.
    pub threads: usize,
    /// CPU time of all threads, without spinning.
    pub cpu_s: f64,
    /// CPU time spent spinning, to send on time.
    pub spun_s: f64,
    /// Time that threads waited for a processor.
    pub run_delay_s: f64,
    /// CPU time per reply in µs, without spinning.
    pub cpu_us_per_reply: f64,
}

/// One interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalFigures {
    /// Start, from the start of the measurement.
    pub begins_s: f64,
    /// Length.
    pub lasts_s: f64,
    /// Requests per second that the arrivals called for.
    pub intended_per_s: f64,
    /// Good replies per second.
    pub achieved_per_s: f64,
    /// Errors.
    pub errors: u64,
    /// Missed requests.
    pub missed: u64,
    /// Median latency in µs, from the intended time.
    pub p50_us: f64,
    #[allow(missing_docs)]
    pub p99_us: f64,
    #[allow(missing_docs)]
    pub max_us: f64,
    /// 99th percentile in µs, from sending.
    pub raw_p99_us: f64,
}

/// Computes the figures of an outcome.
pub fn figures(outcome: &Outcome) -> Figures {
    let total = &outcome.total;
    let named = outcome.total.errors.named();
    let sum = ("total", outcome.total.errors.total());
    let class = |class: &crate::Class| {
        let replies = class.service_ns.len();
        (
            class.name,
            ClassFigures { replies, latency_us: pair(&class.response_ns, &class.service_ns) },
        )
    };
    Figures {
        offered_rate_per_s: outcome.offered_rate_per_s,
        achieved_rate_per_s: outcome.achieved_rate_per_s(),
        achieved_share: outcome.achieved_share(),
        elapsed_s: outcome.elapsed.as_secs_f64(),
        counts: total.counts,
        replies: total.replies(),
        latency_us: pair(&total.response_ns(), &total.service_ns()),
        classes: total.classes.iter().map(class).collect(),
        replies_by_status: by_status(total),
        errors: named.into_iter().chain([sum]).collect(),
        lag_us: Latency::of(&total.lag_ns),
        connect_us: Latency::of(&total.connect_ns),
        handshake_us: (!total.handshake_ns.is_empty()).then(|| Latency::of(&total.handshake_ns)),
        handshakes: total.handshake_ns.len(),
        generator: GeneratorFigures::of(outcome),
        generator_limited: outcome.generator_limited().is_some(),
        generator_verdict: outcome.generator_limited(),
        without_replies: outcome.without_replies(),
        verdict: outcome.verdict(),
        faults: outcome.faults().into_iter().map(|(_, said)| said).collect(),
        stopped_early: outcome.stopped_early,
        intervals: outcome.intervals.iter().map(IntervalFigures::of).collect(),
    }
}

/// Figures as JSON; `mergeable` holds the outcome without its intervals, for
/// [`Outcome::from_json`](crate::Outcome::from_json).
pub fn json(outcome: &Outcome) -> serde_json::Value {
    let mut document = serde_json::to_value(figures(outcome)).expect("numbers and texts");
    document["mergeable"] = outcome.without_intervals().to_json();
    document
}

fn pair(response_ns: &Histogram<u64>, service_ns: &Histogram<u64>) -> Pair {
    Pair { intended: Latency::of(response_ns), raw: Latency::of(service_ns) }
}

fn by_status(total: &Tally) -> BTreeMap<String, u64> {
    let digits = (1..=5).map(|digit| {
        let replies = total.classes.iter().map(|class| class.replies_by_status[digit]);
        (format!("{digit}xx"), replies.sum())
    });
    digits.collect()
}

impl Latency {
    /// Distribution in a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |percentile: f64| histogram.value_at_quantile(percentile / 100.0) as f64 / 1e3;
        Latency {
            p50: at(50.0),
            p75: at(75.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            p99_9: at(99.9),
            p99_99: at(99.99),
            max: histogram.max() as f64 / 1e3,
            mean: histogram.mean() / 1e3,
        }
    }
}

impl GeneratorFigures {
    fn of(outcome: &Outcome) -> GeneratorFigures {
        let threads = &outcome.generator.threads;
        let sum = |time: fn(&crate::outcome::ThreadUse) -> Duration| {
            threads.iter().map(time).sum::<Duration>().as_secs_f64()
        };
        let spun_s = sum(|thread| thread.spun);
        let cpu_s = (sum(|thread| thread.cpu) - spun_s).max(0.0);
        GeneratorFigures {
            io: outcome.generator.io.clone(),
            threads: threads.len(),
            cpu_s,
            spun_s,
            run_delay_s: sum(|thread| thread.run_delay),
            cpu_us_per_reply: cpu_s * 1e6 / outcome.total.replies().max(1) as f64,
        }
    }
}

impl IntervalFigures {
    fn of(interval: &IntervalRecord) -> IntervalFigures {
        let tally = &interval.tally;
        let lasts_s = interval.lasts.as_secs_f64();
        let per_s = |count: u64| count as f64 / lasts_s.max(1e-9);
        let response = tally.response_ns();
        let service = tally.service_ns();
        IntervalFigures {
            begins_s: interval.begins.as_secs_f64(),
            lasts_s,
            intended_per_s: per_s(tally.intended),
            achieved_per_s: per_s(tally.replies() + tally.carried),
            errors: tally.errors.total(),
            missed: tally.missed,
            p50_us: response.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: response.value_at_quantile(0.99) as f64 / 1e3,
            max_us: response.max() as f64 / 1e3,
            raw_p99_us: service.value_at_quantile(0.99) as f64 / 1e3,
        }
    }
}
