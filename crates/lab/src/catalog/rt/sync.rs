//! `rt-sync`: an uncontended lock, and channels.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const SYNC: Experiment = Experiment {
    name: "rt-sync",
    about: "an uncontended lock, and channels of capacity 128",
    page: page!("rt-sync"),
    measures: &[Measure::NANOS],
    configurations,
    systems: &["pinned", "go", "tokio", "may", "threads"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const MUTEX: &str = "mutex";
const CHANNELS: [(&str, &str, u64); 4] = [
    ("one to one, 1 processor", "channel", 1),
    ("one to one, 2 processors", "channel", 2),
    ("four to four, 1 processor", "crowd", 1),
    ("four to four, 2 processors", "crowd", 2),
];

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let programs = [(MUTEX, "mutex", 1)].into_iter().chain(CHANNELS);
    let configurations = programs.map(|(label, program, processors)| {
        Configuration::new(label, program, [("processors", processors), ("bound", 128)])
    });
    configurations.collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS);
    // parking_lot's.
    let mutex = judge.near(MUTEX, "weft", 2.0, "threads");
    let channels = CHANNELS
        .map(|(configuration, ..)| judge.beats(configuration, "weft", &["go", "tokio"], 1.0));
    [mutex].into_iter().chain(channels).collect()
}
