//! Single operations on plain kernel threads. `peer PROGRAM key=value...` prints one JSON object.

mod common;
mod wake;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use common::{Batch, get};

fn main() {
    common::run(|program| match (program, get("awake", 0)) {
        ("spawn", _) => common::timed(spawn),
        ("mutex", _) => common::timed(mutex),
        ("channel", _) => common::timed(channel),
        ("hand-over", 1) => wake::measure(wake::spin),
        ("hand-over", _) => wake::measure(wake::sleep),
        _ => None,
    })
}

fn spawn(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
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
    let mut batch = Batch::of(total);
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
    let mut batch = Batch::of(total);
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
