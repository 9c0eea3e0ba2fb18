//! `cache-rows`: CPU time per request of each cache.

use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_ROWS: Experiment = Experiment {
    name: "cache-rows",
    about: "CPU per request of caches: connections, depth, writes, sizes, hot keys",
    page: page!("cache-rows"),
    measures: &[
        Measure::CPU_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P50,
        Measure::P99,
        Measure::MACHINE_US,
    ],
    configurations,
    systems: super::CACHES,
    work: Work::Server(ServerWork { full_seconds: 0.8, ..ServerWork::new(take) }),
    figures: &[bars(0), bars(1)],
    expectations,
};

type Parameters = &'static [(&'static str, u64)];

/// Label, parameters, and the expected ratio of memcached's cost to weft's.
const ROWS: &[(&str, Parameters, f64)] = &[
    ("16 connections", &[("connections", 16)], 1.4),
    (SOME, &[], 1.35),
    ("256 connections", &[("connections", 256)], 1.35),
    ("1,024 connections", &[("connections", 1024)], 1.3),
    ("15,360 connections", &[("connections", 15_360)], 1.4),
    (DEEP, &[("depth", 16)], 7.0),
    (DEEP_META, &[("depth", 16), ("meta", 1)], 1.7),
    ("1,024 connections, depth 16", &[("connections", 1024), ("depth", 16)], 6.5),
    (
        "1,024 connections, depth 16, meta",
        &[("connections", 1024), ("depth", 16), ("meta", 1)],
        1.7,
    ),
    ("50 % sets", &[("sets", 50)], 1.0),
    ("one key takes a fifth", &[("hot", 1)], 1.0),
    ("values of 4,096 B", &[("value", 4096)], 1.0),
    ("values of 102,400 B", &[("value", 102_400)], 1.0),
    ("100 keys in a get", &[("keys_per_get", 100)], 2.0),
];

const SOME: &str = "64 connections";
const DEEP: &str = "64 connections, depth 16";
const DEEP_META: &str = "64 connections, depth 16, meta";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let quick = [SOME, DEEP, DEEP_META];
    let is_wanted = |label: &&str| !breadth.quick || quick.contains(label);
    let rows = ROWS.iter().filter(|(label, ..)| is_wanted(label));
    rows.map(|&(label, parameters, _)| Configuration::new(label, "cache", parameters)).collect()
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mut server = super::start(bench, system, ServerLimits::default())?;
    let load = super::load(configuration, &server);
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US).below(CEILINGS);
    let beats = |label, form, times| judge.beats(label, form, &["memcached"], times);
    let each = ROWS.iter();
    let each = each.map(|&(label, _, times)| beats(label, "weft cache", times));
    let event = [(SOME, 1.2), (DEEP, 6.0)];
    let event = event.map(|(label, times)| beats(label, "weft cache event", times));
    each.chain(event).collect()
}
