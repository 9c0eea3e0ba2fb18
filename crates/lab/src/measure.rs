//! Configurations, and measures of the samples taken in them.

use std::collections::BTreeMap;

/// One combination of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Label in tables: `2 processors, many fibers`.
    pub label: String,
    /// Program of the system; for servers, the kind of requests.
    pub program: &'static str,
    /// Its parameters.
    pub parameters: Vec<(&'static str, u64)>,
}

impl Configuration {
    /// A configuration.
    pub fn new(
        label: impl Into<String>,
        program: &'static str,
        parameters: impl Into<Vec<(&'static str, u64)>>,
    ) -> Configuration {
        Configuration { label: label.into(), program, parameters: parameters.into() }
    }

    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> Option<u64> {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map(|&(_, value)| value)
    }

    /// A parameter's value, or a default.
    pub(crate) fn get(&self, name: &str, default: u64) -> u64 {
        self.parameter(name).unwrap_or(default)
    }

    /// True if its program ends when its work is done, not after a sample's time.
    pub(crate) fn ends_by_itself(&self) -> bool {
        matches!(self.program, "memory" | "transfer")
    }

    /// Returns one word if the parameter is set and not 0, else the other.
    pub(crate) fn either<'a>(&self, name: &str, yes: &'a str, no: &'a str) -> &'a str {
        if self.get(name, 0) == 0 { no } else { yes }
    }
}

/// Figures of a sample, by name.
pub type Values = BTreeMap<String, f64>;

/// A figure of each sample.
#[derive(Clone, Copy)]
pub struct Measure {
    /// Its name in files: `cpu_us`. The figure is the value of this name, unless there is a
    /// formula.
    pub name: &'static str,
    /// Title for axes: `server CPU per request`.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Direction in which it improves.
    pub better: Better,
    /// Formula over other values, if it is not one of them.
    pub of: Option<Formula>,
    /// True if a sample without this figure never ended. Otherwise the figure was not taken.
    pub can_be_never: bool,
    /// True if its table is always shown on the terminal and in documents. Otherwise it is shown if
    /// it is among the first measures, or decides an expectation. The HTML page has all.
    pub is_told: bool,
    /// True if it is computed, so that one sample suffices.
    pub is_exact: bool,
}

/// Figure of a sample; `None` if nothing was done in time.
pub(crate) type Formula = fn(&Configuration, &Values) -> Option<f64>;

/// Direction in which a measure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times and costs.
    Less,
    /// Rates.
    More,
    /// Neither: the measure is context.
    Neither,
}

impl Better {
    /// Words for titles; empty for context.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Better::Less => "; less is better",
            Better::More => "; more is better",
            Better::Neither => "",
        }
    }
}

/// Measures of several experiments.
impl Measure {
    /// Nanoseconds per operation and processor: flat over processors is perfect.
    pub const NANOS_PER_OPERATION: Measure = Measure {
        of: Some(|configuration, values| {
            let processors = configuration.get("processors", 1) as f64;
            per_operation(values, 1e9 * processors)
        }),
        ..operation("ns_per_op", "time per operation and processor", "ns")
    };

    /// Milliseconds per operation; none if not all wanted ones were done in time.
    pub const MILLIS_PER_TRANSFER: Measure = Measure {
        of: Some(|configuration, values| {
            let wanted = configuration.get("transfers", 0) as f64;
            let is_done = *values.get("ops")? >= wanted;
            is_done.then(|| per_operation(values, 1e3)).flatten()
        }),
        ..operation("ms_per_transfer", "time per transfer", "ms")
    };

    /// Resident bytes per thread, page tables included where the program counts them.
    pub const BYTES_PER_THREAD: Measure = Measure {
        of: Some(|_, values| Some(values.get("resident_bytes")? / some(*values.get("ops")?)?)),
        ..operation("bytes_per_thread", "resident memory of each", "bytes")
    };

    /// Nanoseconds from one operation to the next, regardless of the number of processors.
    pub const NANOS: Measure = Measure {
        of: Some(|_, values| per_operation(values, 1e9)),
        ..operation("ns", "time per operation", "ns")
    };

    /// Microseconds from one operation to the next.
    pub const MICROS: Measure = Measure {
        of: Some(|_, values| per_operation(values, 1e6)),
        ..operation("us", "time per operation", "µs")
    };

    /// CPU time in percent of one processor's.
    pub const CPU_PERCENT: Measure = Measure {
        of: Some(|_, values| Some(100.0 * values.get("cpu_seconds")? / values.get("seconds")?)),
        ..operation("cpu_percent", "CPU time", "% of a CPU")
    };

    /// CPU time of the server per reply.
    pub const CPU_US: Measure = less("cpu_us", "server CPU per request", "µs");

    /// Good replies per second.
    pub const RATE: Measure = more("rate_per_s", "replies", "per second");

    /// CPU time of the whole machine per reply, including the other end's work on packets, and work
    /// of the kernel that it counts for no process.
    pub const MACHINE_US: Measure = less("machine_us", "whole-machine CPU per request", "µs");

    /// Bits that arrive at the generator, heads of replies included.
    pub const GBIT: Measure = more("gbit_per_s", "goodput", "Gbit/s");

    /// Share of its core that the server used.
    pub const BUSY: Measure = neither("busy_percent", "server's core busy", "%");

    /// Share of the server's CPU time in user mode, as sampled by the kernel.
    pub const USER: Measure =
        neither("user_percent", "outside of the kernel", "% of the server's CPU");

    /// The median latency, from the intended time in an open loop.
    pub const P50: Measure = less("p50_us", "median latency", "µs");

    /// The 99th percentile.
    pub const P99: Measure = less("p99_us", "p99 latency", "µs");

    /// The 99.9th percentile.
    pub const P999: Measure = less("p99.9_us", "p99.9 latency", "µs");

    /// Failed requests, in percent.
    pub const ERRORS: Measure = less("error_percent", "requests that failed", "%");

    /// The figure of a sample.
    pub fn figure(&self, configuration: &Configuration, values: &Values) -> Option<f64> {
        match self.of {
            Some(formula) => formula(configuration, values),
            None => values.get(self.name).copied(),
        }
    }
}

/// Words of a measure.
type Text = &'static str;

/// Creates a measure of which less is better: name in the samples, title and unit.
pub(crate) const fn less(name: Text, title: Text, unit: Text) -> Measure {
    better(Better::Less, name, title, unit)
}

/// Creates a measure of which more is better.
pub(crate) const fn more(name: Text, title: Text, unit: Text) -> Measure {
    better(Better::More, name, title, unit)
}

/// Creates a measure that is context.
pub(crate) const fn neither(name: Text, title: Text, unit: Text) -> Measure {
    better(Better::Neither, name, title, unit)
}

const fn better(better: Better, name: Text, title: Text, unit: Text) -> Measure {
    Measure {
        name,
        title,
        unit,
        better,
        of: None,
        can_be_never: false,
        is_told: false,
        is_exact: false,
    }
}

/// Creates a measure of which less is better, for programs that may not complete an operation.
pub(crate) const fn operation(name: Text, title: Text, unit: Text) -> Measure {
    Measure { can_be_never: true, ..less(name, title, unit) }
}

fn per_operation(values: &Values, scale: f64) -> Option<f64> {
    Some(values.get("seconds")? * scale / some(*values.get("ops")?)?)
}

/// Returns `None` for zero.
fn some(count: f64) -> Option<f64> {
    (count > 0.0).then_some(count)
}
