//! Views of fibers from outside: dumps, stalls, debugger.

extern crate weftwork_fiber as fiber;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fiber::net::{Input, TcpListener, TcpStream};
use fiber::{
    BackendChoice, Builder, Dump, DumpedFiber, FiberState, Flow, Runtime, Source, Stackless,
};

fn runtime(processors: usize) -> Runtime {
    let builder = Runtime::builder().processors(processors);
    builder.start().unwrap()
}

/// Looks until the dump is as wanted, for a minute at most.
fn dump_when(runtime: &Runtime, is_wanted: impl Fn(&Dump) -> bool) -> Dump {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let dump = runtime.inspector().dump_with_backtraces();
        if is_wanted(&dump) {
            return dump;
        }
        assert!(Instant::now() < deadline, "the expected state never came: {dump}");
        std::thread::yield_now();
    }
}

fn named<'a>(dump: &'a Dump, name: &str) -> Option<&'a DumpedFiber> {
    let mut fibers = dump.fibers.iter();
    fibers.find(|fiber| fiber.name.as_deref() == Some(name))
}

fn waits(dump: &Dump, name: &str) -> bool {
    named(dump, name).is_some_and(|fiber| fiber.waits_for.is_some())
}

/// Not inlined, so that a backtrace has to name it.
#[inline(never)]
fn wait_in_a_function_of_mine() {
    fiber::park();
    std::hint::black_box(());
}

#[test]
fn dump_shows_parked_fiber() {
    let runtime = runtime(2);
    let builder = Builder::new().name("parked");
    let parked = runtime.spawn_with(builder, wait_in_a_function_of_mine).unwrap();
    let dump = dump_when(&runtime, |dump| {
        named(dump, "parked").is_some_and(|fiber| fiber.backtrace.is_some())
    });
    let seen = named(&dump, "parked").unwrap();
    assert_eq!(seen.state, FiberState::Waiting);
    assert_eq!(seen.waits_for.as_deref(), Some("unpark"));
    assert!(seen.spawned_at.contains("looking.rs"), "{dump}");
    assert!(seen.processor.is_some_and(|index| index < 2), "{dump}");
    let stack = seen.stack.unwrap();
    assert!((4096..=stack.usable_len).contains(&stack.touched_len), "{stack:?}");
    let backtrace = seen.backtrace.as_deref().unwrap();
    assert!(backtrace.contains("wait_in_a_function_of_mine"), "{backtrace}");
    // The fiber still waits, as if nothing had asked.
    assert!(!parked.is_finished());
    parked.fiber().unpark();
    parked.join().unwrap();
}

#[test]
fn dumps_disturb_no_receive() {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(2).backend(choice);
        let runtime = builder.start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reader = runtime.spawn(move || {
            let mut received = Vec::new();
            let mut stream = listener.accept().unwrap();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let sent: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        let bytes = sent.clone();
        let writer = std::thread::spawn(move || {
            use std::io::Write;
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            bytes.chunks(100).for_each(|piece| stream.write_all(piece).unwrap());
        });
        for _ in 0..100 {
            runtime.inspector().dump_with_backtraces();
        }
        writer.join().unwrap();
        assert!(reader.join().unwrap() == sent, "{choice:?}");
    }
}

#[test]
fn each_wait_is_named() {
    let runtime = runtime(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spawn = |name: &'static str, f: Box<dyn FnOnce() + Send>| {
        runtime.spawn_with(Builder::new().name(name), f).unwrap()
    };
    let sleeper = spawn("sleeper", Box::new(|| fiber::sleep(Duration::from_secs(3600))));
    let acceptor = spawn("acceptor", Box::new(move || drop(listener.accept())));
    let sleeping = sleeper.fiber().id();
    let joiner = spawn("joiner", Box::new(move || drop(sleeper.join())));
    let dump = dump_when(&runtime, |dump| {
        ["sleeper", "acceptor", "joiner"].iter().all(|name| waits(dump, name))
    });
    let reason = |name| named(&dump, name).unwrap().waits_for.clone().unwrap();
    assert_eq!(reason("sleeper"), "timer");
    assert!(reason("acceptor").starts_with("accept on descriptor "), "{}", reason("acceptor"));
    assert_eq!(reason("joiner"), format!("the end of {sleeping}"));
    let text = dump.to_string();
    assert!(text.starts_with("3 fibers\n"), "{text}");
    let json = dump.to_json();
    assert!(json.contains(r#""name":"sleeper","state":"waiting","waits_for":"timer""#), "{json}");
    drop((joiner, acceptor));
}

#[test]
fn waiting_stackless_has_no_stack() {
    struct Quiet(TcpStream);
    impl Stackless for Quiet {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, _: std::io::Result<Input>) -> Flow {
            Flow::Done
        }
    }
    let runtime = runtime(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap();
    let steps = runtime.spawn_stackless_with(Builder::new().name("quiet"), Quiet(far));
    let dump = dump_when(&runtime, |dump| {
        named(dump, "quiet").is_some_and(|fiber| fiber.state == FiberState::BetweenSteps)
    });
    assert_eq!(named(&dump, "quiet").unwrap().stack, None);
    drop(near);
    steps.join().unwrap();
}

#[test]
fn stall_report_names_the_function() {
    #[inline(never)]
    fn hog_the_processor(is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }
    let (sender, stalls) = mpsc::channel();
    let runtime = Runtime::builder()
        .processors(1)
        .stall_detector(Duration::from_millis(10))
        .on_stall(move |stall| sender.send(stall.clone()).unwrap())
        .start()
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let builder = Builder::new().name("hog");
    let hog = runtime.spawn_with(builder, move || hog_the_processor(&seen)).unwrap();
    let stall = stalls.recv_timeout(Duration::from_secs(60)).unwrap();
    is_over.store(true, Ordering::Relaxed);
    hog.join().unwrap();
    assert_eq!(stall.name.as_deref(), Some("hog"));
    assert!(stall.duration >= Duration::from_millis(10));
    assert!(stall.spawned_at.as_deref().unwrap().contains("looking.rs"), "{stall}");
    assert!(stall.backtrace.contains("hog_the_processor"), "{stall}");
    assert!(runtime.stall_count() >= 1);
}

/// Seen: stalls that were reported on a machine with too much to do, of fibers that had hardly run.
/// Cause: the time that passed was measured. Cure: a wait for a CPU does not count.
#[test]
fn wait_for_cpu_is_no_stall() {
    const THRESHOLD: Duration = Duration::from_millis(100);
    const OTHERS: usize = 20;
    // SAFETY: plain data; 0 is the calling thread.
    let pin = |cpu| unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    let ran = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is written to.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let runtime = Runtime::builder()
        .processors(1)
        .stall_detector(THRESHOLD)
        .on_stall(|_| ())
        .start()
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    // SAFETY: it has no preconditions.
    let cpu = unsafe { libc::sched_getcpu() } as usize;
    let pinned = Arc::new(AtomicUsize::new(0));
    let others: Vec<_> = (0..OTHERS)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            let pinned = Arc::clone(&pinned);
            std::thread::spawn(move || {
                pin(cpu);
                pinned.fetch_add(1, Ordering::Relaxed);
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    // A fiber that has the CPU for itself before the others start is not starved.
    while pinned.load(Ordering::Relaxed) < OTHERS {
        std::thread::sleep(Duration::from_millis(1));
    }
    let starved = runtime.spawn(move || {
        assert_eq!(pin(cpu), 0);
        let began = Instant::now();
        let before = ran();
        // Long by wall-clock time, short by its CPU time.
        while began.elapsed() < 8 * THRESHOLD && ran() - before < THRESHOLD / 2 {
            std::hint::spin_loop();
        }
        began.elapsed()
    });
    let elapsed = starved.join().unwrap();
    is_over.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert!(elapsed > 2 * THRESHOLD, "the fiber was not starved: {elapsed:?}");
    assert_eq!(runtime.stall_count(), 0);
}

#[test]
fn deadlock_is_reported() {
    let (sender, deadlocks) = mpsc::channel();
    let runtime = Runtime::builder()
        .processors(2)
        .stall_detector(Duration::from_millis(10))
        .on_deadlock(move |deadlock| sender.send(deadlock.clone()).unwrap())
        .start()
        .unwrap();
    spawn_a_ring(&runtime);
    let deadlock = deadlocks.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(deadlock.dump.deadlocks.len(), 1, "{deadlock}");
    assert_eq!(deadlock.dump.deadlocks[0].len(), 2, "{deadlock}");
    assert!(deadlock.to_string().contains("DEADLOCK"), "{deadlock}");
}

/// Two fibers, of which each joins the other.
fn spawn_a_ring(runtime: &Runtime) {
    let (to_first, first_gets) = mpsc::channel::<fiber::JoinHandle<()>>();
    let first = runtime.spawn(move || {
        let other = fiber::offload(move || first_gets.recv().unwrap());
        let _ = other.join();
    });
    let second = runtime.spawn(move || drop(first.join()));
    to_first.send(second).unwrap();
}

/// Seen (in review): a ring beside a fiber that goes on was never reported, although the manual
/// says that it is. Cause: the monitor looked for rings only while all processors slept.
#[test]
fn deadlock_beside_work_is_reported() {
    let (sender, deadlocks) = mpsc::channel();
    let runtime = Runtime::builder()
        .processors(1)
        .stall_detector(Duration::from_millis(10))
        .on_deadlock(move |deadlock| sender.send(deadlock.clone()).unwrap())
        .start()
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_over);
    let work = runtime.spawn(move || {
        while !asked.load(Ordering::Relaxed) {
            fiber::yield_now();
        }
    });
    spawn_a_ring(&runtime);
    let deadlock = deadlocks.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(deadlock.dump.deadlocks.len(), 1, "{deadlock}");
    is_over.store(true, Ordering::Relaxed);
    work.join().unwrap();
}

/// Seen (in review): fibers in a ring of waits that have a time-out counted as a deadlock, which is
/// said to last for ever. Cause: a wait for a lock did not tell whether it has one.
#[test]
fn ring_of_timed_waits_is_no_deadlock() {
    let runtime = runtime(1);
    let locks = Arc::new([fiber::sync::Mutex::new(()), fiber::sync::Mutex::new(())]);
    let both_hold_one = Arc::new(fiber::sync::Barrier::new(2));
    let spawn = |name: &'static str, own: usize| {
        let locks = Arc::clone(&locks);
        let both_hold_one = Arc::clone(&both_hold_one);
        let waits = move || {
            let _own = locks[own].lock().unwrap();
            both_hold_one.wait();
            drop(locks[1 - own].lock_timeout(Duration::from_secs(3600)));
        };
        runtime.spawn_with(Builder::new().name(name), waits).unwrap()
    };
    let fibers = [spawn("one", 0), spawn("other", 1)];
    let waits_for_other =
        |dump: &Dump, name| named(dump, name).is_some_and(|fiber| fiber.waits_for_fiber.is_some());
    let dump =
        dump_when(&runtime, |dump| waits_for_other(dump, "one") && waits_for_other(dump, "other"));
    assert_eq!(dump.deadlocks, Vec::<Vec<u64>>::new(), "{dump}");
    for fiber in fibers {
        fiber.cancel();
        fiber.join().unwrap();
    }
}
