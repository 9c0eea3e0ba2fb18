//! `web-idle`: what a connection costs that waits.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::bench::read_reply;
use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_IDLE: Experiment = Experiment {
    name: "web-idle",
    about: "resident memory of a web server per idle connection",
    page: "\
How much memory does a connection cost that waits for its next request?

Every connection, of 10,000 or in a quick look of 1,000, asks once and is then held open. The figure
is the growth of the server's resident memory, page tables included, from one connection to all of
them, divided by their number. All are asked a second time afterwards, so a connection that the
server gave up would be noticed. Memory of the kernel's sockets (about 8 KiB for both ends) is not
in it.

Lower bars are better. nginx allocates for its connections at the start, so compare \"resident
before\" as well. A thread for each connection costs its stack and what the kernel keeps for it.",
    found: "\
The papers hold thousands of idle connections and do not say what one costs. Measured before this
project on the same machine: nginx 527 bytes, lighttpd 3.8 KB, libfibre 8.4 KB, hyper 10.9 KB.",
    threats: "\
Only resident memory of the process is counted. A server that allocates at its start looks better
than it is; the second figure shows that part. weft on threads serves no more than 8,192
connections, so it fails with 10,000. A quick look, of 1,000 connections, finds up to 0.2 KiB more
for each connection of weft on io_uring; cause not found.",
    reasons: "",
    measures: &[BYTES, BEFORE],
    cells,
    subjects: &[
        "weft",
        "weft epoll",
        "weft event",
        "weft thread",
        "nginx sendfile",
        "lighttpd",
    ],
    work: Work::Server(ServerWork {
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const BYTES: Measure = Measure {
    name: "bytes_per_connection",
    title: "resident memory per idle connection",
    unit: "bytes",
    ..Measure::CPU_US
};

const BEFORE: Measure = Measure {
    name: "resident_before_mib",
    title: "resident before",
    unit: "MiB",
    ..Measure::CPU_US
};

const SIZE: u64 = 400;
/// Asked at once: pools grow to what a busy server needs, not to what one caller needs.
const WAVE: usize = 100;
const SETTLE: Duration = Duration::from_secs(1);
const ALL: &str = "10,000 connections";
const THOUSAND: &str = "1,000 connections";

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let (label, count) = breadth.pick((THOUSAND, 1_000), (ALL, 10_000));
    vec![Cell::new(label, "hold", [("connections", count)])]
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::site(bench, "small", &[SIZE])?;
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    let count = cell.get("connections", 1) as usize;
    let mut herd = vec![server.connect()?];
    ask(&mut herd)?;
    let before = server.resident_bytes()?;
    while herd.len() < count {
        bench.go_on()?;
        let from = herd.len();
        herd.extend(open(&server, WAVE.min(count - from))?);
        ask(&mut herd[from..]).map_err(|fault| match fault {
            Fault::Failed(why) => Fault::Failed(format!("at {from} connections: {why}")),
            other => other,
        })?;
    }
    thread::sleep(SETTLE);
    let after = server.resident_bytes()?;
    // All still answer: memory of connections that the server gave up would be no memory.
    for wave in herd.chunks_mut(WAVE) {
        ask(wave)?;
    }
    server.check()?;
    let growth = after.saturating_sub(before) as f64 / (count - 1).max(1) as f64;
    Ok(Sample::of([
        ("bytes_per_connection", growth),
        ("resident_before_mib", before as f64 / f64::from(1 << 20)),
    ]))
}

fn open(server: &Running, count: usize) -> Result<Vec<TcpStream>, Fault> {
    let fresh: Result<Vec<_>, _> = (0..count).map(|_| server.connect()).collect();
    Ok(fresh?)
}

/// A request on every connection, then all the replies.
fn ask(wave: &mut [TcpStream]) -> Result<(), Fault> {
    for stream in wave.iter_mut() {
        write!(
            stream,
            "GET /{SIZE}.html HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        )?;
    }
    let body = super::body(SIZE, SIZE as usize);
    for stream in wave {
        read_reply(&mut BufReader::new(stream), "/400.html", &body)?;
    }
    Ok(())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&BYTES);
    let each = [ALL, THOUSAND]
        .map(|cell| ["weft", "weft event"].map(|form| judge.at_most(cell, form, 1024.0)));
    each.into_iter().flatten().collect()
}
