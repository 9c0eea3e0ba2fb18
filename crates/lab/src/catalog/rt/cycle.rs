//! `rt-cycle`: rings of five fibers pass a token: each waits until its predecessor wakes it, and
//! wakes its successor. Measures waiting and waking together; unlike a yield, neither can be
//! skipped.

use super::{FOUR, SCALING, ahead, scaling_configurations};
use crate::catalog::prelude::*;

pub(in crate::catalog) const CYCLE: Experiment = Experiment {
    name: "rt-cycle",
    about: "rings of five fibers, each wakes the next and waits",
    page: page!("rt-cycle"),
    measures: &[Measure::NANOS_PER_OPERATION],
    configurations,
    systems: &["pinned", "stackless", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: SCALING,
    expectations,
};

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let ways = [("semaphore", 1), ("park", 0)].into_iter();
    let configurations = ways.flat_map(|(way, semaphore)| {
        let mut configurations = scaling_configurations("cycle", breadth);
        for configuration in &mut configurations {
            configuration.label = format!("{way}: {}", configuration.label);
            configuration.parameters.push(("semaphore", semaphore));
        }
        configurations
    });
    configurations.collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    let one = "park: 1 processor, many";
    let two = "park: 2 processors, many";
    let mut expected = vec![judge.at_most(one, "weft", 60.0), judge.within(two, one, "weft", 2.0)];
    for way in ["semaphore", "park"] {
        let configurations = FOUR.map(|configuration| format!("{way}: {configuration}"));
        expected.extend(ahead(judge, &configurations.each_ref().map(String::as_str)));
    }
    expected
}
