//! `cache-overload`: caches that are asked for twice what they can do, and afterwards.

use super::super::overload;
use crate::bench::{Bench, Fault};
use crate::experiment::{Cell, Experiment, ServerWork, Work};
use crate::place::Controller;
use crate::sample::Sample;
use crate::subject::Subject;

pub(in crate::catalog) const CACHE_OVERLOAD: Experiment = Experiment {
    name: "cache-overload",
    about: "good replies, errors and recovery of caches at twice their knee",
    page: "\
What is left of a cache that is asked for twice as much as it can do, and how soon is it itself
again?

The thesis goes with its target rates beyond saturation, one rate for each run, and shows throughput
and tail latency there. Here the rate goes up and down again: 0.7 of the knee, then twice the knee,
then 0.7 again, as in web-overload. The knee is the cache's own, found in a closed loop before each
sample. Keys, values and 3 % of sets are those of cache-latency; up to 2,000 requests are under way,
one on each connection. The cache has a quarter of its core, and a request that is not answered
within a second has failed. The overload lasts ten times a sample's time: 10 s, and 30 s with
--sample 3s.

The first figure shows good replies over time, in percent of the cache's own knee: a good cache goes
up to 100 and stays there until the overload ends. Errors are those of requests that were sent;
what found no connection free was not. Recovery lasts from the end of the overload until three
intervals of 100 ms in a row have no errors and a p99 of at most three times that before the
overload. Of the first figure more is better, of the others less.",
    found: "\
Beyond saturation vanilla memcached keeps the highest throughput of the thesis's three servers.
What happens when the load falls again is not shown.",
    threats: "\
As for web-overload: a quota is no slow machine, and clients do not come back. A cache's clients
keep their connections, so nothing is accepted under overload. The knee is found over 256
connections, and the overload comes over 2,000: what so many cost counts as a loss by overload.",
    reasons: "\
Overload itself costs a ring 3 to 9 %. What a ring loses is its advantage over 256 connections,
where the knee is found: over 2,000 it answers as many as epoll. Thousands of replies a second in a
closed loop over 256, in one over 2,000, and under overload, by turns: weft on a ring 31.2, 26.8,
26.1; on epoll 22.9, 26.7, 26.6; memcached 24.6, 26.2, 24.1; a bare responder on a ring 35.4, 35.2,
32.2, on epoll 29.3, 32.1, 33.0 (medians of five samples of 0.5 s, on a machine that others used as
well).",
    measures: overload::MEASURES,
    cells: overload::cells,
    subjects: &[
        "weft cache",
        "weft cache epoll",
        "weft cache event",
        "memcached",
        "ceiling cache ring",
        "ceiling cache event",
    ],
    work: Work::Server(ServerWork {
        lasts: overload::LASTS,
        needs_group: Some(Controller::Cpu),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: overload::FIGURES,
    expectations: |rows| overload::expectations(rows, "weft cache", &["memcached"]),
};

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let folder = bench.folder("nothing", |_| Ok(()))?;
    let mut server = bench.start(subject, &folder, overload::LIMITS)?;
    let mut words = super::what(cell, server.port);
    words.push("--populate".to_owned());
    overload::take(bench, cell, &mut server, &words)
}
