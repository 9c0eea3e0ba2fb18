//! `rt-imbalance`: all connections are on one of two processors: the help of the other one.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const IMBALANCE: Experiment = Experiment {
    name: "rt-imbalance",
    about: "64 conversations that began on one processor; each request is some 100 µs of computing",
    page: page!("rt-imbalance"),
    measures: &[Measure::MICROS],
    configurations,
    systems: &["pinned", "stackless"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const ONE: &str = "1 processor, all on one";
const TWO: &str = "2 processors, all on one";

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let configuration = |label, processors| {
        let sizes = [("processors", processors), ("threads", 64), ("rounds", 50_000)];
        Configuration::new(label, "imbalance", sizes)
    };
    vec![configuration(ONE, 1), configuration(TWO, 2)]
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::MICROS);
    vec![judge.within(TWO, ONE, "weft stackless", 1.0 / 1.6)]
}
