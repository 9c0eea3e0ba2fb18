//! `cache-updates`: effect of the share of writes on throughput and tail latency.

use super::latency::take;
use super::{MANY, SOME};
use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_UPDATES: Experiment = Experiment {
    name: "cache-updates",
    about: "requests per second and p99 of caches over the offered rate, at 3 to 50 % of sets",
    page: page!("cache-updates"),
    measures: &[Measure::RATE, Measure::P99, Measure::CPU_US, super::ERRORS],
    configurations,
    systems: &["weft cache", "weft cache event", "memcached"],
    work: Work::Server(ServerWork { scaled_by: Some("memcached"), ..ServerWork::new(take) }),
    figures: &[
        Figure::over_rate(0, false, true, Some(("panel", ""))),
        Figure::over_rate(1, true, false, Some(("panel", ""))),
    ],
    expectations,
};

/// Panel, percentage of sets, whether one key gets a fifth of the requests, connections.
const PANELS: &[(&str, u64, u64, u64)] = &[
    (FEW_SETS, 3, 0, SOME),
    ("5 % sets", 5, 0, SOME),
    ("10 % sets", 10, 0, SOME),
    (MANY_SETS, 50, 0, SOME),
    (HOT_KEY, 50, 1, SOME),
    (FEW_OVER_MANY, 3, 0, MANY),
    (MANY_OVER_MANY, 50, 0, MANY),
];
const FEW_SETS: &str = "3 % sets";
const MANY_SETS: &str = "50 % sets";
const HOT_KEY: &str = "50 % sets, a hot key";
const FEW_OVER_MANY: &str = "3 % sets, 15,360 connections";
const MANY_OVER_MANY: &str = "50 % sets, 15,360 connections";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let panels = PANELS.iter().enumerate();
    let panels = panels.filter(|(at, _)| !breadth.quick || [0, 4].contains(at));
    let configurations = panels.flat_map(|(at, &(panel, sets, hot, connections))| {
        let all = if connections == MANY { &[50, 100][..] } else { &[50, 80, 100, 120] };
        breadth.pick(&[50, 100][..], all).iter().map(move |&share| {
            let rate = breadth.rate(share, 100_000.0);
            let asked = [("rate", rate), ("share", share), ("connections", connections)];
            let what = [("panel", at as u64), ("sets", sets), ("hot", hot)];
            Configuration::new(label(panel, share), "cache", [asked, what].concat())
        })
    });
    configurations.collect()
}

fn label(panel: &str, share: u64) -> String {
    format!("{panel}: {share} % of the peak")
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US);
    let pairs = [[MANY_SETS, FEW_SETS], [HOT_KEY, FEW_SETS], [MANY_OVER_MANY, FEW_OVER_MANY]];
    let judged = pairs.map(|pair| {
        let [many, few] = pair.map(|panel| label(panel, 100));
        paper(judge.within(&many, &few, "weft cache", 1.1))
    });
    judged.into()
}
