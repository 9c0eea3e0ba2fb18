//! `web-rows`: what a request costs each web server, for the kinds of requests that there are.

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_ROWS: Experiment = Experiment {
    name: "web-rows",
    about: "CPU per request of web servers: small and large files, many connections, pipelining",
    page: "\
What does a core have to give for one answer?

Each server has one core, and one thread to use it; the generator has the other core and asks as
fast as the server answers. All serve the same files from memory. The figure is the server's CPU
time per request, not requests per second: where the generator is the slower of the two, servers
answer equally fast and differ in how much of their core is left. On the loopback the sender's call
also runs the receiver's half of TCP, so some of the generator's work is in it, the same for all.

The line on a bar goes from the least to the greatest sample. \"weft\" runs fibers on io_uring,
\"weft epoll\" the same on epoll, \"weft event\" event loops, \"weft thread\" a kernel thread for
each connection. nginx sends files by sendfile, or by copying; it is configured both ways, because
for small files copying is cheaper. A \"ceiling\" serves from memory and does nothing else that a
server does: no time-outs, no limits, no checks of what it is sent. It copies all bodies, so for 64
KiB and 1 MiB it is no limit, and newer runs leave it out there: servers that let the kernel send
the file can be cheaper.",
    found: "\
The thesis and Liu and Chen give rates of whole servers, not costs of requests. The author of
Rusty finds a minimal server with epoll far ahead of lwan, and that ahead of lighttpd, with a
connection for every request and 1,000 of them.",
    threats: "\
Both ends share the kernel's TCP code, so a server that makes the kernel do more for its client
pays here for what would be another machine's. Nine tenths of the time is in the kernel: small
ratios are the rule, and another kernel version moves them.",
    reasons: "\
400 B over 64 connections beside nginx with sendfile, and pipelining: each misses its goal by a
tenth, by medians of four samples that differ among themselves by more than half. In the full run of
five samples on the same day, some hours before, both were reached or nearly so.

1,000 connections, and a connection for every request: nearly all is the kernel's work, on sockets
that are no longer in the processor's cache, and on opening and closing. The ceilings do nothing
else and pay it as well. In the full run of 2026-11-23 they were 1.3 to 1.6 times as good as the
better nginx with 1,000 connections, and no more than 1.1 times with a connection for every request,
where weft is cheaper than both. So the goals of 1.9 and 1.3 are not to be had from this kernel's
sockets.

4 KiB: cause not found. The samples of weft on io_uring lie between 6.8 and 11.9 µs, those of its
other forms but threads between 6.9 and 8.9. The generator had reserve in all of weft's. By the best
samples the goal of 1.6 is reached, that of 2 is not.

1 MiB: cause not found. It is not the calls: by strace weft makes one sendfile for each reply, as
nginx does, and weft's own forms, which share that code, differ among themselves by more than from
nginx.",
    measures: &[
        Measure::CPU_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P50,
        Measure::P99,
        Measure::MACHINE_US,
    ],
    cells,
    subjects: super::SERVERS,
    work: Work::Server(ServerWork {
        full_seconds: 0.8,
        skips: |cell, kind| kind.starts_with("ceiling") && cell.get("size", 0) >= 65_536,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

/// What is asked, and what others should cost by what weft does.
struct Row {
    label: &'static str,
    size: u64,
    connections: u64,
    depth: u64,
    close: u64,
    /// nginx with sendfile, the better nginx, lighttpd.
    goals: [f64; 3],
}

const fn row(label: &'static str, size: u64, connections: u64, goals: [f64; 3]) -> Row {
    Row {
        label,
        size,
        connections,
        depth: 1,
        close: 0,
        goals,
    }
}

const ROWS: &[Row] = &[
    row(SOME, 400, 64, [2.2, 1.7, 1.15]),
    row(MANY, 400, 1000, [2.2, 1.9, 1.15]),
    row("4 KiB, 64 connections", 4096, 64, [2.0, 1.6, 1.15]),
    row("64 KiB, 64 connections", 65_536, 64, [1.25, 1.25, 1.0]),
    row("1 MiB, 16 connections", 1_048_576, 16, [1.0, 1.0, 1.0]),
    Row {
        close: 1,
        ..row(CLOSE, 400, 64, [1.3, 1.3, 1.0])
    },
    Row {
        depth: 16,
        ..row("400 B, pipelined × 16", 400, 64, [8.0, 8.0, 8.0])
    },
];
const SOME: &str = "400 B, 64 connections";
const MANY: &str = "400 B, 1,000 connections";
const CLOSE: &str = "400 B, a connection for every request";
const SIZES: &[u64] = &[400, 4096, 65_536, 1_048_576];

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let is_wanted = |at: usize| !breadth.quick || [0, 3, 5].contains(&at);
    let rows = ROWS.iter().enumerate().filter(|(at, _)| is_wanted(*at));
    let cells = rows.map(|(_, row)| {
        let asked = [("size", row.size), ("connections", row.connections)];
        let how = [("depth", row.depth), ("close", row.close)];
        Cell::new(row.label, "http", [&asked[..], &how].concat())
    });
    cells.collect()
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::site(bench, "sizes", SIZES)?;
    let size = cell.get("size", 400);
    let (path, body) = (format!("/{size}.html"), super::body(size, size as usize));
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    server.verify(&path, &body)?;
    let (url, connections) = (server.url(&path), cell.get("connections", 64));
    let (depth, close) = (cell.get("depth", 1), cell.either("close", "--close", ""));
    let load = words(&format!(
        "http {url} --warm-up 300ms --connections {connections} --depth {depth} {close}"
    ));
    let driven = bench.drive(&mut server, &[load])?.sound()?;
    server.verify(&path, &body)?;
    Ok(driven.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US);
    let beats = |row: &Row, others: &[&str], times| judge.beats(row.label, "weft", others, times);
    let each = ROWS.iter().flat_map(|row| {
        let [sendfile, better, lighttpd] = row.goals;
        [
            beats(row, &["nginx sendfile"], sendfile),
            beats(row, super::NGINX, better),
            beats(row, &["lighttpd"], lighttpd),
        ]
    });
    let event = [(SOME, 1.5), (MANY, 1.4)]
        .map(|(label, times)| judge.beats(label, "weft event", super::NGINX, times));
    // The same waits, without a fiber for each connection.
    let near = [SOME, MANY].map(|label| judge.near(label, "weft event", 1.1, "weft epoll"));
    each.chain(event).chain(near).collect()
}
