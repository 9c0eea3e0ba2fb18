//! Hit ratios of this store, of SIEVE, of LRU, and of a real memcached on one trace, each with the
//! same memory:
//!
//! ```text
//! cargo run --release -p weftwork-cache --example hit_ratio -- memcached
//! ```
//!
//! The argument is the program; each trace gets a fresh one, with the same `-m`. Without it that
//! column stays empty. A second argument selects the traces whose names contain it.
//!
//! The working set is ten times the memory. Every miss is followed by a set, as by a client that
//! then fetches the value from its database. The first third of each trace warms up and is not
//! counted. SIEVE and LRU are simulated with as many items as the store held at its end, so slab
//! classes cost them nothing.

extern crate weftwork_cache as cache;

use std::collections::{HashMap, VecDeque};
use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cache::store::{Config, Mode, Store};

const KEYS: usize = 500_000;
const REQUESTS: usize = 3_000_000;
/// The first third of a trace.
const WARM: usize = REQUESTS / 3;
/// Keys from here on have values 64 times as long.
const LARGE_FROM: u32 = 10 * KEYS as u32;

/// Longest value: 1 MB is the limit of an item, key and header included, in memcached as well.
const VALUE_LEN_MAX: usize = 1_000_000;

fn main() -> io::Result<()> {
    let memcached = env::args().nth(1).filter(|program| program != "-");
    let wanted = env::args().nth(2).unwrap_or_default();
    println!("| trace | this store (S3-FIFO) | memcached | SIEVE, simulated | LRU, simulated |");
    println!("|---|---|---|---|---|");
    for trace in traces().iter().filter(|trace| trace.name.contains(&wanted)) {
        let (ours, items) = ratio_of_store(trace);
        let theirs = match &memcached {
            Some(program) => format!("{:.4}", ratio_of_memcached(trace, program)?),
            None => "not asked".to_owned(),
        };
        let sieve = ratio_of(trace, &mut Sieve::new(items));
        let lru = ratio_of(trace, &mut Lru::new(items));
        println!("| {} | {ours:.4} | {theirs} | {sieve:.4} | {lru:.4} |", trace.name);
    }
    Ok(())
}

/// Lengths of the values, by key.
#[derive(Clone, Copy)]
enum Sizes {
    /// 200 bytes.
    Same,
    /// 40 to 2,560 bytes, each length double the previous one.
    Doubling,
    /// 1 byte to 1 MB, each power of ten equally often.
    LogUniform,
    /// 100 bytes, or 10 KB.
    Two,
}

struct Trace {
    name: String,
    keys: Vec<u32>,
    sizes: Sizes,
    /// Number of the first counted request.
    counted_from: usize,
    memory_mb: u64,
}

fn traces() -> Vec<Trace> {
    let mut traces = Vec::new();
    for skew in [0.9, 1.0, 1.1] {
        let name = format!("Zipf {skew:.1}");
        traces.push(Trace {
            name,
            keys: zipf(skew, 1),
            sizes: Sizes::Same,
            counted_from: WARM,
            memory_mb: 16,
        });
    }
    for (name, share, run) in
        [("Zipf 1.0, a tenth scans", 10, 5_000), ("Zipf 1.0, a third scans", 3, 50_000)]
    {
        traces.push(Trace {
            name: name.to_owned(),
            keys: scanned(share, run),
            sizes: Sizes::Same,
            counted_from: WARM,
            memory_mb: 16,
        });
    }
    traces.push(Trace {
        name: "Zipf 1.0, popularity drifts".to_owned(),
        keys: drifting(),
        sizes: Sizes::Same,
        counted_from: WARM,
        memory_mb: 16,
    });
    traces.push(Trace {
        name: "Zipf 1.0, sizes mixed".to_owned(),
        keys: zipf(1.0, 5),
        sizes: Sizes::Doubling,
        counted_from: WARM,
        memory_mb: 16,
    });
    traces.push(Trace {
        name: "Zipf 1.0, small, then large, then small: the last third".to_owned(),
        keys: shifted(),
        sizes: Sizes::Doubling,
        counted_from: 2 * WARM,
        memory_mb: 64,
    });
    for (name, sizes, requests) in [
        ("Zipf 1.0, 1 B to 1 MB", Sizes::LogUniform, REQUESTS / 10),
        ("Zipf 1.0, 100 B and 10 KB", Sizes::Two, REQUESTS / 3),
    ] {
        let mut keys = zipf(1.0, 7);
        keys.truncate(requests);
        traces.push(Trace {
            name: name.to_owned(),
            keys,
            sizes,
            counted_from: requests / 3,
            memory_mb: 64,
        });
    }
    traces
}

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Ranks, by inversion of the cumulative distribution.
fn zipf(skew: f64, seed: u64) -> Vec<u32> {
    let mut sum = 0.0;
    let cumulative: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        })
        .collect();
    let mut random = Random(seed);
    let rank = |at: f64| cumulative.partition_point(|below| *below < at) as u32;
    (0..REQUESTS).map(|_| rank(random.unit() * sum)).collect()
}

/// One request in `share` belongs to scans: keys requested once, in runs of `run`.
fn scanned(share: usize, run: usize) -> Vec<u32> {
    let mut keys = Vec::with_capacity(REQUESTS + run);
    let mut scan_key = KEYS as u32;
    let mut hot = zipf(1.0, 3).into_iter();
    while keys.len() < REQUESTS {
        keys.extend(hot.by_ref().take(run * (share - 1)));
        keys.extend(scan_key..scan_key + run as u32);
        scan_key += run as u32;
    }
    keys.truncate(REQUESTS);
    keys
}

/// A trace whose popular keys drift by a tenth of the key space.
fn drifting() -> Vec<u32> {
    let shift = |at: usize| (at * (KEYS / 10) / REQUESTS) as u32;
    zipf(1.0, 4)
        .into_iter()
        .enumerate()
        .map(|(at, rank)| (rank + shift(at)) % KEYS as u32)
        .collect()
}

/// A trace whose second third requests only keys of large values.
fn shifted() -> Vec<u32> {
    let mut keys = zipf(1.0, 6);
    keys[WARM..2 * WARM].iter_mut().for_each(|key| *key += LARGE_FROM);
    keys
}

impl Trace {
    fn key(&self, key: u32) -> String {
        format!("key-{key:026}")
    }

    fn value_len(&self, key: u32) -> usize {
        let mut random = Random(u64::from(key));
        match self.sizes {
            Sizes::Same => 200,
            Sizes::Doubling => {
                let len = 40 << (random.next() % 7);
                if key < LARGE_FROM { len } else { len * 64 }
            }
            Sizes::LogUniform => 10_f64.powf(6.0 * random.unit()) as usize,
            Sizes::Two => [100, 10_000][random.next() as usize % 2],
        }
    }
}

/// Calls `get_or_set` for every key; returns the hit ratio of the counted requests.
fn replay(trace: &Trace, mut get_or_set: impl FnMut(u32) -> io::Result<bool>) -> io::Result<f64> {
    let warm = trace.counted_from;
    let mut hits = 0;
    for (at, key) in trace.keys.iter().enumerate() {
        hits += usize::from(get_or_set(*key)? && at >= warm);
    }
    Ok(hits as f64 / (trace.keys.len() - warm) as f64)
}

fn ratio_of_store(trace: &Trace) -> (f64, usize) {
    let store = Store::new(Config { memory_max: trace.memory_mb << 20, ..Config::default() })
        .expect("memory");
    let value = vec![b'v'; VALUE_LEN_MAX];
    let mut now_micros = 2_000_000_u64;
    let ratio = replay(trace, |key| {
        now_micros += 10;
        let text = trace.key(key);
        let mut guard = store.access((now_micros / 1_000_000) as u32);
        let is_hit = guard.get(text.as_bytes()).is_ok();
        if !is_hit {
            let value = &value[..trace.value_len(key)];
            guard
                .store(text.as_bytes(), value, 0, 0, Mode::Set.into())
                .map_err(io::Error::other)?;
        }
        Ok(is_hit)
    });
    (ratio.expect("the store takes every item"), store.stats().curr_items as usize)
}

fn ratio_of_memcached(trace: &Trace, program: &str) -> io::Result<f64> {
    const PORT: &str = "22122";
    let memory = trace.memory_mb.to_string();
    let flags = ["-p", PORT, "-U", "0", "-l", "127.0.0.1", "-m", &memory, "-u", "nobody"];
    let mut server = Command::new(program).args(flags).spawn()?;
    let ratio = connect(&format!("127.0.0.1:{PORT}")).and_then(|stream| ask(trace, stream));
    server.kill()?;
    server.wait()?;
    ratio
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Err(_) if begun.elapsed() < Duration::from_secs(5) => {
                thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Sends the gets of a batch together, then the sets of its misses: batches of 32 do not affect the
/// ratio of millions.
fn ask(trace: &Trace, stream: TcpStream) -> io::Result<f64> {
    const BATCH: usize = 32;
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut line = String::new();
    let value = vec![b'v'; VALUE_LEN_MAX];
    let warm = trace.counted_from;
    let mut hits = 0;
    for (at, batch) in trace.keys.chunks(BATCH).enumerate() {
        let gets: String =
            batch.iter().map(|key| format!("mg {} h\r\n", trace.key(*key))).collect();
        output.write_all(gets.as_bytes())?;
        let mut sets = Vec::new();
        for (within, key) in batch.iter().enumerate() {
            line.clear();
            input.read_line(&mut line)?;
            if line.starts_with("HD") {
                hits += usize::from(at * BATCH + within >= warm);
                continue;
            }
            let (key, len) = (trace.key(*key), trace.value_len(*key));
            write!(sets, "set {key} 0 0 {len} noreply\r\n")?;
            sets.extend(&value[..len]);
            sets.extend(b"\r\n");
        }
        output.write_all(&sets)?;
    }
    Ok(hits as f64 / (trace.keys.len() - warm) as f64)
}

trait Simulated {
    fn get_or_set(&mut self, key: u32) -> bool;
}

fn ratio_of(trace: &Trace, cache: &mut impl Simulated) -> f64 {
    replay(trace, |key| Ok(cache.get_or_set(key))).expect("no I/O in it")
}

/// Zhang and others, "SIEVE is simpler than LRU", NSDI 2024: one queue, one bit, a hand. Here the
/// queue is an arena of slots linked both ways, newest first.
struct Sieve {
    items_max: usize,
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_key: HashMap<u32, usize>,
    newest: usize,
    oldest: usize,
    hand: usize,
}

struct Slot {
    key: u32,
    visited: bool,
    newer: usize,
    older: usize,
}

const NONE: usize = usize::MAX;

impl Sieve {
    fn new(items_max: usize) -> Sieve {
        Sieve {
            items_max,
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            newest: NONE,
            oldest: NONE,
            hand: NONE,
        }
    }

    fn evict(&mut self) {
        let mut hand = if self.hand == NONE { self.oldest } else { self.hand };
        while self.slots[hand].visited {
            self.slots[hand].visited = false;
            hand = self.slots[hand].newer;
            hand = if hand == NONE { self.oldest } else { hand };
        }
        let Slot { key, newer, older, .. } = self.slots[hand];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older].newer = newer,
        }
        self.hand = newer;
        self.by_key.remove(&key);
        self.free.push(hand);
    }
}

impl Simulated for Sieve {
    fn get_or_set(&mut self, key: u32) -> bool {
        if let Some(at) = self.by_key.get(&key) {
            self.slots[*at].visited = true;
            return true;
        }
        if self.by_key.len() >= self.items_max {
            self.evict();
        }
        let slot = Slot { key, visited: false, newer: NONE, older: self.newest };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        match self.newest {
            NONE => self.oldest = at,
            newest => self.slots[newest].newer = at,
        }
        self.newest = at;
        self.by_key.insert(key, at);
        false
    }
}

/// Exact LRU: a queue of uses, in which only the last use of an item counts.
struct Lru {
    items_max: usize,
    last_use: HashMap<u32, u64>,
    uses: VecDeque<(u32, u64)>,
    clock: u64,
}

impl Lru {
    fn new(items_max: usize) -> Lru {
        Lru { items_max, last_use: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }
}

impl Simulated for Lru {
    fn get_or_set(&mut self, key: u32) -> bool {
        self.clock += 1;
        self.uses.push_back((key, self.clock));
        let is_hit = self.last_use.insert(key, self.clock).is_some();
        while self.last_use.len() > self.items_max {
            let (oldest, at) = self.uses.pop_front().expect("every item has a use");
            if self.last_use.get(&oldest) == Some(&at) {
                self.last_use.remove(&oldest);
            }
        }
        is_hit
    }
}
