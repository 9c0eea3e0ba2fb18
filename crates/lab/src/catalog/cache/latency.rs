//! `cache-latency`: throughput and tail latency of caches over the offered rate, the thesis's two
//! figures.

use super::{ERRORS, MANY, SOME};
use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_LATENCY: Experiment = Experiment {
    name: "cache-latency",
    about: "requests per second and p99 of caches over the offered rate, to beyond saturation",
    page: page!("cache-latency"),
    measures: &[Measure::RATE, Measure::P99, Measure::P50, Measure::P999, Measure::CPU_US, ERRORS],
    configurations,
    systems: super::CACHES,
    work: Work::Server(ServerWork {
        seconds_min: 2.0,
        quick_repetitions: 5,
        scaled_by: Some("memcached"),
        skips: super::skips_many,
        ..ServerWork::new(take)
    }),
    figures: &[
        Figure::over_rate(0, false, true, Some(("connections", "connections"))),
        Figure::over_rate(1, true, false, Some(("connections", "connections"))),
        Figure::over_rate(3, true, false, Some(("connections", "connections"))),
    ],
    expectations,
};

/// Connections, and percents of the peak.
const ALL: &[(u64, &[u64])] = &[(SOME, &[20, 50, 70, 90, 100, 110, 130]), (MANY, &[50, 70, 110])];
const QUICK: &[(u64, &[u64])] = &[(SOME, &[70, 110])];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let peak = breadth.peak_per_s.unwrap_or(100_000.0);
    let configurations = breadth.pick(QUICK, ALL).iter().flat_map(|&(connections, shares)| {
        shares.iter().map(move |&share| {
            let rate = (peak * share as f64 / 100_000.0).round() as u64 * 1000;
            let asked = [("rate", rate), ("share", share), ("connections", connections)];
            Configuration::new(label(share, connections), "cache", asked)
        })
    });
    configurations.collect()
}

fn label(share: u64, connections: u64) -> String {
    let over = if connections == MANY { ", 15,360 connections" } else { "" };
    format!("{share} % of the peak{over}")
}

pub(super) fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mut server = super::start(bench, system, ServerLimits::default())?;
    let mut load = super::load(configuration, &server);
    if let Some(rate) = configuration.parameter("rate") {
        let rate = rate.max(1000);
        load.extend(words(&format!("--rate {rate} --arrivals poisson")));
    }
    // Beyond saturation requests fail, which is a figure.
    Ok(bench.drive(&mut server, &[load])?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let p99 = rows.by(&Measure::P99);
    let rate = rows.by(&Measure::RATE);
    let both = [SOME, MANY].map(|connections| {
        let [calm, beyond] = [70, 110].map(|share| label(share, connections));
        [
            p99.near(&calm, "weft cache", 0.8, "memcached"),
            rate.beats(&beyond, "weft cache", &["memcached"], 1.0),
        ]
    });
    both.into_iter().flatten().collect()
}
