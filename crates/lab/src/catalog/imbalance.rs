//! `rt-imbalance`: all connections have landed on one processor of two; how much does the other
//! help?

use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const IMBALANCE: Experiment = Experiment {
    name: "rt-imbalance",
    about: "64 conversations that began on one processor; each request is some 100 µs of computing",
    measure: Measure::Micros,
    cells,
    subjects: &["pinned", "steps"],
    expectations,
};

fn cells(_quick: bool) -> Vec<Cell> {
    let cell = |processors| Cell {
        label: super::label(processors, "all on one"),
        program: "imbalance",
        parameters: vec![
            ("processors", processors),
            ("threads", 64),
            ("rounds", 50_000),
        ],
    };
    vec![cell(1), cell(2)]
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    let (one, two) = ("1 processor, all on one", "2 processors, all on one");
    vec![Expectation::within(rows, two, one, "weft steps", 1.0 / 1.6)]
}
