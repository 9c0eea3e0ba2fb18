//! Cost of a request: nanoseconds from its bytes to its reply in the outbox, without any I/O.
//!
//! ```text
//! cargo run --release -p weftwork-cache --example request_cost [-- NAME]
//! ```
//!
//! Keys of 30 bytes, values of 200. First over 1,000 items, which fit in a processor's cache, then
//! over 100,000, which do not: the difference is memory latency. Each line is the fastest of
//! several rounds; the others were disturbed.

extern crate weftwork_cache as cache;

#[path = "../tests/transcript/mod.rs"]
mod transcript;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use cache::{Peer, Service, Session, Settings};
use session::{Next, Now, Outbox, Phase, Session as _};

const ROUNDS: usize = 20;
const ITEMS: usize = 100_000;
const REQUESTS: usize = 64_000;

fn main() {
    let service = transcript::service(Settings::default()).expect("a store");
    let value = "v".repeat(200);
    let set = |key: &str| format!("set {key} 0 0 200\r\n{value}\r\n");
    fill(&service, set);
    for (depth, items) in [(1, 1_000), (16, 1_000), (16, ITEMS)] {
        measure("get", &service, (depth, items), |key| format!("get {key}\r\n"));
        measure("get that misses", &service, (depth, items), |key| format!("get x{key}\r\n"));
        measure("gets", &service, (depth, items), |key| format!("gets {key}\r\n"));
        measure("mg v", &service, (depth, items), |key| format!("mg {key} v\r\n"));
        measure("set", &service, (depth, items), set);
        measure("ms", &service, (depth, items), |key| format!("ms {key} 200\r\n{value}\r\n"));
        measure("binary get", &service, (depth, items), binary_get);
    }
    measure("get of 100 keys", &service, (1, 1_000), |key| {
        let (head, number) = key.split_at(22);
        let number: usize = number.parse().expect("a number");
        let keys = (0..100).map(|at| format!(" {head}{:08}", (number + at) % ITEMS));
        format!("get{}\r\n", keys.collect::<String>())
    });
}

fn key(number: usize) -> String {
    format!("key:abcdefghijklmnopqr{number:08}")
}

fn binary_get(key: &str) -> String {
    let mut request = vec![0x80, 0, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
    request.resize(24, 0);
    request.extend_from_slice(key.as_bytes());
    // One character per byte, converted back below.
    request.iter().map(|&byte| char::from(byte)).collect()
}

fn fill(service: &Arc<Service>, set: impl Fn(&str) -> String) {
    let mut session = Session::new(Arc::clone(service), Peer::Unix, Now::read());
    for number in 0..ITEMS {
        let text = set(&key(number));
        receive(&mut session, text.as_bytes(), Now::read(), &mut Outbox::new());
    }
}

fn measure(
    name: &str,
    service: &Arc<Service>,
    (depth, items): (usize, usize),
    request: impl Fn(&str) -> String,
) {
    if std::env::args().nth(1).is_some_and(|wanted| wanted != name) {
        return;
    }
    let mut session = Session::new(Arc::clone(service), Peer::Unix, Now::read());
    let mut out = Outbox::new();
    let mut number = 0;
    let batches = items.min(REQUESTS) / depth;
    let rounds = ROUNDS * REQUESTS / items;
    let inputs: Vec<Vec<u8>> = (0..batches)
        .map(|_| {
            let one = |_| {
                number = (number * 25_173 + 13_849) % items;
                request(&key(number)).chars().map(|c| c as u8).collect::<Vec<_>>()
            };
            (0..depth).flat_map(one).collect()
        })
        .collect();
    let now = Now::read();
    let mut best_ns = f64::MAX;
    let mut reply_len = 0;
    for _ in 0..rounds {
        let start = Instant::now();
        for input in &inputs {
            reply_len = receive(&mut session, input, now, &mut out);
        }
        best_ns = best_ns.min(start.elapsed().as_nanos() as f64 / (batches * depth) as f64);
    }
    let reply_len = reply_len / depth as u64;
    println!("{name:16} depth {depth:2}, {items:6} items {best_ns:7.0} ns, {reply_len} bytes out");
}

fn receive(session: &mut Session, input: &[u8], now: Now, out: &mut Outbox) -> u64 {
    let mut used = 0;
    let mut len = 0;
    loop {
        let received = session.receive(black_box(&input[used..]), now, out);
        used += received.used;
        len += out.queued_len();
        black_box(&*out);
        out.clear();
        match received.next {
            Next::Receive(Phase::Idle) => return len,
            Next::Flush => {}
            other => panic!("{other:?} after {used} of {} bytes", input.len()),
        }
    }
}
