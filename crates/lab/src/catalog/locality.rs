//! `rt-locality`: each fiber works on an array, sits down in a random single seat, and wakes
//! the one that sat there; with sharing, the two exchange their arrays. What moving fibers, or
//! data, between processors costs.

use super::PEERS;
use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const LOCALITY: Experiment = Experiment {
    name: "rt-locality",
    about: "each fiber touches its array and takes another fiber's seat",
    measure: Measure::NanosPerOperation,
    cells,
    subjects: &["pinned", "migratable", "go", "tokio", "may"],
    expectations,
};

fn cells(quick: bool) -> Vec<Cell> {
    let processors: &[u64] = if quick { &[2] } else { &[1, 2] };
    let cells = processors.iter().flat_map(|&processors| {
        [("no sharing", 0), ("sharing", 1)].map(|(label, share)| Cell {
            label: super::label(processors, label),
            program: "locality",
            parameters: vec![
                ("processors", processors),
                ("threads", 100 * processors),
                ("words", 100),
                ("touched", 10),
                ("share", share),
            ],
        })
    });
    cells.collect()
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    ["2 processors, no sharing", "2 processors, sharing"]
        .map(|cell| Expectation::ahead_of(rows, cell, "weft", PEERS))
        .into()
}
