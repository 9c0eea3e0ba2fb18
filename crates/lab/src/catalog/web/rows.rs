//! `web-rows`: what a request costs each web server, for the kinds of requests that there are.

use crate::bench::{Bench, Fault};
use crate::expect::Expectation;
use crate::experiment::{Breadth, Cell, Experiment, Figure, Measure, Work};
use crate::place::ServerLimits;
use crate::rows::Rows;
use crate::sample::Sample;
use crate::subject::Subject;

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

Lower bars are better, and the line on a bar goes from the least to the greatest sample. \"weft\" runs
fibers on io_uring, \"weft epoll\" the same on epoll, \"weft event\" event loops, \"weft thread\" a kernel
thread for each connection. nginx sends files by sendfile, or by copying; it is configured both ways,
because for small files copying is cheaper.",
    measures: &[Measure::CPU_US, Measure::RATE, Measure::BUSY, Measure::P50, Measure::P99],
    cells,
    subjects: &[
        "weft",
        "weft epoll",
        "weft event",
        "weft thread",
        "nginx sendfile",
        "nginx copy",
        "lighttpd",
    ],
    work: Work::Server {
        take,
        limits_memory: false,
        queues_by_itself: false,
        scaled_by: None,
    },
    figures: &[Figure::Bars { measure: 0 }, Figure::Bars { measure: 1 }],
    expectations,
};

/// Name, size, connections, depth, close; what nginx and lighttpd should cost by what weft does.
const ROWS: &[(&str, u64, u64, u64, u64, f64, f64)] = &[
    ("400 B, 64 connections", 400, 64, 1, 0, 1.7, 1.15),
    ("400 B, 1,000 connections", 400, 1000, 1, 0, 1.7, 1.15),
    ("4 KiB, 64 connections", 4096, 64, 1, 0, 1.6, 1.15),
    ("64 KiB, 64 connections", 65_536, 64, 1, 0, 1.25, 1.0),
    ("1 MiB, 16 connections", 1_048_576, 16, 1, 0, 1.0, 0.95),
    (
        "400 B, a connection for every request",
        400,
        64,
        1,
        1,
        1.25,
        1.0,
    ),
    ("400 B, pipelined × 16", 400, 64, 16, 0, 8.0, 8.0),
];
const SIZES: &[u64] = &[400, 4096, 65_536, 1_048_576];

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let quick = [0, 3, 5];
    let rows = ROWS
        .iter()
        .enumerate()
        .filter(|(at, _)| !breadth.quick || quick.contains(at));
    let cells = rows.map(|(_, &(label, size, connections, depth, close, ..))| {
        let asked = [("size", size), ("connections", connections)];
        let how = [("depth", depth), ("close", close)];
        Cell::new(label, "http", [&asked[..], &how].concat())
    });
    cells.collect()
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = bench.folder("sizes", |folder| super::make_site(folder, SIZES))?;
    let size = cell.get("size", 400);
    let (path, body) = (format!("/{size}.html"), super::body(size, size as usize));
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    server.verify(&path, &body)?;
    let connections = cell.get("connections", 64);
    let mut load = ["http", &server.url(&path), "--warm-up", "300ms"]
        .map(str::to_owned)
        .to_vec();
    load.extend(["--connections".to_owned(), connections.to_string()]);
    load.extend(["--depth".to_owned(), cell.get("depth", 1).to_string()]);
    if cell.get("close", 0) != 0 {
        load.push("--close".to_owned());
    }
    let driven = bench.drive(&mut server, &[load])?.sound()?;
    server.verify(&path, &body)?;
    Ok(driven.sample())
}

fn expectations(rows: &Rows) -> Vec<Expectation> {
    let judge = rows.by(&Measure::CPU_US);
    let each = ROWS
        .iter()
        .flat_map(|&(label, _, _, _, _, nginx, lighttpd)| {
            let nginx = judge.beats(label, "weft", &["nginx sendfile", "nginx copy"], nginx);
            let lighttpd = judge.beats(label, "weft", &["lighttpd"], lighttpd);
            [nginx, lighttpd].into_iter().flatten()
        });
    each.collect()
}
