//! `file-table`: comparison of the generated file set with the thesis's.

use load::workload::fileset::{FileSet, Model, Recipe};

use crate::catalog::prelude::*;

pub(in crate::catalog) const FILE_TABLE: Experiment = Experiment {
    name: "file-table",
    about: "the generated file set beside the thesis's table of sizes and requests",
    page: page!("file-table"),
    measures: &[DIFFERS, MEMORY, THESIS],
    configurations,
    systems: &["weft load"],
    work: Work::Server(ServerWork { lasts: 0.0, queues_by_itself: true, ..ServerWork::new(take) }),
    figures: &[figure(0, false), figure(1, true)],
    expectations,
};

const fn figure(measure: usize, log: bool) -> Figure {
    Figure::over(measure, ("requests", "percent of the requests"), log, Some(("scale", "")))
}

pub(super) const DIFFERS: Measure =
    Measure { is_exact: true, ..less("differs_percent", "difference from the paper", "%") };
const MEMORY: Measure = neither("memory_mb", "memory", "MB");
const THESIS: Measure = neither("thesis_mb", "the thesis's memory, scaled", "MB");

/// Cumulative percents of the requests: the columns of the thesis's table.
const COLUMNS: [u64; 8] = [10, 30, 50, 70, 80, 90, 95, 100];
/// Thousandths of the files.
const SCALES: [(u64, &str); 2] = [(1000, "21,600 files"), (20, "432 files")];

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let configurations = SCALES.iter().flat_map(|&(scale, files)| {
        COLUMNS.map(|requests| {
            let parameters = [("requests", requests), ("scale", scale)];
            Configuration::new(label(files, requests), "fileset", parameters)
        })
    });
    configurations.collect()
}

fn label(files: &str, requests: u64) -> String {
    format!("{files}: {requests} % of the requests")
}

fn take(_: &mut Bench<'_>, configuration: &Configuration, _: &System) -> Taken {
    let scale = configuration.get("scale", 1000) as f64 / 1e3;
    let set = FileSet::plan(Recipe { model: Model::Thesis, scale, seed: 1, exponent: 1.0 });
    let table = set?.table();
    let requests = configuration.get("requests", 100) as f64;
    let mut columns = table.iter();
    let column = columns.find(|(thesis, _)| thesis.requests_percent == requests);
    let (thesis, ours) = column.ok_or("the thesis has no such column")?;
    let pairs = [
        (ours.memory_mb, thesis.memory_mb * scale),
        (ours.size_bytes as f64, thesis.size_bytes as f64),
        (ours.requests_percent, thesis.requests_percent),
    ];
    let differs = pairs.map(|(ours, thesis)| 100.0 * (ours / thesis - 1.0).abs());
    Ok(Sample::of([
        ("differs_percent", differs.into_iter().fold(0.0, f64::max)),
        ("memory_mb", ours.memory_mb),
        ("thesis_mb", thesis.memory_mb * scale),
    ]))
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&DIFFERS);
    let configurations =
        SCALES.iter().flat_map(|&(_, files)| COLUMNS.map(|requests| label(files, requests)));
    let near = |label: String| paper(judge.at_most(&label, "weft load", 10.0));
    configurations.map(near).collect()
}
