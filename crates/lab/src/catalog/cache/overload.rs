//! `cache-overload`: caches that are asked for twice what they can do, and afterwards.

use super::super::overload;
use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_OVERLOAD: Experiment = Experiment {
    name: "cache-overload",
    about: "good replies, errors and recovery of caches at twice their knee",
    page: "\
What is left of a cache that is asked for twice as much as it can do, and how soon is it itself
again?

The thesis goes with its target rates beyond saturation, one rate for each run, and shows throughput
and tail latency there. Here the rate goes up and down again: 0.7 of the knee, then twice the knee,
then 0.7 again, as in web-overload. The knee is the cache's own: the most good replies that come,
before each sample, while the rate rises from half to twice of what a closed loop of 256 connections
reaches. Keys, values and 3 % of sets are those of cache-latency; up to 2,000 requests are under
way, one on each connection, in the search for the knee as in the overload. The cache has a quarter
of its core, and a request that is not answered within a second has failed. The overload lasts ten
times a sample's time: 8 s, and 30 s with --paper.

The first figure shows good replies over time, in percent of the cache's own knee: a good cache goes
up to 100 and stays there until the overload ends. Errors are those of requests that were sent;
what found no connection free was not. Recovery lasts until nothing fails and the p99 is as before,
as in web-overload. Of the first figure more is better, of the others less.",
    found: "\
Beyond saturation vanilla memcached keeps the highest throughput of the thesis's three servers.
What happens when the load falls again is not shown.",
    threats: "\
As for web-overload: a quota is no slow machine, and clients do not come back. A cache's clients
keep their connections, so nothing is accepted under overload.",
    reasons: "\
A ring loses under a quota, and not under overload alone. In a closed loop over 2,000 connections
with a quarter of a core, weft on a ring fell from 26,000 replies per second to 19,000 within four
seconds in two runs, and swung between 17,000 and 25,000 in a third; on epoll it stayed at 26,000,
the event engine at 28,000, memcached at 24,000. With the whole core the ring had 99,000 and the event
engine 104,000, and neither fell. The bare responder on a ring falls as well, by its courses in the
samples; why is not known. Until 2026-11-23 the knee was found over 256 connections in a third of a
second, which a ring answers faster than 2,000: that made it look worse still.",
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
        seconds_min: overload::SECONDS_MIN,
        repetitions: Some(3),
        full_seconds: 0.8,
        paper_seconds: 3.0,
        skips: overload::skips,
        needs_group: Some(Controller::Cpu),
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: overload::FIGURES,
    expectations: |rows| overload::expectations(rows, "weft cache", &["memcached"]),
};

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let mut server = super::start(bench, subject, overload::LIMITS)?;
    let what = super::what(cell, server.port);
    overload::take(bench, cell, &mut server, &what)
}
