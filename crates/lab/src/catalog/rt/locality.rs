//! `rt-locality`, the cost of moving fibers or data between processors: each fiber works on an
//! array, takes a random slot, and wakes the fiber that waited there; with sharing, the two
//! exchange their arrays.

use super::{ahead, label, over_processors};
use crate::catalog::prelude::*;

pub(in crate::catalog) const LOCALITY: Experiment = Experiment {
    name: "rt-locality",
    about: "each fiber touches its array and takes another fiber's slot",
    page: page!("rt-locality"),
    measures: &[Measure::NANOS_PER_OPERATION],
    configurations,
    systems: &["pinned", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: &[bars(0), over_processors("share", "share of exchanged arrays")],
    expectations,
};

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let processors = if breadth.quick { vec![2] } else { breadth.processors() };
    let configurations = processors.into_iter().flat_map(|processors| {
        [("no sharing", 0), ("sharing", 1)].map(|(how, share)| {
            let sizes = [("processors", processors), ("threads", 100 * processors)];
            let work = [("words", 100), ("touched", 10), ("share", share)];
            let all = [&sizes[..], &work].concat();
            Configuration::new(label(processors, how), "locality", all)
        })
    });
    configurations.collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    let two = ["2 processors, no sharing", "2 processors, sharing"];
    ahead(judge, &two)
}
