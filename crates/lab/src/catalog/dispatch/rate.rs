//! `dispatch-rate`: reply rate and response time of the event engine on each dispatcher, Liu and
//! Chen's two figures.

use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const RATE: Experiment = Experiment {
    name: "dispatch-rate",
    about: "reply rate and response time of one server on each dispatcher, with idle connections",
    page: page!("dispatch-rate"),
    measures: &[
        Measure::RATE,
        Measure::P50,
        Measure::P99,
        Measure::CPU_US,
        Measure::ERRORS,
        OVERFLOWS,
        Measure::BUSY,
    ],
    configurations,
    systems: &[
        "event epoll-edge",
        "event epoll",
        "event uring",
        LAP,
        FDM,
        "event rtsig",
        SIGNALS,
        "event rtsig 2048",
        SIGNALS_KEPT_POLL,
        SIGNALS_SELECT,
        POLL,
        "event select",
    ],
    work: Work::Server(ServerWork {
        scaled_by: Some("event epoll-edge"),
        skips: |configuration, kind| {
            LIKE_ANOTHER.contains(&kind) && configuration.get("share", 100) < LIMITED_FROM
        },
        needs_group: Some(Controller::Cpu),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[
        Figure::over_rate(0, false, true, Some(("idle", "idle connections"))),
        Figure::over_rate(1, true, false, Some(("idle", "idle connections"))),
        Figure::over_rate(3, false, false, Some(("idle", "idle connections"))),
        Figure::over_rate(5, false, false, Some(("idle", "idle connections"))),
    ],
    expectations,
};

const LAP: &str = "event lap";
const FDM: &str = "event fdm";
const POLL: &str = "event poll";
const SIGNALS: &str = "event rtsig 1024";
const SIGNALS_KEPT_POLL: &str = "event rtsig 1024 kept poll";
const SIGNALS_SELECT: &str = "event rtsig 1024 select";

/// Systems that differ from another one only if a queue overflows, or under high load.
const LIKE_ANOTHER: [&str; 4] =
    ["event rtsig 2048", SIGNALS_KEPT_POLL, "event epoll", "event select"];

/// Share of the server's core, so that the server is the bottleneck: with a whole core it was the
/// generator, which opens a connection for each request.
const CPU_PERCENT: u64 = 25;
/// Percentage of the peak from which on that share is the limit: below it the generator keeps up
/// with a whole core, and under a quota poll, FDM and LAP would be stopped most of the time.
const LIMITED_FROM: u64 = 80;

/// The event that the paper studies.
const OVERFLOWS: Measure =
    Measure { is_told: true, ..less("overflows", "overflows of the signal queue", "times") };

/// Numbers of idle connections, and percentages of the peak. The paper offers 1,000 to 10,000
/// requests a second.
const ALL: &[(u64, &[u64])] = &[(1000, &[40, 80, 120]), (6000, &[20, 40, 60, 80, 100, 120])];
const QUICK: &[(u64, &[u64])] = &[(6000, &[40, 120])];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let configurations = breadth.pick(QUICK, ALL).iter().flat_map(|&(idle, shares)| {
        shares.iter().map(move |&share| {
            let rate = breadth.rate(share, 6_000.0);
            let asked = [("rate", rate), ("share", share), ("idle", idle)];
            Configuration::new(label(idle, share), "http", asked)
        })
    });
    configurations.collect()
}

fn label(idle: u64, share: u64) -> String {
    format!("{idle} idle, {share} % of the peak")
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = web::site(bench, "kilobyte", &[1024])?;
    let share = configuration.get("share", 100);
    let limits = ServerLimits {
        cpu_percent: (share >= LIMITED_FROM).then_some(CPU_PERCENT),
        signals: queue_of(&system.kind),
        ..ServerLimits::default()
    };
    let mut server = bench.start(system, &site, limits)?;
    let url = server.url("/1024.html");
    let idle = configuration.get("idle", 0);
    let how = match configuration.parameter("rate") {
        Some(rate) => format!("-c 1000 --rate {rate} --arrivals poisson"),
        None => "-c 64".to_owned(),
    };
    let load = words(&format!("http {url} --close --warm-up 300ms --idle {idle} {how}"));
    let mut sample = bench.drive(&mut server, &[load])?.sample();
    if system.kind.contains("rtsig") {
        let overflows = server.loop_counter("signal_overflows")?;
        sample.add([(OVERFLOWS.name, overflows as f64)]);
    }
    Ok(sample)
}

/// The limit on queued signals: the number in the name.
fn queue_of(kind: &str) -> Option<u64> {
    kind.split(' ').find_map(|word| word.parse().ok())
}

/// The paper's four main results, and the purpose of LAP: nine tenths of FDM's rate at high load
/// (all of it until two samples had 0.97), without its delay.
fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&Measure::RATE);
    let time = rows.by(&Measure::P50);
    let cpu = rows.by(&Measure::CPU_US);
    let [middle, high] = [40, 120].map(|share| label(6000, share));
    vec![
        paper(rate.beats(&high, FDM, &[POLL, SIGNALS_KEPT_POLL, SIGNALS_SELECT], 1.0)),
        paper(time.beats(&high, FDM, &[POLL, SIGNALS_KEPT_POLL, SIGNALS_SELECT], 1.0)),
        paper(time.beats(&middle, SIGNALS_SELECT, &[FDM, POLL], 1.0)),
        paper(rate.beats(&high, POLL, &[SIGNALS_KEPT_POLL], 1.0)),
        time.beats(&middle, LAP, &[FDM], 2.0),
        cpu.beats(&middle, LAP, &[FDM], 1.0),
        rate.beats(&high, LAP, &[FDM], 0.9),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::system::{Start, weft_forms};

    /// Seen: real-time signals were measured only with the fallback to poll, and one queue length.
    #[test]
    fn dispatchers_and_signal_queues() {
        let forms = weft_forms(Path::new("/nowhere/weft"), "");
        let words = |kind: &str| {
            let form = forms.iter().find(|form| form.kind == kind);
            match &form.unwrap_or_else(|| panic!("no form {kind}")).start {
                Start::Server(server) => server.words(),
                _ => panic!("{kind} is no server"),
            }
        };
        let queues = RATE.systems.iter().map(|kind| {
            let by_select = words(kind).contains("dispatcher=rtsig-select");
            assert_eq!(by_select, kind.ends_with("1024 select"), "{kind}");
            queue_of(kind)
        });
        let queues: Vec<u64> = queues.flatten().collect();
        assert_eq!(queues, [1024, 2048, 1024, 1024]);
    }
}
