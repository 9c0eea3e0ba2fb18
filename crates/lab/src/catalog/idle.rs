//! `rt-idle`: what a process costs in which all fibers sleep.

use crate::report::{Expectation, Row};
use crate::run::{Cell, Experiment, Measure};

pub(super) const IDLE: Experiment = Experiment {
    name: "rt-idle",
    about: "CPU time while there is nothing to do, or 100,000 fibers sleep on timers",
    measure: Measure::CpuPercent,
    cells,
    subjects: &["pinned", "go", "tokio"],
    expectations,
};

const NO_FIBERS: &str = "no fibers";
const MINUTE: &str = "100,000, each wakes every 60 s";
const SECONDS: &str = "100,000, each wakes every 10 s";

fn cells(quick: bool) -> Vec<Cell> {
    let ms = if quick { 1_000 } else { 10_000 };
    let programs = [
        (NO_FIBERS, 0, 1),
        (MINUTE, 100_000, 60_000),
        (SECONDS, 100_000, 10_000),
    ];
    let cells = programs.map(|(label, threads, period_ms)| Cell {
        label: label.to_owned(),
        program: "idle",
        parameters: vec![
            ("ms", ms),
            ("processors", 2),
            ("threads", threads),
            ("period_ms", period_ms),
        ],
    });
    cells.into()
}

fn expectations(rows: &[Row]) -> Vec<Expectation> {
    vec![
        Expectation::at_most(rows, NO_FIBERS, "weft", 0.0, "%"),
        Expectation::at_most(rows, MINUTE, "weft", 1.0, "%"),
        Expectation::at_most(rows, SECONDS, "weft", 1.0, "%"),
    ]
}
