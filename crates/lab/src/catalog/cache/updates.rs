//! `cache-updates`: whether the share of writes changes what a cache follows.

use super::latency::take;
use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_UPDATES: Experiment = Experiment {
    name: "cache-updates",
    about: "requests per second and p99 of caches over the offered rate, at 3 to 50 % of sets",
    page: page!("cache-updates"),
    measures: &[Measure::RATE, Measure::P99, Measure::CPU_US],
    configurations,
    systems: &["weft cache", "weft cache event", "memcached"],
    work: Work::Server(ServerWork { scaled_by: Some("memcached"), ..ServerWork::new(take) }),
    figures: &[
        Figure::over_rate(0, false, true, Some(("panel", ""))),
        Figure::over_rate(1, true, false, Some(("panel", ""))),
    ],
    expectations,
};

/// Panel, percent of sets, whether one key takes a fifth.
const PANELS: &[(&str, u64, u64)] = &[
    ("3 % sets", 3, 0),
    ("5 % sets", 5, 0),
    ("10 % sets", 10, 0),
    ("50 % sets", 50, 0),
    ("50 % sets, a hot key", 50, 1),
];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let shares = breadth.pick(&[50, 100][..], &[50, 80, 100, 120]);
    let panels = PANELS.iter().enumerate();
    let panels = panels.filter(|(at, _)| !breadth.quick || [0, 4].contains(at));
    let configurations = panels.flat_map(|(at, &(panel, sets, hot))| {
        shares.iter().map(move |&share| {
            let rate = breadth.rate(share, 100_000.0);
            let asked = [("rate", rate), ("share", share), ("connections", 256)];
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
    let few = label(PANELS[0].0, 100);
    let many = [PANELS[3].0, PANELS[4].0].map(|panel| label(panel, 100));
    many.map(|configuration| paper(judge.within(&configuration, &few, "weft cache", 1.1))).into()
}
