//! The thesis's programs on may's coroutines. `peer PROGRAM key=value...` prints one JSON object.

mod common;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use common::{Batch, Parked, Random, Round, STOP, get};
use may::coroutine::{Coroutine, JoinHandle, park, spawn, yield_now};
use may::sync::{Mutex, Semphore as Semaphore};

/// Starts a coroutine. may calls this unsafe because coroutines move between threads; these hold
/// nothing that depends on the thread.
fn go<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // SAFETY: see above.
    unsafe { spawn(f) }
}

macro_rules! go { ($body:block) => { go(move || $body) }; }
macro_rules! give_way { () => { yield_now() }; }
macro_rules! wait { ($semaphore:expr) => { $semaphore.wait() }; }
macro_rules! post { ($semaphore:expr) => { $semaphore.post() }; }
macro_rules! sleep { ($notifier:expr) => { $notifier.wait() }; }
macro_rules! wake { ($notifier:expr) => { $notifier.post() }; }
macro_rules! lock { ($mutex:expr) => { $mutex.lock().unwrap() }; }
macro_rules! join { ($handle:expr) => { $handle.join().unwrap() }; }

type Notifier = Semaphore;

fn notifier() -> Notifier {
    Semaphore::new(0)
}

mod programs;

use programs::{RING, semaphore_ring};

fn main() {
    common::run(|program| {
        may::config().set_workers(get("processors", 1) as usize);
        match program {
            "yield" => common::timed(programs::yields),
            "cycle" => common::timed(spawn_cycle),
            "churn" => common::timed(programs::churn),
            "locality" => common::timed(programs::locality),
            "transfer" => transfer(),
            "memory" => memory(),
            "spawn" => common::timed(programs::spawn_and_join),
            "mutex" => common::timed(programs::mutex),
            _ => None,
        }
    })
}

/// A member of a ring that parks: its turn, and the coroutine to wake.
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
        match get("semaphore", 0) {
            0 => spawn_parking_ring(total),
            _ => semaphore_ring(total),
        }
    }
}

fn spawn_parking_ring(total: &Arc<AtomicU64>) {
    let links: Arc<[Link; RING]> = Arc::new(std::array::from_fn(|_| Link::default()));
    for at in 0..RING {
        let ring = Arc::clone(&links);
        let mut batch = Batch::of(total);
        let handle = go!({
            loop {
                while !ring[at].has_token.swap(false, Acquire) {
                    park();
                }
                ring[(at + 1) % RING].wake();
                if !batch.count() {
                    return;
                }
            }
        });
        let _ = links[at].coroutine.set(handle.coroutine().clone());
    }
    links[0].wake();
}

fn transfer() -> Option<String> {
    let round = Round::new(|| Semaphore::new(0));
    let start = Instant::now();
    for me in 0..round.signals.len() {
        let round = Arc::clone(&round);
        go!({
            let mut seen = 0;
            let mut random = Random::new(me as u64 + 1);
            while !STOP.load(Relaxed) {
                if !round.is_new(me, &mut seen) {
                    if round.exhausts {
                        round.signals[me].wait();
                    } else {
                        yield_now();
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
            go!({
                all.parked.fetch_add(1, Relaxed);
                park();
                all.ended.fetch_add(1, Relaxed);
            })
        };
        (0..count).map(one).collect()
    };
    let release = |all: &Vec<JoinHandle<_>>| all.iter().for_each(|one| one.coroutine().unpark());
    common::memory(start, release)
}
