//! `generator-lag`: lateness of an open loop's requests.

use crate::catalog::prelude::*;

pub(in crate::catalog) const LAG: Experiment = Experiment {
    name: "generator-lag",
    about: "how late the requests of weft load leave in an open loop",
    page: page!("generator-lag"),
    measures: &[LAG_P99, Measure::RATE],
    configurations: |_: &Breadth| {
        let configuration = |label, rate| Configuration::new(label, "http", [("rate", rate)]);
        vec![configuration(SLOW, 1000), configuration(FAST, 50_000)]
    },
    systems: &["weft load", "weft load epoll"],
    work: Work::Server(ServerWork {
        // For a p99: a thousand requests at the lower rate.
        seconds_min: 1.0,
        asks_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0)],
    expectations,
};

const LAG_P99: Measure = less("lag_p99_us", "p99 of the lag", "µs");

const SLOW: &str = "1,000 per second";
const FAST: &str = "50,000 per second";

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mut server = super::weft(bench)?;
    let url = server.url("/400.html");
    let rate = configuration.get("rate", 1000);
    let mut load = words(&format!("http {url} -c 64 --rate {rate} --warm-up 300ms"));
    load.extend_from_slice(super::own_words(system)?);
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&LAG_P99);
    [SLOW, FAST].map(|configuration| judge.at_most(configuration, "weft load", 100.0)).into()
}
