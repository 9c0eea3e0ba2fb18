//! `generator-cpu`: CPU time of a generator per request.

use crate::catalog::prelude::*;

pub(in crate::catalog) const CPU: Experiment = Experiment {
    name: "generator-cpu",
    about: "CPU per request of load generators, against the same server",
    page: page!("generator-cpu"),
    measures: &[GENERATOR_CPU, Measure::RATE],
    configurations,
    systems: &["weft load", "weft load epoll", "wrk"],
    work: Work::Server(ServerWork { asks_itself: true, ..ServerWork::new(take) }),
    figures: &[bars(0)],
    expectations,
};

pub(super) const GENERATOR_CPU: Measure =
    less("generator_cpu_us", "generator CPU per request", "µs");

const SOME: &str = "64 connections";
const MANY: &str = "1,000 connections";
const CLOSE: &str = "a connection for every request";

fn configurations(_: &Breadth) -> Vec<Configuration> {
    let configurations = [(SOME, 64, 0), (MANY, 1000, 0), (CLOSE, 64, 1)];
    let configurations = configurations.map(|(label, connections, close)| {
        let how = [("connections", connections), ("close", close)];
        Configuration::new(label, "http", how)
    });
    configurations.into()
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mut server = super::weft(bench)?;
    super::ask(bench, &mut server, configuration, system)
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&GENERATOR_CPU);
    let goals = [(SOME, 1.5), (MANY, 1.5), (CLOSE, 1.0)];
    goals
        .map(|(configuration, times)| judge.beats(configuration, "weft load", &["wrk"], times))
        .into()
}
