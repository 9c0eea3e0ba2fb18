//! `rt-cycle`: rings of five fibers pass a token: each waits until the one before wakes it, and
//! wakes the next. What waiting and waking cost together; a yield that does nothing cannot cheat
//! here.

use super::{BARS, FOUR, ahead, four_cells};
use crate::expect::Expectation;
use crate::experiment::{Experiment, Measure, Work};
use crate::rows::Rows;

pub(in crate::catalog) const CYCLE: Experiment = Experiment {
    name: "rt-cycle",
    about: "rings of five fibers, each wakes the next and waits",
    page: PAGE,
    measures: &[Measure::NANOS_PER_OPERATION],
    cells: |breadth| four_cells("cycle", breadth),
    subjects: &["pinned", "steps", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

const PAGE: &str = "\
What does it cost to wait and to be woken?

Fibers form rings of five, and a token goes round each. The fiber that has it wakes the next one and
waits. \"Many\" are 100 rings per processor, \"few\" is one ring per processor.

Lower bars are better. A fiber really stops here each time, so a yield that does nothing cannot
cheat.";

fn expectations(rows: &Rows) -> Vec<Expectation> {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    let mut expected = vec![
        judge.at_most("1 processor, many", "weft", 60.0),
        judge.within("2 processors, many", "1 processor, many", "weft", 2.0),
    ];
    expected.extend(ahead(judge, &FOUR));
    expected
}
