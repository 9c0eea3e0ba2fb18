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
    page: "\
Does every fiber run in the end, also those behind one that keeps its processor?

A leader keeps its processor until every other of 100 fibers has acknowledged it; then it chooses
the next leader. With \"exhaust\" the others wait after that; with \"no exhaust\" they yield for ever,
so no processor is ever idle, and a runtime that helps other processors only when it is idle never
reaches the fibers behind the leader.

Lower bars are better. No bar, and \"never\" in the table, is a runtime that did not come to the end
within 5 s, or within one second in a quick look. Pinned fibers of weft belong to one processor, so
they stay behind the leader by design. A task of tokio that spins inside one poll keeps its
processor as well; it may say so (block_in_place), which moves the processor's other tasks away, and
that is the subject \"tokio block\".",
    found: "\
Most runtimes never finish without exhaust: a fiber behind a busy processor is not found. C∀ does,
because its processors help each other's oldest fibers.",
    threats: "\
One leader that spins is the worst case of fairness, and rare in programs. tokio has a way to say
that a call blocks; its subject of that name uses it.",
    reasons: "",
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
