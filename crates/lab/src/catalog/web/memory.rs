//! `web-memory`: replies of a web server over its memory, in percent of the files' size.

use std::path::PathBuf;

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_MEMORY: Experiment = Experiment {
    name: "web-memory",
    about: "replies and p99 of web servers over the memory that they have, by the size of the files",
    page: page!("web-memory"),
    measures: &[SET, P99, FROM_DISK, NEEDED, Measure::ERRORS, Measure::BUSY],
    configurations,
    systems: &["weft", "weft event", "nginx", "nginx threads", "lighttpd"],
    work: Work::Server(ServerWork {
        lasts: WARM_UP + 1.0,
        seconds_min: 1.0,
        needs_group: Some(Controller::Memory),
        queues_by_itself: true,
        derive: add_needed,
        ..ServerWork::new(take)
    }),
    figures: &[over_memory(0, false), over_memory(1, true), over_memory(2, false), bars(3)],
    expectations,
};

/// Memory in percent of the file set.
const PERCENTS: &[u64] = &[10, 25, 50, 100, 110, 150, 200];
/// Too little, and the thesis's 2.5 GB for 2.3 GB of files.
const QUICK: &[u64] = &[50, 110];
/// Scale of the thesis's 21,600 files.
const SCALE: &str = "0.15";
/// Length of the warm-up, in samples' times.
const WARM_UP: f64 = 3.0;
/// Start of the plateau: the files' size, and half as much for the server.
const ENOUGH_PERCENT: f64 = 150.0;
/// Share of the plateau below which a server suffers.
const PLATEAU_SHARE: f64 = 0.9;

const SET: Measure = Measure { title: "replies of the file set", ..Measure::RATE };
const P99: Measure = Measure { is_told: true, ..Measure::P99 };
const FROM_DISK: Measure =
    Measure { is_told: true, ..less("disk_kib_per_reply", "read from disk", "KiB per reply") };
/// Memory that a server needs, from all configurations; shown with the largest one.
const NEEDED: Measure = Measure {
    is_told: true,
    ..less("needed_percent", "memory below which replies fall by a tenth", "% of the files")
};

const fn over_memory(measure: usize, log: bool) -> Figure {
    Figure::over(measure, ("percent", "memory in percent of the files' size"), log, None)
}

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let percents = breadth.pick(QUICK, PERCENTS).iter();
    let memory = percents
        .map(|&percent| Configuration::new(label(percent), "memory", [("percent", percent)]));
    memory.collect()
}

fn label(percent: u64) -> String {
    format!("{percent} % of the files")
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = site(bench)?;
    super::demand_disk(&site)?;
    super::cool(&site)?;
    let files_bytes = super::size_of(&site)?;
    let memory_bytes = files_bytes * configuration.get("percent", 100) / 100;
    let limits = ServerLimits { memory_bytes: Some(memory_bytes), ..ServerLimits::default() };
    let mut server = bench.start(system, &site, limits)?;
    let warm_up_ms = WARM_UP * bench.seconds * 1e3;
    let how = format!("-c 64 --warm-up {warm_up_ms:.0}ms");
    let load = super::ask_for_files(&server, &site, &how);
    let driven = bench.drive(&mut server, &[load])?;
    let replies = load::report::figures(&driven.outcomes[0]).replies.max(1) as f64;
    let mut sample = driven.sample();
    sample.add([(FROM_DISK.name, driven.disk_read_bytes() / 1024.0 / replies)]);
    Ok(sample)
}

fn site(bench: &mut Bench<'_>) -> Result<PathBuf, Fault> {
    let site = bench.testbed.scratch().join("memory");
    if !site.exists() {
        super::make_fileset(bench, &site, &["--scale", SCALE])?;
        // Only clean pages can be dropped from the page cache.
        rustix::fs::sync();
    }
    Ok(site)
}

/// Adds the memory that each server needs to its samples with the most memory: one per round, so
/// that it has an interval as other figures have.
fn add_needed(rows: &mut Rows) {
    let of_file = |configuration: &Configuration| configuration.parameter("percent");
    let mut percents: Vec<(u64, String)> = Vec::new();
    for configuration in rows.configurations() {
        percents.extend(of_file(configuration).map(|at| (at, configuration.label.clone())));
    }
    percents.sort();
    let Some((_, most)) = percents.last().cloned() else {
        return;
    };
    let systems: Vec<String> = rows.systems().into_iter().map(str::to_owned).collect();
    for system in systems {
        let rounds = rows.find(&most, &system).map_or(Vec::new(), |row| row.rounds.clone());
        for (at, round) in rounds.into_iter().enumerate() {
            let rate = |(percent, label): &(u64, String)| {
                let row = rows.find(label, &system)?;
                let sample = row.rounds.iter().position(|one| *one == round);
                let sample = sample.and_then(|at| row.samples.get(at));
                let rate = sample.and_then(|sample| sample.values.get(SET.name).copied());
                // A server that cannot run with so little memory has a rate of 0.
                let rate = rate.or((!row.failures.is_empty()).then_some(0.0))?;
                Some((*percent as f64, rate))
            };
            let rates: Vec<(f64, f64)> = percents.iter().filter_map(rate).collect();
            if rates.len() < percents.len() {
                continue;
            }
            let needed = needed(&rates);
            if let Some(row) = rows.find_mut(&most, &system) {
                row.samples[at].add([(NEEDED.name, needed)]);
            }
        }
    }
}

/// Memory at which a server reaches a share of its plateau, the rate with ample memory;
/// interpolated between two measured points.
fn needed(rates: &[(f64, f64)]) -> f64 {
    let enough = rates.iter().position(|(percent, _)| *percent >= ENOUGH_PERCENT);
    let plateau = &rates[enough.unwrap_or(rates.len().saturating_sub(1))..];
    let sum: f64 = plateau.iter().map(|(_, rate)| PLATEAU_SHARE * rate).sum();
    let least = sum / plateau.len().max(1) as f64;
    // Seen: with the last crossing, a dip of one sample at 150 % decided, although 100 % is enough.
    match rates.iter().position(|(_, rate)| *rate >= least) {
        Some(at) if at > 0 => {
            let ((less, lower), (more, upper)) = (rates[at - 1], rates[at]);
            less + (more - less) * (least - lower) / (upper - lower)
        }
        _ => rates.first().map_or(0.0, |(memory, _)| *memory),
    }
}

fn expectations(rows: &Rows) -> Expectations {
    let others = ["nginx", "nginx threads"];
    // A quick look has fewer configurations.
    let has_all = rows.has_configuration(&label(200));
    let most = label(if has_all { 200 } else { 110 });
    let needed = rows.by(&NEEDED);
    let set = rows.by(&SET);
    let p99 = rows.by(&P99);
    vec![
        needed.beats(&most, "weft", &others, 1.0),
        set.beats(&label(50), "weft", &others, 1.25),
        set.beats(&label(200), "weft", &others, 1.0),
        set.beats(&label(110), "weft", &others, 1.0),
        p99.beats(&label(110), "weft", &others, 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_server_needs() {
        let rates = [(10.0, 100.0), (50.0, 500.0), (100.0, 1000.0), (200.0, 1000.0)];
        assert_eq!(needed(&rates), 90.0);
        assert_eq!(needed(&[(10.0, 950.0), (200.0, 1000.0)]), 10.0, "it never suffers");
        let dip = [(50.0, 500.0), (100.0, 1000.0), (150.0, 800.0), (200.0, 1200.0)];
        assert_eq!(needed(&dip), 90.0);
        assert_eq!(needed(&[]), 0.0);
    }

    #[test]
    fn needed_memory_of_each_round() {
        let configurations = configurations(&Breadth { quick: true, peak_per_s: None, cores: 2 });
        let systems = ["weft", "nginx"].map(str::to_owned);
        let mut rows = Rows::new(&configurations, &systems);
        let rates = [("weft", [950.0, 1000.0]), ("nginx", [600.0, 1000.0])];
        for (system, rates) in rates {
            for (percent, rate) in QUICK.iter().zip(rates) {
                for round in 0..3 {
                    let row = rows.find_mut(&label(*percent), system).unwrap();
                    // In the first round nginx does not start with the least memory, and the last
                    // round was interrupted.
                    let is_weft_or_enough = system == "weft" || *percent > 50;
                    if round == 1 || is_weft_or_enough && round < 2 {
                        row.samples.push(Sample::of([(SET.name, rate)]));
                        row.rounds.push(round);
                    } else if round == 0 {
                        row.failures.push("killed".to_owned());
                    }
                }
            }
        }
        add_needed(&mut rows);
        let needed = |system| {
            let row = rows.find(&label(110), system).unwrap();
            let figures = row.samples.iter().map(|sample| sample.values.get(NEEDED.name).copied());
            figures.collect::<Vec<_>>()
        };
        assert_eq!(needed("weft"), [Some(50.0), Some(50.0)]);
        assert_eq!(needed("nginx"), [Some(104.0), Some(95.0)]);
        let made: Vec<_> = expectations(&rows).into_iter().flatten().collect();
        assert_eq!(made[0].words(), "seems so");
    }
}
