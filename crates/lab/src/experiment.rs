//! What an experiment is: cells, subjects, measures, a figure, and what is expected.

use std::collections::BTreeMap;

use crate::bench::{Bench, Fault};
use crate::expect::Expectations;
use crate::place::{Controller, LabPlace};
use crate::rows::Rows;
use crate::sample::Sample;
use crate::subject::Subject;

/// What is measured, on which subjects, and what comes out if all is well.
pub struct Experiment {
    /// `rt-yield`.
    pub name: &'static str,
    /// One line: what it does.
    pub about: &'static str,
    /// Its page in `docs/experiments`, where its words are.
    pub page: &'static str,
    /// What is reported of each sample. The first one decides.
    pub measures: &'static [Measure],
    /// Where it is measured.
    pub cells: fn(&Breadth) -> Vec<Cell>,
    /// Which kinds of subjects take part: see [`Subject::kind`].
    pub subjects: &'static [&'static str],
    /// How a sample is taken.
    pub work: Work,
    /// How it is drawn.
    pub figures: &'static [Figure],
    /// Judges the rows.
    pub expectations: fn(&Rows) -> Expectations,
}

/// How a sample is taken.
#[derive(Clone, Copy)]
pub enum Work {
    /// A process that does the cell's program and prints what came out.
    Program,
    /// A server that is started, asked, and stopped.
    Server(ServerWork),
}

impl Work {
    /// Whether only root has what it needs.
    pub fn needs_root(&self) -> bool {
        let needs =
            |work: &ServerWork| work.needs_group.is_some() || work.needs_link || work.shares_cores;
        matches!(self, Work::Server(work) if needs(work))
    }

    /// Why it cannot be done here, if so.
    pub fn lacks(&self, place: &LabPlace) -> Option<String> {
        let Work::Server(work) = self else {
            return None;
        };
        let group = work.needs_group.and_then(|group| place.lacks_group(group));
        let link = work.needs_link.then(|| place.lacks_links());
        let cores = work.shares_cores.then(|| place.lacks_both_cores());
        group.or(link.flatten()).or(cores.flatten())
    }

    /// Whether server and generators share both cores.
    pub(crate) fn shares_cores(&self) -> bool {
        matches!(self, Work::Server(work) if work.shares_cores)
    }
}

/// What is done with a server.
#[derive(Clone, Copy)]
pub struct ServerWork {
    /// Takes a sample.
    pub(crate) take: Take,
    /// How long that takes, in samples' times, for estimates.
    pub lasts: f64,
    /// What a sample's time is at the least, unless the user says less: a tail, a recovery or an
    /// agreement does not show in a moment.
    pub seconds_min: f64,
    /// How many samples there are of each, if their number is not the usual one: few where one
    /// lasts long or differences are great, more where a quick look would tell nothing.
    pub repetitions: Option<u32>,
    /// A sample's time in a full run.
    pub full_seconds: f64,
    /// And with as much effort as the papers'.
    pub paper_seconds: f64,
    /// Whether a subject of a kind has no part in a cell.
    pub skips: fn(&Cell, &str) -> bool,
    /// What no server may have in plenty: that needs root, and a control group.
    pub needs_group: Option<Controller>,
    /// Whether the server is at the far end of a link, in a network of its own, which needs root.
    pub needs_link: bool,
    /// Whether server and generators share both cores, and the server goes ahead, which needs root.
    pub shares_cores: bool,
    /// Whether a server is noisy by itself: its own threads wait for the core, so only what
    /// other programs used tells a bad sample.
    pub queues_by_itself: bool,
    /// The kind of subject whose greatest rate in a closed loop scales the cells.
    pub scaled_by: Option<&'static str>,
}

/// Takes a sample of a subject.
pub(crate) type Take = fn(&mut Bench<'_>, &Cell, &Subject) -> Result<Sample, Fault>;

impl ServerWork {
    /// Samples that last as long as is said, under no limit.
    pub(crate) const fn new(take: Take) -> ServerWork {
        ServerWork {
            take,
            lasts: 1.0,
            seconds_min: 0.0,
            repetitions: None,
            full_seconds: 1.0,
            paper_seconds: 10.0,
            skips: |_, _| false,
            needs_group: None,
            needs_link: false,
            shares_cores: false,
            queues_by_itself: false,
            scaled_by: None,
        }
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breadth {
    /// Fewer cells.
    pub quick: bool,
    /// Requests per second that the machine allows, if the experiment is
    /// [scaled](ServerWork::scaled_by).
    pub peak_per_s: Option<f64>,
}

impl Breadth {
    /// What is measured quickly, or else all of it.
    pub(crate) fn pick<T>(&self, quick: T, all: T) -> T {
        if self.quick { quick } else { all }
    }

    /// A share of the peak in percent, as a rate; of a usual peak if it is not known yet.
    pub(crate) fn rate(&self, share: u64, usual_per_s: f64) -> u64 {
        let peak_per_s = self.peak_per_s.unwrap_or(usual_per_s);
        (peak_per_s * share as f64 / 100.0).round().max(1.0) as u64
    }
}

/// One combination of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// For tables: `2 processors, many fibers`.
    pub label: String,
    /// Which program the subject runs; for servers, what is asked.
    pub program: &'static str,
    /// Its parameters.
    pub parameters: Vec<(&'static str, u64)>,
}

impl Cell {
    /// A cell.
    pub fn new(
        label: impl Into<String>,
        program: &'static str,
        parameters: impl Into<Vec<(&'static str, u64)>>,
    ) -> Cell {
        Cell {
            label: label.into(),
            program,
            parameters: parameters.into(),
        }
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

    /// Whether its program ends when its work is done, and not after a sample's time.
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
    /// What a subject is praised for.
    pub better: Better,
    /// How it is computed from other values.
    pub of: Option<Formula>,
    /// Whether a sample without a figure says that it never came to that. Else it was not measured.
    pub can_be_never: bool,
    /// Whether its table is on the terminal and in documents in any case. Else it is if it is one
    /// of the first two, or decides something. The page has all.
    pub is_told: bool,
}

/// The figure of a sample; `None` if it has none, because nothing was done in time.
pub(crate) type Formula = fn(&Cell, &Values) -> Option<f64>;

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Times and costs.
    Less,
    /// Rates.
    More,
    /// It is context.
    Neither,
}

/// A drawing in the report.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// A group of bars for each cell, a bar for each subject, with a line from least to greatest.
    Bars {
        /// Which measure.
        measure: usize,
    },
    /// A line for each subject over a parameter of the cells: the median, and a band from least to
    /// greatest.
    Lines {
        /// Which measure.
        measure: usize,
        /// Which parameter.
        over: &'static str,
        /// The axis in words.
        axis: &'static str,
        /// Whether the measure is on a logarithmic axis.
        log: bool,
        /// Whether a dotted line shows where the measure is the parameter: achieved is asked.
        diagonal: bool,
        /// The parameter of the cells by which there is a panel each, and its words.
        panels: Option<(&'static str, &'static str)>,
    },
    /// A line for each subject over the time of a sample: the courses that samples have under the
    /// measure's name.
    Course {
        /// Which measure.
        measure: usize,
        /// The parameter of the cells by which there is a panel each.
        panels: &'static str,
        /// When something begins, in samples' times, and what.
        marks: &'static [(f64, &'static str)],
    },
}

impl Better {
    /// For titles; empty where it is context.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Better::Less => "; less is better",
            Better::More => "; more is better",
            Better::Neither => "",
        }
    }
}

impl Figure {
    /// Lines over the rate that was offered: the figures of the papers.
    pub const fn over_rate(
        measure: usize,
        log: bool,
        diagonal: bool,
        panels: Option<(&'static str, &'static str)>,
    ) -> Figure {
        Figure::Lines {
            measure,
            over: "rate",
            axis: "offered requests per second",
            log,
            diagonal,
            panels,
        }
    }
}

/// Measures that several experiments have.
impl Measure {
    /// Nanoseconds per operation and processor: flat over processors is perfect.
    pub const NANOS_PER_OPERATION: Measure = Measure {
        of: Some(|cell, values| {
            let processors = cell.get("processors", 1) as f64;
            per_operation(values, 1e9 * processors)
        }),
        ..operation("ns_per_op", "time per operation and processor", "ns")
    };

    /// Milliseconds per operation; none if fewer than wanted were done in time.
    pub const MILLIS_PER_TRANSFER: Measure = Measure {
        of: Some(|cell, values| {
            let wanted = cell.get("transfers", 0) as f64;
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

    /// What arrives at the generator, heads of replies included.
    pub const GBIT: Measure = more("gbit_per_s", "goodput", "Gbit/s");

    /// How much of its core the server used.
    pub const BUSY: Measure = neither("busy_percent", "server's core busy", "%");

    /// How much of the server's CPU time was its own code's. The kernel takes samples of that.
    pub const USER: Measure = neither(
        "user_percent",
        "outside of the kernel",
        "% of the server's CPU",
    );

    /// The median latency, from the intended time in an open loop.
    pub const P50: Measure = less("p50_us", "median latency", "µs");

    /// The 99th percentile.
    pub const P99: Measure = less("p99_us", "p99 latency", "µs");

    /// The 99.9th percentile.
    pub const P999: Measure = less("p99.9_us", "p99.9 latency", "µs");

    /// Requests that failed, of a hundred.
    pub const ERRORS: Measure = less("error_percent", "requests that failed", "%");

    /// The figure of a sample.
    pub fn figure(&self, cell: &Cell, values: &Values) -> Option<f64> {
        match self.of {
            Some(formula) => formula(cell, values),
            None => values.get(self.name).copied(),
        }
    }
}

/// A measure of which less is better: its name in the samples, its title and its unit.
pub(crate) const fn less(name: &'static str, title: &'static str, unit: &'static str) -> Measure {
    better(Better::Less, name, title, unit)
}

/// One of which more is better.
pub(crate) const fn more(name: &'static str, title: &'static str, unit: &'static str) -> Measure {
    better(Better::More, name, title, unit)
}

/// One that is context.
pub(crate) const fn neither(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
) -> Measure {
    better(Better::Neither, name, title, unit)
}

const fn better(
    better: Better,
    name: &'static str,
    title: &'static str,
    unit: &'static str,
) -> Measure {
    Measure {
        name,
        title,
        unit,
        better,
        of: None,
        can_be_never: false,
        is_told: false,
    }
}

/// Less is better, of programs that may not come to their first operation.
pub(crate) const fn operation(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
) -> Measure {
    Measure {
        can_be_never: true,
        ..less(name, title, unit)
    }
}

fn per_operation(values: &Values, scale: f64) -> Option<f64> {
    Some(values.get("seconds")? * scale / some(*values.get("ops")?)?)
}

/// None of nothing.
fn some(count: f64) -> Option<f64> {
    (count > 0.0).then_some(count)
}
