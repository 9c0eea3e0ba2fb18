//! `rt-transfer`: the test of fairness. A leader keeps its processor until every other fiber has
//! acknowledged, then chooses the next leader. Without exhaustion those that have acknowledged go
//! on giving way, so no processor is ever idle, and a runtime that takes from others only when it
//! is idle never gets to the fibers behind the leader.
//!
//! Pinned fibers behind the leader are out of reach, by design: their processor runs a
//! fiber that does not give it back. Steps and migratable fibers are not.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const TRANSFER: Experiment = Experiment {
    name: "rt-transfer",
    about: "a leader keeps its processor until all others have run",
    page: page!("rt-transfer"),
    measures: &[Measure::MILLIS_PER_TRANSFER],
    cells,
    subjects: &[
        "pinned",
        "steps",
        "migratable",
        "go",
        "tokio",
        "tokio block",
        "may",
    ],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const NO_EXHAUST: &str = "no exhaust";

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let (limit_ms, transfers) = breadth.pick((1000, 20), (5000, 100));
    let cells = [("exhaust", 1), (NO_EXHAUST, 0)].map(|(label, exhaust)| {
        let sizes = [("processors", 2), ("threads", 100)];
        let (until, how) = (("transfers", transfers), ("exhaust", exhaust));
        let limits = [until, how, ("limit_ms", limit_ms)];
        Cell::new(label, "transfer", [&sizes[..], &limits].concat())
    });
    cells.into()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::MILLIS_PER_TRANSFER);
    let peers = ["go", "tokio", "tokio block", "may"];
    let subjects = ["weft steps", "weft migratable"];
    let limits = subjects.map(|subject| judge.at_most(NO_EXHAUST, subject, 1.0));
    let ahead = subjects.map(|subject| judge.beats(NO_EXHAUST, subject, &peers, 1.0));
    limits.into_iter().chain(ahead).collect()
}
