//! `rt-churn`: semaphores at random: each fiber posts one and waits for it. Which one is woken
//! cannot be foreseen, and is on another processor half of the time.

use super::PEERS;
use crate::catalog::four_cells;
use crate::report::{Expectation, Row};
use crate::run::{Experiment, Measure};

pub(super) const CHURN: Experiment = Experiment {
    name: "rt-churn",
    about: "each fiber posts a semaphore at random and waits for it",
    measure: Measure::NanosPerOperation,
    // With one fiber and one semaphore there is none to wake.
    cells: |quick| {
        let cells = four_cells("churn", quick);
        cells
            .into_iter()
            .filter(|cell| cell.label.ends_with("many"))
            .collect()
    },
    subjects: &["pinned", "migratable", "go", "tokio", "may"],
    expectations,
};

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    ["1 processor, many", "2 processors, many"]
        .map(|cell| Expectation::ahead_of(rows, cell, "weft", PEERS))
        .into()
}
