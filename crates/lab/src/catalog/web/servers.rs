//! `web-servers`: front pages, one connection per request: the figures of Rusty's author.

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_SERVERS: Experiment = Experiment {
    name: "web-servers",
    about: "front pages of 500 sites over a connection for every request",
    page: page!("web-servers"),
    measures: &[
        Measure::CPU_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P50,
        Measure::P99,
        Measure::MACHINE_US,
        Measure { is_told: true, ..Measure::USER },
    ],
    configurations: |_| vec![Configuration::new(CONFIGURATION, "http", [])],
    systems: super::SERVERS,
    work: Work::Server(ServerWork {
        // The kernel samples user and system time a hundred times per second.
        seconds_min: 1.0,
        paper_seconds: 50.0,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1), bars(6)],
    expectations,
};

const CONFIGURATION: &str = "500 front pages";

fn take(bench: &mut Bench<'_>, _: &Configuration, system: &System) -> Taken {
    let site = super::pages(bench)?;
    let mut server = bench.start(system, &site, ServerLimits::default())?;
    let load = super::ask_for_files(&server, &site, "--close -c 1000 --warm-up 500ms");
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US);
    let others = ["nginx sendfile", "nginx copy", "lighttpd"];
    vec![
        judge.beats(CONFIGURATION, "weft", &others, 1.0),
        paper(judge.beats(CONFIGURATION, "ceiling event", &["lighttpd"], 1.0)),
    ]
}
