//! An experiment: configurations, systems, measures, figures, and expectations.

use crate::bench::{Bench, Taken};
use crate::expect::Expectations;
use crate::measure::{Configuration, Measure};
use crate::rows::Rows;
use crate::system::System;
use crate::testbed::{Controller, Testbed};

/// An experiment: a question, its configurations and systems, and its expectations.
pub struct Experiment {
    /// `rt-yield`.
    pub name: &'static str,
    /// A line that describes it.
    pub about: &'static str,
    /// Its page in `docs/experiments`, with its texts.
    pub page: &'static str,
    /// Measures of each sample. The first one decides.
    pub measures: &'static [Measure],
    /// Configurations.
    pub configurations: fn(&Breadth) -> Vec<Configuration>,
    /// Kinds of systems that take part: see [`System::kind`].
    pub systems: &'static [&'static str],
    /// Work that makes a sample.
    pub work: Work,
    /// Figures.
    pub figures: &'static [Figure],
    /// Judges the rows.
    pub expectations: fn(&Rows) -> Expectations,
}

/// Work that makes a sample.
#[derive(Clone, Copy)]
pub enum Work {
    /// A process that runs the configuration's program and prints the result.
    Program,
    /// A server that is started, loaded, and stopped.
    Server(ServerWork),
}

impl Work {
    /// True if it needs root.
    pub fn needs_root(&self) -> bool {
        let needs =
            |work: &ServerWork| work.needs_group.is_some() || work.needs_link || work.shares_cores;
        matches!(self, Work::Server(work) if needs(work))
    }

    /// Reason why it cannot run here, if any.
    pub fn lacks(&self, testbed: &Testbed) -> Option<String> {
        let Work::Server(work) = self else {
            return None;
        };
        let group = work.needs_group.and_then(|group| testbed.lacks_group(group));
        let link = work.needs_link.then(|| testbed.lacks_links());
        let cores = work.shares_cores.then(|| testbed.lacks_both_cores());
        group.or(link.flatten()).or(cores.flatten())
    }

    /// Reason why its generator cannot be on another machine, if any.
    pub fn stays_here(&self) -> Option<&'static str> {
        match self {
            Work::Program => Some("no server is measured"),
            Work::Server(work) if work.lasts == 0.0 => Some("nothing is asked"),
            Work::Server(work) if work.needs_link => Some("the link to the server is part of it"),
            Work::Server(work) if work.shares_cores => {
                Some("its generators share the server's cores")
            }
            Work::Server(work) => work.asks_itself.then_some("not only weft load asks"),
        }
    }

    /// True if server and generators share both cores.
    pub(crate) fn shares_cores(&self) -> bool {
        matches!(self, Work::Server(work) if work.shares_cores)
    }
}

/// Work with a server.
#[derive(Clone, Copy)]
pub struct ServerWork {
    /// Takes a sample.
    pub(crate) take: Take,
    /// Its length in samples' times, for estimates.
    pub lasts: f64,
    /// Minimum length of a sample, unless the user asks for less: a tail, a recovery or an
    /// agreement needs time to show.
    pub seconds_min: f64,
    /// Number of samples in a quick look: fewer than usual if each is long, more if few would be
    /// meaningless.
    pub quick_repetitions: u32,
    /// Time of a sample in a full run.
    pub full_seconds: f64,
    /// Time of a sample with the papers' effort.
    pub paper_seconds: f64,
    /// True if a kind of system is not measured in a configuration.
    pub skips: fn(&Configuration, &str) -> bool,
    /// Limited resource of the server, which needs root and a control group.
    pub needs_group: Option<Controller>,
    /// True if the server is at the far end of a link, in a network of its own, which needs root.
    pub needs_link: bool,
    /// True if server and generators share both cores, and the server has priority, which needs
    /// root.
    pub shares_cores: bool,
    /// True if other generators than `weft load`, or the laboratory itself, send requests.
    pub asks_itself: bool,
    /// True if a server's own threads wait for the core, so that only the CPU time of other
    /// programs reveals a disturbed sample.
    pub queues_by_itself: bool,
    /// Kind of system whose highest rate in a closed loop scales the configurations.
    pub scaled_by: Option<&'static str>,
    /// Adds figures that are computed from several configurations.
    pub derive: fn(&mut Rows),
}

/// Takes a sample of a system.
pub(crate) type Take = fn(&mut Bench<'_>, &Configuration, &System) -> Taken;

impl ServerWork {
    /// Creates work with samples of normal length and without limits.
    pub(crate) const fn new(take: Take) -> ServerWork {
        ServerWork {
            take,
            lasts: 1.0,
            seconds_min: 0.0,
            quick_repetitions: 3,
            full_seconds: 1.0,
            paper_seconds: 10.0,
            skips: |_, _| false,
            needs_group: None,
            needs_link: false,
            shares_cores: false,
            asks_itself: false,
            queues_by_itself: false,
            scaled_by: None,
            derive: |_| {},
        }
    }
}

/// Extent of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breadth {
    /// Fewer configurations.
    pub quick: bool,
    /// Highest rate of requests per second on this machine, if the experiment is
    /// [scaled](ServerWork::scaled_by).
    pub peak_per_s: Option<f64>,
    /// Number of cores of this machine, or of the one in a record.
    pub cores: usize,
}

impl Breadth {
    /// Numbers of processors for a runtime: 1, 2, 4 and so on to the number of cores, or 1 and 2 on
    /// one core; in a quick run 1.
    pub(crate) fn processors(&self) -> Vec<u64> {
        if self.quick {
            return vec![1];
        }
        let cores = self.cores.max(2) as u64;
        let doubled = std::iter::successors(Some(1), |one| Some(2 * one));
        let mut processors: Vec<u64> = doubled.take_while(|&one| one < cores).collect();
        processors.push(cores);
        processors
    }

    /// Returns the first in a quick run, the second in a full one.
    pub(crate) fn pick<T>(&self, quick: T, all: T) -> T {
        if self.quick { quick } else { all }
    }

    /// Converts percent of the peak to a rate; of a usual peak if it is not known yet.
    pub(crate) fn rate(&self, share: u64, usual_per_s: f64) -> u64 {
        let peak_per_s = self.peak_per_s.unwrap_or(usual_per_s);
        (peak_per_s * share as f64 / 100.0).round().max(1.0) as u64
    }
}

/// A drawing in the report.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// A group of bars per configuration, a bar per system, with a whisker from minimum to maximum.
    Bars {
        /// Index of the measure.
        measure: usize,
    },
    /// A line per system over a parameter of the configurations: the median, and a band from
    /// minimum to maximum.
    Lines {
        /// Index of the measure.
        measure: usize,
        /// Name of the parameter.
        over: &'static str,
        /// The axis in words.
        axis: &'static str,
        /// True for a logarithmic axis of the measure.
        log: bool,
        /// True for a logarithmic axis of the parameter.
        log_over: bool,
        /// True for a dotted line where the measure equals the parameter (achieved = offered).
        diagonal: bool,
        /// The parameter that separates panels, and its words.
        panels: Panels,
    },
    /// A line per system over the time of a sample: the samples' courses under the measure's name.
    Course {
        /// Index of the measure.
        measure: usize,
        /// The parameter that separates panels.
        panels: &'static str,
        /// Starts of phases, in samples' times, and their names.
        marks: &'static [(f64, &'static str)],
    },
}

/// A parameter of configurations, and its words.
type Axis = (&'static str, &'static str);
type Panels = Option<Axis>;

impl Figure {
    /// Lines over a parameter.
    pub(crate) const fn over(measure: usize, by: Axis, log: bool, panels: Panels) -> Figure {
        let (over, axis) = by;
        Figure::Lines { measure, over, axis, log, log_over: false, diagonal: false, panels }
    }

    /// Makes the axis of the parameter logarithmic, for values that are multiples of each other.
    pub(crate) const fn by_multiples(self) -> Figure {
        match self {
            Figure::Lines { measure, over, axis, log, diagonal, panels, .. } => {
                Figure::Lines { measure, over, axis, log, log_over: true, diagonal, panels }
            }
            other => other,
        }
    }

    /// Lines over the offered rate, as in the papers.
    pub(crate) const fn over_rate(
        measure: usize,
        log: bool,
        diagonal: bool,
        panels: Panels,
    ) -> Figure {
        let axis = "offered requests per second";
        Figure::Lines { measure, over: "rate", axis, log, log_over: false, diagonal, panels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_by_cores() {
        let of = |cores| Breadth { quick: false, peak_per_s: None, cores }.processors();
        assert_eq!(of(1), [1, 2]);
        assert_eq!(of(2), [1, 2]);
        assert_eq!(of(12), [1, 2, 4, 8, 12]);
        assert_eq!(of(16), [1, 2, 4, 8, 16]);
        assert_eq!(Breadth { quick: true, peak_per_s: None, cores: 16 }.processors(), [1]);
    }
}
