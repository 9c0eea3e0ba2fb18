//! Conditions that fail a run: `p99>5ms`, `errors>0.1%`, `achieved<99%`.

use std::fmt;
use std::str::FromStr;

use hdrhistogram::Histogram;

use crate::outcome::{Outcome, Tally};
use crate::units::ns_of;

/// Condition on an outcome: a metric, a comparison, a value.
///
/// | metric | value |
/// |---|---|
/// | `p99` (any percentile), `max`, `mean` | a time, such as `5ms`: from the intended time |
/// | `raw.p99`, `connect.p99`, `lag.p99` | a time: from the sending, of opening, of our own lateness |
/// | `get.p99`, `set.raw.max` | a time, of one class |
/// | `errors`, `errors.refused` | a number, or a share of the requests: `0.1%` |
/// | `missed` | a number, or a share of the intended requests |
/// | `achieved` | replies per second, such as `50k`, or a share of what was asked (of sessions, of those that should begin): `99%` |
/// | `status.5xx` | a number, or a share of the replies |
/// | `hits` | a number, or a share of the keys asked for |
/// | `generator_limited` | `>0`: the generator was the limit |
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    metric: Metric,
    above: bool,
    or_equal: bool,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Metric {
    /// One of [`LATENCIES`], and the percentile; `None` is the mean.
    Time(&'static str, Option<f64>),
    Errors(Option<String>),
    Missed,
    Achieved,
    Status(usize),
    Hits,
    GeneratorLimited,
}

/// Latencies, by what stands in front of the percentile.
const LATENCIES: [&str; 10] =
    ["", "raw", "connect", "lag", "request", "request.raw", "get", "get.raw", "set", "set.raw"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Ns(f64),
    Number(f64),
    Share(f64),
}

/// Sentences of the conditions that hold, with the measured values.
pub fn failed(thresholds: &[Threshold], outcome: &Outcome) -> Vec<String> {
    thresholds.iter().filter_map(|threshold| threshold.failure(outcome)).collect()
}

impl Threshold {
    /// True if the condition is about errors.
    pub fn is_about_errors(&self) -> bool {
        matches!(self.metric, Metric::Errors(_))
    }

    /// Sentence if the condition holds, which means failure.
    pub fn failure(&self, outcome: &Outcome) -> Option<String> {
        let (seen, limit) = match self.value {
            Value::Ns(limit) | Value::Number(limit) => (self.metric.number(outcome), limit),
            Value::Share(limit) => (self.metric.share(outcome), limit),
        };
        // Without requests there is no latency, so the run has not shown that it is below 5 ms.
        let Some(seen) = seen else {
            return Some(format!("{}: nothing was measured", self.text));
        };
        let holds = if self.above { seen > limit } else { seen < limit };
        let holds = holds || (self.or_equal && seen == limit);
        if !holds {
            return None;
        }
        let seen = match self.value {
            Value::Ns(_) => ns_of(seen),
            Value::Number(_) if seen.fract() != 0.0 => format!("{seen:.1}"),
            Value::Number(_) => format!("{seen}"),
            Value::Share(_) => format!("{:.3} %", seen * 100.0),
        };
        Some(format!("{}: measured {seen}", self.text))
    }
}

impl Metric {
    fn number(&self, outcome: &Outcome) -> Option<f64> {
        let total = &outcome.total;
        Some(match self {
            Metric::Time(latency, percent) => {
                let histogram = histogram(latency, total)?;
                return (!histogram.is_empty()).then(|| match percent {
                    Some(percent) => histogram.value_at_quantile(percent / 100.0) as f64,
                    None => histogram.mean(),
                });
            }
            Metric::Errors(None) => total.errors.total() as f64,
            Metric::Errors(Some(name)) => {
                total.errors.named().iter().find(|(known, _)| known == name)?.1 as f64
            }
            Metric::Missed => total.missed as f64,
            Metric::Achieved => outcome.achieved_rate_per_s(),
            Metric::Status(digit) => total.replies_by_status()[*digit - 1].1 as f64,
            Metric::Hits => total.hits as f64,
            Metric::GeneratorLimited => f64::from(u8::from(outcome.generator_limited().is_some())),
        })
    }

    fn share(&self, outcome: &Outcome) -> Option<f64> {
        let total = &outcome.total;
        let whole = match self {
            Metric::Time(..) | Metric::GeneratorLimited => return None,
            Metric::Errors(_) => (total.replies() + total.errors.total()) as f64,
            Metric::Missed => total.intended as f64,
            Metric::Achieved => return outcome.achieved_share(),
            Metric::Status(_) => {
                let all = total.replies_by_status().map(|(_, count)| count);
                all.iter().sum::<u64>() as f64
            }
            Metric::Hits => (total.hits + total.misses) as f64,
        };
        Some(self.number(outcome)? / whole).filter(|share| share.is_finite())
    }
}

fn histogram(latency: &str, total: &Tally) -> Option<Histogram<u64>> {
    Some(match latency {
        "" => total.response_ns(),
        "raw" => total.service_ns(),
        "connect" => total.connect_ns.clone(),
        "lag" => total.lag_ns.clone(),
        _ => {
            let raw = latency.strip_suffix(".raw");
            let name = raw.unwrap_or(latency);
            let class = total.classes.iter().find(|class| class.name == name)?;
            if raw.is_some() { class.service_ns.clone() } else { class.response_ns.clone() }
        }
    })
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Threshold, String> {
        let wrong = || {
            format!(
                "'{text}' is not a condition; write a metric, > or <, and a value, such as p99>5ms"
            )
        };
        let at = text.find(['>', '<']).ok_or_else(wrong)?;
        let (metric, rest) = text.split_at(at);
        let or_equal = rest[1..].starts_with('=');
        let value = rest[1 + usize::from(or_equal)..].trim();
        let metric = metric_of(metric.trim())?;
        let value = match metric {
            Metric::Time(..) => Value::Ns(time_ns(value)?),
            _ => number_or_share(value)?,
        };
        if metric == Metric::GeneratorLimited && matches!(value, Value::Share(_)) {
            return Err(format!("'{text}': write generator_limited>0"));
        }
        let above = rest.starts_with('>');
        Ok(Threshold { text: text.to_owned(), metric, above, or_equal, value })
    }
}

fn metric_of(name: &str) -> Result<Metric, String> {
    let wrong = || {
        format!(
            "unknown metric '{name}'; known are p50 … p99.99, max, mean (with raw., connect., lag. or a \
             class such as get. in front), errors, errors.NAME, missed, achieved, status.5xx, hits and \
             generator_limited"
        )
    };
    let digit = || match name.strip_prefix("status.")?.as_bytes() {
        [digit @ b'1'..=b'5', b'x', b'x'] => Some(Metric::Status(usize::from(digit - b'0'))),
        _ => None,
    };
    Ok(match name {
        "errors" => Metric::Errors(None),
        "missed" => Metric::Missed,
        "achieved" => Metric::Achieved,
        "hits" => Metric::Hits,
        "generator_limited" => Metric::GeneratorLimited,
        _ if name.starts_with("status.") => digit().ok_or_else(wrong)?,
        _ => match name.strip_prefix("errors.") {
            Some(class) => Metric::Errors(Some(error_class(class)?)),
            None => time_metric(name).ok_or_else(wrong)?,
        },
    })
}

fn error_class(name: &str) -> Result<String, String> {
    let names = crate::Errors::default().named().map(|(name, _)| name);
    if names.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(format!("unknown class of errors '{name}'; known are {}", names.join(", ")))
    }
}

fn time_metric(name: &str) -> Option<Metric> {
    // The dot of p99.9 is part of the percentile: what stands in front of the last p, max or mean.
    let start = ["p", "max", "mean"].iter().filter_map(|word| {
        name.rfind(&format!(".{word}")).map(|at| at + 1).or(name.starts_with(word).then_some(0))
    });
    let (latency, statistic) = name.split_at(start.max()?);
    let percent = match statistic {
        "max" => Some(100.0),
        "mean" => None,
        _ => {
            let percent: f64 = statistic.strip_prefix('p')?.parse().ok()?;
            Some(Some(percent).filter(|percent| (0.0..=100.0).contains(percent))?)
        }
    };
    let latency = latency.strip_suffix('.').unwrap_or(latency);
    let latency = LATENCIES.into_iter().find(|known| *known == latency)?;
    Some(Metric::Time(latency, percent))
}

fn time_ns(text: &str) -> Result<f64, String> {
    let wrong = || {
        format!("'{text}' is not a time; write a number and its unit, such as 250us, 5ms or 1.5s")
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 6e10,
        _ => return Err(wrong()),
    };
    Ok(number * unit_ns)
}

fn number_or_share(text: &str) -> Result<Value, String> {
    let wrong = || format!("'{text}' is not a number; write one such as 0, 50k or 0.1%");
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    Ok(match unit {
        "" => Value::Number(number),
        "k" => Value::Number(number * 1e3),
        "M" => Value::Number(number * 1e6),
        "%" => Value::Share(number / 100.0),
        _ => return Err(wrong()),
    })
}

fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::tests::sample;

    fn holds(text: &str, outcome: &Outcome) -> bool {
        text.parse::<Threshold>()
            .unwrap_or_else(|error| panic!("{error}"))
            .failure(outcome)
            .is_some()
    }

    #[test]
    fn times_are_compared_in_their_units() {
        // 1 µs to 10,000 µs evenly; raw is half of it.
        let outcome = sample(&["request"], 1, 10_000);
        for text in [
            "p50>4.9ms",
            "p50<5100us",
            "p99.9>9ms",
            "max>=10ms",
            "mean>5000000ns",
            "raw.p50<2.6ms",
            "request.p50>4ms",
            "request.raw.max<6ms",
        ] {
            assert!(holds(text, &outcome), "{text}");
        }
        for text in ["p50>5.1ms", "p99.9 > 10ms", "max>1s", "raw.p50>2.6ms"] {
            assert!(!holds(text, &outcome), "{text}");
        }
    }

    #[test]
    fn counts_and_shares_are_compared() {
        let mut outcome = sample(&["get", "set"], 1, 10_000);
        outcome.total.errors.refused = 100;
        outcome.total.missed = 10;
        outcome.total.intended = 1000;
        outcome.total.hits = 90;
        outcome.total.misses = 10;
        outcome.total.classes[0].replies_by_status[5] = 3;
        for text in [
            "errors>0",
            "errors>0.4%",
            "errors.refused>=100",
            "missed>0.9%",
            "hits<91%",
            "status.5xx>2",
            "achieved<11k",
            "achieved>=99%",
        ] {
            assert!(holds(text, &outcome), "{text}");
        }
        for text in [
            "errors>100",
            "errors>0.6%",
            "errors.reset>0",
            "missed>1%",
            "hits<90%",
            "status.4xx>0",
            "achieved<0.01M",
            "generator_limited>0",
        ] {
            assert!(!holds(text, &outcome), "{text}");
        }
        outcome.total.errors.fd_unavailable = 1;
        assert!(holds("generator_limited>0", &outcome));
    }

    #[test]
    fn condition_on_errors_is_recognised() {
        let is = |text: &str| text.parse::<Threshold>().unwrap().is_about_errors();
        assert!(is("errors>1%") && is("errors.refused>3"));
        assert!(!is("missed>1%") && !is("p99>5ms"));
    }

    #[test]
    fn condition_without_requests_fails() {
        let outcome = sample(&["request"], 1, 0);
        assert!(holds("p99>5ms", &outcome));
        assert!(!holds("errors>0", &outcome));
    }

    #[test]
    fn the_failure_says_what_was_seen() {
        let all: Vec<Threshold> =
            ["p50>1ms", "errors>0", "max>9ms"].map(|text| text.parse().unwrap()).to_vec();
        let outcome = sample(&["request"], 1, 10_000);
        let sentences = failed(&all, &outcome);
        assert_eq!(sentences.len(), 2);
        assert!(sentences[0].starts_with("p50>1ms: measured 5.0"), "{}", sentences[0]);
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |text: &str, hint: &str| {
            let error = text.parse::<Threshold>().expect_err(text);
            assert!(error.contains(hint), "{text}: {error}");
        };
        refused("p99", "such as p99>5ms");
        refused("p101>5ms", "unknown metric 'p101'");
        refused("p99>5", "is not a time; write a number and its unit");
        refused("p99>ms", "is not a time");
        refused("speed>5", "unknown metric 'speed'");
        refused("errors>many", "is not a number");
        refused("errors.lost>1", "known are client_timeout");
        refused("status.6xx>1", "unknown metric");
        refused("frob.p99>1ms", "unknown metric");
        refused("generator_limited>1%", "write generator_limited>0");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}") {
            let _ = text.parse::<Threshold>();
        }

        #[test]
        fn any_condition_is_read_or_refused(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just("p"), Just("99"), Just("."), Just("max"), Just("mean"), Just("raw"), Just(">"), Just("<="),
                    Just("5ms"), Just("%"), Just("errors"), Just("status"), Just("5xx"), Just("é"), Just(" "),
                ],
                0..10,
            ),
        ) {
            if let Ok(threshold) = pieces.concat().parse::<Threshold>() {
                let _ = threshold.failure(&sample(&["request"], 1, 10));
            }
        }
    }
}
