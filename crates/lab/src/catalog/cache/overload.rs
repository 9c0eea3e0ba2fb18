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
then 0.7 again, as in web-overload. The knee is the cache's own: before each sample the rate rises
from half to twice of what a closed loop of 256 connections reaches, and the knee is the most good
replies that are kept up for a third of that time. Keys, values and 3 % of sets are those of
cache-latency; up to 2,000 requests are under way, one on each connection, in the search for the
knee as in the overload. The cache has a quarter of its core, and a request that is not answered
within a second has failed. The overload lasts ten times a sample's time: 4 s with --quick, 8 s, 30
s with --paper.

The first figure shows good replies over time, in percent of the cache's own knee: a good cache goes
up to 100 and stays there until the overload ends. Above 100 the knee was found too low. Errors are
those of requests that were sent; what found no connection free was not. Recovery lasts until
nothing fails and the p99 is as before, as in web-overload, which also says what \"never\" is. Of
the first figure more is better, of the others less.",
    found: "\
Beyond saturation vanilla memcached keeps the highest throughput of the thesis's three servers.
What happens when the load falls again is not shown.",
    threats: "\
As for web-overload: a quota is no slow machine, and clients do not come back. A cache's clients
keep their connections, so nothing is accepted under overload.",
    reasons: "\
Over 2,000 connections with a quarter of a core no server here keeps 95 % of its knee for sure. A
ring keeps less than epoll. It is not the quota: with the whole core a request costs 13.8 µs on a
ring and 11.8 on epoll there, where over 64 connections the ring is the cheaper one. By perf a ring
touches each connection in three separate places of a turn (submission, completion, send), so more
of what it needs is no longer in the processor's cache. The bare responder on a ring loses as well.
Sending at once instead of by the ring was tried, and is dearer.",
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
    work: overload::work(take),
    figures: overload::FIGURES,
    expectations: |rows| overload::expectations(rows, "weft cache", &["memcached"]),
};

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let mut server = super::start(bench, subject, overload::LIMITS)?;
    let what = super::what(cell, server.port);
    overload::take(bench, cell, &mut server, &what)
}
