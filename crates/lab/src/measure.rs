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

    /// A parameter's value, or what it is where it does not matter.
    pub(crate) fn get(&self, name: &str, default: u64) -> u64 {
        self.parameter(name).unwrap_or(default)
    }

    /// True if its program ends when its work is done, and not after a sample's time.
    pub(crate) fn ends_by_itself(&self) -> bool {
        matches!(self.program, "memory" | "transfer")
    }

    /// One word where the parameter is there and not 0, another elsewhere.
    pub(crate) fn either<'a>(&self, name: &str, yes: &'a str, no: &'a str) -> &'a str {
        if self.get(name, 0) == 0 { no } else { yes }
    }
}

/// The figures that a sample brought, by name.
pub type Values = BTreeMap<String, f64>;

/// A figure that is reported of each sample.
#[derive(Clone, Copy)]
pub struct Measure {
    /// Its name in files: `cpu_us`. The value of this name is the figure, unless `of` says more.
    pub name: &'static str,
    /// In words, for axes: `server CPU per request`.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Direction in which it improves.
    pub better: Better,
    /// Formula over other values, if it is not one of them.
    pub of: Option<Formula>,
    /// True if a sample without this figure never came to an end. Otherwise the figure was not
    /// taken.
    pub can_be_never: bool,
    /// True if its table is always on the terminal and in documents. Otherwise it is there if it is
    /// among the first, or decides an expectation. The HTML page has all.
    pub is_told: bool,
    /// True if it is computed, so that one sample says as much as many.
    pub is_exact: bool,
}

/// The figure of a sample; `None` if it has none, because nothing was done in time.
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
    /// Words for titles; empty where it is context.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Better::Less => "; less is better",
            Better::More => "; more is better",
            Better::Neither => "",
        }
    }
}

/// Measures that several experiments have.
impl Measure {
    /// Nanoseconds per operation and processor: flat over processors is perfect.
    pub const NANOS_PER_OPERATION: Measure = Measure {
        of: Some(|configuration, values| {
            let processors = configuration.get("processors", 1) as f64;
            per_operation(values, 1e9 * processors)
        }),
        ..operation("ns_per_op", "time per operation and processor", "ns")
    };

    /// Milliseconds per operation; none if fewer than wanted were done in time.
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

    /// Nanoseconds from one operation to the next, however many processors take part.
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

    /// CPU time that the server used for each reply.
    pub const CPU_US: Measure = less("cpu_us", "server CPU per request", "µs");

    /// Good replies per second.
    pub const RATE: Measure = more("rate_per_s", "replies", "per second");

    /// CPU time of the whole machine for each reply: what a packet costs at the other end, and in
    /// the kernel on no process' account, is in it.
    pub const MACHINE_US: Measure = less("machine_us", "whole-machine CPU per request", "µs");

    /// Bits that arrive at the generator, heads of replies included.
    pub const GBIT: Measure = more("gbit_per_s", "goodput", "Gbit/s");

    /// Part of its core that the server used.
    pub const BUSY: Measure = neither("busy_percent", "server's core busy", "%");

    /// Part of the server's CPU time in its own code, as the kernel samples it.
    pub const USER: Measure =
        neither("user_percent", "outside of the kernel", "% of the server's CPU");

    /// The median latency, from the intended time in an open loop.
    pub const P50: Measure = less("p50_us", "median latency", "µs");

    /// The 99th percentile.
    pub const P99: Measure = less("p99_us", "p99 latency", "µs");

    /// The 99.9th percentile.
    pub const P999: Measure = less("p99.9_us", "p99.9 latency", "µs");

    /// Requests that failed, of a hundred.
    pub const ERRORS: Measure = less("error_percent", "requests that failed", "%");

    /// The figure of a sample.
    pub fn figure(&self, configuration: &Configuration, values: &Values) -> Option<f64> {
        match self.of {
            Some(formula) => formula(configuration, values),
            None => values.get(self.name).copied(),
        }
    }
}

/// Word or words of a measure.
type Text = &'static str;

/// A measure of which less is better: its name in the samples, its title and its unit.
pub(crate) const fn less(name: Text, title: Text, unit: Text) -> Measure {
    better(Better::Less, name, title, unit)
}

/// One of which more is better.
pub(crate) const fn more(name: Text, title: Text, unit: Text) -> Measure {
    better(Better::More, name, title, unit)
}

/// One that is context.
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

/// Less is better, of programs that may not come to their first operation.
pub(crate) const fn operation(name: Text, title: Text, unit: Text) -> Measure {
    Measure { can_be_never: true, ..less(name, title, unit) }
}

fn per_operation(values: &Values, scale: f64) -> Option<f64> {
    Some(values.get("seconds")? * scale / some(*values.get("ops")?)?)
}

/// None of nothing.
fn some(count: f64) -> Option<f64> {
    (count > 0.0).then_some(count)
}
