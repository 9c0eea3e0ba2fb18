//! `generator-truth`: agreement of generators about the same server.

use std::fs;
use std::io;
use std::path::Path;

use crate::catalog::prelude::*;
use crate::system::nginx_gzip;

pub(in crate::catalog) const TRUTH: Experiment = Experiment {
    name: "generator-truth",
    about: "what weft load, wrk and httperf say of the same server",
    page: page!("generator-truth"),
    measures: &[Measure::RATE, MEAN, Measure::P99],
    configurations,
    systems: &["weft load", "weft load epoll", "wrk", "httperf"],
    work: Work::Server(ServerWork {
        seconds_min: 2.0,
        quick_repetitions: 5,
        skips: |configuration, kind| match configuration.program {
            "open" => kind == "wrk",
            _ => kind == "httperf",
        },
        asks_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const MEAN: Measure = less("mean_us", "mean latency", "µs");

const CLOSED: [(&str, u64); 3] =
    [("1 connection", 1), ("64 connections", 64), ("1,000 connections", 1000)];
const OPEN: [(&str, u64); 2] = [("100 per second", 100), ("1,000 per second", 1000)];
const GZIP: &str = "Accept-Encoding: gzip";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let closed =
        CLOSED.map(|(label, count)| Configuration::new(label, "closed", [("connections", count)]));
    let open =
        OPEN.map(|(label, rate)| Configuration::new(label, "open", [("rate", rate), ("close", 1)]));
    let all = closed.into_iter().chain(open);
    all.filter(|configuration| !breadth.quick || !configuration.label.starts_with("1,000"))
        .collect()
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let is_open = configuration.program == "open";
    let site = bench.folder("words", make)?;
    let nginx = nginx_gzip().ok_or("nginx is not installed: apt-get install nginx-light")?;
    let mut server = bench.start(&nginx, &site, ServerLimits::default())?;
    let url = server.url("/page.html");
    let argv = match &*system.kind {
        "wrk" => super::wrk(system, configuration, bench.seconds, &url, &[GZIP]),
        "httperf" => {
            let port = server.port;
            let rate = configuration.get("rate", 100);
            let count = (rate as f64 * bench.seconds).ceil();
            let mut argv = super::program(system);
            let how = words(&format!(
                "--server 127.0.0.1 --port {port} --uri /page.html --rate {rate} \
                 --num-conns {count} --num-calls 1 --timeout 10"
            ));
            argv.extend(how.into_iter().map(Into::into));
            argv.extend(["--add-header", "Accept-Encoding: gzip\\n"].map(Into::into));
            argv
        }
        _ => {
            let mut load = words(&match configuration.parameter("rate") {
                Some(rate) => format!("http {url} --rate {rate} --close"),
                None => format!("http {url} -c {}", configuration.get("connections", 1)),
            });
            load.extend(["-H", GZIP].map(str::to_owned));
            load.extend_from_slice(super::own_words(system)?);
            return Ok(bench.drive(&mut server, &[load])?.sound()?.sample());
        }
    };
    let watched = bench.watch(&mut server, &argv)?;
    let number = |name| {
        let said = &watched.said;
        let found = super::number_behind(said, name);
        found.ok_or_else(|| format!("{} said: {said}", system.name))
    };
    let (rate, mean) = if is_open {
        if number("Errors: total")? > 0.0 {
            return Err(watched.said.into());
        }
        let mean = number("Connection time [ms]: min")?;
        let mean = super::number_behind(&watched.said, " avg").unwrap_or(mean);
        (number("Request rate:")?, mean * 1e3)
    } else {
        (super::rate_of_wrk(&watched.said)?, number("Latency")?)
    };
    Ok(Sample { noise: watched.noise, ..Sample::of([("rate_per_s", rate), ("mean_us", mean)]) })
}

/// 16 KB of words.
fn make(site: &Path) -> io::Result<()> {
    let words = ["warp", "weft", "loom", "reed", "heddle", "shuttle", "selvedge"];
    let chosen = super::super::web::body(16, 4000);
    let text: Vec<&str> = chosen.iter().map(|&byte| words[byte as usize % words.len()]).collect();
    fs::write(site.join("page.html"), &text.join(" ")[..16 * 1024])
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::RATE);
    let closed = CLOSED.map(|(configuration, _)| judge.same(configuration, "weft load", "wrk"));
    let open = OPEN.map(|(configuration, _)| judge.same(configuration, "weft load", "httperf"));
    closed.into_iter().chain(open).collect()
}
