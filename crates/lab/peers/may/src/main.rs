//! The thesis's programs on may's coroutines. `peer PROGRAM key=value...` prints one JSON object.

mod common;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use common::{Batch, Parked, Random, Round, STOP, get};
use may::coroutine::{Coroutine, JoinHandle, park, spawn, yield_now};
use may::sync::Semphore as Semaphore;

fn main() {
    common::run(|program| {
        may::config().set_workers(get("processors", 1) as usize);
        match program {
            "yield" => common::timed(spawn_yield),
            "cycle" => common::timed(spawn_cycle),
            "churn" => common::timed(spawn_churn),
            "locality" => common::timed(spawn_locality),
            "transfer" => transfer(),
            "memory" => memory(),
            "spawn" => common::timed(spawn_spawn),
            "mutex" => common::timed(spawn_mutex),
            _ => None,
        }
    })
}

/// Starts a coroutine. may calls this unsafe because coroutines move between threads; these hold nothing that minds.
fn go(f: impl FnOnce() + Send + 'static) {
    // SAFETY: see above.
    unsafe { spawn(f) };
}

fn spawn_yield(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        let mut batch = Batch::of(total);
        go(move || {
            while batch.count() {
                yield_now();
            }
        });
    }
}

const RING: usize = 5;

/// One of a ring that parks: whether it is its turn, and whom to wake.
#[derive(Default)]
struct Link {
    has_token: AtomicBool,
    coroutine: OnceLock<Coroutine>,
}

impl Link {
    fn wake(&self) {
        self.has_token.store(true, Release);
        if let Some(coroutine) = self.coroutine.get() {
            coroutine.unpark();
        }
    }
}

fn spawn_cycle(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        if get("semaphore", 0) == 0 {
            spawn_parking_ring(total);
            continue;
        }
        let spots: Arc<[Semaphore; RING]> = Arc::new(std::array::from_fn(|_| Semaphore::new(0)));
        for at in 0..RING {
            let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
            go(move || {
                loop {
                    spots[at].wait();
                    spots[(at + 1) % RING].post();
                    if !batch.count() {
                        return;
                    }
                }
            });
        }
        spots[0].post();
    }
}

fn spawn_parking_ring(total: &Arc<AtomicU64>) {
    let links: Arc<[Link; RING]> = Arc::new(std::array::from_fn(|_| Link::default()));
    for at in 0..RING {
        let (ring, mut batch) = (Arc::clone(&links), Batch::of(total));
        // SAFETY: as in `go`.
        let handle = unsafe {
            spawn(move || {
                loop {
                    while !ring[at].has_token.swap(false, Acquire) {
                        park();
                    }
                    ring[(at + 1) % RING].wake();
                    if !batch.count() {
                        return;
                    }
                }
            })
        };
        let _ = links[at].coroutine.set(handle.coroutine().clone());
    }
    links[0].wake();
}

fn spawn_churn(total: &Arc<AtomicU64>) {
    let count = get("spots", 50) as usize;
    let spots: Arc<Vec<Semaphore>> = Arc::new((0..count).map(|_| Semaphore::new(0)).collect());
    for seed in 0..get("threads", 100) {
        let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
        go(move || {
            let mut random = Random::new(seed + 1);
            let mut posts = seed as usize >= spots.len();
            loop {
                let spot = &spots[random.below(spots.len())];
                if posts {
                    spot.post();
                }
                posts = true;
                spot.wait();
                if !batch.count() {
                    return;
                }
            }
        });
    }
}

struct Seat {
    woken: Semaphore,
    data: AtomicPtr<Vec<u64>>,
}

fn spawn_locality(total: &Arc<AtomicU64>) {
    let (threads, processors) = (get("threads", 100), get("processors", 1));
    let spots = threads.saturating_sub(processors).max(1) as usize;
    let spots: Arc<Vec<AtomicPtr<Seat>>> = Arc::new((0..spots).map(|_| AtomicPtr::default()).collect());
    for seed in 0..threads {
        let (spots, mut batch) = (Arc::clone(&spots), Batch::of(total));
        go(move || {
            let mut random = Random::new(seed + 1);
            let words = get("words", 100) as usize;
            let first = Box::into_raw(Box::new(vec![0u64; words]));
            let seat: &'static Seat = Box::leak(Box::new(Seat {
                woken: Semaphore::new(0),
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
                    other.woken.post();
                }
                seat.woken.wait();
                if !batch.count() {
                    return;
                }
            }
        });
    }
}

fn transfer() -> Option<String> {
    let (round, start) = (Round::new(|| Semaphore::new(0)), Instant::now());
    for me in 0..round.seats.len() {
        let round = Arc::clone(&round);
        go(move || {
            let (mut seen, mut random) = (0, Random::new(me as u64 + 1));
            while !STOP.load(Relaxed) {
                if !round.is_new(me, &mut seen) {
                    match round.exhausts {
                        true => round.seats[me].wait(),
                        false => yield_now(),
                    }
                } else if round.is_led_by(me) {
                    round.lead(me, &mut random, Semaphore::post);
                }
            }
        });
    }
    round.end(start)
}

fn memory() -> Option<String> {
    let start = |count, all: &Arc<Parked>| {
        let one = |_| {
            let all = Arc::clone(all);
            let parks = move || {
                all.parked.fetch_add(1, Relaxed);
                park();
                all.ended.fetch_add(1, Relaxed);
            };
            // SAFETY: as in `go`.
            unsafe { spawn(parks) }
        };
        (0..count).map(one).collect()
    };
    let release = |all: &Vec<JoinHandle<_>>| all.iter().for_each(|one| one.coroutine().unpark());
    common::memory(start, release)
}

fn spawn_spawn(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    go(move || {
        let at_once = get("at_once", 1);
        let mut handles = Vec::new();
        loop {
            // SAFETY: as in `go`.
            handles.extend((0..at_once).map(|_| unsafe { spawn(|| {}) }));
            for handle in handles.drain(..) {
                handle.join().unwrap();
                if !batch.count() {
                    return;
                }
            }
        }
    });
}

fn spawn_mutex(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    go(move || {
        let mutex = may::sync::Mutex::new(0u64);
        loop {
            *std::hint::black_box(&mutex).lock().unwrap() += 1;
            if !batch.count() {
                return;
            }
        }
    });
}
