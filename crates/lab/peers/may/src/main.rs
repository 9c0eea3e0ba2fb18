//! The thesis's programs on may's coroutines. `peer PROGRAM key=value...` prints one JSON object.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use may::coroutine::{Coroutine, park, spawn, yield_now};
use may::sync::Semphore as Semaphore;

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
    may::config().set_workers(get("processors", 1) as usize);
    let line = match program.as_str() {
        "yield" => timed(spawn_yield),
        "cycle" => timed(spawn_cycle),
        "churn" => timed(spawn_churn),
        "locality" => timed(spawn_locality),
        "transfer" => transfer(),
        "memory" => memory(),
        "spawn" => timed(spawn_spawn),
        "mutex" => timed(spawn_mutex),
        other => {
            eprintln!("no program {other}");
            std::process::exit(3)
        }
    };
    println!("{line}");
    std::process::exit(0);
}

fn timed(spawn_all: fn(&Arc<AtomicU64>)) -> String {
    let total = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    spawn_all(&total);
    std::thread::sleep(Duration::from_millis(get("ms", 1000)));
    STOP.store(true, Relaxed);
    result(total.load(Relaxed), start.elapsed())
}

fn result(ops: u64, elapsed: Duration) -> String {
    format!("{{\"ops\":{ops},\"seconds\":{}}}", elapsed.as_secs_f64())
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

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// Starts a coroutine. may calls this unsafe because coroutines move between threads; these hold nothing that minds.
fn go(f: impl FnOnce() + Send + 'static) {
    // SAFETY: see above.
    unsafe { spawn(f) };
}

fn spawn_yield(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        let mut batch = Batch(Arc::clone(total), 0);
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
            let (spots, mut batch) = (Arc::clone(&spots), Batch(Arc::clone(total), 0));
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
        let (ring, mut batch) = (Arc::clone(&links), Batch(Arc::clone(total), 0));
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
        let (spots, mut batch) = (Arc::clone(&spots), Batch(Arc::clone(total), 0));
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
        let (spots, mut batch) = (Arc::clone(&spots), Batch(Arc::clone(total), 0));
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

struct Round {
    epoch: AtomicU64,
    leader: AtomicU64,
    done: AtomicU64,
    acks: Vec<AtomicU64>,
    seats: Vec<Semaphore>,
    exhausts: bool,
    wanted: u64,
}

impl Round {
    fn lead(&self, me: usize, random: &mut Random) {
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
            self.seats.iter().for_each(Semaphore::post);
        }
    }
}

fn transfer() -> String {
    let count = get("threads", 100) as usize;
    let round = Arc::new(Round {
        epoch: AtomicU64::new(1),
        leader: AtomicU64::new(0),
        done: AtomicU64::new(0),
        acks: (0..count).map(|_| AtomicU64::new(0)).collect(),
        seats: (0..count).map(|_| Semaphore::new(0)).collect(),
        exhausts: get("exhaust", 0) != 0,
        wanted: get("transfers", 100),
    });
    let start = Instant::now();
    for me in 0..count {
        let round = Arc::clone(&round);
        go(move || {
            let (mut seen, mut random) = (0, Random::new(me as u64 + 1));
            while !STOP.load(Relaxed) {
                let now = round.epoch.load(Acquire);
                if now == seen {
                    if round.exhausts {
                        round.seats[me].wait();
                    } else {
                        yield_now();
                    }
                    continue;
                }
                seen = now;
                round.acks[me].store(now, Release);
                if round.leader.load(Acquire) == me as u64 {
                    round.lead(me, &mut random);
                }
            }
        });
    }
    let limit = Duration::from_millis(get("limit_ms", 5000));
    while !STOP.load(Relaxed) && start.elapsed() < limit {
        std::thread::sleep(Duration::from_micros(100));
    }
    STOP.store(true, Relaxed);
    result(round.done.load(Relaxed), start.elapsed())
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn memory() -> String {
    let count = get("threads", 100_000);
    let (resident, virtual_) = (status("VmRSS") + status("VmPTE"), status("VmSize"));
    let (parked, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let mut handles = Vec::new();
    for _ in 0..count {
        let (parked, ended) = (Arc::clone(&parked), Arc::clone(&ended));
        // SAFETY: as in `go`.
        handles.push(unsafe {
            spawn(move || {
                parked.fetch_add(1, Relaxed);
                park();
                ended.fetch_add(1, Relaxed);
            })
        });
    }
    let wait = |counter: &AtomicU64| {
        while counter.load(Relaxed) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait(&parked);
    let started = start.elapsed();
    let (resident, virtual_) = (status("VmRSS") + status("VmPTE") - resident, status("VmSize") - virtual_);
    let start = Instant::now();
    handles.iter().for_each(|handle| handle.coroutine().unpark());
    wait(&ended);
    format!(
        "{{\"ops\":{count},\"seconds\":{},\"end_seconds\":{},\"resident_bytes\":{resident},\"virtual_bytes\":{virtual_}}}",
        started.as_secs_f64(),
        start.elapsed().as_secs_f64()
    )
}

fn spawn_spawn(total: &Arc<AtomicU64>) {
    let mut batch = Batch(Arc::clone(total), 0);
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
    let mut batch = Batch(Arc::clone(total), 0);
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
