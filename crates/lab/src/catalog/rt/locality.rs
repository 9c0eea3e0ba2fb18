//! `rt-locality`: each fiber works on an array, sits down in a random single seat, and wakes
//! the one that sat there; with sharing, the two exchange their arrays. What moving fibers, or
//! data, between processors costs.

use super::{BARS, ahead, label};
use crate::catalog::prelude::*;

pub(in crate::catalog) const LOCALITY: Experiment = Experiment {
    name: "rt-locality",
    about: "each fiber touches its array and takes another fiber's seat",
    page: "\
What does it cost when fibers, or their data, move between processors?

Each fiber writes ten words of an array of a hundred, sits down in a random seat for one, and wakes
the fiber that sat there. With sharing the two exchange their arrays, so data moves however fibers
are scheduled; without it a runtime that keeps fibers where they are keeps the data as well.

Lower bars are better. A quick look has two processors only.",
    found: "\
C∀ performs as well as less fair schedulers.",
    threats: "\
Two cores that share their last cache have little locality to lose.",
    reasons: "\
Samples of one subject differ by two to three times: a wake-up of the other virtual CPU goes through
the host. A woken task of tokio stays with the worker that woke it, so fewer of them cross. Why Go
and may are ahead as well with sharing was not found.",
    measures: &[Measure::NANOS_PER_OPERATION],
    cells,
    subjects: &["pinned", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let processors = breadth.pick(&[2][..], &[1, 2]);
    let cells = processors.iter().flat_map(|&processors| {
        [("no sharing", 0), ("sharing", 1)].map(|(how, share)| {
            let sizes = [("processors", processors), ("threads", 100 * processors)];
            let work = [("words", 100), ("touched", 10), ("share", share)];
            let all = [&sizes[..], &work].concat();
            Cell::new(label(processors, how), "locality", all)
        })
    });
    cells.collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    let two = ["2 processors, no sharing", "2 processors, sharing"];
    ahead(judge, &two)
}
