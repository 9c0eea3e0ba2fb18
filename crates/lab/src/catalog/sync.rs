//! `rt-sync`: an uncontended lock, and channels.

use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const SYNC: Experiment = Experiment {
    name: "rt-sync",
    about: "an uncontended lock, and channels of 128 places",
    measure: Measure::Nanos,
    cells,
    subjects: &["pinned", "go", "tokio", "may", "threads"],
    expectations,
};

const MUTEX: &str = "mutex";
const CHANNELS: [(&str, &str, u64); 4] = [
    ("one to one, 1 processor", "channel", 1),
    ("one to one, 2 processors", "channel", 2),
    ("four to four, 1 processor", "crowd", 1),
    ("four to four, 2 processors", "crowd", 2),
];

fn cells(_quick: bool) -> Vec<Cell> {
    let programs = [(MUTEX, "mutex", 1)].into_iter().chain(CHANNELS);
    let cells = programs.map(|(label, program, processors)| Cell {
        label: label.to_owned(),
        program,
        parameters: vec![("processors", processors), ("bound", 128)],
    });
    cells.collect()
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    // parking_lot's.
    let mut expected = vec![Expectation::near(rows, MUTEX, "weft", 2.0, "threads")];
    expected.extend(CHANNELS.map(|(cell, program, _)| {
        // tokio has no channel with many receivers.
        let peer = if program == "crowd" { "go" } else { "tokio" };
        Expectation::near(rows, cell, "weft", 1.0, peer)
    }));
    expected
}
