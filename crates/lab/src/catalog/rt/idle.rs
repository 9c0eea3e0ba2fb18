//! `rt-idle`: CPU time of a process whose fibers all sleep.

use super::BARS;
use crate::catalog::prelude::*;

pub(in crate::catalog) const IDLE: Experiment = Experiment {
    name: "rt-idle",
    about: "CPU time while there is nothing to do, or 100,000 fibers sleep on timers",
    page: page!("rt-idle"),
    measures: &[CPU],
    configurations,
    systems: &["pinned", "go", "tokio"],
    work: Work::Program,
    figures: BARS,
    expectations,
};

/// CPU time, if the fibers did the work that was due.
const CPU: Measure = Measure {
    of: Some(|configuration, values| {
        let per_period =
            configuration.get("ms", 0) as f64 / configuration.get("period_ms", 1) as f64;
        let due = configuration.get("threads", 0) as f64 * per_period;
        let is_done = *values.get("ops")? >= 0.9 * due;
        is_done.then(|| Measure::CPU_PERCENT.figure(configuration, values)).flatten()
    }),
    ..Measure::CPU_PERCENT
};

const NO_FIBERS: &str = "no fibers";
const MINUTE: &str = "100,000, each wakes every 60 s";
const SECONDS: &str = "100,000, each wakes every 10 s";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let ms = breadth.pick(1_000, 3_000);
    let programs = [(NO_FIBERS, 0, 1), (MINUTE, 100_000, 60_000), (SECONDS, 100_000, 10_000)];
    let configurations = programs.map(|(label, threads, period_ms)| {
        let time = [("ms", ms), ("period_ms", period_ms)];
        let sizes = [("processors", 2), ("threads", threads)];
        Configuration::new(label, "idle", [time, sizes].concat())
    });
    configurations.into()
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&CPU);
    // A wake-up a second costs some 10 µs: 0.001 %. One that polls every 10 ms costs 0.1 %.
    let nothing = judge.at_most(NO_FIBERS, "weft", 0.02);
    // Processors wake nearly every millisecond, since some timer is due. The cost is the kernel's
    // and the hypervisor's, so no limit fits all machines.
    let [minute, seconds] = [MINUTE, SECONDS]
        .map(|configuration| judge.beats(configuration, "weft", &["go", "tokio"], 1.0));
    vec![nothing, minute, seconds]
}
