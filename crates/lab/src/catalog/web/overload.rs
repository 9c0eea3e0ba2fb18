//! `web-overload`: web servers that are asked for twice what they can do, and afterwards.

use super::super::overload;
use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_OVERLOAD: Experiment = Experiment {
    name: "web-overload",
    about: "good replies, errors and recovery of web servers at twice their knee",
    page: "\
What is left of a web server that is asked for twice as much as it can do, and how soon is it itself
again?

The thesis shows errors over the request rate and finds that a server with a fiber for each
connection has fewer of them beyond saturation, because no client waits much longer than another.
Its runs hold one rate for five minutes. Here the rate goes up and down again: 0.7 of the knee, then
twice the knee, then 0.7 again. The knee is the server's own, so a fast server is asked for more:
before each sample the rate rises from half to twice of what a closed loop of 256 connections
reaches, and the knee is the most good replies that are kept up for a third of that time. Files and
requests per connection are those of web-throughput. The server has a quarter of its core, so that
the generator on the other core can ask for twice as much; up to 2,000 requests are under way at
once, and a request that is not answered within a second has failed. The overload lasts ten times a
sample's time: 4 s with --quick, 8 s, 30 s with --paper. In one of the cells 6,000 more connections
stay idle all the while, as in Liu and Chen's paper; the ceilings and \"weft epoll\" are left out
there.

The first figure shows good replies over time, in percent of the server's own knee: a good server
goes up to 100 and stays there until the overload ends. Above 100 the knee was found too low. Errors
are those of requests that were sent; what found no connection free was not. The p99 is that of good
replies, all phases together. Recovery lasts from the end of the overload until steps of 200 ms are
good again: nothing fails, and the p99 is at most three times that of the median step before the
overload, or 60 ms, which is three periods of the quota. Three steps in a row must be good, and
seven in eight of all that follow, since a virtual machine stalls now and then. \"never\" is longer
than six times a sample's time: 2.4 s with --quick, 4.8 s, 18 s with --paper. Of the first figure
more is better, of the others less.",
    found: "\
The thesis has no such course. At fixed rates beyond saturation its server has notably fewer
errors than NGINX; Liu and Chen hold 6,000 idle connections and see replies fall with poll.",
    threats: "\
The quota of a control group stops the server for some milliseconds at a time, which no slow
machine does; it is the same for all. Clients that find all connections busy go away at once,
where people would come back. Each server is asked for twice its own knee, so a faster one has
more to do.",
    reasons: "\
There is one sample of each, so these verdicts are weak. Recovery: in that of weft without idle
connections the p99 after the overload swings between some 10 and 150 ms, every 1.2 s, and in the
overload every server's replies dip as often as 2,000 connections have their five requests each,
nginx's to a seventh of the knee: they ended together, and were opened anew at once. That was the
generator's doing. Since these samples were taken a connection ends after any request, by chance.
Beside 6,000 idle connections weft keeps less of its knee than nginx does. Cause not found: the idle
ones alone cost next to nothing, for its knee beside them is hardly lower.",
    measures: overload::MEASURES,
    cells: overload::cells,
    subjects: &[
        "weft",
        "weft epoll",
        "weft event",
        "weft thread",
        "nginx sendfile",
        "lighttpd",
        "ceiling ring",
        "ceiling event",
    ],
    work: overload::work(take),
    figures: overload::FIGURES,
    expectations: |rows| overload::expectations(rows, "weft", &["nginx sendfile"]),
};

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::thesis(bench)?;
    let mut server = bench.start(subject, &site, overload::LIMITS)?;
    let load = super::ask_for_files(&server, &site, "--requests-per-connection 5");
    overload::take(bench, cell, &mut server, &load)
}
