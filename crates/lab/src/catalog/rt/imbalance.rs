//! `rt-imbalance`: all connections have landed on one processor of two; how much does the other
//! help?

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const IMBALANCE: Experiment = Experiment {
    name: "rt-imbalance",
    about: "64 conversations that began on one processor; each request is some 100 µs of computing",
    page: "\
All connections have landed on one processor of two. Does the other one help?

64 conversations begin on one processor, and each of their requests computes for some 100 µs. A
runtime that never moves fibers takes as long with two processors as with one; one that moves all of
them halves the time.

Lower bars are better; compare the two cells of a subject.",
    found: "\
Not among the thesis's benchmarks.",
    threats: "\
64 conversations on two cores; with more cores the balance takes longer to find.",
    reasons: "",
    measures: &[Measure::MICROS],
    cells,
    subjects: &["pinned", "steps"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const ONE: &str = "1 processor, all on one";
const TWO: &str = "2 processors, all on one";

fn cells(_: &Breadth) -> Vec<Cell> {
    let cell = |label, processors| {
        let sizes = [
            ("processors", processors),
            ("threads", 64),
            ("rounds", 50_000),
        ];
        Cell::new(label, "imbalance", sizes)
    };
    vec![cell(ONE, 1), cell(TWO, 2)]
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::MICROS);
    vec![judge.within(TWO, ONE, "weft steps", 1.0 / 1.6)]
}
