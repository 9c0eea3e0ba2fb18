//! `web-throughput`: replies, errors and tail latency of web servers over the request rate: the
//! thesis's figures, with its file set and sessions.

use std::fs;
use std::path::{Path, PathBuf};

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_THROUGHPUT: Experiment = Experiment {
    name: "web-throughput",
    about: "replies, errors and p99 of web servers over the request rate, on the thesis's file set",
    page: page!("web-throughput"),
    measures: &[Measure::RATE, Measure::ERRORS, Measure::P99, Measure::P50, Measure::CPU_US],
    configurations,
    systems: &["weft", "weft event", NGINX, "lighttpd"],
    work: Work::Server(ServerWork {
        scaled_by: Some(NGINX),
        lasts: (WARM_UP_S + SECONDS) / SECONDS,
        // A request can fail only after its time-out.
        seconds_min: SECONDS,
        full_seconds: SECONDS,
        paper_seconds: 300.0,
        needs_group: Some(Controller::Cpu),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[
        Figure::over_rate(0, false, true, None),
        Figure::over_rate(1, false, false, None),
        Figure::over_rate(2, true, false, None),
    ],
    expectations,
};

const NGINX: &str = "nginx sendfile";
/// Share of the server's core, so that the server is the bottleneck.
const CPU_PERCENT: u64 = 25;
const SECONDS: f64 = 4.0;
/// Time until as many users end thinking as begin.
const WARM_UP_S: f64 = 3.0;
/// Connections of the generator: further requests fail, as in httperf when it runs out of
/// descriptors.
const CONNECTIONS: u32 = 16_000;
/// Addresses of the generator, in the loopback network. With only one, connect(2) takes 0.3 ms to
/// find a free port once half of the 28,000 are in use, and a generator whose server falls behind
/// does nothing else (measured).
const SOURCES: &str = "--source 127.0.0.2 --source 127.0.0.3 --source 127.0.0.4";
/// The paper's time-out, for its runs of five minutes; the short one fails requests within seconds.
const TIMEOUT_S: u32 = 10;
const SHORT_TIMEOUT_S: u32 = 2;
const LONG_S: f64 = 60.0;

/// Percent of the peak.
const SHARES: &[u64] = &[40, 80, 100, 120, 140];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let configurations = breadth.pick(&[80, 140][..], SHARES).iter().map(|&share| {
        let rate = breadth.rate(share, 6_000.0);
        Configuration::new(label(share), "http", [("rate", rate), ("share", share)])
    });
    configurations.collect()
}

fn label(share: u64) -> String {
    format!("{share} % of the peak")
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let is_long = bench.seconds >= LONG_S;
    let site = if is_long { super::whole_thesis(bench)? } else { super::thesis(bench)? };
    let log = sessions(bench, &site)?;
    let limits = ServerLimits { cpu_percent: Some(CPU_PERCENT), ..ServerLimits::default() };
    let mut server = bench.start(system, &site, limits)?;
    let Some(rate) = configuration.parameter("rate") else {
        let how = "--close --warm-up 700ms -c 64";
        let load = super::ask_for_files(&server, &site, how);
        return Ok(bench.drive(&mut server, &[load])?.sample());
    };
    let log_text = fs::read_to_string(&log)?;
    let sessions_per_s = rate as f64 / requests_in_sample(&log_text, bench.seconds);
    let timeout_s = if is_long { TIMEOUT_S } else { SHORT_TIMEOUT_S };
    let mut load = words(&format!(
        "http {} -c {CONNECTIONS} --arrivals poisson --rate {sessions_per_s:.0} --warm-up \
         {WARM_UP_S:.0}s --timeout {timeout_s}s --sessions",
        server.url("/")
    ));
    load.push(log.display().to_string());
    if !bench.testbed.is_remote() {
        load.extend(words(SOURCES));
    }
    Ok(bench.drive(&mut server, &[load])?.sample())
}

/// Makes session logs for a file set, and returns the first.
fn sessions(bench: &mut Bench<'_>, site: &Path) -> Result<PathBuf, Fault> {
    let folder = bench.testbed.scratch().join("sessions");
    if !folder.exists() {
        let [site, folder] = [site, &folder].map(|path| path.display().to_string());
        bench.weft(&["load", "traces", &site, &folder])?;
    }
    Ok(folder.join("session-00.log"))
}

/// Requests of a session that fall into a sample of this length, if sessions begin at a steady
/// rate: those after long think times come late or after its end. In httperf's format a line
/// without indentation begins a burst, `think` is the time after it, and an empty line ends the
/// session.
fn requests_in_sample(log: &str, seconds: f64) -> f64 {
    let mut sessions = 0;
    let mut requests = 0.0;
    for session in log.split("\n\n") {
        let mut begins_s = 0.0;
        let mut think_s = 0.0;
        let mut is_one = false;
        for line in session.lines().filter(|line| line.trim_start().starts_with('/')) {
            if line.starts_with('/') {
                begins_s += think_s;
                let think =
                    line.split_once("think=").and_then(|(_, think)| think.trim().parse().ok());
                think_s = think.unwrap_or(0.0);
            }
            requests += ((WARM_UP_S + seconds - begins_s) / seconds).clamp(0.0, 1.0);
            is_one = true;
        }
        sessions += u32::from(is_one);
    }
    requests / f64::from(sessions.max(1))
}

fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&Measure::RATE);
    let errors = rows.by(&Measure::ERRORS);
    let p99 = rows.by(&Measure::P99);
    vec![
        paper(rate.same(&label(40), "weft", NGINX)),
        paper(rate.same(&label(80), "weft", NGINX)),
        paper(rate.beats(&label(140), NGINX, &["weft"], 1.0)),
        paper(errors.beats(&label(140), "weft", &[NGINX], 1.0)),
        rate.beats(&label(140), "weft", &[NGINX], 1.0),
        p99.beats(&label(80), "weft", &[NGINX], 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: the page had parameters of an earlier version.
    #[test]
    fn the_page_has_these_parameters() {
        let page = WEB_THROUGHPUT.page.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = format!(
            "within {SHORT_TIMEOUT_S} s has failed, in samples of {SECONDS} s after {WARM_UP_S} s"
        );
        assert!(page.contains(&said) && page.contains(&format!("within {TIMEOUT_S} s")), "{said}");
    }

    #[test]
    fn requests_of_a_session() {
        let log = "# made by weft load traces\n/a think=2.0\n    /b\n    /c\n\n/d\n\n\n/e\n/f\n";
        assert_eq!(requests_in_sample(log, 4.0), 2.0);
        assert_eq!(requests_in_sample("", 4.0), 0.0);
    }

    /// Seen: a server that kept up had three quarters of the rate on the axis. Cause: the number of
    /// sessions was computed from all their requests, many of which came after the sample.
    #[test]
    fn late_requests_count_in_part() {
        let log = "/a think=5.0\n    /b\n/c think=2.0\n/d\n";
        // Of a sample from 3 to 7 s, half has the third request, and none the fourth.
        assert_eq!(requests_in_sample(log, 4.0), 2.5);
        assert!(requests_in_sample(log, 400.0) > 3.9);
    }
}
