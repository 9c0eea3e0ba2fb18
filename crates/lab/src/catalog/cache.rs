//! Comparison of caches.

pub(super) mod latency;
pub(super) mod memory;
pub(super) mod overload;
pub(super) mod rows;
pub(super) mod updates;

use crate::catalog::prelude::*;

/// Ours in each form, memcached, and two bare responders as limits.
const CACHES: &[&str] = &[
    "weft cache",
    "weft cache epoll",
    "weft cache event",
    "weft cache thread",
    "memcached",
    "ceiling cache ring",
    "ceiling cache event",
];

/// Numbers of connections: of an experiment, and of the thesis.
const SOME: u64 = 256;
const MANY: u64 = 15_360;
/// Systems that are measured with the thesis's number.
const OVER_MANY: &[&str] = &["weft cache", "weft cache epoll", "weft cache event", "memcached"];

/// Errors beyond saturation are a figure, and no fault.
const ERRORS: Measure = Measure { is_told: true, ..Measure::ERRORS };

/// True if a system is not measured with the thesis's number of connections.
fn skips_many(configuration: &Configuration, kind: &str) -> bool {
    configuration.get("connections", SOME) == MANY && !OVER_MANY.contains(&kind)
}

/// Starts a cache.
fn start(bench: &mut Bench<'_>, system: &System, limits: ServerLimits) -> Result<Running, Fault> {
    let folder = bench.folder("nothing", |_| Ok(()))?;
    bench.start(system, &folder, limits)
}

/// Arguments of the generator for a configuration.
fn load(configuration: &Configuration, server: &Running) -> Vec<String> {
    let mut load = what(configuration, server);
    let connections = configuration.get("connections", 64);
    load.extend(words(&format!("--connections {connections} --warm-up 400ms")));
    load
}

/// Arguments of the generator, without the number of connections.
fn what(configuration: &Configuration, server: &Running) -> Vec<String> {
    let [depth, sets, value, per_get] =
        [("depth", 1), ("sets", 3), ("value", 200), ("keys_per_get", 1)]
            .map(|(name, default)| configuration.get(name, default));
    // Twenty thousand long values would not fit.
    let keys = if value < 10_000 { 20_000 } else { 1000 };
    let popularity = configuration.either("hot", "hot:0.2", "uniform");
    let protocol = configuration.either("meta", "meta", "text");
    let address = server.address();
    words(&format!(
        "cache {address} --depth {depth} --sets {sets} --value-size {value} \
         --multi-get {per_get} --keys {keys} --popularity {popularity} --protocol {protocol} \
         --populate"
    ))
}
