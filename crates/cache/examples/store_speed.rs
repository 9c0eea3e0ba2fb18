//! What a get and a set cost: `cargo run --release -p weftwork-cache --example store_speed [items]
//! [huge]`.
//!
//! Keys of 30 bytes, values of 200, keys at random; no protocol, no sockets. Prints nanoseconds of
//! CPU time per operation, so that a busy machine disturbs only through its caches.

use std::env;
use std::hint::black_box;
use std::thread;

use cache::store::{Config, Mode, Store};
use rustix::time::{ClockId, clock_gettime};

fn main() {
    let items: u64 = env::args()
        .nth(1)
        .map_or(1_000_000, |text| text.parse().expect("a number"));
    let config = Config {
        memory_max: items * 330 + (64 << 20),
        ..Config::default()
    };
    let store = Store::new(config).expect("address space");
    let begun = cpu_ns();
    let slowest_ns = fill(&store, items);
    let per_item = (cpu_ns() - begun) / items;
    println!("{items} items: first set {per_item} ns, the slowest {slowest_ns} ns of CPU time");
    let stats = store.stats();
    let memory = stats.total_malloced + stats.hash_bytes + stats.ghost_bytes;
    println!(
        "memory {} bytes an item, key and value are 230",
        memory / items
    );
    churn(items);
    for threads in [1, 2] {
        for (name, batch, sets_in_100) in [
            ("get", 1, 0),
            ("get, 16 a turn", 16, 0),
            ("3 % set", 16, 3),
            ("set", 1, 100),
        ] {
            println!(
                "{threads} threads, {name}: {} ns",
                measure(&store, items, threads, batch, sets_in_100)
            );
        }
    }
    println!(
        "one hot key, 2 threads: {} ns",
        measure(&store, 1, 2, 16, 0)
    );
}

fn fill(store: &Store, items: u64) -> u64 {
    let mut slowest_ns = 0;
    for item in 0..items {
        let begun = cpu_ns();
        store
            .turn(2)
            .store(&key(item), &[b'v'; 200], 0, 0, Mode::Set.into())
            .expect("room");
        slowest_ns = slowest_ns.max(cpu_ns() - begun);
    }
    slowest_ns
}

/// New keys into a full memory of a quarter of the size: every set evicts.
fn churn(items: u64) {
    let config = Config {
        memory_max: items * 80 + (4 << 20),
        ..Config::default()
    };
    let store = Store::new(config).expect("address space");
    let begun = cpu_ns();
    let slowest_ns = fill(&store, items);
    let per_item = (cpu_ns() - begun) / items;
    let evictions = store.stats().evictions;
    println!("full memory: set {per_item} ns, the slowest {slowest_ns} ns, {evictions} evictions");
}

/// The thread's own time: what the kernel gave to others meanwhile is no fault of the store's.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of CPU time per operation, over all threads.
fn measure(store: &Store, items: u64, threads: u64, batch: u64, sets_in_100: u64) -> u64 {
    const OPERATIONS: u64 = 4_000_000;
    let one = |thread| {
        let begun = cpu_ns();
        run(store, items, thread, OPERATIONS, batch, sets_in_100);
        cpu_ns() - begun
    };
    let total_ns: u64 = thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    total_ns / (OPERATIONS * threads)
}

fn run(store: &Store, items: u64, thread: u64, operations: u64, batch: u64, sets_in_100: u64) {
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ (thread + 1);
    for _ in 0..operations / batch {
        let mut turn = store.turn(3);
        for _ in 0..batch {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let key = key(random % items);
            if random >> 40 & 127 < sets_in_100 * 128 / 100 {
                turn.store(&key, &[b'w'; 200], 0, 0, Mode::Set.into())
                    .expect("room");
            } else {
                let item = turn.get(&key).expect("it is there");
                black_box(
                    item.slices()
                        .map(|slice| u64::from(slice[slice.len() - 1]))
                        .sum::<u64>(),
                );
            }
        }
    }
}

fn key(item: u64) -> [u8; 30] {
    let mut key = *b"key-00000000000000000000000000";
    let mut rest = item;
    for at in (4..30).rev() {
        key[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    key
}
