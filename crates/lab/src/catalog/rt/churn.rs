//! `rt-churn`: random semaphores: each fiber posts one and waits for it. The fiber that is woken is
//! unpredictable, and half of the time on another processor.

use super::{SCALING, ahead, scaling_configurations};
use crate::catalog::prelude::*;

pub(in crate::catalog) const CHURN: Experiment = Experiment {
    name: "rt-churn",
    about: "each fiber posts a semaphore at random and waits for it",
    page: page!("rt-churn"),
    measures: &[Measure::NANOS_PER_OPERATION],
    configurations,
    systems: &["pinned", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: SCALING,
    expectations,
};

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    // With one fiber and one semaphore there is none to wake.
    let mut configurations = scaling_configurations("churn", breadth);
    configurations.retain(|configuration| configuration.label.ends_with("many"));
    configurations
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    ahead(judge, &["1 processor, many", "2 processors, many"])
}
