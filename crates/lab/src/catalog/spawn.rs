//! `rt-spawn`: what it costs to start a fiber that does nothing and to join it.

use super::PEERS;
use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const SPAWN: Experiment = Experiment {
    name: "rt-spawn",
    about: "one fiber starts others that do nothing, and joins them",
    measure: Measure::Nanos,
    cells,
    subjects: &["pinned", "go", "tokio", "may", "threads"],
    expectations,
};

const ONE: &str = "1 processor, one at a time";
const HUNDRED: &str = "1 processor, 100 at a time";

fn cells(_quick: bool) -> Vec<Cell> {
    let cell = |label: &str, at_once| Cell {
        label: label.to_owned(),
        program: "spawn",
        parameters: vec![("processors", 1), ("at_once", at_once)],
    };
    vec![cell(ONE, 1), cell(HUNDRED, 100)]
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    let cells = [ONE, HUNDRED].into_iter();
    cells
        .flat_map(|cell| {
            [
                Expectation::at_most(rows, cell, "weft", 300.0, "ns"),
                Expectation::ahead_of(rows, cell, "weft", PEERS),
            ]
        })
        .collect()
}
