//! `web-throughput`: replies, errors and tail latency of web servers over the request rate, the
//! thesis's figures, on its file set.

use crate::bench::{Bench, Fault};
use crate::expect::Expectation;
use crate::experiment::{Breadth, Cell, Experiment, Figure, Measure, ServerWork, Work};
use crate::place::ServerLimits;
use crate::rows::Rows;
use crate::sample::Sample;
use crate::subject::Subject;

pub(in crate::catalog) const WEB_THROUGHPUT: Experiment = Experiment {
    name: "web-throughput",
    about: "replies, errors and p99 of web servers over the request rate, on the thesis's file set",
    page: "\
How many requests per second does a web server follow, and what do clients get beyond that?

The thesis serves 21,600 files of 2.2 GB, asked for by Zipf's law, to 16 copies of httperf at 10,000
to 70,000 requests per second, and compares NGINX with a server that has a fiber for each
connection. Here a set with the same shares of sizes and requests, scaled to 432 files, lies in
memory; the server has one core and the generator the other. Connections are used for five requests,
as the sessions of the thesis are on average for a few. Rates are parts of what nginx reaches in a
closed loop on this machine. A request that is not answered within a second has failed: with httperf
it was ten, and runs of five minutes.

In the first figure a server that follows lies on the dotted diagonal; where its line leaves the
diagonal it is saturated, and the second figure says what part of the requests failed then. Bands go
from the least to the greatest sample.",
    found: "\
All servers follow to 57,500 requests per second; beyond it NGINX stays slightly higher, and the
server with fibers has notably fewer errors.",
    threats: "\
The file set lies in memory and has a fiftieth of the thesis's files. Samples last seconds where
the thesis took five minutes, so slow drifts stay unseen. Above the peak the generator's own core
may be the limit: such samples are counted in the report.",
    reasons: "",
    measures: &[
        Measure::RATE,
        Measure::ERRORS,
        Measure::P99,
        Measure::P50,
        Measure::CPU_US,
    ],
    cells,
    subjects: super::SERVERS,
    work: Work::Server(ServerWork {
        scaled_by: Some("nginx sendfile"),
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
const SHARES: &[u64] = &[20, 40, 60, 70, 80, 90, 100, 110, 120, 140];

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let peak = breadth.peak_per_s.unwrap_or(40_000.0);
    let shares = SHARES
        .iter()
        .filter(|&&share| !breadth.quick || [40, 80, 120].contains(&share));
    let cells = shares.map(|&share| {
        let rate = (peak * share as f64 / 100.0).round().max(1.0) as u64;
        Cell::new(label(share), "http", [("rate", rate), ("share", share)])
    });
    cells.collect()
}

fn label(share: u64) -> String {
    format!("{share} % of the peak")
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::thesis(bench)?;
    let folder = site.display().to_string();
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    let words = [
        "http",
        &server.url("/"),
        "--fileset",
        &folder,
        "--requests-per-connection",
        "5",
    ];
    let mut load = words.map(str::to_owned).to_vec();
    load.extend(["--warm-up", "700ms", "--timeout", "1s"].map(str::to_owned));
    match cell.parameter("rate") {
        Some(rate) => {
            load.extend(["-c", "2000", "--arrivals", "poisson", "--rate"].map(str::to_owned));
            load.push(rate.to_string());
        }
        None => load.extend(["-c", "64"].map(str::to_owned)),
    }
    Ok(bench.drive(&mut server, &[load])?.sample())
}

fn expectations(rows: &Rows) -> Vec<Expectation> {
    let nginx = ["nginx sendfile", "nginx copy"];
    let (rate, errors) = (rows.by(&Measure::RATE), rows.by(&Measure::ERRORS));
    let cell = label(120);
    let follows = rate.beats(&cell, "weft", &nginx, 1.0);
    follows
        .into_iter()
        .chain([errors.at_most(&cell, "weft", 1.0)])
        .collect()
}
