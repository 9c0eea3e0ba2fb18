//! `web-generators`: the same web servers, asked by two generators.

use crate::catalog::generator::{number_behind, wrk};
use crate::catalog::prelude::*;
use crate::subject::{Start, generators};

pub(in crate::catalog) const WEB_GENERATORS: Experiment = Experiment {
    name: "web-generators",
    about: "the same web servers as wrk sees them and as weft load does",
    page: "\
How much faster is a web server, as a generator of others tells it and as ours does?

A generator that is dearer than the server is the limit itself, and all fast servers look alike to
it. So the ratio of two servers depends on who asks. 64 connections ask for 400 bytes, again and
again, with wrk and with weft load, each on the generator's only core; the server has the other one.

weft load sends on all connections whose replies came, with one system call, and so its requests
come in batches, which a server that reads and answers in batches answers with fewer calls. wrk sends
each as soon as the reply before it is there. Real clients do neither: each is a machine of its own.
Where a ceiling is no faster than a server, the generator is the limit and rates say nothing of
servers; their CPU time per request still does. Of the replies more is better, of the CPU per request less.",
    found: "\
Not asked by the papers: the thesis has httperf, the author of Rusty wrk, each alone.",
    threats: "\
wrk has no time of warming up, so the server's CPU time for its 64 connections' first requests is in
the figure. Both generators have one thread.",
    reasons: "",
    measures: &[Measure::RATE, Measure::CPU_US],
    cells: |_| {
        let cell = |label, by_wrk| {
            Cell::new(label, "http", [("connections", 64), ("wrk", by_wrk)])
        };
        vec![cell(BY_WEFT, 0), cell(BY_WRK, 1)]
    },
    subjects: &[
        "weft",
        "weft epoll",
        "weft event",
        "nginx sendfile",
        "nginx copy",
        "lighttpd",
        "ceiling ring",
        "ceiling event",
    ],
    work: Work::Server(ServerWork {
        // wrk counts whole seconds.
        seconds_min: 1.0,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const BY_WEFT: &str = "asked by weft load";
const BY_WRK: &str = "asked by wrk";

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::site(bench, "small", &[400])?;
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    server.verify("/400.html", &super::body(400, 400))?;
    let url = server.url("/400.html");
    if cell.get("wrk", 0) == 0 {
        let load = words(&format!("http {url} -c 64 --warm-up 300ms"));
        return Ok(bench.drive(&mut server, &[load])?.sound()?.sample());
    }
    let all = generators(bench.generator);
    let mut found = all
        .iter()
        .filter(|one| matches!(one.start, Start::Generator { .. }));
    let found = found.find(|one| one.kind == "wrk");
    let program = found.ok_or("wrk is not installed: apt-get install wrk")?;
    let argv = wrk(program, cell, bench.seconds, &url, &[]);
    let watched = bench.watch(&mut server, &argv)?;
    let said = &watched.said;
    let rate = number_behind(said, "Requests/sec:").ok_or_else(|| format!("wrk said: {said}"))?;
    if said.contains("Socket errors") || said.contains("Non-2xx") {
        return Err(format!("wrk said: {said}").into());
    }
    let figures = [
        ("rate_per_s", rate),
        ("cpu_us", watched.server_busy * 1e6 / rate),
    ];
    Ok(Sample {
        noise: watched.noise,
        ..Sample::of(figures)
    })
}

fn expectations(rows: &Rows) -> Expectations {
    let (rate, cpu) = (rows.by(&Measure::RATE), rows.by(&Measure::CPU_US));
    let nginx = ["nginx sendfile", "nginx copy"];
    vec![
        rate.beats(BY_WEFT, "weft", &nginx, 1.7),
        // Where the generator is the limit, only costs differ.
        cpu.beats(BY_WEFT, "weft", &nginx, 1.7),
        cpu.beats(BY_WRK, "weft", &nginx, 1.0),
    ]
}
