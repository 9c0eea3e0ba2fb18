//! `web-disk`: the thesis's file set in a tenth of the memory that it needs.

use std::path::PathBuf;

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_DISK: Experiment = Experiment {
    name: "web-disk",
    about: "the thesis's file set in a tenth of its memory, on the disk as it is and on a slow one",
    page: "\
How many requests does a web server answer when only the popular files fit into memory, and do
clients that ask for what is in memory wait for the disk?

The thesis planned this run, with 2.5 GB of memory instead of 25, and gave it up: its runtime had no
way to read a file that is not in memory without a kernel thread for each. Here the file set has the
same shares of sizes and requests, scaled to 6,480 files of 690 MB, and the server and the page
cache that it fills live in a memory group of 70 MB. 64 connections ask for files by Zipf's law, and
4 for 16 files of 4 KiB that are always in memory. Before each sample the page cache is emptied and
then warmed for three times a sample's time, where the thesis warms by three runs; three times a
sample's time is measured. In the second cell the control group allows 1,000 reads of the disk per
second, as many as a hard disk or a small machine in a cloud has; there the warming takes 6.5 s at
least, as long as reading each file once: only then it shows which of them a server keeps.

Of replies more is better, of the p99 less. \"nginx\" reads a file inside its only loop, so whatever
is in memory waits for the disk; \"nginx threads\" and \"weft event\" have auxiliary threads for files,
\"weft event alone\" has none, \"weft\" reads through io_uring. \"read from disk\" is what an answer
cost in bytes of the disk.

On the slow disk reads are what is scarce, so servers are compared at equal reads: by how many
replies of the file set there are for each read of the disk. What the group lets through in a short
time is not exactly 1,000 per second, and replies per second would count that as well.",
    found: "\
None: planned with 2.5 GB of memory for 2.3 GB of files and given up; it \"would need another
runtime\".",
    threats: "\
A closed loop piles its 64 connections up behind misses; an open one would fail instead. The limit
on reads is per read, not per byte, so large reads are favoured more than on a hard disk. The host
may hold the files in memory. What is answered on the slow disk grows with the time of warming: with
900 reads of it, even a server with memory for all files would answer only 1.2 times as many
requests as one whose page cache has 60 MB.

The two generators share a core. The second one has real-time priority there, as root: without, its
p99 was 1.7 times as long, for weft and for nginx threads.",
    reasons: "\
On the disk as it is the server's only core is never idle, with weft as with nginx's threads. A
request for a file in memory waits there among the 64 others, whatever the disk does: 68 requests at
a time take 2 ms each on average at 33,000 replies per second (Little's law), and a fifth of the
other's p99 is less than that. It would take a server that prefers some requests. On the slow disk,
where the core is not the limit, the goal is reached many times over.",
    measures: &[
        SET,
        HOT_P99,
        P99,
        HOT,
        FROM_DISK,
        PER_READ,
        ERRORS,
        Measure::BUSY,
    ],
    cells: |_| {
        vec![
            Cell::new(AS_IT_IS, "disk", []),
            Cell::new(SLOW, "disk", [("reads_per_s", 1000), ("least_s", 9)]),
        ]
    },
    subjects: &[
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
        repetitions: Some(3),
        needs_group: Some(Controller::Memory),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[
        bars(0),
        bars(1),
        bars(2),
        bars(5),
    ],
    expectations,
};

const AS_IT_IS: &str = "the disk as it is";
const SLOW: &str = "1,000 reads per second";
/// Of the thesis's 21,600 files.
const SCALE: &str = "0.3";
/// A tenth of the file set, for the server and the page cache that it fills.
const MEMORY_BYTES: u64 = 70_000_000;
const HOT_FILES: usize = 16;
const HOT_BYTES: usize = 4096;
/// How long a sample is warmed, and then measured, in samples' times.
const UNITS: f64 = 3.0;
/// On the slow disk, at least: in this time it reads each file once.
const SLOW_WARM_UP_S: f64 = 6.5;

const SET: Measure = Measure {
    title: "replies of the file set",
    ..Measure::RATE
};
const HOT: Measure = Measure {
    name: "hot_per_s",
    title: "replies of files in memory",
    ..Measure::RATE
};
/// Of the file set: its generator is the first.
const P99: Measure = Measure {
    is_told: true,
    ..Measure::P99
};
const ERRORS: Measure = Measure {
    is_told: true,
    ..Measure::ERRORS
};
const HOT_P99: Measure = Measure {
    name: "hot_p99_us",
    title: "p99 latency of files in memory",
    ..Measure::P99
};
const FROM_DISK: Measure = Measure {
    name: "disk_kib_per_reply",
    title: "read from disk",
    unit: "KiB per reply of the set",
    ..Measure::CPU_US
};
/// On the slow disk only: where there is no limit, nothing counts reads.
const PER_READ: Measure = Measure {
    name: "replies_per_read",
    title: "replies of the file set at equal reads",
    unit: "per read of the disk",
    ..Measure::RATE
};

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = site(bench)?;
    super::demand_disk(&site)?;
    super::cool(&site)?;
    let limits = ServerLimits {
        memory_bytes: Some(MEMORY_BYTES),
        disk_reads_per_s: cell.parameter("reads_per_s"),
        ..ServerLimits::default()
    };
    let is_slow = limits.disk_reads_per_s.is_some();
    let mut server = bench.start(subject, &site, limits)?;
    let unit_s = bench.seconds;
    let warm_up_s = (UNITS * unit_s).max(if is_slow { SLOW_WARM_UP_S } else { 0.0 });
    let load = |path: &str, how: &str, list: &str| {
        let (url, warm_up_ms) = (server.url(path), warm_up_s * 1e3);
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
        ("hot_p99_us", hot.latency_us.raw.p99),
        ("disk_kib_per_reply", disk_kib / set.replies.max(1) as f64),
    ]);
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
    let site = bench.folder("disk", |site| {
        super::make_listed(site, "hot", 0..HOT_FILES, HOT_BYTES)
    })?;
    let set = site.join("set");
    if !set.exists() {
        super::make_fileset(bench, &set, &["--scale", SCALE])?;
        // Only clean pages can be taken out of the page cache.
        rustix::fs::sync();
    }
    Ok(site)
}

fn expectations(rows: &Rows) -> Expectations {
    let nginx = &["nginx", "nginx threads"];
    let hot = rows.by(&HOT_P99);
    let each = [(AS_IT_IS, &SET, 1.25), (SLOW, &PER_READ, 1.5)].map(|(cell, replies, times)| {
        [
            rows.by(replies).beats(cell, "weft", nginx, times),
            hot.beats(cell, "weft", &["nginx threads"], 5.0),
        ]
    });
    each.into_iter().flatten().collect()
}
