//! The thesis's programs on tokio's tasks. `peer PROGRAM key=value...` prints one JSON object.

mod common;

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Batch, Random, Round, STOP, get};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};

fn main() {
    common::run(|program| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(get("processors", 1) as usize)
            .enable_time()
            .build()
            .unwrap();
        let line = measure(&runtime, program);
        // Its tasks are left behind: the process ends.
        std::mem::forget(runtime);
        line
    })
}

// Whatever starts tasks runs on the main thread, which only waits then.
fn measure(runtime: &Runtime, program: &str) -> Option<String> {
    let _inside = runtime.enter();
    match program {
        "yield" => common::timed(spawn_yield),
        "cycle" => common::timed(spawn_cycle),
        "churn" => common::timed(spawn_churn),
        "locality" => common::timed(spawn_locality),
        "transfer" => transfer(),
        "memory" => memory(),
        "spawn" => common::timed(spawn_spawn),
        "mutex" => common::timed(spawn_mutex),
        "channel" => common::timed(spawn_channel),
        "idle" => idle(),
        // It has no channel with many receivers, so no "crowd".
        _ => None,
    }
}

fn spawn_yield(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        let mut batch = Batch::of(total);
        tokio::spawn(async move {
            while batch.count() {
                tokio::task::yield_now().await;
            }
        });
    }
}

const RING: usize = 5;

fn spawn_semaphore_ring(total: &Arc<AtomicU64>) {
    let spots: Arc<[Semaphore; RING]> = Arc::new(std::array::from_fn(|_| Semaphore::new(0)));
    for at in 0..RING {
        let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
        tokio::spawn(async move {
            loop {
                spots[at].acquire().await.unwrap().forget();
                spots[(at + 1) % RING].add_permits(1);
                if !batch.count() {
                    return;
                }
            }
        });
    }
    spots[0].add_permits(1);
}

fn spawn_cycle(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        if get("semaphore", 0) != 0 {
            spawn_semaphore_ring(total);
            continue;
        }
        let spots: Arc<[Notify; RING]> = Arc::new(std::array::from_fn(|_| Notify::new()));
        for at in 0..RING {
            let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
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

fn spawn_churn(total: &Arc<AtomicU64>) {
    let count = get("spots", 50) as usize;
    let spots: Arc<Vec<Semaphore>> = Arc::new((0..count).map(|_| Semaphore::new(0)).collect());
    for seed in 0..get("threads", 100) {
        let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
        tokio::spawn(async move {
            let mut random = Random::new(seed + 1);
            let mut posts = seed as usize >= spots.len();
            loop {
                let spot = &spots[random.below(spots.len())];
                if posts {
                    spot.add_permits(1);
                }
                posts = true;
                spot.acquire().await.unwrap().forget();
                if !batch.count() {
                    return;
                }
            }
        });
    }
}

struct Seat {
    woken: Notify,
    data: AtomicPtr<Vec<u64>>,
}

fn spawn_locality(total: &Arc<AtomicU64>) {
    let (threads, processors) = (get("threads", 100), get("processors", 1));
    let spots = threads.saturating_sub(processors).max(1) as usize;
    let spots: Arc<Vec<AtomicPtr<Seat>>> = Arc::new((0..spots).map(|_| AtomicPtr::default()).collect());
    for seed in 0..threads {
        let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
        tokio::spawn(async move {
            let mut random = Random::new(seed + 1);
            let words = get("words", 100) as usize;
            let first = Box::into_raw(Box::new(vec![0u64; words]));
            let seat: &'static Seat = Box::leak(Box::new(Seat {
                woken: Notify::new(),
                data: AtomicPtr::new(first),
            }));
            let (shares, touched) = (get("share", 0) != 0, get("touched", 10));
            loop {
                // SAFETY: each vector belongs to one seat at a time, and none is freed.
                let data = unsafe { &mut *seat.data.load(Acquire) };
                for _ in 0..touched {
                    data[random.below(words)] += 1;
                }
                let mine = std::ptr::from_ref(seat).cast_mut();
                let mine_data = seat.data.load(Acquire);
                let other = spots[random.below(spots.len())].swap(mine, AcqRel);
                if !other.is_null() {
                    // SAFETY: seats are never freed.
                    let other = unsafe { &*other };
                    if shares {
                        let theirs = other.data.swap(mine_data, AcqRel);
                        seat.data.store(theirs, Release);
                    }
                    other.woken.notify_one();
                }
                seat.woken.notified().await;
                if !batch.count() {
                    return;
                }
            }
        });
    }
}

fn transfer() -> Option<String> {
    let (round, start, blocks) = (Round::new(Notify::new), Instant::now(), get("block", 0) != 0);
    for me in 0..round.seats.len() {
        let round = Arc::clone(&round);
        tokio::spawn(async move {
            let (mut seen, mut random) = (0, Random::new(me as u64 + 1));
            while !STOP.load(Relaxed) {
                if !round.is_new(me, &mut seen) {
                    match round.exhausts {
                        true => round.seats[me].notified().await,
                        false => tokio::task::yield_now().await,
                    }
                } else if round.is_led_by(me) {
                    let mut lead = || round.lead(me, &mut random, Notify::notify_one);
                    match blocks {
                        // The processor's other tasks move to another thread first.
                        true => tokio::task::block_in_place(lead),
                        false => lead(),
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
            let (release, all) = (Arc::clone(&release), Arc::clone(all));
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

fn spawn_spawn(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    tokio::spawn(async move {
        let at_once = get("at_once", 1);
        let mut handles = Vec::new();
        loop {
            handles.extend((0..at_once).map(|_| tokio::spawn(async {})));
            for handle in handles.drain(..) {
                handle.await.unwrap();
                if !batch.count() {
                    return;
                }
            }
        }
    });
}

fn spawn_mutex(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    tokio::spawn(async move {
        let mutex = tokio::sync::Mutex::new(0u64);
        loop {
            *std::hint::black_box(&mutex).lock().await += 1;
            if !batch.count() {
                return;
            }
        }
    });
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
    let (count, period) = (get("threads", 0), Duration::from_millis(get("period_ms", 60_000)));
    let (woken, asleep) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for at in 0..count {
        let (woken, asleep) = (Arc::clone(&woken), Arc::clone(&asleep));
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
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu_before);
    let ops = woken.load(Relaxed) - before;
    Some(format!("{{\"ops\":{ops},\"seconds\":{seconds},\"cpu_seconds\":{cpu}}}"))
}
