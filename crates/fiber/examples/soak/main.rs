//! A long mixed workload with cancellation at random, that must leave nothing behind.
//!
//! ```text
//! cargo run --release -p weftwork-fiber --example soak -- --seconds 1800
//! ```
//!
//! In rounds: a runtime starts (back end and number of processors by the dice), fibers talk over
//! sockets, pipes and datagrams, write and read files, sleep, wait for each other and for children,
//! go to another runtime's cluster and come back, are cancelled, while processors are added and
//! removed, and the runtimes are shut down. Every byte that is answered is compared. After each
//! round no fiber, stack, descriptor, thread or buffer may be left, and the memory must not have
//! grown from round to round.
//!
//! The seed is printed; `--seed` makes the same choices again (the timing still varies).
//! Exit code 0: nothing was lost; 1: the message says what.

extern crate weftwork_fiber as fiber;

mod dice;
mod locks;
mod memory;
mod play;
mod resize;
mod scenes;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fiber::{BackendChoice, Runtime, offload_counters, resources};

use dice::Dice;
use play::{Outcomes, Stage};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const ROUND: Duration = Duration::from_secs(10);

/// After the first rounds (threads, tables and pools have grown to their sizes), live memory may
/// vary by so much.
const GROWTH_BYTES_MAX: usize = 8 << 20;
const ROUNDS_TO_SETTLE: usize = 4;

struct Settings {
    duration: Duration,
    seed: u64,
}

fn main() -> ExitCode {
    let settings = match settings(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("{message}\nusage: soak [--seconds N] [--seed N]");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", settings.seed);
    match soak(&settings) {
        Ok(total) => {
            println!("nothing was lost: {total}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            println!("LOST, with seed {}: {message}", settings.seed);
            ExitCode::FAILURE
        }
    }
}

fn settings(mut arguments: impl Iterator<Item = String>) -> Result<Settings, String> {
    let mut seconds = 30 * 60;
    let mut seed = u64::from(std::process::id()) ^ now_ns();
    while let Some(name) = arguments.next() {
        let number = arguments.next().and_then(|value| value.parse().ok());
        let number = number.ok_or(format!("{name} wants a number"))?;
        match name.as_str() {
            "--seconds" => seconds = number,
            "--seed" => seed = number,
            _ => return Err(format!("no such option: {name}")),
        }
    }
    let duration = Duration::from_secs(seconds);
    Ok(Settings { duration, seed })
}

fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// Runs rounds until the time is over; returns the sum of their outcomes.
fn soak(settings: &Settings) -> Result<Outcomes, String> {
    let start = Instant::now();
    let mut dice = Dice::new(settings.seed);
    let mut total = Outcomes::default();
    let mut settled_bytes = None;
    // An idle runtime first opens everything that a process opens only once.
    let baseline = Baseline::after_a_first_runtime();
    for round in 0.. {
        let left = settings.duration.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        let outcomes = play_round(&mut dice, left.min(ROUND), &baseline, round)?;
        total.add(&outcomes);
        let live_bytes = memory::live_bytes();
        if round + 1 == ROUNDS_TO_SETTLE {
            settled_bytes = Some(live_bytes);
        }
        let allowed = settled_bytes.map_or(usize::MAX, |settled| settled + GROWTH_BYTES_MAX);
        if live_bytes > allowed {
            return Err(format!("{live_bytes} bytes are in use, {allowed} were expected at most"));
        }
    }
    Ok(total)
}

fn play_round(
    dice: &mut Dice,
    duration: Duration,
    baseline: &Baseline,
    round: usize,
) -> Result<Outcomes, String> {
    let backend = dice.pick(&[BackendChoice::Auto, BackendChoice::Epoll]);
    let processors = 1 + dice.below(4) as usize;
    let seed = dice.number();
    let start = Instant::now();
    let runtime = Runtime::builder()
        .processors(processors)
        .backend(backend)
        .start()
        .map_err(|error| format!("a runtime does not start: {error}"))?;
    let kind = runtime.backend();
    // Runtime that fibers visit for a while, of either back end as well.
    let abroad = Runtime::builder()
        .processors(1 + dice.below(2) as usize)
        .backend(dice.pick(&[BackendChoice::Auto, BackendChoice::Epoll]))
        .start()
        .map_err(|error| format!("a runtime does not start: {error}"))?;
    let (kind, to_abroad) = (format!("{kind} and {}", abroad.backend()), abroad.cluster());
    let looker = Looker::start(runtime.inspector());
    let seeds = [dice.number(), dice.number()];
    let ((outcomes, resized), resized_abroad) = resize::during(&abroad, seeds[0], || {
        resize::during(&runtime, seeds[1], || {
            runtime.run(move || Stage::new(seed, start + duration, to_abroad).play())
        })
    });
    looker.stop();
    let in_round = |lost| format!("round {round} ({kind}): {lost}");
    let resized = resized.map_err(in_round)?;
    let resized_abroad = resized_abroad.map_err(in_round)?;
    let counters = runtime.counters();
    let ended = runtime.shutdown_with(Duration::from_secs(10), Duration::from_secs(10));
    let ended_abroad = abroad.shutdown_with(Duration::from_secs(10), Duration::from_secs(10));
    println!(
        "round {round}: {kind}, {processors} processors, {:.1} s: {outcomes}; {} bytes live",
        start.elapsed().as_secs_f64(),
        memory::live_bytes()
    );
    let cancelled: u64 = counters.iter().map(|c| c.operations_cancelled).sum();
    println!(
        "         {cancelled} operations cancelled; {resized}; abroad {resized_abroad}; {}",
        offload_counters()
    );
    if let Some(wrong) = outcomes.wrong {
        return Err(format!("round {round} ({kind}): {wrong}"));
    }
    if ended.left + ended_abroad.left > 0 {
        return Err(format!(
            "round {round} ({kind}): {} fibers did not end, and {} abroad",
            ended.left, ended_abroad.left
        ));
    }
    baseline.compare().map_err(|lost| format!("round {round} ({kind}): {lost}"))?;
    Ok(outcomes)
}

/// A thread that dumps all fibers, with backtraces, again and again.
struct Looker {
    over: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Looker {
    fn start(inspector: fiber::Inspector) -> Looker {
        let (over, is_over) = mpsc::channel();
        let pause = Duration::from_millis(100);
        let look = move || {
            while is_over.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                drop(inspector.dump());
                drop(inspector.dump_with_backtraces());
            }
        };
        let thread = std::thread::spawn(look);
        Looker { over, thread }
    }

    fn stop(self) {
        drop(self.over);
        self.thread.join().expect("looking at fibers does not panic");
    }
}

/// Descriptors and threads of a process that has run fibers and runs none.
struct Baseline {
    descriptors: usize,
}

/// Kernel threads of this process, by name: those of processors must have ended with their runtime.
fn processor_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let is_processor = |task: std::io::Result<std::fs::DirEntry>| {
        let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
        name.is_ok_and(|name| name.starts_with("processor-"))
    };
    tasks.map(is_processor).filter(|&is| is).count()
}

impl Baseline {
    fn after_a_first_runtime() -> Baseline {
        fiber::run(|| fiber::offload(|| ()));
        Baseline { descriptors: open_descriptors().len() }
    }

    fn compare(&self) -> Result<(), String> {
        // Calls that were given up end by themselves, and may hold a descriptor until then.
        let patience = Instant::now() + Duration::from_secs(10);
        while offload_counters().active + offload_counters().waiting > 0 {
            if Instant::now() > patience {
                return Err(format!("offloaded calls do not end: {}", offload_counters()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let held = resources();
        if (held.stacks_taken, held.rings_left, held.buffers_left) != (0, 0, 0) {
            return Err(format!("{held:?}"));
        }
        match processor_threads() {
            0 => {}
            left => return Err(format!("{left} threads of processors are left")),
        }
        let open = open_descriptors();
        if open.len() == self.descriptors {
            Ok(())
        } else {
            Err(format!("{} descriptors before, now {open:#?}", self.descriptors))
        }
    }
}

fn open_descriptors() -> Vec<String> {
    let listing = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let target = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        Some(format!("{} -> {}", path.display(), target.display()))
    };
    listing.filter_map(target).collect()
}
