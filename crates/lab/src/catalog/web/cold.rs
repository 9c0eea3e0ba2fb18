//! `web-cold`: files that are not in memory, beside a few that are and must not suffer.

use std::io;
use std::path::Path;

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_COLD: Experiment = Experiment {
    name: "web-cold",
    about: "a file set three times the memory, and whether requests for hot files wait for the disk",
    page: "\
Do clients that ask for what is in memory wait while others ask for what is on the disk?

4,000 files of 64 KiB are asked for one after the other by 16 connections, while 4 connections ask
for 16 files of 4 KiB. The server and the page cache that it fills live in a memory group of 80 MB,
a third of the set. Before each sample the page cache is emptied and the same load runs for two
seconds, in which each file is asked for once: what a server keeps shows from the second time on.
The thesis asked this and left it open (2.5 GB of memory where 25 would be needed): the set is
scaled so that a sample takes a second.

Of \"cold\" and \"hot\" replies more is better, of the hot p99 less. A server that reads a cold file
inside its only loop makes the hot requests wait for the disk: that is \"nginx\". \"nginx threads\" has
auxiliary threads for files. Above 100 % a server reads more from the disk than it sends.",
    found: "\
None: the thesis gave the experiment up, because splice through io_uring takes a kernel thread for
each call that waits, and sendfile waits for the disk even on a socket that does not block.",
    threats: "\
The disk is a virtual one that answers thousands of reads per second, and its host may hold the
files in memory. Files are asked for one after the other, which is the worst case of every cache;
web-disk has a popularity that caches live on. The two generators share a core. That of the hot
files has real-time priority there, as root: without, its p99 is mostly its wait for the other one,
and was 2.7 times as long for weft and 1.7 times for nginx threads.",
    reasons: "\
Replies of cold files: the server's core is busy, and hot and cold replies share it. weft gives
several times as many hot replies as nginx with threads, since four clients that are answered sooner
ask again sooner, and the core's time for these is missing for the others. In the sample with the
most hot replies there were the fewest cold ones. It is not the disk: weft reads no more of it for a
cold reply than nginx does.

These samples were also taken while weft looked at each file anew after half a second at the latest,
which nginx does once a minute: four look-ups for each cold reply, variants included. And weft keeps
1,233 files open here, and nginx all 4,016: of 20,000 descriptors weft leaves 17,500 for
connections, and a file takes two. By perf opening and closing take a fifth of its time. By hand,
medians of three by turns on a busy machine: 1.08 times as many cold replies as nginx threads as it
was, 1.25 with --recheck 60s, which samples have since then, and 1.31 with --max-connections 1000 as
well.

The p99 of hot files: these samples were taken before their generator went ahead of the other one
(see below). By hand, with that, it was a third of that of nginx threads.",
    measures: &[HOT_P99, COLD, HOT, HOT_P50, FROM_DISK, Measure::BUSY],
    cells: |_| vec![Cell::new(CELL, "cold", [])],
    subjects: &["weft", "weft event", "nginx", "nginx threads", "lighttpd"],
    work: Work::Server(ServerWork {
        // A p99 decides.
        seconds_min: 1.0,
        needs_group: Some(Controller::Memory),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[
        bars(0),
        bars(1),
        bars(2),
        bars(4),
    ],
    expectations,
};

const CELL: &str = "80 MB of memory";
const COLD_FILES: usize = 4000;
const COLD_BYTES: usize = 64 * 1024;
/// Enough to ask for each cold file once.
const WARM_UP: &str = "2s";
const HOT_FILES: usize = 16;
const HOT_BYTES: usize = 4096;
/// A third of the file set, for the server and the page cache that it fills.
const MEMORY_BYTES: u64 = 80_000_000;

const COLD: Measure = Measure {
    name: "cold_per_s",
    title: "replies of cold files",
    ..Measure::RATE
};
const HOT: Measure = Measure {
    name: "hot_per_s",
    title: "replies of hot files",
    ..Measure::RATE
};
const HOT_P50: Measure = Measure {
    name: "hot_p50_us",
    title: "median latency of hot files",
    ..Measure::P50
};
const HOT_P99: Measure = Measure {
    name: "hot_p99_us",
    title: "p99 latency of hot files",
    ..Measure::P99
};
const FROM_DISK: Measure = Measure {
    name: "from_disk_percent",
    title: "read from disk, of the cold bytes",
    unit: "%",
    ..Measure::CPU_US
};

fn take(bench: &mut Bench<'_>, _: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = bench.folder("cold", make)?;
    super::demand_disk(&site)?;
    super::cool(&site)?;
    let limits = ServerLimits {
        memory_bytes: Some(MEMORY_BYTES),
        ..ServerLimits::default()
    };
    let mut server = bench.start(subject, &site, limits)?;
    // This also warms the hot ones.
    for file in 0..HOT_FILES {
        let body = super::body((COLD_FILES + file) as u64, HOT_BYTES);
        server.verify(&format!("/hot/{file:04}.html"), &body)?;
    }
    let load = |kind: &str, connections: usize| {
        let url = server.url("/");
        let mut load = words(&format!(
            "http {url} --popularity sequential --warm-up {WARM_UP} -c {connections} --paths"
        ));
        load.push(site.join(format!("{kind}.paths")).display().to_string());
        load
    };
    let loads = [load("hot", 4), load("cold", 16)];
    let driven = bench.drive(&mut server, &loads)?.sound()?;
    let mut sample = driven.sample();
    let [hot, cold] = [0, 1].map(|at| load::report::figures(&driven.outcomes[at]));
    let cold_bytes = (cold.replies * COLD_BYTES as u64).max(1) as f64;
    let from_disk = driven.disk_read_bytes() / cold_bytes;
    sample.add([
        ("hot_per_s", hot.achieved_rate_per_s),
        ("cold_per_s", cold.achieved_rate_per_s),
        ("hot_p50_us", hot.latency_us.raw.p50),
        ("hot_p99_us", hot.latency_us.raw.p99),
        ("from_disk_percent", 100.0 * from_disk),
    ]);
    Ok(sample)
}

/// The cold and the hot files, and lists of their paths.
fn make(site: &Path) -> io::Result<()> {
    super::make_listed(site, "cold", 0..COLD_FILES, COLD_BYTES)?;
    super::make_listed(site, "hot", COLD_FILES..COLD_FILES + HOT_FILES, HOT_BYTES)?;
    // Only clean pages can be taken out of the page cache.
    rustix::fs::sync();
    Ok(())
}

fn expectations(rows: &Rows) -> Expectations {
    let reference = &["nginx threads"];
    let by = |measure, times| rows.by(measure).beats(CELL, "weft", reference, times);
    vec![by(&COLD, 1.2), by(&HOT, 8.0), by(&HOT_P99, 5.0)]
}
