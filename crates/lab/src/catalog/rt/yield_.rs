//! `rt-yield`: each fiber gives way, again and again. What a trip through the ready queue costs.

use super::{BARS, FOUR, ahead, four_cells};
use crate::catalog::prelude::*;

pub(in crate::catalog) const YIELD: Experiment = Experiment {
    name: "rt-yield",
    about: "each fiber yields again and again",
    page: "\
What does it cost to give way: to go to the end of the ready queue and to be run again?

Every fiber yields in a loop. \"Many\" are 100 fibers per processor, as in the thesis; \"few\" is
one per processor, where a yield finds nothing else to run. The thesis has machines of up to 256
hardware threads; here there are one and two processors.

Lower bars are better, and a perfect runtime has equal bars for one and two processors. A runtime
can be fast here by doing nothing when the queue is empty; rt-cycle does not allow that.",
    found: "\
C∀ performs as well as less fair schedulers.",
    threats: "\
Two cores instead of 256 hardware threads: what a scheduler costs when many processors share its
queue is not seen. A host with other guests has fast and slow minutes.",
    reasons: "\
Each turn through the ready queue stamps it, so that other processors can help the oldest fiber, and
notes what the fiber does. libfibre has neither and takes 14 ns, by hand on another day. A task of
tokio is polled where it lies: there is no stack to switch to. With few tasks it is behind, because
a yield there waits for a look at its driver. Why may is ahead with one fiber was not found.",
    measures: &[Measure::NANOS_PER_OPERATION],
    cells: |breadth| four_cells("yield", breadth),
    subjects: &["pinned", "steps", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: BARS,
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
