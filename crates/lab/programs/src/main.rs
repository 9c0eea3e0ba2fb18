//! The thesis's programs on fibers: `weft lab` runs them as the system `weft`, each in a process of
//! its own.  `weft-programs NAME key=value...` prints one JSON line, a [`lab::Output`].
//! `crates/lab/peers` has the same programs on other runtimes. `dispatch` and `no-wire` have no
//! fibers. Three programs are of another kind: `ceiling` and `files`, which are bare responders,
//! and `relay`, a bad link.

mod ceiling;
mod dispatch;
mod files;
mod no_wire;
mod primitives;
mod relay;

use std::collections::HashMap;
use std::env;
use std::fs;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use fiber::sync::Semaphore;
use fiber::{Builder, Fiber, Flow, Runtime, Stackless};
use lab::Output;

fn main() -> ExitCode {
    let mut words = env::args().skip(1);
    let Some(name) = words.next() else {
        eprintln!("usage: weft-programs NAME [key=value...]; `weft lab run` starts it");
        return ExitCode::from(2);
    };
    if matches!(&*name, "ceiling" | "files" | "relay") {
        let words: Vec<String> = words.collect();
        let ended = match &*name {
            "ceiling" => ceiling::run(&words),
            "files" => files::run(&words),
            _ => relay::run(&words),
        };
        let why = ended.expect_err("it goes on until it is killed");
        eprintln!("weft-programs: {why}");
        return ExitCode::from(2);
    }
    match run(&name, words) {
        Ok(output) => {
            let line = serde_json::to_string(&output).expect("numbers alone");
            println!("{line}");
            // Fibers that still run are abandoned.
            process::exit(0);
        }
        Err(why) if why == ABSENT => ExitCode::from(lab::EXIT_ABSENT),
        Err(why) => {
            eprintln!("weft-programs: {why}");
            ExitCode::from(2)
        }
    }
}

/// Runs a program.
///
/// # Errors
/// A mistake in its name or parameters.
fn run(name: &str, parameters: impl Iterator<Item = String>) -> Result<Output, String> {
    let parameters = Parameters::parse(parameters)?;
    match name {
        "yield" => yields(&parameters),
        "cycle" if parameters.get("semaphore", 0) != 0 => semaphore_cycle(&parameters),
        "cycle" => cycle(&parameters),
        "churn" => churn(&parameters),
        "locality" => locality(&parameters),
        "transfer" => transfer(&parameters),
        "memory" => memory(&parameters),
        "spawn" => primitives::spawn(&parameters),
        "mutex" => primitives::mutex(&parameters),
        "channel" => primitives::channel(&parameters),
        "crowd" => primitives::crowd(&parameters),
        "hand-over" => primitives::hand_over(&parameters),
        "dispatch" => dispatch::run(&parameters),
        "no-wire" => no_wire::run(&parameters),
        "idle" => primitives::idle(&parameters),
        "imbalance" => primitives::imbalance(&parameters),
        other => Err(format!("no program '{other}'")),
    }
}

/// Message for a program that this kind of fibers does not have.
const ABSENT: &str = "there is no such program for this kind of fibers";

/// Kind of fibers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pinned,
    Stackless,
    Migratable,
}

struct Parameters {
    numbers: HashMap<String, u64>,
    mode: Mode,
    dispatcher: Option<String>,
}

impl Parameters {
    fn parse(parameters: impl Iterator<Item = String>) -> Result<Parameters, String> {
        let (mut numbers, mut mode, mut dispatcher) = (HashMap::new(), Mode::Pinned, None);
        for parameter in parameters {
            let (key, value) = parameter
                .split_once('=')
                .ok_or_else(|| format!("'{parameter}' is not key=value"))?;
            if key == "mode" {
                mode = match value {
                    "pinned" => Mode::Pinned,
                    "stackless" => Mode::Stackless,
                    "migratable" => Mode::Migratable,
                    _ => return Err(format!("no mode '{value}'")),
                };
                continue;
            }
            if key == "dispatcher" {
                dispatcher = Some(value.to_owned());
                continue;
            }
            let number = value.parse().map_err(|_| format!("'{parameter}' is not a number"))?;
            numbers.insert(key.to_owned(), number);
        }
        Ok(Parameters { numbers, mode, dispatcher })
    }

    fn get(&self, name: &str, default: u64) -> u64 {
        self.numbers.get(name).copied().unwrap_or(default)
    }

    fn threads(&self) -> u64 {
        self.get("threads", 100)
    }

    fn runtime(&self) -> Result<Runtime, String> {
        let builder = Runtime::builder().processors(self.get("processors", 1) as usize);
        builder.start().map_err(|error| error.to_string())
    }

    /// Starts a fiber with frames.
    fn spawn(&self, runtime: &Runtime, f: impl FnOnce() + Send + 'static) -> Fiber {
        let builder = match self.mode {
            // SAFETY: the programs here hold nothing across a wait that is bound to a thread.
            Mode::Migratable => unsafe { Builder::new().migratable() },
            _ => Builder::new(),
        };
        let handle = runtime.spawn_with(builder, f);
        handle.expect("memory for a stack").fiber().clone()
    }

    /// Starts a fiber of the requested kind.
    fn start(&self, runtime: &Runtime, mut it: impl Looks) -> Fiber {
        if self.mode == Mode::Stackless {
            let handle = runtime.spawn_stackless_with(Builder::new(), OneStackless(it));
            return handle.fiber().clone();
        }
        self.spawn(runtime, move || {
            it.begin();
            while let Some(had_work) = it.look() {
                match it.idle() {
                    _ if had_work => {}
                    Flow::Park => fiber::park(),
                    _ => fiber::yield_now(),
                }
            }
        })
    }

    /// Lets the fibers run for a while and counts their operations. They are abandoned: the process
    /// ends.
    fn time(&self, start: Instant, total: &Total) -> Output {
        thread::sleep(Duration::from_millis(self.get("ms", 1000)));
        let ops = total.ops.load(Ordering::Relaxed);
        let elapsed = start.elapsed();
        total.is_over.store(true, Ordering::Relaxed);
        sample(ops, elapsed)
    }
}

/// Work of a fiber, stackful or stackless: it checks again and again for something to do.
trait Looks: Send + 'static {
    /// Work before the first check or, in a stackless fiber, before the first wait.
    fn begin(&mut self) {}

    /// Does the work that is due; returns false if there was none, `None` at the end.
    fn look(&mut self) -> Option<bool>;

    /// The wait after a check that found nothing: [`Flow::Yield`] or [`Flow::Park`].
    fn idle(&self) -> Flow;

    /// The flow after a step that found something.
    fn busy(&self) -> Flow {
        self.idle()
    }
}

struct OneStackless<L>(L);

impl<L: Looks> Stackless for OneStackless<L> {
    fn begin(&mut self) -> Flow {
        self.0.begin();
        self.0.idle()
    }

    fn resumed(&mut self) -> Flow {
        match self.0.look() {
            None => Flow::Done,
            Some(true) => self.0.busy(),
            Some(false) => self.0.idle(),
        }
    }
}

fn sample(ops: u64, elapsed: Duration) -> Output {
    Output { ops, seconds: elapsed.as_secs_f64(), ..Output::default() }
}

#[derive(Default)]
struct Total {
    ops: AtomicU64,
    is_over: AtomicBool,
}

/// A local counter that is published now and then, as in the other peers.
struct Batch {
    total: Arc<Total>,
    mine: u64,
}

impl Batch {
    fn of(total: &Arc<Total>) -> Batch {
        let total = Arc::clone(total);
        Batch { total, mine: 0 }
    }

    /// Counts one operation; `false` at the end of the run.
    fn count(&mut self) -> bool {
        self.mine += 1;
        if self.mine < 64 {
            return true;
        }
        let mine = std::mem::take(&mut self.mine);
        self.total.ops.fetch_add(mine, Ordering::Relaxed);
        !self.total.is_over.load(Ordering::Relaxed)
    }
}

/// xorshift64* (Vigna 2016): negligible cost, and the same in all peers.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

impl Looks for Batch {
    fn look(&mut self) -> Option<bool> {
        self.count().then_some(false)
    }

    fn idle(&self) -> Flow {
        Flow::Yield
    }
}

fn yields(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let start = Instant::now();
    for _ in 0..parameters.threads() {
        parameters.start(&runtime, Batch::of(&total));
    }
    Ok(parameters.time(start, &total))
}

const RING: usize = 5;

/// A fiber of a ring, and whether it has the token.
#[derive(Default)]
struct Link {
    has_token: AtomicBool,
    fiber: OnceLock<Fiber>,
}

/// Position in a ring.
struct Place {
    ring: Arc<[Link; RING]>,
    at: usize,
    batch: Batch,
}

impl Place {
    fn pass_on(&self) {
        let next = &self.ring[(self.at + 1) % RING];
        next.has_token.store(true, Ordering::Release);
        let fiber = next.fiber.get();
        fiber.expect("the token starts when all are there").unpark();
    }

    fn takes_token(&self) -> bool {
        self.ring[self.at].has_token.swap(false, Ordering::Acquire)
    }
}

impl Looks for Place {
    fn look(&mut self) -> Option<bool> {
        if !self.takes_token() {
            return Some(false);
        }
        self.pass_on();
        self.batch.count().then_some(true)
    }

    fn idle(&self) -> Flow {
        Flow::Park
    }
}

fn cycle(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let rings = (0..parameters.threads()).map(|_| Arc::default());
    let rings: Vec<Arc<[Link; RING]>> = rings.collect();
    let start = Instant::now();
    for ring in &rings {
        for at in 0..RING {
            let place = Place { ring: Arc::clone(ring), at, batch: Batch::of(&total) };
            let _ = ring[at].fiber.set(parameters.start(&runtime, place));
        }
        ring[0].has_token.store(true, Ordering::Release);
        ring[0].fiber.get().expect("just set").unpark();
    }
    Ok(parameters.time(start, &total))
}

/// Runs the ring with a semaphore per position, on which the thesis's fibers wait.
fn semaphore_cycle(parameters: &Parameters) -> Result<Output, String> {
    if parameters.mode == Mode::Stackless {
        // A stackless fiber can only wait for its input.
        return Err(ABSENT.to_owned());
    }
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let start = Instant::now();
    for _ in 0..parameters.threads() {
        let spots: Arc<[Semaphore; RING]> = Arc::new(std::array::from_fn(|_| Semaphore::new(0)));
        for at in 0..RING {
            let spots = Arc::clone(&spots);
            let mut batch = Batch::of(&total);
            parameters.spawn(&runtime, move || {
                loop {
                    spots[at].acquire().forget();
                    spots[(at + 1) % RING].release(1);
                    if !batch.count() {
                        return;
                    }
                }
            });
        }
        spots[0].release(1);
    }
    Ok(parameters.time(start, &total))
}

fn churn(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let count = parameters.get("spots", 50) as usize;
    let spots: Arc<Vec<_>> = Arc::new((0..count).map(|_| Semaphore::new(0)).collect());
    let start = Instant::now();
    for seed in 0..parameters.threads() {
        let spots = Arc::clone(&spots);
        let mut batch = Batch::of(&total);
        parameters.spawn(&runtime, move || {
            let mut random = Random::new(seed);
            // The first fibers, one per spot, begin by waiting.
            let mut posts = seed as usize >= spots.len();
            loop {
                let spot = &spots[random.below(spots.len())];
                if posts {
                    spot.release(1);
                }
                posts = true;
                spot.acquire().forget();
                if !batch.count() {
                    return;
                }
            }
        });
    }
    Ok(parameters.time(start, &total))
}

/// A fiber's wake-up and its array. Never freed: the process ends.
struct Waiter {
    woken: Semaphore,
    data: AtomicPtr<Vec<AtomicU64>>,
}

fn locality(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let total = Arc::new(Total::default());
    let threads = parameters.threads();
    let processors = parameters.get("processors", 1);
    let words = parameters.get("words", 100) as usize;
    let (touched, shares) = (parameters.get("touched", 10), parameters.get("share", 0) != 0);
    let count = threads.saturating_sub(processors).max(1);
    let slots: Arc<Vec<Slot>> = Arc::new((0..count).map(|_| Slot::default()).collect());
    let start = Instant::now();
    for seed in 0..threads {
        let slots = Arc::clone(&slots);
        let mut batch = Batch::of(&total);
        parameters.spawn(&runtime, move || {
            let mut random = Random::new(seed);
            let array = (0..words).map(|_| AtomicU64::new(0)).collect();
            let waiter: &'static Waiter = Box::leak(Box::new(Waiter {
                woken: Semaphore::new(0),
                data: AtomicPtr::new(Box::leak(Box::new(array))),
            }));
            loop {
                let mine = waiter.data.load(Ordering::Acquire);
                for _ in 0..touched {
                    // SAFETY: arrays are never freed.
                    let word = unsafe { &(&*mine)[random.below(words)] };
                    word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                if let Some(other) = slots[random.below(slots.len())].take_over(waiter) {
                    if shares {
                        let theirs = other.data.swap(mine, Ordering::AcqRel);
                        waiter.data.store(theirs, Ordering::Release);
                    }
                    other.woken.release(1);
                }
                waiter.woken.acquire().forget();
                if !batch.count() {
                    return;
                }
            }
        });
    }
    Ok(parameters.time(start, &total))
}

/// A slot, in which one fiber waits.
#[derive(Default)]
struct Slot(AtomicPtr<Waiter>);

impl Slot {
    /// Takes the slot, and returns the fiber that waited there.
    fn take_over(&self, waiter: &'static Waiter) -> Option<&'static Waiter> {
        let waiter = std::ptr::from_ref(waiter).cast_mut();
        let other = self.0.swap(waiter, Ordering::AcqRel);
        // SAFETY: only waiters that are never freed are put there.
        unsafe { other.as_ref() }
    }
}

#[derive(Default)]
struct Round {
    epoch: AtomicU64,
    leader: AtomicU64,
    done: AtomicU64,
    wanted: u64,
    is_over: AtomicBool,
    exhausts: bool,
    acks: Vec<AtomicU64>,
    fibers: Vec<OnceLock<Fiber>>,
}

impl Round {
    fn wake_all(&self) {
        let fibers = self.fibers.iter().filter_map(OnceLock::get);
        fibers.for_each(Fiber::unpark);
    }
}

/// A leader or follower.
struct Member {
    round: Arc<Round>,
    me: usize,
    seen: u64,
    random: Random,
}

impl Looks for Member {
    fn look(&mut self) -> Option<bool> {
        let round = &self.round;
        if round.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let epoch = round.epoch.load(Ordering::Acquire);
        if epoch == self.seen {
            return Some(false);
        }
        self.seen = epoch;
        round.acks[self.me].store(epoch, Ordering::Release);
        if round.leader.load(Ordering::Acquire) == self.me as u64 {
            self.lead(epoch);
        }
        Some(true)
    }

    fn idle(&self) -> Flow {
        if self.round.exhausts { Flow::Park } else { Flow::Yield }
    }

    fn busy(&self) -> Flow {
        Flow::Yield
    }
}

impl Member {
    /// Keeps the processor until all have acknowledged, then chooses the next leader.
    fn lead(&mut self, epoch: u64) {
        let round = &self.round;
        for ack in &round.acks {
            while ack.load(Ordering::Acquire) != epoch {
                if round.is_over.load(Ordering::Relaxed) {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        if round.done.fetch_add(1, Ordering::Relaxed) + 1 == round.wanted {
            round.is_over.store(true, Ordering::Relaxed);
        }
        let next = self.random.below(round.acks.len());
        round.leader.store(next as u64, Ordering::Release);
        round.epoch.fetch_add(1, Ordering::AcqRel);
        if round.exhausts {
            round.wake_all();
        }
    }
}

fn transfer(parameters: &Parameters) -> Result<Output, String> {
    let runtime = parameters.runtime()?;
    let count = parameters.threads() as usize;
    let round = Arc::new(Round {
        wanted: parameters.get("transfers", 100),
        exhausts: parameters.get("exhaust", 0) != 0,
        acks: (0..count).map(|_| AtomicU64::new(0)).collect(),
        fibers: (0..count).map(|_| OnceLock::new()).collect(),
        ..Round::default()
    });
    for me in 0..count {
        let member =
            Member { round: Arc::clone(&round), me, seen: 0, random: Random::new(me as u64) };
        let _ = round.fibers[me].set(parameters.start(&runtime, member));
    }
    let start = Instant::now();
    round.epoch.store(1, Ordering::Release);
    round.wake_all();
    let limit = Duration::from_millis(parameters.get("limit_ms", 5000));
    while !round.is_over.load(Ordering::Relaxed) && start.elapsed() < limit {
        thread::sleep(Duration::from_micros(100));
    }
    let ops = round.done.load(Ordering::Relaxed);
    let elapsed = start.elapsed();
    round.is_over.store(true, Ordering::Relaxed);
    // Fibers behind a leader that has not noticed the end are abandoned.
    std::mem::forget(runtime);
    Ok(sample(ops, elapsed))
}

fn memory(parameters: &Parameters) -> Result<Output, String> {
    struct Parked(Arc<AtomicU64>, Arc<AtomicBool>);
    impl Looks for Parked {
        fn begin(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn look(&mut self) -> Option<bool> {
            (!self.1.load(Ordering::Acquire)).then_some(false)
        }
        fn idle(&self) -> Flow {
            Flow::Park
        }
    }
    let runtime = parameters.runtime()?;
    let count = parameters.threads();
    let sizes = || (status("VmRSS:") + status("VmPTE:"), status("VmSize:"));
    let before = sizes();
    let parked = Arc::<AtomicU64>::default();
    let is_over = Arc::<AtomicBool>::default();
    let start = Instant::now();
    let mut fibers = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let it = Parked(Arc::clone(&parked), Arc::clone(&is_over));
        fibers.push(parameters.start(&runtime, it));
    }
    while parked.load(Ordering::Relaxed) < count {
        thread::sleep(Duration::from_millis(1));
    }
    let started = start.elapsed();
    let now = sizes();
    let start = Instant::now();
    is_over.store(true, Ordering::Release);
    fibers.iter().for_each(Fiber::unpark);
    let left = runtime.shutdown(Duration::from_secs(60));
    if left > 0 {
        return Err(format!("{left} fibers did not end"));
    }
    Ok(Output {
        end_seconds: Some(start.elapsed().as_secs_f64()),
        resident_bytes: Some(now.0 - before.0),
        virtual_bytes: Some(now.1 - before.1),
        ..sample(count, started)
    })
}

/// A figure of `/proc/self/status`, in bytes. proc_pid_status(5)
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
