//! `web-servers`: front pages, and a connection for every request, the figures of Rusty's author.

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_SERVERS: Experiment = Experiment {
    name: "web-servers",
    about: "front pages of 500 sites over a connection for every request",
    page: "\
How much do web servers differ when every request needs a connection of its own, and bodies are as
large as front pages?

The author of Rusty serves the front pages of 500 sites, from 3.5 KB to 1.1 MB with a median of 68
KB, to wrk with 1,000 concurrent connections and one request for each, for 50 seconds. He compares a
minimal server (pages in memory, epoll, only the first line of a request is read) with lighttpd and
lwan. Here the sizes are drawn from the distribution that he gives, a sample lasts a second, and
server and generator have a core each.

Of the CPU per request less is better, of the replies more. What part of the server's CPU time was
spent outside of the kernel is in a table: the kernel looks a hundred times a second. \"ceiling
event\" is his minimal server. On the loopback the bytes are copied twice and no network card helps,
so rates are no network's. Our netstack needs a link, which the loopback is not: netstack-offload
compares it with the kernel.",
    found: "\
The minimal server is far ahead of lwan, and that ahead of lighttpd. Six percent of the CPU time is
spent outside of the kernel. nginx was wanted and could not be built.",
    threats: "\
The 500 pages are drawn, not his. A core for the generator is little for bodies of this size: where
it is the limit, only CPU per request tells servers apart. A ceiling copies its bodies, where others
let the kernel send the file, so it is no limit of what a server can do here.",
    reasons: "\
nginx with sendfile takes three fifths of what it takes with copying here: not copying pays for
bodies of this size. So weft has the kernel send what is longer than 64 KiB, which is half of these
pages. A shorter one is copied into the socket: by hand, 48 KiB cost as much either way, 128 KiB
cost 5 to 20 % less without the copy and 1 MiB from 13 % more to 43 % less. What else makes nginx
cheaper was not found. weft's event loops, which have the same rule, cost a seventh more than nginx
as well.",
    measures: &[
        Measure::CPU_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P50,
        Measure::P99,
        Measure::MACHINE_US,
        Measure {
            is_told: true,
            ..Measure::USER
        },
    ],
    cells: |_| vec![Cell::new(CELL, "http", [])],
    subjects: super::SERVERS,
    work: Work::Server(ServerWork {
        // The kernel looks a hundred times where the CPU time is spent.
        seconds_min: 1.0,
        paper_seconds: 50.0,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const CELL: &str = "500 front pages";

fn take(bench: &mut Bench<'_>, _: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::pages(bench)?;
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    let load = super::ask_for_files(&server, &site, "--close -c 1000 --warm-up 500ms");
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US);
    let others = ["nginx sendfile", "nginx copy", "lighttpd"];
    vec![
        judge.beats(CELL, "weft", &others, 1.0),
        // The paper's order.
        judge.beats(CELL, "ceiling event", &["lighttpd"], 1.0),
    ]
}
