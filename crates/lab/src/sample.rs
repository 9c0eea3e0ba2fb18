//! A sample: the result of one start of a system in a configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::Values;

/// Output of a program under test: one line of JSON.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Output {
    /// Number of operations.
    pub ops: u64,
    /// Their duration.
    pub seconds: f64,
    /// Time to end, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_seconds: Option<f64>,
    /// Growth of resident memory, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Growth of address space, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_bytes: Option<u64>,
    /// CPU time of the whole process, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

/// Name of the value with the length of a server's measurement.
pub(crate) const LASTED_S: &str = "lasted_s";

/// Figures that a sample has only if there were replies: the server's and the machine's cost of a
/// reply.
pub(crate) const COSTS: [&str; 2] = ["cpu_us", "machine_us"];
pub(crate) const LATENCIES: [&str; 4] = ["p50_us", "p99_us", "p99.9_us", "mean_us"];

/// Figures of one sample.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Sample {
    /// Figures by name.
    pub values: Values,
    /// Figures over the time of the sample, by the name of their measure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub courses: BTreeMap<String, Course>,
    /// Disturbances.
    #[serde(default)]
    pub noise: Noise,
}

/// A figure over the time of a sample.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Course {
    /// Time between two figures.
    pub step_s: f64,
    /// The figure of each step.
    pub figures: Vec<f64>,
}

/// Disturbances of a sample, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Noise {
    /// Time that server and generator were ready without a core, in percent of the sample's; the
    /// server's counts up to the share of its core that it left to others.
    pub run_delay_percent: f64,
    /// CPU time of other programs, in percent of all cores.
    pub others_percent: f64,
    /// Time taken by the hypervisor, in percent of all cores.
    pub steal_percent: f64,
}

impl Noise {
    /// The relevant disturbance. Threads of one server also wait for each other, so waits count up
    /// to the time that others and the hypervisor took from all `cores`. If a sample's programs
    /// share a core by design, waits do not count.
    pub(crate) fn percent(&self, queues_by_itself: bool, cores: usize) -> f64 {
        let of_a_core = cores as f64 * (self.others_percent + self.steal_percent);
        let delay = if queues_by_itself { 0.0 } else { self.run_delay_percent.min(of_a_core) };
        delay.max(self.others_percent).max(self.steal_percent)
    }
}

impl Sample {
    /// Creates a sample with these figures, by name.
    pub(crate) fn of<'a>(figures: impl IntoIterator<Item = (&'a str, f64)>) -> Sample {
        let mut sample = Sample::default();
        sample.add(figures);
        sample
    }

    /// True if this figure is missing because nothing was answered.
    pub(crate) fn is_silent_about(&self, name: &str) -> bool {
        let rate = match name {
            "hot_p50_us" | "hot_p99_us" => "hot_per_s",
            _ if COSTS.contains(&name) || LATENCIES.contains(&name) => "rate_per_s",
            _ => return false,
        };
        let is_silent = self.values.get(rate).is_some_and(|&rate| rate <= 0.0);
        is_silent && !self.values.contains_key(name)
    }

    /// Adds figures, by name.
    pub(crate) fn add<'a>(&mut self, figures: impl IntoIterator<Item = (&'a str, f64)>) {
        let named = figures.into_iter();
        let named = named.map(|(name, figure)| (name.to_owned(), figure));
        self.values.extend(named);
    }
}

impl From<Output> for Sample {
    fn from(output: Output) -> Sample {
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let figures = [
            ("ops", Some(output.ops as f64)),
            ("seconds", Some(output.seconds)),
            ("end_seconds", output.end_seconds),
            ("resident_bytes", bytes(output.resident_bytes)),
            ("virtual_bytes", bytes(output.virtual_bytes)),
            ("cpu_seconds", output.cpu_seconds),
        ];
        let figures = figures.into_iter();
        Sample::of(figures.filter_map(|(name, figure)| Some((name, figure?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: 48 of 71 repeated samples of servers were of weft's threads and of memcached, most
    /// while nothing else ran. Cause: all waits of threads counted, even for each other. Cure:
    /// waits count up to the time that others used the machine.
    #[test]
    fn own_threads_are_no_noise() {
        let noise = |delay, others, steal| Noise {
            run_delay_percent: delay,
            others_percent: others,
            steal_percent: steal,
        };
        assert_eq!(noise(5784.0, 0.0, 0.5).percent(false, 2), 1.0);
        assert_eq!(noise(26.0, 1.0, 0.0).percent(false, 2), 2.0);
        assert_eq!(noise(9.0, 4.8, 0.0).percent(false, 2), 9.0);
        assert_eq!(noise(30.0, 5.0, 1.0).percent(false, 2), 12.0);
        assert_eq!(noise(30.0, 5.0, 1.0).percent(true, 2), 5.0);
        assert_eq!(noise(0.0, 1.0, 9.0).percent(false, 2), 9.0);
    }
}
