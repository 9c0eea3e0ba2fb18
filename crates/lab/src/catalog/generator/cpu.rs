//! `generator-cpu`: what a generator's core gives for one request.

use crate::catalog::prelude::*;

pub(in crate::catalog) const CPU: Experiment = Experiment {
    name: "generator-cpu",
    about: "CPU per request of load generators, against the same server",
    page: "\
What does a generator's core give for one request?

A generator that is dearer than the server measures itself. Each asks the same freshly started weft
serve for 400 bytes as fast as it can, over 64 connections, over 1,000, and with a connection for
every request. The figure is the generator's CPU time per reply.

Lower bars are better. weft load sends and receives through io_uring, or through epoll; wrk through
epoll.",
    found: "\
None: the papers use httperf, mutilate and wrk without saying what a request costs them. wrk was
found to hide every difference above 1.15 times nginx.",
    threats: "\
All ask weft serve; another server may suit another generator better.",
    reasons: "",
    measures: &[GENERATOR_CPU, Measure::RATE],
    cells,
    subjects: &["weft load", "weft load epoll", "wrk"],
    work: Work::Server(ServerWork::new(take)),
    figures: &[bars(0)],
    expectations,
};

pub(super) const GENERATOR_CPU: Measure = Measure {
    name: "generator_cpu_us",
    title: "generator CPU per request",
    ..Measure::CPU_US
};

const SOME: &str = "64 connections";
const MANY: &str = "1,000 connections";
const CLOSE: &str = "a connection for every request";

fn cells(_: &Breadth) -> Vec<Cell> {
    let cells = [(SOME, 64, 0), (MANY, 1000, 0), (CLOSE, 64, 1)];
    let cells = cells.map(|(label, connections, close)| {
        let how = [("connections", connections), ("close", close)];
        Cell::new(label, "http", how)
    });
    cells.into()
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let mut server = super::weft(bench)?;
    super::ask(bench, &mut server, cell, subject)
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&GENERATOR_CPU);
    let goals = [(SOME, 1.5), (MANY, 1.5), (CLOSE, 1.0)];
    goals
        .map(|(cell, times)| judge.beats(cell, "weft load", &["wrk"], times))
        .into()
}
