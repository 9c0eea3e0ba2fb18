//! Comparison of load generators: the cost of a request, and agreement of their results.

pub(super) mod cpu;
pub(super) mod lag;
pub(super) mod network;
pub(super) mod truth;

use std::ffi::OsString;
use std::path::PathBuf;

use crate::catalog::prelude::*;
use crate::system::{Start, weft_forms};

/// `weft serve` over the files of `web-rows`.
fn weft(bench: &mut Bench<'_>) -> Result<Running, Fault> {
    let site = site(bench)?;
    let server = weft_forms(bench.generator, "").swap_remove(0);
    bench.start(&server, &site, ServerLimits::default())
}

/// A file of 400 bytes.
fn site(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    super::web::site(bench, "small", &[400])
}

/// Has a generator request that file as fast as it can. Returns its results and its own CPU time.
fn ask(
    bench: &mut Bench<'_>,
    server: &mut Running,
    configuration: &Configuration,
    system: &System,
) -> Taken {
    let url = server.url("/400.html");
    if system.kind == "wrk" {
        let argv = wrk(system, configuration, bench.seconds, &url, &[]);
        let watched = bench.watch(server, &argv)?;
        let rate = rate_of_wrk(&watched.said)?;
        let values = [("generator_cpu_us", watched.busy * 1e6 / rate), ("rate_per_s", rate)];
        return Ok(Sample { noise: watched.noise, ..Sample::of(values) });
    }
    let connections = configuration.get("connections", 64);
    let close = configuration.either("close", "--close", "");
    let mut load = words(&format!("http {url} -c {connections} --warm-up 300ms {close}"));
    let own = own_words(system)?.iter();
    load.extend(own.map(|word| word.replace("{near}", server.near())));
    Ok(bench.drive(server, &[load])?.sound()?.sample())
}

/// Arguments of a system that is a generator.
fn own_words(system: &System) -> Result<&[String], Fault> {
    match &system.start {
        Start::Generator { words, .. } => Ok(words),
        _ => Err(format!("{} is not a generator", system.name).into()),
    }
}

/// wrk's command line for a configuration.
pub(super) fn wrk(
    system: &System,
    configuration: &Configuration,
    seconds: f64,
    url: &str,
    headers: &[&str],
) -> Vec<OsString> {
    let mut argv: Vec<OsString> = program(system);
    let connections = format!("-c{}", configuration.get("connections", 64));
    let duration = format!("-d{}s", seconds.ceil() as u64);
    argv.extend(["-t1", &connections, &duration, "--timeout", "10s"].map(OsString::from));
    let close = (configuration.get("close", 0) != 0).then_some("Connection: close");
    for header in headers.iter().copied().chain(close) {
        argv.extend(["-H", header].map(OsString::from));
    }
    argv.extend(["--latency", url].map(OsString::from));
    argv
}

/// The rate that wrk printed, if all its replies were good: its count includes the others.
pub(super) fn rate_of_wrk(said: &str) -> Result<f64, Fault> {
    let is_sound = !said.contains("Socket errors") && !said.contains("Non-2xx");
    let rate = number_behind(said, "Requests/sec:");
    let rate = rate.filter(|&rate| is_sound && rate > 0.0);
    rate.ok_or_else(|| format!("wrk said: {said}").into())
}

fn program(system: &System) -> Vec<OsString> {
    match &system.start {
        Start::Generator { program, .. } => vec![program.clone().into()],
        _ => Vec::new(),
    }
}

/// The number after a name, in a text like wrk's; times are converted to µs.
pub(super) fn number_behind(text: &str, name: &str) -> Option<f64> {
    let rest = text.split_once(name)?.1.trim_start();
    let length = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    let number: f64 = rest[..length].parse().ok()?;
    Some(match rest[length..].split_whitespace().next() {
        Some("us") if !rest[length..].starts_with(' ') => number,
        Some("ms") if !rest[length..].starts_with(' ') => number * 1e3,
        Some("s") if !rest[length..].starts_with(' ') => number * 1e6,
        _ => number,
    })
}

/// The number before a name, in a text like wrk's.
pub(super) fn number_before(text: &str, name: &str) -> Option<f64> {
    let before = text.split_once(name)?.0;
    before.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reported of wrk (#497) and of users of its output (TechEmpower #117, aspnet/Benchmarks
    /// #320): a rate of wrong replies, one with time-outs, and a rate of 0. The generator's cost
    /// was divided by it, and a file of samples with an infinite number cannot be read back.
    #[test]
    fn wrk_with_errors_has_no_rate() {
        let rate = |said: &str| rate_of_wrk(said).ok();
        assert_eq!(rate("Requests/sec: 748868.53\n"), Some(748_868.53));
        let nothing = "  0 requests in 5.00s, 15.11KB read\nRequests/sec:      0.00\n";
        let late = "  Socket errors: connect 0, read 0, write 0, timeout 53\nRequests/sec:  9.5\n";
        let missing = "  Non-2xx or 3xx responses: 735\nRequests/sec:    733.67\n";
        assert_eq!(["", nothing, late, missing].map(rate), [None; 4]);
    }

    #[test]
    fn numbers_of_wrk() {
        let said = "    Latency   635.91us    0.89ms  12.59ms   93.92%\n     50%  250.00us\n     99%    \
                    1.50ms\n  825511 requests in 1.10s, 388.94MB read\nRequests/sec: 748868.53\n";
        assert_eq!(number_behind(said, "Requests/sec:"), Some(748_868.53));
        assert_eq!(number_behind(said, "Latency"), Some(635.91));
        assert_eq!(number_behind(said, " 99%"), Some(1500.0));
        assert_eq!(number_behind(said, "Timeouts"), None);
        assert_eq!(number_before(said, " requests in "), Some(825_511.0));
        assert_eq!(number_before(said, " replies in "), None);
    }
}
