//! `web-disk`: the thesis's file set in a tenth of the memory that it needs.

use std::path::PathBuf;

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_DISK: Experiment = Experiment {
    name: "web-disk",
    about: "the thesis's file set in a tenth of its memory, on the disk as it is and on a slow one",
    page: page!("web-disk"),
    measures: &[SET, HOT_P99, P99, HOT, FROM_DISK, PER_READ, ERRORS, Measure::BUSY],
    configurations: |_| {
        vec![
            Configuration::new(AS_IT_IS, "disk", []),
            Configuration::new(SLOW, "disk", [("reads_per_s", 1000), ("least_s", 9)]),
        ]
    },
    systems: &[
        "weft",
        "weft event",
        "weft event alone",
        "weft thread",
        "nginx",
        "nginx threads",
        "lighttpd",
    ],
    work: Work::Server(ServerWork {
        lasts: 2.0 * UNITS,
        quick_repetitions: 2,
        needs_group: Some(Controller::Memory),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1), bars(2), bars(5)],
    expectations,
};

const AS_IT_IS: &str = "the disk as it is";
const SLOW: &str = "1,000 reads per second";
/// Scale of the thesis's 21,600 files.
const SCALE: &str = "0.3";
/// Limit of the server and its page cache: a tenth of the file set.
const MEMORY_BYTES: u64 = 70_000_000;
const HOT_FILES: usize = 16;
const HOT_BYTES: usize = 4096;
/// Lengths of warm-up and measurement, in samples' times.
const UNITS: f64 = 2.0;
/// Minimum warm-up with the slow disk, in which it reads each file once.
const SLOW_WARM_UP_S: f64 = 6.5;

const SET: Measure = Measure { title: "replies of the file set", ..Measure::RATE };
const HOT: Measure = more("hot_per_s", "replies of files in memory", "per second");
/// The p99 of the file set, which the first generator requests.
const P99: Measure = Measure { is_told: true, ..Measure::P99 };
const ERRORS: Measure = Measure { is_told: true, ..Measure::ERRORS };
const HOT_P99: Measure = less("hot_p99_us", "p99 latency of files in memory", "µs");
const FROM_DISK: Measure = less("disk_kib_per_reply", "read from disk", "KiB per reply of the set");
/// Only with the slow disk: without a limit, nothing counts reads.
const PER_READ: Measure =
    more("replies_per_read", "replies of the file set at equal reads", "per read of the disk");

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = site(bench)?;
    super::demand_disk(&site)?;
    super::cool(&site)?;
    let limits = ServerLimits {
        memory_bytes: Some(MEMORY_BYTES),
        disk_reads_per_s: configuration.parameter("reads_per_s"),
        ..ServerLimits::default()
    };
    let is_slow = limits.disk_reads_per_s.is_some();
    let mut server = bench.start(system, &site, limits)?;
    let unit_s = bench.seconds;
    let warm_up_s = (UNITS * unit_s).max(if is_slow { SLOW_WARM_UP_S } else { 0.0 });
    let load = |path: &str, how: &str, list: &str| {
        let url = server.url(path);
        let warm_up_ms = warm_up_s * 1e3;
        let mut load = words(&format!("http {url} --warm-up {warm_up_ms:.0}ms {how}"));
        load.push(site.join(list).display().to_string());
        load
    };
    let loads = [
        load("/set/", "-c 64 --fileset", "set"),
        load("/", "-c 4 --popularity sequential --paths", "hot.paths"),
    ];
    bench.seconds = UNITS * unit_s;
    let driven = bench.drive_ahead(&mut server, &loads, 1)?;
    let [set, hot] = [0, 1].map(|at| load::report::figures(&driven.outcomes[at]));
    let disk_kib = driven.disk_read_bytes() / 1024.0;
    let mut sample = driven.sample();
    sample.add([
        ("rate_per_s", set.achieved_rate_per_s),
        ("hot_per_s", hot.achieved_rate_per_s),
        ("disk_kib_per_reply", disk_kib / set.replies.max(1) as f64),
    ]);
    // Without replies it would be 0, the best value.
    sample.add((hot.replies > 0).then_some(("hot_p99_us", hot.latency_us.raw.p99)));
    if is_slow {
        let reads = driven.disk_reads();
        if reads < 1.0 {
            return Err("the group's reads of the disk were not counted".into());
        }
        sample.add([(PER_READ.name, set.replies as f64 / reads)]);
    }
    Ok(sample)
}

/// The file set below `set`, the hot files below `hot`, and a list of their paths.
fn site(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    let site =
        bench.folder("disk", |site| super::make_listed(site, "hot", 0..HOT_FILES, HOT_BYTES))?;
    let set = site.join("set");
    if !set.exists() {
        super::make_fileset(bench, &set, &["--scale", SCALE])?;
        // Only clean pages can be dropped from the page cache.
        rustix::fs::sync();
    }
    Ok(site)
}

fn expectations(rows: &Rows) -> Expectations {
    let nginx = &["nginx", "nginx threads"];
    let hot = rows.by(&HOT_P99);
    let each =
        [(AS_IT_IS, &SET, 1.25), (SLOW, &PER_READ, 1.5)].map(|(configuration, replies, times)| {
            [
                rows.by(replies).beats(configuration, "weft", nginx, times),
                hot.beats(configuration, "weft", &["nginx threads"], 5.0),
            ]
        });
    each.into_iter().flatten().collect()
}
