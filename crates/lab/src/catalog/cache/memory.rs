//! `cache-memory`: what an item costs, and a connection that waits.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::bench::{Bench, Fault, Running};
use crate::expect::Expectation;
use crate::experiment::{Breadth, Cell, Experiment, Figure, Measure, ServerWork, Work};
use crate::place::ServerLimits;
use crate::rows::Rows;
use crate::sample::Sample;
use crate::subject::Subject;

pub(in crate::catalog) const CACHE_MEMORY: Experiment = Experiment {
    name: "cache-memory",
    about: "resident memory of a cache per item and per idle connection",
    page: "\
How much memory does an item cost, and a connection that waits?

Items are stored with keys of 30 bytes and values of 200, a hundred thousand at first and then as
many again, and the growth of resident memory, page tables included, is divided by the number of
those that came last. Then every connection asks once and is held open, and the growth is divided by
their number. What a program says that it uses does not count.

Lower bars are better. 230 bytes of each item are the key and the value.",
    found: "\
Not asked by the papers.",
    threats: "\
Resident memory grows by pages of an allocator, so small numbers of items look dearer. Values of
200 bytes are near the middle of a slab class; other sizes waste more.",
    reasons: "",
    measures: &[PER_UNIT],
    cells,
    subjects: &[
        "weft cache",
        "weft cache event",
        "weft cache thread",
        "memcached",
    ],
    work: Work::Server(ServerWork {
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[Figure::Bars { measure: 0 }],
    expectations,
};

const PER_UNIT: Measure = Measure {
    name: "bytes_each",
    title: "resident memory",
    unit: "bytes each",
    ..Measure::CPU_US
};

const ITEM: &str = "an item";
const CONNECTION: &str = "an idle connection";

fn cells(breadth: &Breadth) -> Vec<Cell> {
    let (items, connections) = if breadth.quick {
        (50_000, 1000)
    } else {
        (400_000, 10_000)
    };
    vec![
        Cell::new(ITEM, "items", [("keys", items)]),
        Cell::new(CONNECTION, "hold", [("connections", connections)]),
    ]
}

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let folder = bench.folder("nothing", |_| Ok(()))?;
    let mut server = bench.start(subject, &folder, ServerLimits::default())?;
    let each = match cell.parameter("keys") {
        Some(keys) => {
            store(bench, &server, "a", keys)?;
            let before = server.resident_bytes()?;
            store(bench, &server, "b", keys)?;
            (server.resident_bytes()? as f64 - before as f64) / keys as f64
        }
        None => {
            let count = cell.get("connections", 1000);
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
    Ok(Sample {
        values: [("bytes_each".to_owned(), each)].into(),
        ..Sample::default()
    })
}

/// Stores so many items whose keys begin with `prefix`.
fn store(bench: &mut Bench<'_>, server: &Running, prefix: &str, keys: u64) -> Result<(), Fault> {
    let (target, keys) = (format!("127.0.0.1:{}", server.port), keys.to_string());
    let words = [
        "load",
        "cache",
        &target,
        "--populate",
        "--keys",
        &keys,
        "--key-prefix",
        prefix,
    ];
    let how = [
        "--value-size",
        "200",
        "-c",
        "16",
        "--sets",
        "0",
        "--quiet",
        "--duration",
        "50ms",
    ];
    bench.weft(&[&words[..], &how].concat())
}

fn ask(server: &Running) -> Result<TcpStream, Fault> {
    let mut stream = server.connect()?;
    stream.write_all(b"get nothing\r\n")?;
    let mut reply = [0; 5];
    stream.read_exact(&mut reply)?;
    match &reply {
        b"END\r\n" => Ok(stream),
        _ => Err(Fault::Failed(
            "an idle connection got another answer".to_owned(),
        )),
    }
}

fn expectations(rows: &Rows) -> Vec<Expectation> {
    let judge = rows.by(&PER_UNIT);
    let items = judge.near(ITEM, "weft cache", 1.0, "memcached");
    items
        .into_iter()
        .chain([judge.at_most(CONNECTION, "weft cache", 1024.0)])
        .collect()
}
