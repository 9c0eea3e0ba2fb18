//! `cache-memory`: memory of an item, and of an idle connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::catalog::prelude::*;

pub(in crate::catalog) const CACHE_MEMORY: Experiment = Experiment {
    name: "cache-memory",
    about: "resident memory of a cache per item and per idle connection",
    page: page!("cache-memory"),
    measures: &[PER_UNIT],
    configurations,
    systems: &["weft cache", "weft cache event", "weft cache thread", "memcached"],
    work: Work::Server(ServerWork {
        asks_itself: true,
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0)],
    expectations,
};

const PER_UNIT: Measure = less("bytes_each", "resident memory", "bytes each");

const ITEM: &str = "an item";
const CONNECTION: &str = "an idle connection";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let (items, connections) = breadth.pick((50_000, 1000), (400_000, 10_000));
    vec![
        Configuration::new(ITEM, "items", [("keys", items)]),
        Configuration::new(CONNECTION, "hold", [("connections", connections)]),
    ]
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mut server = super::start(bench, system, ServerLimits::default())?;
    let each = match configuration.parameter("keys") {
        Some(keys) => {
            store(bench, &server, "a", keys)?;
            let before = server.resident_bytes()?;
            store(bench, &server, "b", keys)?;
            (server.resident_bytes()? as f64 - before as f64) / keys as f64
        }
        None => {
            let count = configuration.get("connections", 1000);
            let mut held = vec![ask(&server)?];
            let before = server.resident_bytes()?;
            for _ in 0..count {
                bench.go_on()?;
                held.push(ask(&server)?);
            }
            (server.resident_bytes()? as f64 - before as f64) / count as f64
        }
    };
    server.check()?;
    Ok(Sample::of([("bytes_each", each)]))
}

/// Stores `keys` items whose keys begin with `prefix`.
fn store(bench: &mut Bench<'_>, server: &Running, prefix: &str, keys: u64) -> Result<(), Fault> {
    let port = server.port;
    bench.weft(&words(&format!(
        "load cache 127.0.0.1:{port} --populate --keys {keys} --key-prefix {prefix} \
         --value-size 200 -c 16 --sets 0 --quiet --duration 50ms"
    )))
}

fn ask(server: &Running) -> Result<TcpStream, Fault> {
    let mut stream = server.connect()?;
    stream.write_all(b"get nothing\r\n")?;
    let mut reply = [0; 5];
    stream.read_exact(&mut reply)?;
    match &reply {
        b"END\r\n" => Ok(stream),
        _ => Err("an idle connection got another answer".into()),
    }
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&PER_UNIT);
    vec![
        judge.near(ITEM, "weft cache", 1.0, "memcached"),
        judge.at_most(CONNECTION, "weft cache", 1024.0),
    ]
}
