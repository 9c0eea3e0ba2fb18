//! `web-overload`: web servers during and after a load of twice their capacity.

use super::super::overload;
use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_OVERLOAD: Experiment = Experiment {
    name: "web-overload",
    about: "good replies, errors and recovery of web servers at twice their knee",
    page: page!("web-overload"),
    measures: overload::MEASURES,
    configurations: overload::configurations,
    systems: &[
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

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = super::thesis(bench)?;
    let mut server = bench.start(system, &site, overload::LIMITS)?;
    let load = super::ask_for_files(&server, &site, "--requests-per-connection 5");
    overload::take(bench, configuration, &mut server, &load)
}
