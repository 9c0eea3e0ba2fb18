//! `rt-yield`: each fiber yields repeatedly: the cost of a pass through the ready queue.

use super::{FOUR, SCALING, ahead, scaling_configurations};
use crate::catalog::prelude::*;

pub(in crate::catalog) const YIELD: Experiment = Experiment {
    name: "rt-yield",
    about: "each fiber yields again and again",
    page: page!("rt-yield"),
    measures: &[Measure::NANOS_PER_OPERATION],
    configurations: |breadth| scaling_configurations("yield", breadth),
    systems: &["pinned", "stackless", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: SCALING,
    expectations,
};

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    let mut expected = vec![
        judge.at_most("1 processor, many", "weft", 30.0),
        judge.within("2 processors, many", "1 processor, many", "weft", 2.0),
    ];
    expected.extend(ahead(judge, &FOUR));
    expected
}
