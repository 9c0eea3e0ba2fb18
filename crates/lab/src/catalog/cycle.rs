//! `rt-cycle`: rings of five fibers pass a token: each parks until the one before wakes it, and
//! wakes the next. What a park and an unpark cost together; a yield that does nothing cannot cheat
//! here.

use super::{PEERS, four_cells};
use crate::report::{Expectation, Row};
use crate::run::{Experiment, Measure};

pub(super) const CYCLE: Experiment = Experiment {
    name: "rt-cycle",
    about: "rings of five fibers, each wakes the next and parks",
    measure: Measure::NanosPerOperation,
    cells: |quick| four_cells("cycle", quick),
    subjects: &["pinned", "steps", "migratable", "go", "tokio", "may"],
    expectations,
};

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    let mut expected = vec![
        Expectation::at_most(rows, "1 processor, many", "weft", 60.0, "ns"),
        Expectation::within(rows, "2 processors, many", "1 processor, many", "weft", 2.0),
    ];
    for cell in [
        "1 processor, many",
        "1 processor, few",
        "2 processors, many",
        "2 processors, few",
    ] {
        expected.push(Expectation::ahead_of(rows, cell, "weft", PEERS));
    }
    expected
}
