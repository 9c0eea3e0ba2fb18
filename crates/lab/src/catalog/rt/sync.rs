//! `rt-sync`: an uncontended lock, and channels.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const SYNC: Experiment = Experiment {
    name: "rt-sync",
    about: "an uncontended lock, and channels of 128 places",
    page: page!("rt-sync"),
    measures: &[Measure::NANOS],
    cells,
    subjects: &["pinned", "go", "tokio", "may", "threads"],
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

fn cells(_: &Breadth) -> Vec<Cell> {
    let programs = [(MUTEX, "mutex", 1)].into_iter().chain(CHANNELS);
    let cells = programs.map(|(label, program, processors)| {
        Cell::new(label, program, [("processors", processors), ("bound", 128)])
    });
    cells.collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS);
    // parking_lot's.
    let mutex = judge.near(MUTEX, "weft", 2.0, "threads");
    let channels = CHANNELS.map(|(cell, ..)| judge.beats(cell, "weft", &["go", "tokio"], 1.0));
    [mutex].into_iter().chain(channels).collect()
}
