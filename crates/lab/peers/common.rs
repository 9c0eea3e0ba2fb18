//! Common code of the programs on every runtime.

#![allow(dead_code, reason = "not every runtime has every program")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub static STOP: AtomicBool = AtomicBool::new(false);
static PARAMS: OnceLock<HashMap<String, u64>> = OnceLock::new();

pub fn get(name: &str, default: u64) -> u64 {
    *PARAMS.get().unwrap().get(name).unwrap_or(&default)
}

/// Runs the program named on the command line, and prints its result. `None` if the runtime has no
/// such program.
pub fn run(measure: impl FnOnce(&str) -> Option<String>) {
    let mut args = std::env::args().skip(1);
    let program = args.next().unwrap_or_default();
    let pairs = args.filter_map(|arg| {
        let (key, value) = arg.split_once('=')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    PARAMS.set(pairs.collect()).unwrap();
    match measure(&program) {
        Some(line) => println!("{line}"),
        None => {
            eprintln!("there is no program {program} here");
            std::process::exit(3)
        }
    }
    std::process::exit(0);
}

/// Lets a program run for a while, and counts its operations.
pub fn timed(start_all: impl FnOnce(&Arc<AtomicU64>)) -> Option<String> {
    let total = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    start_all(&total);
    sleep(Duration::from_millis(get("ms", 1000)));
    STOP.store(true, Relaxed);
    Some(result(total.load(Relaxed), start.elapsed()))
}

pub fn result(ops: u64, elapsed: Duration) -> String {
    format!("{{\"ops\":{ops},\"seconds\":{}}}", elapsed.as_secs_f64())
}

/// A local counter that is published now and then, as in all peers.
pub struct Batch(Arc<AtomicU64>, u64);

impl Batch {
    pub fn of(total: &Arc<AtomicU64>) -> Batch {
        Batch(Arc::clone(total), 0)
    }

    pub fn count(&mut self) -> bool {
        self.1 += 1;
        if self.1 < 64 {
            return true;
        }
        self.0.fetch_add(std::mem::take(&mut self.1), Relaxed);
        !STOP.load(Relaxed)
    }
}

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// A round of `transfer`: one thread leads, and waits for an acknowledgement of all others.
pub struct Round<S> {
    epoch: AtomicU64,
    leader: AtomicU64,
    done: AtomicU64,
    acks: Vec<AtomicU64>,
    pub signals: Vec<S>,
    pub exhausts: bool,
    wanted: u64,
}

impl<S> Round<S> {
    pub fn new(signal: impl Fn() -> S) -> Arc<Round<S>> {
        let count = get("threads", 100);
        Arc::new(Round {
            epoch: AtomicU64::new(1),
            leader: AtomicU64::new(0),
            done: AtomicU64::new(0),
            acks: (0..count).map(|_| AtomicU64::new(0)).collect(),
            signals: (0..count).map(|_| signal()).collect(),
            exhausts: get("exhaust", 0) != 0,
            wanted: get("transfers", 100),
        })
    }

    /// Returns true once per round and member, and acknowledges the round.
    pub fn is_new(&self, me: usize, seen: &mut u64) -> bool {
        let now = self.epoch.load(Acquire);
        let is_new = now != std::mem::replace(seen, now);
        if is_new {
            self.acks[me].store(now, Release);
        }
        is_new
    }

    pub fn is_led_by(&self, me: usize) -> bool {
        self.leader.load(Acquire) == me as u64
    }

    pub fn lead(&self, me: usize, random: &mut Random, wake: impl Fn(&S)) {
        let now = self.epoch.load(Acquire);
        for (other, ack) in self.acks.iter().enumerate() {
            while other != me && ack.load(Acquire) != now {
                if STOP.load(Relaxed) {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        if self.done.fetch_add(1, Relaxed) + 1 == self.wanted {
            STOP.store(true, Relaxed);
        }
        self.leader.store(random.below(self.acks.len()) as u64, Release);
        self.epoch.fetch_add(1, AcqRel);
        if self.exhausts {
            self.signals.iter().for_each(wake);
        }
    }

    /// Waits until all wanted transfers are done, or the time is over.
    pub fn end(&self, start: Instant) -> Option<String> {
        let limit = Duration::from_millis(get("limit_ms", 5000));
        while !STOP.load(Relaxed) && start.elapsed() < limit {
            sleep(Duration::from_micros(100));
        }
        STOP.store(true, Relaxed);
        Some(result(self.done.load(Relaxed), start.elapsed()))
    }
}

/// Counts for `memory`: threads that have parked, and threads that have ended.
#[derive(Default)]
pub struct Parked {
    pub parked: AtomicU64,
    pub ended: AtomicU64,
}

/// Measures the memory of the threads that `start` starts and `release` ends.
pub fn memory<T>(start: impl FnOnce(u64, &Arc<Parked>) -> T, release: impl FnOnce(&T)) -> Option<String> {
    let count = get("threads", 100_000);
    let memory = || (status("VmRSS") + status("VmPTE"), status("VmSize"));
    let wait = |counter: &AtomicU64| {
        while counter.load(Relaxed) < count {
            sleep(Duration::from_millis(1));
        }
    };
    let ((resident, virtual_), began) = (memory(), Instant::now());
    let all = Arc::new(Parked::default());
    let started = start(count, &all);
    wait(&all.parked);
    let start_s = began.elapsed().as_secs_f64();
    let resident = memory().0 - resident;
    let virtual_ = memory().1 - virtual_;
    let began = Instant::now();
    release(&started);
    wait(&all.ended);
    let end_s = began.elapsed().as_secs_f64();
    Some(format!(
        "{{\"ops\":{count},\"seconds\":{start_s},\"end_seconds\":{end_s},\"resident_bytes\":{resident},\"virtual_bytes\":{virtual_}}}"
    ))
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
