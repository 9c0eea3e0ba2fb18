//! `rt-yield`: each fiber gives way, again and again. What a trip through the ready queue costs.

use super::{PEERS, four_cells};
use crate::report::{Expectation, Row};
use crate::run::{Experiment, Measure};

pub(super) const YIELD: Experiment = Experiment {
    name: "rt-yield",
    about: "each fiber yields again and again",
    measure: Measure::NanosPerOperation,
    cells: |quick| four_cells("yield", quick),
    subjects: &["pinned", "steps", "migratable", "go", "tokio", "may"],
    expectations,
};

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    let mut expected = vec![
        Expectation::at_most(rows, "1 processor, many", "weft", 30.0, "ns"),
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
