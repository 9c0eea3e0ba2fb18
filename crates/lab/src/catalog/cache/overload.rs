//! `cache-overload`: caches during and after a load of twice their capacity.

use super::super::overload;
use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_OVERLOAD: Experiment = Experiment {
    name: "cache-overload",
    about: "good replies, errors and recovery of caches at twice their knee",
    page: page!("cache-overload"),
    measures: overload::MEASURES,
    configurations: overload::configurations,
    systems: &[
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

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mut server = super::start(bench, system, overload::LIMITS)?;
    let what = super::what(configuration, &server);
    overload::take(bench, configuration, &mut server, &what)
}
