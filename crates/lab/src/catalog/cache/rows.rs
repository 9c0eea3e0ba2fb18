//! `cache-rows`: what a request costs each cache.

use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_ROWS: Experiment = Experiment {
    name: "cache-rows",
    about: "CPU per request of caches: connections, depth, writes, sizes, hot keys",
    page: "\
What does a core have to give for one answer of a cache?

Each cache has one core and one thread; the generator has the other core and asks as fast as it is
answered. Keys have 30 bytes, values 200, 3 of 100 commands are sets, and all keys are there, unless
the cell says otherwise. Depth is the number of commands under way on one connection.

Lower bars are better. At depth 1 every command is a receive and a send. At depth 16 memcached 1.6
sends the reply of each text get by itself, and batches those of meta commands; weft sends all
replies of a turn together. So both protocols have a cell at depth 16: the ratio of one alone would
tell half of it.",
    found: "\
The thesis gives throughput at target rates only. Measured before this project on the same
machine, a ring without a cache behind it costs 1.3 to 1.6 times less than memcached at depth 1.",
    threats: "\
memcached 1.6.18 is what Debian has; later versions may batch text replies as well. One generator
core limits the cells at depth 16.",
    reasons: "\
The more connections there are, the more of the time is the kernel's, and the less is left that a
cache could save. With 256 and more the ceiling on a ring, which has no cache behind it, is 1.4 to
1.5 times as good as memcached, so goals of 1.3 to 1.4 leave a cache next to nothing. weft takes 1
to 2.6 µs more than that ceiling. With 1,024 and more a part of it is known from cache-overload: a
ring touches each connection in three separate places of a turn, so more of what it needs is no
longer in the processor's cache. The rest was not looked for.",
    measures: &[
        Measure::CPU_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P50,
        Measure::P99,
        Measure::MACHINE_US,
    ],
    cells,
    subjects: super::CACHES,
    work: Work::Server(ServerWork {
        full_seconds: 0.8,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

type Parameters = &'static [(&'static str, u64)];

/// Label, parameters, and what memcached should cost by what weft does.
const ROWS: &[(&str, Parameters, f64)] = &[
    ("16 connections", &[("connections", 16)], 1.4),
    (SOME, &[], 1.35),
    ("256 connections", &[("connections", 256)], 1.35),
    ("1,024 connections", &[("connections", 1024)], 1.3),
    ("15,360 connections", &[("connections", 15_360)], 1.4),
    (DEEP, &[("depth", 16)], 7.0),
    (DEEP_META, &[("depth", 16), ("meta", 1)], 1.7),
    (
        "1,024 connections, depth 16",
        &[("connections", 1024), ("depth", 16)],
        6.5,
    ),
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

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let quick = [SOME, DEEP, DEEP_META];
    let is_wanted = |label: &&str| !breadth.quick || quick.contains(label);
    let rows = ROWS.iter().filter(|(label, ..)| is_wanted(label));
    rows.map(|&(label, parameters, _)| Cell::new(label, "cache", parameters))
        .collect()
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let mut server = super::start(bench, subject, ServerLimits::default())?;
    let load = super::load(cell, server.port);
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::CPU_US);
    let beats = |label, form, times| judge.beats(label, form, &["memcached"], times);
    let each = ROWS.iter();
    let each = each.map(|&(label, _, times)| beats(label, "weft cache", times));
    let event = [(SOME, 1.2), (DEEP, 6.0)];
    let event = event.map(|(label, times)| beats(label, "weft cache event", times));
    each.chain(event).collect()
}
