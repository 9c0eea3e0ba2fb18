//! `rt-transfer`: the test of fairness. A leader keeps its processor until every other fiber has
//! acknowledged, then chooses the next leader. Without exhaustion, fibers that have acknowledged
//! keep yielding, so no processor is ever idle, and a runtime that steals only when idle never runs
//! the fibers behind the leader.  Pinned fibers behind the leader cannot run, by design: their
//! processor runs a fiber that does not yield. Stackless and migratable fibers can.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const TRANSFER: Experiment = Experiment {
    name: "rt-transfer",
    about: "a leader keeps its processor until all others have run",
    page: page!("rt-transfer"),
    measures: &[Measure::MILLIS_PER_TRANSFER],
    configurations,
    systems: &["pinned", "stackless", "migratable", "go", "tokio", "tokio block", "may"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const NO_EXHAUST: &str = "no exhaust";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let (limit_ms, transfers) = breadth.pick((1000, 20), (5000, 100));
    let configurations = [("exhaust", 1), (NO_EXHAUST, 0)].map(|(label, exhaust)| {
        let sizes = [("processors", 2), ("threads", 100)];
        let until = ("transfers", transfers);
        let how = ("exhaust", exhaust);
        let limits = [until, how, ("limit_ms", limit_ms)];
        Configuration::new(label, "transfer", [&sizes[..], &limits].concat())
    });
    configurations.into()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::MILLIS_PER_TRANSFER);
    let peers = ["go", "tokio", "tokio block", "may"];
    let systems = ["weft stackless", "weft migratable"];
    let limits = systems.map(|system| paper(judge.at_most(NO_EXHAUST, system, 1.0)));
    let ahead = systems.map(|system| judge.beats(NO_EXHAUST, system, &peers, 1.0));
    limits.into_iter().chain(ahead).collect()
}
