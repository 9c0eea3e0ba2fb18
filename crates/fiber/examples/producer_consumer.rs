//! Producers, workers and a collector with channels between: each channel has a limit, so a slow
//! stage slows the stages before it instead of filling the memory. A plain thread collects.

extern crate weftwork_fiber as fiber;

use std::collections::BTreeMap;
use std::thread;

use fiber::sync::{mpmc, mpsc};

/// Numbers below `limit`, counted by their steps to 1 in Collatz's sequence.
pub(crate) fn count_steps(limit: u64) -> BTreeMap<u32, u32> {
    let (jobs, to_do) = mpmc::bounded(64);
    let (results, done) = mpsc::sync_channel(64);
    let collector = thread::spawn(move || {
        let mut counts = BTreeMap::new();
        for steps in done {
            *counts.entry(steps).or_default() += 1;
        }
        counts
    });
    for residue in 0..4 {
        let jobs = jobs.clone();
        fiber::spawn(move || {
            (1..limit).filter(|n| n % 4 == residue).for_each(|n| jobs.send(n).unwrap());
        });
    }
    for _ in 0..8 {
        let (to_do, results) = (to_do.clone(), results.clone());
        fiber::spawn(move || {
            for n in to_do {
                results.send(steps(n)).unwrap();
            }
        });
    }
    // A channel ends with its last sender, so these senders must go.
    drop((jobs, results));
    fiber::offload(|| collector.join().unwrap())
}

fn steps(mut n: u64) -> u32 {
    let mut steps = 0;
    while n != 1 {
        n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

fn main() {
    for (steps, count) in fiber::run(|| count_steps(100_000)) {
        println!("{steps:4} steps: {count}");
    }
}
