//! `web-idle`: memory of an idle connection.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::bench::read_reply;
use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_IDLE: Experiment = Experiment {
    name: "web-idle",
    about: "resident memory of a web server per idle connection",
    page: page!("web-idle"),
    measures: &[BYTES, BEFORE],
    configurations,
    systems: &["weft", "weft epoll", "weft event", "weft thread", "nginx sendfile", "lighttpd"],
    work: Work::Server(ServerWork {
        asks_itself: true,
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const BYTES: Measure = less("bytes_per_connection", "resident memory per idle connection", "bytes");

const BEFORE: Measure = less("resident_before_mib", "resident before", "MiB");

const SIZE: u64 = 400;
/// Concurrent requests: buffer pools must grow as in a busy server, and not as with one client.
const WAVE: usize = 100;
const SETTLE: Duration = Duration::from_secs(1);
const ALL: &str = "10,000 connections";
const THOUSAND: &str = "1,000 connections";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let (label, count) = breadth.pick((THOUSAND, 1_000), (ALL, 10_000));
    vec![Configuration::new(label, "hold", [("connections", count)])]
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = super::site(bench, "small", &[SIZE])?;
    let mut server = bench.start(system, &site, ServerLimits::default())?;
    let count = configuration.get("connections", 1) as usize;
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
    // Check that all still answer: closed connections have no memory.
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

/// Sends a request on every connection, then reads all replies.
fn ask(wave: &mut [TcpStream]) -> Result<(), Fault> {
    for stream in wave.iter_mut() {
        write!(stream, "GET /{SIZE}.html HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
    }
    let body = super::body(SIZE, SIZE as usize);
    for stream in wave {
        read_reply(&mut BufReader::new(stream), "/400.html", &body)?;
    }
    Ok(())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&BYTES);
    let each = [ALL, THOUSAND].map(|configuration| {
        ["weft", "weft event"].map(|form| judge.at_most(configuration, form, 1024.0))
    });
    each.into_iter().flatten().collect()
}
