//! `rt-transfer`: the test of fairness. A leader keeps its processor until every other fiber has
//! acknowledged, then chooses the next leader. Without exhaustion those that have acknowledged go
//! on giving way, so no processor is ever idle, and a runtime that takes from others only when it
//! is idle never gets to the fibers behind the leader.
//!
//! Pinned fibers behind the leader are out of reach, by design: their processor runs a
//! fiber that does not give it back. Steps and migratable fibers are not.

use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const TRANSFER: Experiment = Experiment {
    name: "rt-transfer",
    about: "a leader keeps its processor until all others have run",
    measure: Measure::MillisPerTransfer,
    cells,
    subjects: &["pinned", "steps", "migratable", "go", "tokio", "may"],
    expectations,
};

fn cells(quick: bool) -> Vec<Cell> {
    let limit_ms = if quick { 1000 } else { 5000 };
    let transfers = if quick { 20 } else { 100 };
    let cells = [("exhaust", 1), ("no exhaust", 0)].map(|(label, exhaust)| Cell {
        label: label.to_owned(),
        program: "transfer",
        parameters: vec![
            ("processors", 2),
            ("threads", 100),
            ("transfers", transfers),
            ("exhaust", exhaust),
            ("limit_ms", limit_ms),
        ],
    });
    cells.into()
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    let subjects = ["weft steps", "weft migratable"];
    let mut expected: Vec<_> = subjects
        .map(|subject| Expectation::at_most(rows, "no exhaust", subject, 1.0, "ms"))
        .into();
    for subject in subjects {
        expected.push(Expectation::ahead_of(
            rows,
            "no exhaust",
            subject,
            super::PEERS,
        ));
    }
    expected
}
