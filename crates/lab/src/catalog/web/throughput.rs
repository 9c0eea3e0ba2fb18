//! `web-throughput`: replies, errors and tail latency of web servers over the request rate, the
//! thesis's figures, on its file set.

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_THROUGHPUT: Experiment = Experiment {
    name: "web-throughput",
    about: "replies, errors and p99 of web servers over the request rate, on the thesis's file set",
    page: page!("web-throughput"),
    measures: &[Measure::RATE, Measure::ERRORS, Measure::P99, Measure::P50, Measure::CPU_US],
    configurations,
    systems: super::FAST_SERVERS,
    work: Work::Server(ServerWork {
        scaled_by: Some("nginx sendfile"),
        repetitions: Some(3),
        // In less than its time-out no request can fail.
        seconds_min: 1.0,
        paper_seconds: 300.0,
        ..ServerWork::new(take)
    }),
    figures: &[
        Figure::over_rate(0, false, true, None),
        Figure::over_rate(1, false, false, None),
        Figure::over_rate(2, true, false, None),
    ],
    expectations,
};

/// Percent of the peak.
const SHARES: &[u64] = &[20, 40, 60, 80, 100, 120, 140];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let configurations = breadth.pick(&[60, 120][..], SHARES).iter().map(|&share| {
        let rate = breadth.rate(share, 40_000.0);
        Configuration::new(label(share), "http", [("rate", rate), ("share", share)])
    });
    configurations.collect()
}

fn label(share: u64) -> String {
    format!("{share} % of the peak")
}

fn take(
    bench: &mut Bench<'_>,
    configuration: &Configuration,
    system: &System,
) -> Result<Sample, Fault> {
    let site = super::thesis(bench)?;
    let mut server = bench.start(system, &site, ServerLimits::default())?;
    let how = match configuration.parameter("rate") {
        Some(rate) => format!("-c 2000 --arrivals poisson --rate {rate}"),
        None => "-c 64".to_owned(),
    };
    let how = format!("--requests-per-connection 5 --warm-up 700ms --timeout 1s {how}");
    let load = super::ask_for_files(&server, &site, &how);
    Ok(bench.drive(&mut server, &[load])?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let rate = rows.by(&Measure::RATE);
    let errors = rows.by(&Measure::ERRORS);
    vec![
        rate.beats(&label(120), "weft", super::NGINX, 1.0),
        errors.at_most(&label(120), "weft", 1.0),
    ]
}
