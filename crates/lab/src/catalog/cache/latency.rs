//! `cache-latency`: throughput and tail latency of caches over the offered rate, the thesis's two
//! figures.

use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_LATENCY: Experiment = Experiment {
    name: "cache-latency",
    about: "requests per second and p99 of caches over the offered rate, to beyond saturation",
    page: page!("cache-latency"),
    measures: &[Measure::RATE, Measure::P99, Measure::P50, Measure::P999, Measure::CPU_US],
    configurations,
    systems: super::CACHES,
    work: Work::Server(ServerWork {
        seconds_min: 2.0,
        repetitions: Some(5),
        scaled_by: Some("memcached"),
        ..ServerWork::new(take)
    }),
    figures: &[
        Figure::over_rate(0, false, true, None),
        Figure::over_rate(1, true, false, None),
        Figure::over_rate(3, true, false, None),
    ],
    expectations,
};

/// Percent of the peak.
const SHARES: &[u64] = &[20, 50, 70, 90, 100, 110, 130];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let peak = breadth.peak_per_s.unwrap_or(100_000.0);
    let configurations = breadth.pick(&[70, 110][..], SHARES).iter().map(|&share| {
        let rate = (peak * share as f64 / 100_000.0).round() as u64 * 1000;
        let asked = [("rate", rate), ("share", share), ("connections", 256)];
        Configuration::new(label(share), "cache", asked)
    });
    configurations.collect()
}

fn label(share: u64) -> String {
    format!("{share} % of the peak")
}

pub(super) fn take(
    bench: &mut Bench<'_>,
    configuration: &Configuration,
    system: &System,
) -> Result<Sample, Fault> {
    let mut server = super::start(bench, system, ServerLimits::default())?;
    let mut load = super::load(configuration, server.port);
    if let Some(rate) = configuration.parameter("rate") {
        let rate = rate.max(1000);
        load.extend(words(&format!("--rate {rate} --arrivals poisson")));
    }
    // Beyond saturation requests fail, and that is the figure.
    Ok(bench.drive(&mut server, &[load])?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let p99 = rows.by(&Measure::P99);
    let rate = rows.by(&Measure::RATE);
    vec![
        p99.near(&label(70), "weft cache", 0.8, "memcached"),
        rate.beats(&label(110), "weft cache", &["memcached"], 1.0),
    ]
}
