//! `cache-latency`: throughput and tail latency of caches over the offered rate, the thesis's two
//! figures.

use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_LATENCY: Experiment = Experiment {
    name: "cache-latency",
    about: "requests per second and p99 of caches over the offered rate, to beyond saturation",
    page: "\
How many requests per second does a cache follow, and how long do clients wait meanwhile?

The thesis compares memcached (event loops, connections dealt out to threads) with versions that run
a fiber for each connection, at target rates up to 800,000 per second from other machines. Here the
server has one core and the generator the other, so the rates are parts of what memcached reaches in
a closed loop on this machine. Requests arrive at random (Poisson) over 256 connections, where the
thesis has 15,360 (cache-rows has such a cell); 3 of 100 are sets. Latency counts from the time at
which a request was due, whether or not the generator or a connection was free then.

In the first figure a server that follows lies on the dotted diagonal; where its line leaves the
diagonal it is saturated. In the second, lower is better; the axis is logarithmic. Bands go from the
least to the greatest sample.",
    found: "\
All three servers follow to 500,000 requests per second on twelve hardware threads; beyond it
vanilla memcached is highest. All have saturated tail latencies before 500,000, vanilla the
lowest.",
    threats: "\
On the loopback of a virtual machine the tail of every server is also the tail of the host:
compare subjects of one run, never two runs. One core holds both the server and its interrupts.",
    reasons: "",
    measures: &[
        Measure::RATE,
        Measure::P99,
        Measure::P50,
        Measure::P999,
        Measure::CPU_US,
    ],
    cells,
    subjects: super::CACHES,
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

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let peak = breadth.peak_per_s.unwrap_or(100_000.0);
    let cells = breadth.pick(&[70, 110][..], SHARES).iter().map(|&share| {
        let rate = (peak * share as f64 / 100_000.0).round() as u64 * 1000;
        let asked = [("rate", rate), ("share", share), ("connections", 256)];
        Cell::new(label(share), "cache", asked)
    });
    cells.collect()
}

fn label(share: u64) -> String {
    format!("{share} % of the peak")
}

pub(super) fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let mut server = super::start(bench, subject, ServerLimits::default())?;
    let mut load = super::load(cell, server.port);
    if let Some(rate) = cell.parameter("rate") {
        let rate = rate.max(1000);
        load.extend(words(&format!("--rate {rate} --arrivals poisson")));
    }
    // Beyond saturation requests fail, and that is the figure.
    Ok(bench.drive(&mut server, &[load])?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let (p99, rate) = (rows.by(&Measure::P99), rows.by(&Measure::RATE));
    vec![
        p99.near(&label(70), "weft cache", 0.8, "memcached"),
        rate.beats(&label(110), "weft cache", &["memcached"], 1.0),
    ]
}
