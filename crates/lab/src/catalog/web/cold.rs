//! `web-cold`: files that are not in memory, beside some in memory that must not suffer.

use std::io;
use std::path::Path;

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_COLD: Experiment = Experiment {
    name: "web-cold",
    about: "a file set three times the memory, and whether requests for hot files wait for the disk",
    page: page!("web-cold"),
    measures: &[HOT_P99, COLD, HOT, HOT_P50, FROM_DISK, Measure::BUSY],
    configurations: |_| vec![Configuration::new(CONFIGURATION, "cold", [])],
    systems: &["weft", "weft event", "nginx", "nginx threads", "lighttpd"],
    work: Work::Server(ServerWork {
        // For a p99.
        seconds_min: 1.0,
        needs_group: Some(Controller::Memory),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1), bars(2), bars(4)],
    expectations,
};

const CONFIGURATION: &str = "80 MB of memory";
const COLD_FILES: usize = 4000;
const COLD_BYTES: usize = 64 * 1024;
/// Long enough to request each cold file once.
const WARM_UP: &str = "2s";
const HOT_FILES: usize = 16;
const HOT_BYTES: usize = 4096;
/// Limit of the server and its page cache: a third of the file set.
const MEMORY_BYTES: u64 = 80_000_000;

const COLD: Measure = more("cold_per_s", "replies of cold files", "per second");
const HOT: Measure = more("hot_per_s", "replies of hot files", "per second");
const HOT_P50: Measure = less("hot_p50_us", "median latency of hot files", "µs");
const HOT_P99: Measure = less("hot_p99_us", "p99 latency of hot files", "µs");
const FROM_DISK: Measure = less("from_disk_percent", "read from disk, of the cold bytes", "%");

fn take(bench: &mut Bench<'_>, _: &Configuration, system: &System) -> Taken {
    let site = bench.folder("cold", make)?;
    super::demand_disk(&site)?;
    super::cool(&site)?;
    let limits = ServerLimits { memory_bytes: Some(MEMORY_BYTES), ..ServerLimits::default() };
    let mut server = bench.start(system, &site, limits)?;
    // This also warms up the hot files.
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
    // Only clean pages can be dropped from the page cache.
    rustix::fs::sync();
    Ok(())
}

fn expectations(rows: &Rows) -> Expectations {
    let reference = &["nginx threads"];
    let by = |measure, times| rows.by(measure).beats(CONFIGURATION, "weft", reference, times);
    vec![by(&COLD, 1.2), by(&HOT, 8.0), by(&HOT_P99, 5.0)]
}
