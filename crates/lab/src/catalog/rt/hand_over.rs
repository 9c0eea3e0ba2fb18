//! `rt-handover` and `rt-wake`: a ball goes to and fro between two processors, which are awake, or
//! asleep each time.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const HAND_OVER: Experiment = Experiment {
    name: "rt-handover",
    about: "two fibers wake each other across two processors that have other fibers to run",
    page: "\
How long does it take until a fiber on another processor, which is awake, knows of a wake-up?

Two fibers on two processors wake each other in turn, and other fibers keep both processors busy.
Kernel threads that spin on shared words are the floor.

Lower bars are better.",
    found: "\
Not among the thesis's benchmarks.",
    threats: "\
Both processors are awake, so no interrupt is sent. What is measured is the way of a cache line
between two cores, and a turn of the other processor's ready queue, which has other fibers in it.",
    reasons: "",
    measures: &[Measure::NANOS],
    cells: |_| vec![cell(1)],
    subjects: &["pinned", "threads"],
    work: Work::Program,
    figures: BARS,
    expectations: |rows| vec![rows.by(&Measure::NANOS).at_most(CELL, "weft", 1000.0)],
};

pub(in crate::catalog) const WAKE: Experiment = Experiment {
    name: "rt-wake",
    about: "two fibers wake each other across two processors that sleep, and bare ways to wake a thread",
    page: "\
How long does it take to wake a processor that sleeps in the kernel?

Two fibers on two processors wake each other in turn, and each holds the ball long enough for the
other processor to fall asleep. Beside it are the bare ways in which a kernel thread wakes another
one: a futex, an eventfd, a message from ring to ring.

Lower bars are better. A runtime cannot be faster than the fastest bare way, but for the noise,
which is several times the difference between any two of them here.",
    found: "\
Not among the thesis's benchmarks.",
    threats: "\
An interrupt between virtual cores goes through the host and takes most of the time. How long the
host takes depends on what else it does.",
    reasons: "",
    measures: &[Measure::NANOS],
    cells: |_| vec![cell(0)],
    subjects: &[
        "pinned",
        "futex",
        "eventfd",
        "msg-ring",
        "msg-ring register",
    ],
    work: Work::Program,
    figures: BARS,
    expectations: |rows| vec![rows.by(&Measure::NANOS).near(CELL, "weft", 1.1, "futex")],
};

const CELL: &str = "2 processors";

fn cell(awake: u64) -> Cell {
    // Long enough for the other processor to give up looking around and to fall asleep.
    let keep_us = (1 - awake) * 150;
    Cell::new(
        CELL,
        "hand-over",
        [("processors", 2), ("awake", awake), ("keep_us", keep_us)],
    )
}
