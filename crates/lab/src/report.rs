//! Results for people: a table on the terminal, Markdown for documents, and one HTML file.

mod headline;
mod html;
mod svg;
mod text;

pub use html::html;
pub use text::summary;

use crate::expect::{Expectation, Judgement};
use crate::experiment::{Experiment, Work};
use crate::measure::Measure;
use crate::numbers::{SAMPLES_MIN, Spread, counted, show};
use crate::rows::Rows;
use crate::sample::LASTED_S;
use crate::store::{Recorded, TurnResult};
use crate::system::{NEW, OLD, name_of};

/// CPU share of others above which a machine was too busy.
const OTHERS_PERCENT_MAX: f64 = 5.0;

/// Failures of a system with reasons that differ only in numbers.
struct AlikeFailures<'a> {
    system: &'a str,
    /// Reason of the first one.
    why: &'a str,
    /// True if the others' reasons have other numbers.
    differ: bool,
    count: usize,
    configurations: Vec<&'a str>,
}

/// True if two texts differ only in numbers.
fn is_alike(one: &str, other: &str) -> bool {
    let one = one.split(|letter: char| letter.is_ascii_digit());
    let other = other.split(|letter: char| letter.is_ascii_digit());
    one.filter(|part| !part.is_empty()).eq(other.filter(|part| !part.is_empty()))
}

/// Report of an experiment.
pub struct Report<'a> {
    /// The experiment.
    pub experiment: &'static Experiment,
    /// Its file of samples.
    pub recorded: &'a Recorded,
    /// Rows by configuration and system.
    pub rows: Rows,
    /// Expectations with their verdicts.
    pub expectations: Vec<Expectation>,
}

impl<'a> Report<'a> {
    /// Creates the report of a file of samples.
    pub fn new(experiment: &'static Experiment, recorded: &'a Recorded) -> Report<'a> {
        let rows = recorded.rows(experiment);
        let expectations = (experiment.expectations)(&rows).into_iter().flatten();
        // A quick run has fewer configurations.
        let expectations =
            expectations.filter(|one| rows.has_configuration(&one.configuration)).collect();
        Report { experiment, recorded, rows, expectations }
    }

    /// True if anything was measured.
    pub fn has_samples(&self) -> bool {
        self.rows.all().iter().any(|row| !row.samples.is_empty())
    }

    /// True if nothing is measured, but computed from what weft generates.
    fn is_computed(&self) -> bool {
        self.experiment.measures[0].is_exact
    }

    /// True if all that could be judged came out as expected.
    pub fn is_as_expected(&self) -> bool {
        let mut each = self.expectations.iter();
        each.all(|expectation| expectation.verdict != Judgement::Failed)
    }

    /// Reservations about the figures, as sentences.
    pub fn warnings(&self) -> Vec<String> {
        let header = &self.recorded.header;
        let mut warnings = Vec::new();
        match &self.recorded.ending {
            None => warnings.push("interrupted: this is what was found until then".to_owned()),
            Some(ending) => {
                let others = ending.others_percent.unwrap_or(0.0);
                if others > OTHERS_PERCENT_MAX {
                    warnings.push(format!(
                        "the machine was busy: others used {others:.0} % of its processors \
                         meanwhile; do not trust the figures"
                    ));
                }
                if ending.noisy > 0 {
                    warnings.push(format!(
                        "{} kept, because repetition did not help",
                        counted(ending.noisy as usize, "noisy sample")
                    ));
                }
            }
        }
        if header.quick {
            warnings.push("a quick run: fewer configurations, and short samples".to_owned());
        }
        let limited = self.generator_limited();
        if limited > 0 {
            warnings.push(format!(
                "in {} the generator was the limit: rates there are its, not the server's; CPU per \
                 request is the server's all the same",
                counted(limited, "sample")
            ));
        }
        warnings.extend(self.few());
        let turns = self.recorded.turns.iter();
        let elsewhere =
            turns.filter(|turn| self.rows.find(&turn.configuration, &turn.system).is_none());
        let elsewhere = elsewhere.count();
        if elsewhere > 0 {
            warnings.push(format!(
                "{} left out, of configurations that the experiment no longer has",
                counted(elsewhere, "older sample")
            ));
        }
        warnings.extend(header.lacks.iter().cloned());
        for (what, systems) in
            [("left out, or not there: ", self.missing()), ("no sample of ", self.silent())]
        {
            if !systems.is_empty() {
                warnings.push(format!("{what}{}", systems.join(", ")));
            }
        }
        warnings.extend(self.failures());
        warnings
    }

    /// Warning about too few samples.
    fn few(&self) -> Option<String> {
        let rows = self.rows.all().iter();
        let samples = rows.map(|row| row.samples.len() + row.failures.len());
        let fewest = samples.filter(|&count| count > 0).min().unwrap_or(0);
        let is_few = fewest < SAMPLES_MIN && !self.is_computed();
        is_few.then(|| format!("only {fewest} of each: too few samples for a verdict"))
    }

    /// Kinds of systems that the run lacked: those that were not installed, and those that the
    /// experiment did not have then.
    fn missing(&self) -> Vec<&str> {
        let header = &self.recorded.header;
        let names = header.systems.iter().map(|system| {
            let name = system.name.as_str();
            let of_a_build = name.strip_prefix(OLD).or_else(|| name.strip_prefix(NEW));
            of_a_build.unwrap_or(name)
        });
        let names: Vec<&str> = names.collect();
        let mut missing: Vec<&str> = header.missing.iter().map(String::as_str).collect();
        for &kind in self.experiment.systems {
            if !names.contains(&name_of(kind)) && !missing.contains(&kind) {
                missing.push(kind);
            }
        }
        missing
    }

    /// Systems that took part without any sample or failure.
    fn silent(&self) -> Vec<&str> {
        let came = |system: &str| {
            let rows = self.rows.all().iter();
            let mut rows = rows.filter(|row| row.system == system);
            rows.any(|row| row.samples.len() + row.failures.len() > 0)
        };
        let mut systems = self.rows.systems();
        systems.retain(|system| !came(system));
        systems
    }

    /// Number of samples in which the generator had no reserve.
    fn generator_limited(&self) -> usize {
        let samples = self.rows.all().iter().flat_map(|row| &row.samples);
        let is_limited = |sample: &&crate::Sample| {
            let limited = sample.values.get("generator_limited");
            limited.is_some_and(|&limited| limited > 0.0)
        };
        samples.filter(is_limited).count()
    }

    /// Failures, a sentence per system and reason.
    fn failures(&self) -> Vec<String> {
        let mut found: Vec<AlikeFailures<'_>> = Vec::new();
        for row in self.rows.all() {
            for why in &row.failures {
                let (system, configuration) =
                    (row.system.as_str(), row.configuration.label.as_str());
                let mut known = found.iter_mut();
                match known.find(|known| known.system == system && is_alike(known.why, why)) {
                    Some(known) => {
                        known.count += 1;
                        known.differ |= known.why != why;
                        if !known.configurations.contains(&configuration) {
                            known.configurations.push(configuration);
                        }
                    }
                    None => found.push(AlikeFailures {
                        system,
                        why,
                        differ: false,
                        count: 1,
                        configurations: vec![configuration],
                    }),
                }
            }
        }
        let sentences = found.into_iter().map(|alike| {
            let AlikeFailures { system, why, differ, .. } = alike;
            let samples = counted(alike.count, "sample");
            let configurations = alike.configurations.join("; ");
            let such_as = if differ { "such as " } else { "" };
            let why = why.trim_end_matches([' ', ':']);
            format!("{system} failed in {samples} ({configurations}): {such_as}{why}")
        });
        sentences.collect()
    }

    /// Figures as standalone SVG files: names and texts.
    pub fn figures(&self) -> Vec<(String, String)> {
        svg::files(self)
    }

    /// The first `first` measures, those that decide an expectation, and those that are always
    /// shown. The HTML page has the others.
    fn main_measures(&self, first: usize) -> impl Iterator<Item = &'static Measure> {
        let is_main = move |(at, measure): &(usize, &Measure)| {
            let mut decided = self.expectations.iter().map(|one| one.measure);
            *at < first || measure.is_told || decided.any(|name| name == measure.name)
        };
        let measures = self.experiment.measures.iter().enumerate();
        measures.filter(is_main).map(|(_, measure)| measure)
    }

    /// Date, machine and method as a sentence, with or without the testbed.
    fn receipt(&self, has_testbed: bool) -> String {
        let header = &self.recorded.header;
        let date = crate::card::date_of(header.began_unix_s);
        let mut versions: Vec<(&str, &str)> = Vec::new();
        for system in &header.systems {
            let program = system.command.split(' ').next().unwrap_or_default();
            if !system.version.is_empty() && !versions.iter().any(|(known, _)| *known == program) {
                versions.push((program, &system.version));
            }
        }
        let versions = versions.into_iter();
        let versions: Vec<_> =
            versions.map(|(name, version)| format!("{name} {version}")).collect();
        // A budget, or the user, may have ended the run early.
        let rows = self.rows.all().iter();
        let taken = rows.map(|row| row.samples.len() + row.failures.len()).max().unwrap_or(0);
        let asked = counted(header.repetitions as usize, "round");
        let is_whole = taken >= header.repetitions as usize;
        let rounds = if is_whole { asked } else { format!("{taken} of {asked}") };
        let machine = &header.card.machine;
        let testbed = &header.testbed;
        let mut parts = vec![format!("Measured {date} UTC on {machine}")];
        if !versions.is_empty() {
            parts.push(versions.join(", "));
        }
        parts.push(format!("{rounds}, systems by turns{}", self.lengths()));
        let ending = self.recorded.ending.as_ref();
        let repeated = ending.map_or(0, |ending| ending.repeated as usize);
        if repeated > 0 {
            parts.push(format!("{} taken again", counted(repeated, "noisy sample")));
        }
        parts.extend(self.waited());
        // Programs choose their own cores.
        if has_testbed && matches!(self.experiment.work, Work::Server(_)) {
            parts.push(testbed.clone());
        }
        format!("{}.", parts.join("; "))
    }

    /// Time that systems and generators waited for their cores: median of the samples. Left out
    /// where programs share a core by design, since waiting is no disturbance there.
    fn waited(&self) -> Option<String> {
        if matches!(self.experiment.work, Work::Server(work) if work.queues_by_itself) {
            return None;
        }
        let samples = self.rows.all().iter().flat_map(|row| &row.samples);
        let delays = samples.map(|sample| sample.noise.run_delay_percent);
        let delay = Spread::of(delays.collect())?.median;
        // Older samples of programs lack it.
        (delay > 0.0).then(|| format!("waited for a core: {} % of the time", show(delay)))
    }

    /// Length of a server's samples, or the time requested of programs: `, 0.3 to 10 s each`. An
    /// experiment may multiply the run's sample time, and a program may end earlier.
    fn lengths(&self) -> String {
        let rows = self.rows.all().iter();
        let is_server = matches!(self.experiment.work, Work::Server(_));
        if !is_server && rows.clone().all(|row| row.configuration.ends_by_itself()) {
            return ", each until its work is done".to_owned();
        }
        let seconds: Vec<f64> = if is_server {
            rows.flat_map(|row| &row.samples)
                .filter_map(|sample| sample.values.get(LASTED_S).copied())
                .collect()
        } else {
            rows.map(|row| row.configuration.parameter("ms"))
                .map(|ms| ms.map_or(self.recorded.header.seconds, |ms| ms as f64 / 1e3))
                .collect()
        };
        // Older samples lack it.
        let Some(lasted) = Spread::of(seconds) else {
            return String::new();
        };
        let tenths = |seconds: f64| (seconds * 10.0).round().max(1.0) / 10.0;
        let least = tenths(lasted.least);
        let greatest = tenths(lasted.greatest);
        let range = if least == greatest {
            format!("{least} s")
        } else {
            format!("{least} to {greatest} s")
        };
        if is_server { format!(", {range} each") } else { format!(", each asked for {range}") }
    }

    /// Number of samples taken, discarded ones included.
    fn samples(&self) -> usize {
        let turns = self.recorded.turns.iter();
        turns
            .filter(|turn| matches!(turn.result, TurnResult::Sample(_) | TurnResult::Discarded(_)))
            .count()
    }
}
