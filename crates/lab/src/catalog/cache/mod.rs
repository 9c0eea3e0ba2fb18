//! Caches beside each other.

pub(super) mod latency;
pub(super) mod memory;
pub(super) mod overload;
pub(super) mod rows;
pub(super) mod updates;

use crate::experiment::Cell;

/// Keys in the cache; a long value twenty thousand times would not fit.
fn keys(cell: &Cell) -> u64 {
    match cell.get("value", 200) {
        ..10_000 => 20_000,
        _ => 1000,
    }
}

/// The generator's words for a cell, for a cache at `port`.
fn load(cell: &Cell, port: u16) -> Vec<String> {
    let mut words = what(cell, port);
    let connections = cell.get("connections", 64);
    words.extend(["--connections".to_owned(), connections.to_string()]);
    words
}

/// The same, without the number of connections.
fn what(cell: &Cell, port: u16) -> Vec<String> {
    let mut words = vec!["cache".to_owned(), format!("127.0.0.1:{port}")];
    for (flag, parameter, default) in [
        ("--depth", "depth", 1),
        ("--sets", "sets", 3),
        ("--value-size", "value", 200),
        ("--multi-get", "keys_per_get", 1),
    ] {
        words.extend([flag.to_owned(), cell.get(parameter, default).to_string()]);
    }
    words.extend(["--keys".to_owned(), keys(cell).to_string()]);
    let popularity = if cell.get("hot", 0) == 0 {
        "uniform"
    } else {
        "hot:0.2"
    };
    let protocol = if cell.get("meta", 0) == 0 {
        "text"
    } else {
        "meta"
    };
    words.extend(["--popularity", popularity, "--protocol", protocol].map(str::to_owned));
    words
}
