//! `rt-spawn`: cost of starting and joining a fiber that does nothing.

use super::{BARS, ahead};
use crate::catalog::prelude::*;

pub(in crate::catalog) const SPAWN: Experiment = Experiment {
    name: "rt-spawn",
    about: "one fiber starts others that do nothing, and joins them",
    page: page!("rt-spawn"),
    measures: &[Measure::NANOS],
    configurations,
    systems: &["pinned", "go", "tokio", "may", "threads"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const ONE: &str = "1 processor, one at a time";
const HUNDRED: &str = "1 processor, 100 at a time";

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let configuration = |label, at_once| {
        Configuration::new(label, "spawn", [("processors", 1), ("at_once", at_once)])
    };
    vec![configuration(ONE, 1), configuration(HUNDRED, 100)]
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS);
    let limits = [ONE, HUNDRED].map(|configuration| judge.at_most(configuration, "weft", 300.0));
    [limits.into(), ahead(judge, &[ONE, HUNDRED])].concat()
}
