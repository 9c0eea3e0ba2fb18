//! `dispatch-cost`: what a ready event costs, the mechanism alone.

use crate::catalog::prelude::*;

pub(in crate::catalog) const COST: Experiment = Experiment {
    name: "dispatch-cost",
    about: "what a ready event costs on each dispatcher, over the number of idle descriptors",
    page: "\
What does it cost to learn that a descriptor is ready, among many that are not?

100 active socket pairs are written to in turn, one, ten or a hundred at a time, and the dispatcher
is asked until it has reported them; each is read. The same is done without a dispatcher and taken
off, so what is left is the dispatcher alone, with what it adds to the sender. Beside the active
pairs up to 6,000 idle ones are watched, as in Liu and Chen's paper.

Lower is better; the axis is logarithmic. A flat line does not notice idle connections. \"bare\" is
epoll_wait(2) without this crate. poll and select ask about every descriptor each time. FDM (as
published; \"fdm-8\" with N = 8 instead of 3) and LAP (our repair of it) use poll as well. LAP asks
about the idle ones rarely. FDM does so only if the same descriptors are ready at one look after
another, as with 100 at a time: with one or ten, all of them end in its idle set, each event waits
for a look at all, and FDM costs what poll does.

A quick look has 0 and 3,000 idle descriptors, and one or ten ready at a time.",
    found: "\
Not measured by itself, only as a part of a server: see dispatch-rate.",
    threats: "\
Descriptors are socket pairs of one process: no network, no accept, no close. epoll of today's
kernel is not in the paper, and real-time signals have changed since.",
    reasons: "\
Of epoll beside the bare call: cause not found. The difference is a tenth of a microsecond for an
event, and the samples of the bare call differ by as much.",
    measures: &[Measure::NANOS],
    cells,
    subjects: KINDS,
    work: Work::Program,
    figures: &[Figure::Lines {
        measure: 0,
        over: "idle",
        axis: "idle descriptors",
        log: true,
        diagonal: false,
        panels: Some(("ready", "ready at a time")),
    }],
    expectations,
};

const KINDS: &[&str] = &[
    "bare",
    "epoll",
    "epoll-edge",
    "uring",
    "lap",
    "fdm",
    "fdm-8",
    "rtsig",
    "poll",
    "select",
];

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let idle = breadth.pick(&[0, 3000][..], &[0, 1000, 3000, 6000]);
    let ready = breadth.pick(&[1, 10][..], &[1, 10, 100]);
    let cells = ready.iter().flat_map(|&ready| {
        idle.iter().map(move |&idle| {
            let sizes = [("idle", idle), ("ready", ready), ("processors", 1)];
            Cell::new(label(idle, ready), "dispatch", sizes)
        })
    });
    cells.collect()
}

fn label(idle: u64, ready: u64) -> String {
    format!("{idle} idle, {ready} at a time")
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::NANOS);
    // 3,000 are those of a quick look.
    let each = [6000, 3000].map(|idle| {
        [
            judge.beats(&label(idle, 1), "lap", &["poll"], 10.0),
            judge.beats(&label(idle, 10), "lap", &["poll"], 10.0),
            judge.near(&label(idle, 100), "lap", 2.0, "fdm"),
            judge.near(&label(idle, 10), "epoll", 1.1, "bare"),
        ]
    });
    each.into_iter().flatten().collect()
}
