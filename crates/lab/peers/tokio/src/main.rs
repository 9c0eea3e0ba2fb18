//! The thesis's programs on tokio's tasks. `peer PROGRAM key=value...` prints one JSON object.

mod common;

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Batch, Random, Round, STOP, get};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, Notify, Semaphore};

macro_rules! go { ($body:block) => { tokio::spawn(async move $body) }; }
macro_rules! give_way { () => { tokio::task::yield_now().await }; }
macro_rules! wait { ($semaphore:expr) => { $semaphore.acquire().await.unwrap().forget() }; }
macro_rules! post { ($semaphore:expr) => { $semaphore.add_permits(1) }; }
macro_rules! sleep { ($notifier:expr) => { $notifier.notified().await }; }
macro_rules! wake { ($notifier:expr) => { $notifier.notify_one() }; }
macro_rules! lock { ($mutex:expr) => { $mutex.lock().await }; }
macro_rules! join { ($handle:expr) => { $handle.await.unwrap() }; }

type Notifier = Notify;

fn notifier() -> Notifier {
    Notify::new()
}

mod programs;

use programs::{RING, semaphore_ring};

fn main() {
    common::run(|program| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(get("processors", 1) as usize)
            .enable_time()
            .build()
            .unwrap();
        let line = measure(&runtime, program);
        // Unfinished tasks are abandoned: the process ends.
        std::mem::forget(runtime);
        line
    })
}

// Tasks are started on the main thread, which then only waits.
fn measure(runtime: &Runtime, program: &str) -> Option<String> {
    let _inside = runtime.enter();
    match program {
        "yield" => common::timed(programs::yields),
        "cycle" => common::timed(spawn_cycle),
        "churn" => common::timed(programs::churn),
        "locality" => common::timed(programs::locality),
        "transfer" => transfer(),
        "memory" => memory(),
        "spawn" => common::timed(programs::spawn_and_join),
        "mutex" => common::timed(programs::mutex),
        "channel" => common::timed(spawn_channel),
        "idle" => idle(),
        // tokio has no channel with several receivers, so no "crowd".
        _ => None,
    }
}

fn spawn_cycle(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        if get("semaphore", 0) != 0 {
            semaphore_ring(total);
            continue;
        }
        let spots: Arc<[Notify; RING]> = Arc::new(std::array::from_fn(|_| Notify::new()));
        for at in 0..RING {
            let spots = Arc::clone(&spots);
            let mut batch = Batch::of(total);
            tokio::spawn(async move {
                loop {
                    spots[at].notified().await;
                    spots[(at + 1) % RING].notify_one();
                    if !batch.count() {
                        return;
                    }
                }
            });
        }
        spots[0].notify_one();
    }
}

fn transfer() -> Option<String> {
    let (round, start, blocks) = (Round::new(Notify::new), Instant::now(), get("block", 0) != 0);
    for me in 0..round.signals.len() {
        let round = Arc::clone(&round);
        tokio::spawn(async move {
            let mut seen = 0;
            let mut random = Random::new(me as u64 + 1);
            while !STOP.load(Relaxed) {
                if !round.is_new(me, &mut seen) {
                    if round.exhausts {
                        round.signals[me].notified().await;
                    } else {
                        tokio::task::yield_now().await;
                    }
                } else if round.is_led_by(me) {
                    let mut lead = || round.lead(me, &mut random, Notify::notify_one);
                    if blocks {
                        // Moves the processor's other tasks to another thread first.
                        tokio::task::block_in_place(lead);
                    } else {
                        lead();
                    }
                }
            }
        });
    }
    round.end(start)
}

fn memory() -> Option<String> {
    let release = Arc::new(Notify::new());
    let start = |count, all: &Arc<common::Parked>| {
        for _ in 0..count {
            let release = Arc::clone(&release);
            let all = Arc::clone(all);
            tokio::spawn(async move {
                let waiting = release.notified();
                all.parked.fetch_add(1, Relaxed);
                waiting.await;
                all.ended.fetch_add(1, Relaxed);
            });
        }
    };
    common::memory(start, |()| release.notify_waiters())
}

fn spawn_channel(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    let (sender, mut receiver) = tokio::sync::mpsc::channel(get("bound", 128) as usize);
    tokio::spawn(async move {
        for n in 0u64.. {
            if sender.send(n).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move { while batch.count() && receiver.recv().await.is_some() {} });
}

/// CPU time of all threads of this process, in seconds. proc_pid_schedstat
fn cpu_time() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let nanos = threads.map(|thread| {
        let text = std::fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0)
    });
    nanos.sum::<u64>() as f64 / 1e9
}

fn idle() -> Option<String> {
    let count = get("threads", 0);
    let period = Duration::from_millis(get("period_ms", 60_000));
    let woken = Arc::new(AtomicU64::new(0));
    let asleep = Arc::new(AtomicU64::new(0));
    for at in 0..count {
        let woken = Arc::clone(&woken);
        let asleep = Arc::clone(&asleep);
        tokio::spawn(async move {
            asleep.fetch_add(1, Relaxed);
            tokio::time::sleep(period * at as u32 / count as u32).await;
            loop {
                woken.fetch_add(1, Relaxed);
                tokio::time::sleep(period).await;
            }
        });
    }
    while asleep.load(Relaxed) < count {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    let (before, cpu_before, start) = (woken.load(Relaxed), cpu_time(), Instant::now());
    std::thread::sleep(Duration::from_millis(get("ms", 1000)));
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_time() - cpu_before;
    let ops = woken.load(Relaxed) - before;
    Some(format!("{{\"ops\":{ops},\"seconds\":{seconds},\"cpu_seconds\":{cpu}}}"))
}
