//! `dispatch-rate`: reply rate and response time of the event engine on each dispatcher, Liu and
//! Chen's two figures.

use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const RATE: Experiment = Experiment {
    name: "dispatch-rate",
    about: "reply rate and response time of one server on each dispatcher, with idle connections",
    page: page!("dispatch-rate"),
    measures: &[Measure::RATE, Measure::P50, Measure::P99, Measure::CPU_US, Measure::ERRORS],
    configurations,
    systems: &[
        "event epoll-edge",
        "event epoll",
        "event uring",
        "event lap",
        "event fdm",
        "event rtsig",
        "event rtsig 1024",
        "event rtsig 2048",
        "event rtsig 1024 select",
        "event poll",
        "event select",
    ],
    work: Work::Server(ServerWork {
        scaled_by: Some("event epoll-edge"),
        // Dispatchers differ by times, not by parts.
        repetitions: Some(3),
        skips: |configuration, kind| LOADED.contains(&kind) && configuration.get("share", 100) < 60,
        ..ServerWork::new(take)
    }),
    figures: &[
        Figure::over_rate(0, false, true, Some(("idle", "idle connections"))),
        Figure::over_rate(1, true, false, Some(("idle", "idle connections"))),
        Figure::over_rate(3, false, false, Some(("idle", "idle connections"))),
    ],
    expectations,
};

/// A load that overflows no queue says nothing of these that "event rtsig" does not.
const LOADED: [&str; 2] = ["event rtsig 2048", "event rtsig 1024 select"];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let shares = breadth.pick(&[60, 110][..], &[40, 80, 100, 120]);
    let idle = breadth.pick(&[3000][..], &[1000, 6000]);
    let configurations = idle.iter().flat_map(|&idle| {
        shares.iter().map(move |&share| {
            let rate = breadth.rate(share, 20_000.0);
            let asked = [("rate", rate), ("share", share), ("idle", idle)];
            Configuration::new(label(idle, share), "http", asked)
        })
    });
    configurations.collect()
}

fn label(idle: u64, share: u64) -> String {
    format!("{idle} idle, {share} % of the peak")
}

fn take(
    bench: &mut Bench<'_>,
    configuration: &Configuration,
    system: &System,
) -> Result<Sample, Fault> {
    let site = web::site(bench, "kilobyte", &[1024])?;
    let limits = ServerLimits { signals: queue_of(&system.kind), ..ServerLimits::default() };
    let mut server = bench.start(system, &site, limits)?;
    let url = server.url("/1024.html");
    let idle = configuration.get("idle", 0);
    let how = match configuration.parameter("rate") {
        Some(rate) => format!("-c 1000 --rate {rate} --arrivals poisson"),
        None => "-c 64".to_owned(),
    };
    let load = words(&format!("http {url} --close --warm-up 300ms --idle {idle} {how}"));
    Ok(bench.drive(&mut server, &[load])?.sample())
}

/// The limit on queued signals: the number in the name.
fn queue_of(kind: &str) -> Option<u64> {
    kind.split(' ').find_map(|word| word.parse().ok())
}

fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&Measure::RATE);
    let time = rows.by(&Measure::P50);
    let others = ["event poll", "event select"];
    // The second are those of a quick look.
    let each = [(6000, 80, 40), (3000, 110, 60)].map(|(idle, high, middle)| {
        [
            rate.beats(&label(idle, high), "event lap", &others, 1.0),
            time.beats(&label(idle, middle), "event fdm", &["event poll"], 1.0),
        ]
    });
    each.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::system::{Start, weft_forms};

    /// Seen: of real-time signals only what falls back to poll, with one of the papers' two queues.
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
        assert_eq!(queues, [1024, 2048, 1024]);
    }
}
