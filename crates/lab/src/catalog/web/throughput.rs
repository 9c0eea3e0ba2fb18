//! `web-throughput`: replies, errors and tail latency of web servers over the request rate, the
//! thesis's figures, on its file set.

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_THROUGHPUT: Experiment = Experiment {
    name: "web-throughput",
    about: "replies, errors and p99 of web servers over the request rate, on the thesis's file set",
    page: "\
How many requests per second does a web server follow, and what do clients get beyond that?

The thesis serves 21,600 files of 2.3 GB, asked for by Zipf's law, to 16 copies of httperf at 10,000
to 70,000 requests per second, and compares NGINX with a server that has a fiber for each
connection. Here a set with the same shares of sizes and requests, scaled to 432 files, lies in
memory; the server has one core and the generator the other. Connections are used for five requests,
as the sessions of the thesis are on average for a few; the thesis's think times and logs of
sessions are left out. Rates are parts of what nginx reaches in a closed loop on this machine. A
request that is not answered within a second has failed: with httperf it was ten, and runs of five
minutes.

In the first figure a server that follows lies on the dotted diagonal; where its line leaves the
diagonal it is saturated, and the second figure says what part of the requests failed then. Bands go
from the least to the greatest sample.",
    found: "\
All servers follow to 57,500 requests per second; beyond it NGINX stays slightly higher, and the
server with fibers has notably fewer errors.",
    threats: "\
The file set lies in memory and has a fiftieth of the thesis's files. A sample lasts a second where
the thesis took five minutes, so slow drifts stay unseen, and errors begin later: within 1.7 s,
warming included, few requests become a second late unless the server answers less than half of what
it is asked for. Above the peak the generator's own core may be the limit: such samples are counted
in the report.",
    reasons: "",
    measures: &[
        Measure::RATE,
        Measure::ERRORS,
        Measure::P99,
        Measure::P50,
        Measure::CPU_US,
    ],
    cells,
    subjects: super::FAST_SERVERS,
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

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let cells = breadth.pick(&[60, 120][..], SHARES).iter().map(|&share| {
        let rate = breadth.rate(share, 40_000.0);
        Cell::new(label(share), "http", [("rate", rate), ("share", share)])
    });
    cells.collect()
}

fn label(share: u64) -> String {
    format!("{share} % of the peak")
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::thesis(bench)?;
    let mut server = bench.start(subject, &site, ServerLimits::default())?;
    let how = match cell.parameter("rate") {
        Some(rate) => format!("-c 2000 --arrivals poisson --rate {rate}"),
        None => "-c 64".to_owned(),
    };
    let how = format!("--requests-per-connection 5 --warm-up 700ms --timeout 1s {how}");
    let load = super::ask_for_files(&server, &site, &how);
    Ok(bench.drive(&mut server, &[load])?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let (rate, errors) = (rows.by(&Measure::RATE), rows.by(&Measure::ERRORS));
    vec![
        rate.beats(&label(120), "weft", super::NGINX, 1.0),
        errors.at_most(&label(120), "weft", 1.0),
    ]
}
