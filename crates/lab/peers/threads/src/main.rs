//! Single operations on plain kernel threads. `peer PROGRAM key=value...` prints one JSON object.

mod wake;

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);
static PARAMS: OnceLock<HashMap<String, u64>> = OnceLock::new();

fn get(name: &str, default: u64) -> u64 {
    *PARAMS.get().unwrap().get(name).unwrap_or(&default)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let program = args.next().unwrap_or_default();
    let pairs = args.filter_map(|arg| {
        let (key, value) = arg.split_once('=')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    PARAMS.set(pairs.collect()).unwrap();
    match (program.as_str(), get("awake", 0)) {
        ("spawn", _) => timed(spawn),
        ("mutex", _) => timed(mutex),
        ("channel", _) => timed(channel),
        ("hand-over", 1) => wake::measure(wake::spin),
        ("hand-over", _) => wake::measure(wake::sleep),
        (other, _) => {
            eprintln!("plain threads have no program {other}");
            std::process::exit(3)
        }
    }
}

fn timed(spawn_all: fn(&Arc<AtomicU64>)) {
    let total = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    spawn_all(&total);
    thread::sleep(Duration::from_millis(get("ms", 1000)));
    STOP.store(true, Relaxed);
    let (ops, seconds) = (total.load(Relaxed), start.elapsed().as_secs_f64());
    println!("{{\"ops\":{ops},\"seconds\":{seconds}}}");
    std::process::exit(0);
}

/// Counts locally and publishes now and then, as the other peers do.
struct Batch(Arc<AtomicU64>, u64);

impl Batch {
    fn count(&mut self) -> bool {
        self.1 += 1;
        if self.1 < 64 {
            return true;
        }
        self.0.fetch_add(std::mem::take(&mut self.1), Relaxed);
        !STOP.load(Relaxed)
    }
}

fn spawn(total: &Arc<AtomicU64>) {
    let mut batch = Batch(Arc::clone(total), 0);
    thread::spawn(move || {
        let at_once = get("at_once", 1);
        let mut handles = Vec::new();
        loop {
            handles.extend((0..at_once).map(|_| thread::spawn(|| {})));
            for handle in handles.drain(..) {
                handle.join().unwrap();
                if !batch.count() {
                    return;
                }
            }
        }
    });
}

fn mutex(total: &Arc<AtomicU64>) {
    let mut batch = Batch(Arc::clone(total), 0);
    thread::spawn(move || {
        let mutex = parking_lot::Mutex::new(0u64);
        loop {
            *black_box(&mutex).lock() += 1;
            if !batch.count() {
                return;
            }
        }
    });
}

fn channel(total: &Arc<AtomicU64>) {
    let mut batch = Batch(Arc::clone(total), 0);
    let (sender, receiver) = std::sync::mpsc::sync_channel(get("bound", 128) as usize);
    let last = get("processors", 1) as usize - 1;
    thread::spawn(move || {
        bind_to_cpu(0);
        (0u64..).find(|&n| sender.send(n).is_err())
    });
    thread::spawn(move || {
        bind_to_cpu(last);
        while batch.count() && receiver.recv().is_ok() {}
    });
}

fn bind_to_cpu(at: usize) {
    // SAFETY: a set is plain bits, and all zero is the empty one. CPU_SET(3)
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(at, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &cpus);
    }
}
