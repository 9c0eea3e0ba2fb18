//! `rt-cycle`: rings of five fibers pass a token: each waits until the one before wakes it, and
//! wakes the next. What waiting and waking cost together; a yield that does nothing cannot cheat
//! here.

use super::{BARS, FOUR, ahead, four_cells};
use crate::catalog::prelude::*;

pub(in crate::catalog) const CYCLE: Experiment = Experiment {
    name: "rt-cycle",
    about: "rings of five fibers, each wakes the next and waits",
    page: "\
What does it cost to wait and to be woken?

Fibers form rings of five, and a token goes round each. The fiber that has it wakes the next one and
waits. \"Many\" are 100 rings per processor, \"few\" is one ring per processor. The thesis waits on a
semaphore for each fiber; a fiber can also park until it is woken by name, which is cheaper. Both
have cells, and each peer waits on what it has of the kind: Go on a channel with room for one and on
a condition, tokio on Semaphore and Notify, may on Semphore and park. Steps have no semaphores.

Lower bars are better. A fiber really stops here each time, so a yield that does nothing cannot
cheat.",
    found: "\
C∀ performs as well as less fair schedulers. One line of raw data survives: 18.8 million
operations per second on 16 processors with 80 fibers, where Go does 8.7 million on 4 with 20.",
    threats: "\
Peers wait on what their runtime offers, which is not the same thing in each: so there are cells
for semaphores and for park. Two cores say nothing of many.",
    reasons: "\
A task of tokio that is woken goes into a slot of its worker that is run next, and there is no stack
to switch to. A fiber's wake-up goes through the ready queue, which is what keeps it fair.",
    measures: &[Measure::NANOS_PER_OPERATION],
    cells,
    subjects: &["pinned", "steps", "migratable", "go", "tokio", "may"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let ways = [("semaphore", 1), ("park", 0)].into_iter();
    let cells = ways.flat_map(|(way, semaphore)| {
        let mut cells = four_cells("cycle", breadth);
        for cell in &mut cells {
            cell.label = format!("{way}: {}", cell.label);
            cell.parameters.push(("semaphore", semaphore));
        }
        cells
    });
    cells.collect()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS_PER_OPERATION);
    let (one, two) = ("park: 1 processor, many", "park: 2 processors, many");
    let mut expected = vec![
        judge.at_most(one, "weft", 60.0),
        judge.within(two, one, "weft", 2.0),
    ];
    for way in ["semaphore", "park"] {
        let cells = FOUR.map(|cell| format!("{way}: {cell}"));
        expected.extend(ahead(judge, &cells.each_ref().map(String::as_str)));
    }
    expected
}
