//! The numbers of docs/fiber/cost.md: atomics, clock reads and system calls of each operation.
//! A child runs the operations one instruction at a time.

#![cfg(target_arch = "x86_64")]

extern crate weftwork_fiber as fiber;

mod stepping;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fiber::sync::{Mutex, Semaphore, mpsc};
use fiber::{BackendChoice, Flow, Runtime, Stackless};

const WARM_UP: usize = 100;
/// Number of marks; the intervals between them are counted.
const MARKS: usize = 8;
const LONG: Duration = Duration::from_secs(3600);

/// An operation, by its name in the page.
struct Operation {
    name: &'static str,
    /// Operations between two marks.
    count: u64,
    run: fn(&Runtime),
}

const fn operation(name: &'static str, count: u64, run: fn(&Runtime)) -> Operation {
    Operation { name, count, run }
}

const OPERATIONS: &[Operation] = &[
    operation("yield", 2, |runtime| {
        runtime.run(|| beside(fiber::yield_now, fiber::yield_now));
    }),
    operation("unpark + park", 2, |runtime| {
        runtime.run(|| with_partner(fiber::park));
    }),
    operation("unpark + park with a time-out", 2, |runtime| {
        runtime.run(|| with_partner(|| fiber::park_timeout(LONG)));
    }),
    operation("post + wait", 2, |runtime| runtime.run(posts_and_waits)),
    operation("post + wait, nothing waits", 1, |runtime| {
        let semaphore = Semaphore::new(0);
        runtime.run(move || {
            repeat(|| {
                semaphore.release(1);
                semaphore.acquire().forget();
            })
        });
    }),
    operation("mutex, lock + unlock", 1, |runtime| {
        let mutex = Mutex::new(0);
        runtime.run(move || repeat(|| *mutex.lock().unwrap() += 1));
    }),
    operation("send + receive", 2, |runtime| runtime.run(sends_and_receives)),
    operation("send + receive, nothing waits", 1, |runtime| {
        let (sender, receiver) = mpsc::sync_channel(8);
        runtime.run(move || {
            repeat(|| {
                sender.send(1).unwrap();
                receiver.recv().unwrap();
            })
        });
    }),
    operation("spawn + join", 1, |runtime| {
        runtime.run(|| repeat(|| fiber::spawn(|| {}).join().unwrap()));
    }),
    operation("stackless step", 1, |runtime| runtime.run(steps)),
    operation("remote unpark", 1, |runtime| unparks_remotely(runtime, true)),
    operation("remote unpark of a sleeper", 1, |runtime| {
        unparks_remotely(runtime, false);
    }),
];

/// Marks before each call; never returns.
fn repeat(mut call: impl FnMut()) {
    (0..WARM_UP).for_each(|_| call());
    stepping::begin();
    for _ in 0..MARKS {
        stepping::mark();
        call();
    }
    stop();
}

fn stop() -> ! {
    stepping::pause();
    stepping::end();
    std::process::exit(0);
}

/// Marks in one fiber, while another does the same as well.
fn beside(first: impl FnMut(), mut second: impl FnMut() + Send + 'static) {
    fiber::spawn(move || {
        loop {
            second();
        }
    });
    repeat(first);
}

/// Hands over to another fiber and back.
fn with_partner(park: fn()) {
    let first = fiber::current().unwrap();
    let second = fiber::spawn(move || {
        loop {
            park();
            first.unpark();
        }
    });
    fiber::yield_now();
    repeat(|| {
        second.fiber().unpark();
        park();
    });
}

fn posts_and_waits() {
    let semaphores = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
    let others = Arc::clone(&semaphores);
    let first = move || {
        semaphores[0].release(1);
        semaphores[1].acquire().forget();
    };
    let second = move || {
        others[0].acquire().forget();
        others[1].release(1);
    };
    beside(first, second);
}

fn sends_and_receives() {
    let (there, from_here) = mpsc::sync_channel(8);
    let (back, from_there) = mpsc::sync_channel(8);
    let first = move || {
        there.send(1).unwrap();
        from_there.recv().unwrap();
    };
    let second = move || back.send(from_here.recv().unwrap()).unwrap();
    beside(first, second);
}

/// Steps with a mark each.
struct Steps {
    left: usize,
}

impl Stackless for Steps {
    fn begin(&mut self) -> Flow {
        Flow::Yield
    }

    fn resumed(&mut self) -> Flow {
        match self.left {
            0 => stop(),
            MARKS => stepping::begin(),
            1..MARKS => stepping::mark(),
            _ => {}
        }
        self.left -= 1;
        Flow::Yield
    }
}

fn steps() {
    fiber::spawn_stackless(Steps { left: WARM_UP + MARKS });
    loop {
        fiber::park();
    }
}

/// Unparks a fiber from a plain thread. Its processor runs another meanwhile, or sleeps.
fn unparks_remotely(runtime: &Runtime, is_awake: bool) {
    let parks = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&parks);
    let parking = runtime.spawn(move || {
        loop {
            counting.fetch_add(1, Ordering::SeqCst);
            fiber::park();
        }
    });
    if is_awake {
        runtime.spawn(keep_awake);
    }
    let sleeps = || runtime.counters()[0].sleeps;
    let mut slept = 0;
    for round in 0..WARM_UP + MARKS {
        while parks.load(Ordering::SeqCst) <= round || !is_awake && sleeps() == slept {
            std::thread::yield_now();
        }
        slept = sleeps();
        IS_STEPPED.store(true, Ordering::SeqCst);
        while is_awake && !IS_HELD.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        match round.cmp(&WARM_UP) {
            std::cmp::Ordering::Equal => stepping::begin(),
            std::cmp::Ordering::Greater => stepping::mark(),
            std::cmp::Ordering::Less => {}
        }
        parking.fiber().unpark();
        if round > WARM_UP {
            stepping::pause();
        }
        IS_STEPPED.store(false, Ordering::SeqCst);
    }
    stop();
}

static IS_STEPPED: AtomicBool = AtomicBool::new(false);
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Keeps the processor from its inbox while a thread is stepped that may hold the inbox's lock: it
/// would wait for the lock, and the thread would make a system call to wake it.
fn keep_awake() {
    loop {
        while IS_STEPPED.load(Ordering::SeqCst) {
            IS_HELD.store(true, Ordering::SeqCst);
        }
        IS_HELD.store(false, Ordering::SeqCst);
        fiber::yield_now();
    }
}

/// The numbers of an operation in the page.
fn row<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("| {name} |");
    let row = page.lines().find_map(|line| line.strip_prefix(&begin));
    let cells = row.unwrap_or_default().split('|');
    cells.take(3).map(str::trim).collect()
}

#[test]
fn page_has_the_costs() {
    const NAME: &str = "page_has_the_costs";
    if let Ok(name) = std::env::var("OPERATION") {
        let operation = OPERATIONS.iter().find(|operation| operation.name == name);
        let builder = Runtime::builder().processors(1);
        let runtime = builder.backend(BackendChoice::Uring).start().unwrap();
        (operation.unwrap().run)(&runtime);
    }
    let page = include_str!("../../../docs/fiber/cost.md");
    let work_of = |operation: &Operation| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
        stepping::run(child.env("OPERATION", operation.name))
    };
    // Two at a time: a program and its stepper take turns.
    let (first, second) = OPERATIONS.split_at(OPERATIONS.len() / 2);
    let works = std::thread::scope(|scope| {
        let halves = [first, second];
        let halves =
            halves.map(|half| scope.spawn(move || half.iter().map(work_of).collect::<Vec<_>>()));
        halves.map(|half| half.join().unwrap()).concat()
    });
    let mut differences = Vec::new();
    for (Operation { name, count, .. }, work) in OPERATIONS.iter().zip(works) {
        println!("{name}: {} instructions", work.instructions / count);
        let counted = [work.atomics, work.clock_reads, work.system_calls];
        let each = counted.map(|all| (all as f64 / *count as f64).to_string());
        let told = row(page, name);
        if told != each {
            differences.push(format!("{name}: {each:?}, in the page {told:?}"));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
