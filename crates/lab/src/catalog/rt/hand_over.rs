//! `rt-handover` and `rt-wake`: a ball is passed to and fro between two processors, which are
//! awake, or asleep each time.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const HAND_OVER: Experiment = Experiment {
    name: "rt-handover",
    about: "two fibers wake each other across two processors that have other fibers to run",
    page: page!("rt-handover"),
    measures: &[Measure::NANOS],
    configurations: |_| vec![configuration(1)],
    systems: &["pinned", "threads"],
    work: Work::Program,
    figures: BARS,
    expectations: |rows| vec![rows.by(&Measure::NANOS).at_most(CONFIGURATION, "weft", 1000.0)],
};

pub(in crate::catalog) const WAKE: Experiment = Experiment {
    name: "rt-wake",
    about: "two fibers wake each other across two processors that sleep, and bare ways to wake a thread",
    page: page!("rt-wake"),
    measures: &[Measure::NANOS],
    configurations: |_| vec![configuration(0)],
    systems: &["pinned", "futex", "eventfd", "msg-ring", "msg-ring register"],
    work: Work::Program,
    figures: BARS,
    expectations: |rows| vec![rows.by(&Measure::NANOS).near(CONFIGURATION, "weft", 1.1, "futex")],
};

const CONFIGURATION: &str = "2 processors";

fn configuration(awake: u64) -> Configuration {
    // Long enough for the other processor to stop searching and fall asleep.
    let keep_us = (1 - awake) * 150;
    Configuration::new(
        CONFIGURATION,
        "hand-over",
        [("processors", 2), ("awake", awake), ("keep_us", keep_us)],
    )
}
