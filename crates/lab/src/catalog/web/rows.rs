//! `web-rows`: CPU time per request of each web server, for all kinds of requests.

use crate::catalog::prelude::*;
use crate::system::make_certificate;

pub(in crate::catalog) const WEB_ROWS: Experiment = Experiment {
    name: "web-rows",
    about: "CPU per request of web servers: small and large files, many connections, pipelining",
    page: page!("web-rows"),
    measures: &[
        Measure::CPU_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P50,
        Measure::P99,
        Measure::MACHINE_US,
    ],
    configurations,
    systems: super::SERVERS,
    work: Work::Server(ServerWork {
        full_seconds: 0.8,
        skips: |configuration, kind| {
            kind.starts_with("ceiling") && configuration.get("size", 0) >= 65_536
                || configuration.get("tls", 0) > 0 && !OVER_TLS.contains(&kind)
        },
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

/// A configuration, and the expected ratios of others' CPU time to weft's.
struct Goals {
    label: &'static str,
    size: u64,
    connections: u64,
    depth: u64,
    close: u64,
    /// 1 for HTTP/1.1 over TLS, 2 for HTTP/2 over it.
    tls: u64,
    /// nginx with sendfile, the better nginx, lighttpd.
    goals: [f64; 3],
}

const fn row(label: &'static str, size: u64, connections: u64, goals: [f64; 3]) -> Goals {
    Goals { label, size, connections, depth: 1, close: 0, tls: 0, goals }
}

const ROWS: &[Goals] = &[
    row(SOME, 400, 64, [2.2, 1.7, 1.15]),
    row(MANY, 400, 1000, [2.2, 1.9, 1.15]),
    row("4 KiB, 64 connections", 4096, 64, [2.0, 1.6, 1.15]),
    row("64 KiB, 64 connections", 65_536, 64, [1.25, 1.25, 1.0]),
    row("1 MiB, 16 connections", 1_048_576, 16, [1.0, 1.0, 1.0]),
    Goals { close: 1, ..row(CLOSE, 400, 64, [1.3, 1.3, 1.0]) },
    Goals { depth: 16, ..row("400 B, pipelined × 16", 400, 64, [8.0, 8.0, 8.0]) },
    Goals { tls: 1, ..row("400 B over TLS, 64 connections", 400, 64, [1.0; 3]) },
    Goals { tls: 1, ..row("64 KiB over TLS, 64 connections", 65_536, 64, [1.0; 3]) },
    Goals { tls: 1, close: 1, ..row("400 B, a handshake for every request", 400, 64, [1.0; 3]) },
    Goals { tls: 2, depth: 16, ..row("400 B over HTTP/2, 4 × 16 streams", 400, 4, [1.0; 3]) },
];
const SOME: &str = "400 B, 64 connections";
const MANY: &str = "400 B, 1,000 connections";
const CLOSE: &str = "400 B, a connection for every request";
/// Systems that are measured over TLS, where nginx's two forms are the same.
const OVER_TLS: &[&str] = &["weft", "weft event", "nginx sendfile"];
const PROTOCOLS: [&str; 3] = ["", "--insecure --no-resumption", "--insecure --http2"];
const SIZES: &[u64] = &[400, 4096, 65_536, 1_048_576];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let is_wanted = |at: usize| !breadth.quick || [0, 3, 5].contains(&at);
    let rows = ROWS.iter().enumerate().filter(|(at, _)| is_wanted(*at));
    let configurations = rows.map(|(_, row)| {
        let asked = [("size", row.size), ("connections", row.connections)];
        let how = [("depth", row.depth), ("close", row.close), ("tls", row.tls)];
        Configuration::new(row.label, "http", [&asked[..], &how].concat())
    });
    configurations.collect()
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = super::site(bench, "sizes", SIZES)?;
    let size = configuration.get("size", 400);
    let path = format!("/{size}.html");
    let body = super::body(size, size as usize);
    let tls = configuration.get("tls", 0) as usize;
    let system = if tls == 0 { system.clone() } else { over_tls(bench, system)? };
    let mut server = bench.start(&system, &site, ServerLimits::default())?;
    let verify = |server: &Running| {
        if tls == 0 { server.verify(&path, &body) } else { Ok(()) }
    };
    verify(&server)?;
    let url = server.url(&path);
    let url = if tls == 0 { url } else { url.replacen("http", "https", 1) };
    let protocol = PROTOCOLS[tls];
    let connections = configuration.get("connections", 64);
    let (depth, close) =
        (configuration.get("depth", 1), configuration.either("close", "--close", ""));
    let load = words(&format!(
        "http {url} --warm-up 300ms --connections {connections} --depth {depth} {close} \
         {protocol}"
    ));
    let driven = bench.drive(&mut server, &[load])?.sound()?;
    verify(&server)?;
    Ok(driven.sample())
}

fn over_tls(bench: &Bench<'_>, system: &System) -> Result<System, Fault> {
    make_certificate(bench.testbed.scratch())?;
    system.over_tls().ok_or(Fault::Absent)
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US).below(CEILINGS);
    let beats = |row: &Goals, others: &[&str], times| judge.beats(row.label, "weft", others, times);
    let (over_tls, plain): (Vec<_>, Vec<_>) = ROWS.iter().partition(|row| row.tls > 0);
    let over_tls = over_tls.iter().map(|row| beats(row, &["nginx sendfile"], 1.0));
    let each = plain.iter().flat_map(|row| {
        let [sendfile, better, lighttpd] = row.goals;
        [
            beats(row, &["nginx sendfile"], sendfile),
            beats(row, super::NGINX, better),
            beats(row, &["lighttpd"], lighttpd),
        ]
    });
    let event = [(SOME, 1.5), (MANY, 1.4)]
        .map(|(label, times)| judge.beats(label, "weft event", super::NGINX, times));
    // The same waits, but no fiber per connection.
    let near = [SOME, MANY].map(|label| judge.near(label, "weft event", 1.1, "weft epoll"));
    each.chain(event).chain(near).chain(over_tls).collect()
}
