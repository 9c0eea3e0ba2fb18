//! `rt-handover` and `rt-wake`: a ball goes to and fro between two processors, which are awake, or
//! asleep each time.

use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const HAND_OVER: Experiment = Experiment {
    name: "rt-handover",
    about: "two fibers wake each other across two processors that have other fibers to run",
    measure: Measure::Nanos,
    cells: |_quick| vec![cell(1)],
    subjects: &["pinned", "threads"],
    expectations: |rows| vec![Expectation::at_most(rows, CELL, "weft", 1000.0, "ns")],
};

pub(super) const WAKE: Experiment = Experiment {
    name: "rt-wake",
    about: "two fibers wake each other across two processors that sleep, and bare ways to wake a thread",
    measure: Measure::Nanos,
    cells: |_quick| vec![cell(0)],
    subjects: &[
        "pinned",
        "futex",
        "eventfd",
        "msg-ring",
        "msg-ring register",
    ],
    expectations: |rows: &[Row]| vec![Expectation::near(rows, CELL, "weft", 1.1, "futex")],
};

const CELL: &str = "2 processors";

fn cell(awake: u64) -> Cell {
    Cell {
        label: CELL.to_owned(),
        program: "hand-over",
        // Long enough for the other processor to give up looking around and to fall asleep.
        parameters: vec![
            ("processors", 2),
            ("awake", awake),
            ("keep_us", (1 - awake) * 150),
        ],
    }
}
