//! `web-generators`: the same web servers under two generators.

use crate::catalog::generator::{number_before, rate_of_wrk, wrk};
use crate::catalog::prelude::*;
use crate::system::{Start, generators};

pub(in crate::catalog) const WEB_GENERATORS: Experiment = Experiment {
    name: "web-generators",
    about: "the same web servers as wrk sees them and as weft load does",
    page: page!("web-generators"),
    measures: &[Measure::RATE, Measure::CPU_US],
    configurations: |_| {
        let configuration = |label, by_wrk| {
            Configuration::new(label, "http", [("connections", 64), ("wrk", by_wrk)])
        };
        vec![configuration(BY_WEFT, 0), configuration(BY_WRK, 1)]
    },
    systems: &[
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
        asks_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const BY_WEFT: &str = "asked by weft load";
const BY_WRK: &str = "asked by wrk";

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let by_wrk = match configuration.get("wrk", 0) {
        0 => None,
        _ => Some(installed(bench).ok_or(Fault::Absent)?),
    };
    let site = super::site(bench, "small", &[400])?;
    let mut server = bench.start(system, &site, ServerLimits::default())?;
    server.verify("/400.html", &super::body(400, 400))?;
    let url = server.url("/400.html");
    let Some(program) = by_wrk else {
        let load = words(&format!("http {url} -c 64 --warm-up 300ms"));
        return Ok(bench.drive(&mut server, &[load])?.sound()?.sample());
    };
    let argv = wrk(&program, configuration, bench.seconds, &url, &[]);
    let watched = bench.watch(&mut server, &argv)?;
    let figures = figures(&watched.said, watched.server_s)?;
    Ok(Sample { noise: watched.noise, ..Sample::of(figures) })
}

/// wrk, if it is installed.
fn installed(bench: &Bench<'_>) -> Option<System> {
    let mut all = generators(bench.generator).into_iter();
    all.find(|one| matches!(one.start, Start::Generator { .. }) && one.kind == "wrk")
}

/// The figures that wrk printed, and the server's CPU time per request of wrk's count, which does
/// not include wrk's start and end.
fn figures(said: &str, server_s: f64) -> Result<[(&'static str, f64); 2], Fault> {
    let rate = rate_of_wrk(said)?;
    let requests = number_before(said, " requests in ").filter(|&requests| requests > 0.0);
    let requests = requests.ok_or_else(|| format!("wrk said: {said}"))?;
    let cpu_us = server_s * 1e6 / requests;
    Ok([("rate_per_s", rate), ("cpu_us", cpu_us)])
}

fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&Measure::RATE);
    let cpu = rows.by(&Measure::CPU_US);
    vec![
        rate.beats(BY_WEFT, "weft", super::NGINX, 1.7),
        // If the generator is the bottleneck, only costs differ.
        cpu.beats(BY_WEFT, "weft", super::NGINX, 1.7),
        cpu.beats(BY_WRK, "weft", super::NGINX, 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "  120000 requests in 1.00s, 60.00MB read\nRequests/sec: 119900.25\n";

    /// Seen: the server's share of its core from wrk's start to its end, divided by wrk's rate.
    /// Cause: wrk's clock runs for a shorter time, so the cost of a request came out too small.
    #[test]
    fn cost_by_wrks_count() {
        let figures = figures(SAID, 0.9).unwrap();
        assert_eq!(figures, [("rate_per_s", 119_900.25), ("cpu_us", 7.5)]);
    }

    #[test]
    fn wrk_errors() {
        let errors = "  Socket errors: connect 0, read 3, write 0, timeout 0\n";
        for said in ["", &format!("{SAID}{errors}"), "  0 requests in 1.00s\nRequests/sec: 0.00\n"]
        {
            assert!(matches!(figures(said, 0.9), Err(Fault::Failed(_))), "{said}");
        }
    }
}
