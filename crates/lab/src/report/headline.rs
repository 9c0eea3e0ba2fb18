//! Head of a report: this project's programs compared with well-known ones.

use super::Report;
use crate::measure::{Better, Measure};

/// A well-known program, the experiment that measures it, and ours.
const PAIRS: [(&str, &str, &str); 7] = [
    ("nginx sendfile", "web-rows", "weft"),
    ("memcached", "cache-rows", "weft cache"),
    ("tokio", "rt-cycle", "weft"),
    ("tokio", "rt-yield", "weft"),
    ("tokio", "rt-spawn", "weft"),
    ("go", "rt-cycle", "weft"),
    ("wrk", "generator-cpu", "weft load"),
];

/// Factors by which one system is better than another, over the configurations of an experiment.
pub(super) struct Headline {
    pub(super) rival: &'static str,
    pub(super) experiment: &'static str,
    pub(super) system: &'static str,
    /// The experiment's first measure.
    pub(super) measure: &'static Measure,
    pub(super) configurations: usize,
    /// The least, and the configuration that has it.
    pub(super) least: (f64, String),
    pub(super) median: f64,
    pub(super) greatest: (f64, String),
}

/// Headlines with samples.
pub(super) fn headlines(reports: &[Report<'_>]) -> Vec<Headline> {
    let of = |&(rival, experiment, system)| {
        let report = reports.iter().find(|report| report.experiment.name == experiment)?;
        headline(report, rival, system)
    };
    PAIRS.iter().filter_map(of).collect()
}

fn headline(report: &Report<'_>, rival: &'static str, system: &'static str) -> Option<Headline> {
    let measure = report.experiment.measures.first()?;
    let times = |configuration: &str| {
        let ratio = report.rows.ratio(measure, configuration, system, rival)?.medians;
        let times = match measure.better {
            Better::More => ratio,
            Better::Less => 1.0 / ratio,
            Better::Neither => return None,
        };
        (times.is_finite() && times > 0.0).then_some(times)
    };
    let configurations = report.rows.configurations().into_iter();
    let times = configurations.filter_map(|one| Some((times(&one.label)?, one.label.clone())));
    let mut times: Vec<(f64, String)> = times.collect();
    times.sort_by(|one, other| one.0.total_cmp(&other.0));
    Some(Headline {
        rival,
        experiment: report.experiment.name,
        system,
        measure,
        configurations: times.len(),
        least: times.first()?.clone(),
        // Of an even number the lesser one: no figure that was not measured.
        median: times[(times.len() - 1) / 2].0,
        greatest: times.last()?.clone(),
    })
}
