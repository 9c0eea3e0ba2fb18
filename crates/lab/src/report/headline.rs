//! What a report opens with: this project's programs beside those that are well known.

use super::Report;
use crate::measure::Better;

/// The program that is known, the experiment that measures it, and ours.
const PAIRS: [(&str, &str, &str); 7] = [
    ("nginx sendfile", "web-rows", "weft"),
    ("memcached", "cache-rows", "weft cache"),
    ("tokio", "rt-cycle", "weft"),
    ("tokio", "rt-yield", "weft"),
    ("tokio", "rt-spawn", "weft"),
    ("go", "rt-cycle", "weft"),
    ("wrk", "generator-cpu", "weft load"),
];

/// How many times as good one is as the other, over the cells of an experiment.
pub(super) struct Headline {
    pub(super) rival: &'static str,
    pub(super) experiment: &'static str,
    pub(super) subject: &'static str,
    /// The experiment's first measure.
    pub(super) measure: &'static str,
    pub(super) cells: usize,
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) greatest: f64,
}

/// Those of which there are samples.
pub(super) fn headlines(reports: &[Report<'_>]) -> Vec<Headline> {
    let of = |&(rival, experiment, subject)| {
        let report = reports
            .iter()
            .find(|report| report.experiment.name == experiment)?;
        headline(report, rival, subject)
    };
    PAIRS.iter().filter_map(of).collect()
}

fn headline(report: &Report<'_>, rival: &'static str, subject: &'static str) -> Option<Headline> {
    let measure = report.experiment.measures.first()?;
    let times = |cell: &str| {
        let ratio = report.rows.ratio(measure, cell, subject, rival)?.medians;
        let times = match measure.better {
            Better::More => ratio,
            Better::Less => 1.0 / ratio,
            Better::Neither => return None,
        };
        (times.is_finite() && times > 0.0).then_some(times)
    };
    let cells = report.rows.cells();
    let mut times: Vec<f64> = cells.iter().filter_map(|cell| times(&cell.label)).collect();
    times.sort_by(f64::total_cmp);
    Some(Headline {
        rival,
        experiment: report.experiment.name,
        subject,
        measure: measure.title,
        cells: times.len(),
        least: *times.first()?,
        // Of an even number the lesser one: no figure that was not measured.
        median: times[(times.len() - 1) / 2],
        greatest: *times.last()?,
    })
}
