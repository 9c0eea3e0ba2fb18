//! Processors that come and go while fibers run: none is lost, and nothing stays behind.

extern crate weftwork_fiber as fiber;

mod patience;

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fiber::net::{Input, TcpListener, TcpStream, UnixStream};
use fiber::{BackendChoice, Builder, FiberState, Flow, JoinHandle, Runtime, Source, Stackless};
use patience::{PATIENCE, until};

const LONG: Duration = Duration::from_secs(3600);

/// Keeps the other tests waiting: some count the descriptors and threads of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs a test over both back ends, alone.
fn each_backend(processors: usize, test: impl Fn(&Runtime)) {
    let _alone = alone();
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(processors).backend(backend);
        let runtime = builder.start().unwrap();
        test(&runtime);
        assert_eq!(runtime.shutdown(PATIENCE), 0, "fibers left on {backend:?}");
    }
}

fn remove(runtime: &Runtime, index: usize) {
    let retirement = runtime.remove_processor(index).unwrap();
    assert!(retirement.wait(PATIENCE), "{retirement:?}\n{}", runtime.dump());
}

/// Echoes its input until the end.
struct Echo<S>(S, Arc<AtomicUsize>);

impl Stackless for Echo<UnixStream> {
    fn source(&self) -> Source<'_> {
        self.0.source()
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        match input {
            Ok(input) if !input.is_empty() => {
                self.0.write_all(&input).unwrap();
                Flow::Receive
            }
            Ok(_) => Flow::Done,
            Err(error) => {
                assert!(fiber::is_cancellation(&error), "{error:?}");
                self.1.fetch_add(1, Ordering::SeqCst);
                Flow::Done
            }
        }
    }
}

fn converse(stream: &mut (impl Read + Write), seed: usize) {
    let sent: Vec<u8> = (0..100 + seed % 400).map(|i| (i * 7 + seed) as u8).collect();
    let mut got = vec![0; sent.len()];
    stream.write_all(&sent).unwrap();
    stream.read_exact(&mut got).unwrap();
    assert!(got == sent, "an echo differs");
}

/// A pair of which one end is plain, for the thread of the test.
fn pair() -> (std::os::unix::net::UnixStream, UnixStream) {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    (near, UnixStream::from(far))
}

fn migratable() -> Builder {
    // SAFETY: the fibers of these tests use no thread-local storage, and what they have across a
    // wait is `Send`.
    unsafe { Builder::new().migratable() }
}

#[test]
fn add_and_remove_a_processor() {
    each_backend(1, |runtime| {
        assert_eq!(runtime.add_processor().unwrap(), 1);
        assert_eq!(runtime.processor_count(), 2);
        let on = |index| {
            let name = || std::thread::current().name().map(str::to_owned);
            let builder = Builder::new().processor(index);
            runtime.spawn_with(builder, name).unwrap().join().unwrap()
        };
        assert_eq!(on(1).as_deref(), Some("processor-1"));
        remove(runtime, 1);
        assert_eq!(runtime.processor_count(), 1);
        // Modulo their number.
        assert_eq!(on(1).as_deref(), Some("processor-0"));
        assert_eq!(runtime.add_processor().unwrap(), 1, "the removed one's number is free");
        remove(runtime, 0);
        assert_eq!(on(0).as_deref(), Some("processor-1"));
        assert_eq!(runtime.counters().len(), 2);
        // A fiber is counted just after its join. Counters of a removed processor stay.
        until("three have finished", || {
            let counters = runtime.counters();
            counters.iter().map(|one| one.fibers_finished).sum::<u64>() == 3
        });
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let _alone = alone();
    let builder = Runtime::builder().processors(1).max_processors(2);
    let runtime = builder.start().unwrap();
    let kind = |result: io::Result<fiber::Retirement>| result.unwrap_err().kind();
    assert_eq!(kind(runtime.remove_processor(0)), ErrorKind::InvalidInput);
    assert_eq!(kind(runtime.remove_processor(1)), ErrorKind::NotFound);
    assert_eq!(kind(runtime.remove_processor(99)), ErrorKind::NotFound);
    runtime.add_processor().unwrap();
    let full = runtime.add_processor().unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded);
    assert!(full.to_string().contains("max_processors"), "{full}");
    let staying = runtime.spawn_with(Builder::new().processor(1), || fiber::sleep(LONG));
    let staying = staying.unwrap();
    until("it starts", || runtime.counters()[1].fibers_started == 1);
    let retirement = runtime.remove_processor(1).unwrap();
    assert_eq!(kind(runtime.remove_processor(1)), ErrorKind::NotFound);
    assert_eq!(kind(runtime.remove_processor(0)), ErrorKind::InvalidInput);
    staying.cancel();
    assert!(retirement.wait(PATIENCE));
}

#[test]
fn pinned_fiber_keeps_its_processor() {
    each_backend(2, |runtime| {
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let (mut near, mut far) = pair();
        let thread = |()| std::thread::current().id();
        let stays = move || {
            let before = thread(());
            begins.store(true, Ordering::SeqCst);
            let mut word = [0; 4];
            for _ in 0..3 {
                far.read_exact(&mut word).unwrap();
                fiber::sleep(Duration::from_millis(1));
                fiber::spawn(|| ()).join().unwrap();
                far.write_all(&word).unwrap();
            }
            assert_eq!(thread(()), before, "the fiber moved");
        };
        let builder = Builder::new().name("stays").processor(1);
        let staying = runtime.spawn_with(builder, stays).unwrap();
        until("it begins", || begun.load(Ordering::SeqCst));
        let retirement = runtime.remove_processor(1).unwrap();
        until("it is counted", || retirement.pinned() == 1);
        assert!(!retirement.wait(Duration::from_millis(20)));
        let listed = runtime.processors();
        assert!(!listed[0].is_retiring && listed[1].is_retiring, "{listed:?}");
        let dump = runtime.dump();
        let shown = dump.fibers.iter().find(|one| one.processor == Some(1));
        assert_eq!(shown.unwrap().name.as_deref(), Some("stays"));
        (0..3).for_each(|_| {
            near.write_all(b"word").unwrap();
            near.read_exact(&mut [0; 4]).unwrap();
        });
        staying.join().unwrap();
        assert!(retirement.wait(PATIENCE), "{retirement:?}");
        assert_eq!(retirement.pinned(), 0);
    });
}

#[test]
fn waiting_stackless_fibers_relocate() {
    each_backend(1, |runtime| {
        let cancelled = Arc::new(AtomicUsize::new(0));
        let number = runtime.add_processor().unwrap();
        let mut nears = Vec::new();
        let mut steps = Vec::new();
        for n in 0..200 {
            let (near, far) = pair();
            let echo = Echo(far, Arc::clone(&cancelled));
            let builder = Builder::new().processor(n % 2);
            steps.push(runtime.spawn_stackless_with(builder, echo));
            nears.push(near);
        }
        for round in 0..4 {
            for (n, near) in nears.iter_mut().enumerate() {
                converse(near, n + round);
            }
            // All wait, half of them there, and no byte comes that would wake them.
            match round % 2 {
                0 => remove(runtime, number),
                _ => assert_eq!(runtime.add_processor().unwrap(), number),
            }
        }
        steps[7].cancel();
        until("it is cancelled", || cancelled.load(Ordering::SeqCst) == 1);
        drop(nears);
        steps.into_iter().for_each(|one| one.join().unwrap());
        assert_eq!(cancelled.load(Ordering::SeqCst), 1, "other fibers were cancelled");
    });
}

#[test]
fn movable_waits_relocate() {
    each_backend(2, |runtime| {
        const NAP: Duration = Duration::from_millis(300);
        let waiting = Arc::new(AtomicUsize::new(0));
        let naps: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let nap = || {
            let naps = Arc::clone(&naps);
            move || {
                let begun = Instant::now();
                naps.lock().unwrap().push(begun);
                begun
            }
        };
        let [sleeps, parks, reads] = [nap(), nap(), nap()];
        let spawn = |f: Box<dyn FnOnce() + Send>| {
            let waiting = Arc::clone(&waiting);
            let body = move || {
                waiting.fetch_add(1, Ordering::SeqCst);
                f();
            };
            runtime.spawn_with(migratable().processor(1), body).unwrap()
        };
        let (mut near, mut far) = pair();
        let (mut lent_near, lent_far) = pair();
        let (reader, mut writer) = fiber::net::pipe().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = TcpListener::from(listener);
        let gate = Arc::new(fiber::sync::Event::new());
        let opened = Arc::clone(&gate);
        let reader = Mutex::new(reader);
        let fibers: Vec<JoinHandle<()>> = vec![
            spawn(Box::new(move || {
                let mut word = [0; 4];
                far.read_exact(&mut word).unwrap();
                assert_eq!(&word, b"word");
            })),
            spawn(Box::new(move || {
                let got = lent_far.receive(None, <[u8]>::to_vec).unwrap();
                assert_eq!(got, b"lent");
            })),
            spawn(Box::new(move || {
                let mut byte = [0; 1];
                reader.into_inner().unwrap().read_exact(&mut byte).unwrap();
            })),
            spawn(Box::new(move || drop(listener.accept().unwrap()))),
            spawn(Box::new(move || opened.wait())),
            spawn(Box::new(move || {
                let begun = sleeps();
                fiber::sleep(NAP);
                assert!(begun.elapsed() >= NAP, "the fiber slept too little");
                assert!(!fiber::is_cancelled());
            })),
            // Its timer is kept on.
            spawn(Box::new(move || {
                let deadline = parks() + NAP;
                while Instant::now() < deadline {
                    fiber::park_timeout(deadline.saturating_duration_since(Instant::now()));
                }
            })),
            spawn(Box::new(move || {
                let (mut near, _far) = UnixStream::pair().unwrap();
                reads();
                near.set_read_timeout(Some(NAP)).unwrap();
                let error = near.read(&mut [0; 1]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
            })),
        ];
        until("all wait", || waiting.load(Ordering::SeqCst) == fibers.len());
        std::thread::sleep(Duration::from_millis(20));
        remove(runtime, 1);
        let removed = Instant::now();
        near.write_all(b"word").unwrap();
        lent_near.write_all(b"lent").unwrap();
        runtime.run(move || writer.write_all(b"x").unwrap());
        drop(std::net::TcpStream::connect(address).unwrap());
        gate.set();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        // On a busy machine a nap may have been over before its processor was to go.
        let naps = naps.lock().unwrap();
        let were_over = naps.iter().filter(|begun| **begun + NAP <= removed).count();
        let finished = runtime.counters()[1].fibers_finished;
        assert!(finished <= were_over as u64, "{finished} stayed");
    });
}

/// A migratable fiber may hold what it has received for as long as it likes: the processor that
/// lent it waits. A processor looks for those that may leave it in 16 turns, by their numbers. One
/// found in the last turn must reach an awake processor, though there is no other turn.
#[test]
fn last_fiber_relocates() {
    each_backend(2, |runtime| {
        let spawn = || {
            let nap = || {
                let is_last = fiber::current().is_some_and(|fiber| fiber.id() % 16 == 15);
                if is_last {
                    fiber::sleep(LONG);
                }
            };
            runtime.spawn_with(migratable().processor(1), nap).unwrap()
        };
        let handles: Vec<_> = (0..16).map(|_| spawn()).collect();
        let waits = || {
            let dump = runtime.dump();
            let [fiber] = &dump.fibers[..] else {
                return None;
            };
            (fiber.state == FiberState::Waiting).then_some(fiber.processor)
        };
        until("one sleeps", || waits() == Some(Some(1)));
        let sleeps = || runtime.counters().iter().map(|of| of.sleeps).min();
        until("so do the processors", || sleeps() > Some(0));
        remove(runtime, 1);
        until("it sleeps elsewhere", || waits() == Some(Some(0)));
        handles.iter().for_each(|handle| handle.fiber().cancel());
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
}

#[test]
fn lent_buffer_returns_first() {
    struct Keep(UnixStream, Arc<AtomicBool>, Arc<fiber::sync::Event>);
    impl Stackless for Keep {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, input: io::Result<Input>) -> Flow {
            let input = input.unwrap();
            if input.is_empty() {
                return Flow::Done;
            }
            self.1.store(true, Ordering::SeqCst);
            self.2.wait();
            assert_eq!(&input[..], b"kept");
            Flow::Receive
        }
    }
    each_backend(2, |runtime| {
        let (mut near, far) = pair();
        let (kept, free) = (Arc::default(), Arc::new(fiber::sync::Event::new()));
        let keep = Keep(far, Arc::clone(&kept), Arc::clone(&free));
        let steps = runtime.spawn_stackless_with(Builder::new().processor(1), keep);
        near.write_all(b"kept").unwrap();
        until("it is kept", || kept.load(Ordering::SeqCst));
        let retirements: Vec<_> = [runtime.add_processor().unwrap(), 1]
            .map(|index| runtime.remove_processor(index).unwrap())
            .into();
        std::thread::sleep(Duration::from_millis(20));
        free.set();
        retirements.iter().for_each(|one| assert!(one.wait(PATIENCE), "{one:?}"));
        drop(near);
        steps.join().unwrap();
        assert_eq!(fiber::resources().buffers_left, 0);
    });
}

#[test]
fn who_has_not_started_starts_elsewhere() {
    each_backend(2, |runtime| {
        let is_free = Arc::new(AtomicBool::new(false));
        let (begun, free) = (Arc::new(AtomicBool::new(false)), Arc::clone(&is_free));
        let begins = Arc::clone(&begun);
        let hog = runtime.spawn_with(Builder::new().processor(1), move || {
            begins.store(true, Ordering::SeqCst);
            while !free.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        until("it computes", || begun.load(Ordering::SeqCst));
        let retirement = runtime.remove_processor(1).unwrap();
        // From plain threads, in turn, to all that there are.
        let others: Vec<_> = (0..50)
            .map(|n| {
                let name = || std::thread::current().name().map(str::to_owned);
                let builder = match n % 2 {
                    0 => Builder::new(),
                    _ => Builder::new().processor(1),
                };
                runtime.spawn_with(builder, name).unwrap()
            })
            .collect();
        for other in others {
            assert_eq!(other.join().unwrap().as_deref(), Some("processor-0"));
        }
        is_free.store(true, Ordering::SeqCst);
        hog.unwrap().join().unwrap();
        assert!(retirement.wait(PATIENCE));
    });
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn removal_leaks_nothing() {
    {
        let _alone = alone();
        fiber::run(|| fiber::offload(|| ()));
    }
    each_backend(1, |runtime| {
        let echo = |_| {
            let (near, far) = pair();
            let steps = runtime.spawn_stackless_with(Builder::new(), Echo(far, Arc::default()));
            (near, steps)
        };
        let mut conversations: Vec<_> = (0..20).map(echo).collect();
        let (descriptors, threads_before) = (open_descriptors(), threads());
        for round in 0..20 {
            for _ in 0..3 {
                runtime.add_processor().unwrap();
            }
            for (near, _) in &mut conversations {
                converse(near, round);
            }
            // In any order, and more than one at a time.
            let gone = [1, 3, 2].map(|index| runtime.remove_processor(index).unwrap());
            assert!(gone.iter().all(|one| one.wait(PATIENCE)), "{gone:?}");
            assert_eq!(open_descriptors(), descriptors);
            until("threads end", || threads() == threads_before);
        }
        let held = fiber::resources();
        assert_eq!((held.rings_left, held.buffers_left), (0, 0));
        for (near, steps) in conversations {
            drop(near);
            steps.join().unwrap();
        }
    });
}

#[test]
fn concurrent_add_and_remove() {
    each_backend(1, |runtime| {
        let change = |rounds: usize| {
            for _ in 0..rounds {
                let number = runtime.add_processor().unwrap();
                // Another may have removed it, or it may be the last one.
                match runtime.remove_processor(number) {
                    Ok(_) => {}
                    Err(error) => assert_ne!(error.kind(), ErrorKind::QuotaExceeded, "{error}"),
                }
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| change(15))));
        });
        until("they have gone", || runtime.processors().len() == runtime.processor_count());
        assert_eq!(runtime.processor_count(), 1);
    });
}

/// Load on stackless fibers and on fibers with frames, over TCP, with an acceptor on each
/// processor, while processors come and go by the dice: every byte is compared.
///
/// Seen here: on epoll a conversation waited forever for bytes that were there. Cause: taken off a
/// processor in the middle of its wait, it began to wait on another where it had been before, and
/// whose edge for these bytes had come already. Cure: it tries first, as a wait does at its
/// beginning.
#[test]
fn under_load_nothing_is_lost() {
    struct TcpEcho(TcpStream);
    impl Stackless for TcpEcho {
        fn source(&self) -> Source<'_> {
            self.0.source()
        }
        fn received(&mut self, input: io::Result<Input>) -> Flow {
            match input {
                Ok(input) if !input.is_empty() && self.0.write_all(&input).is_ok() => Flow::Receive,
                _ => Flow::Done,
            }
        }
    }
    const CLIENTS: usize = 24;
    each_backend(2, |runtime| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let accept = |number: usize| {
            let listener = Arc::clone(&listener);
            let accept = move || {
                while let Ok(stream) = listener.accept() {
                    match stream.peer_addr().unwrap().port() % 2 {
                        0 => drop(fiber::spawn_stackless(TcpEcho(stream))),
                        _ => drop(fiber::spawn(move || {
                            let mut buffer = [0; 700];
                            while let Ok(len @ 1..) = (&stream).read(&mut buffer) {
                                (&stream).write_all(&buffer[..len]).unwrap();
                            }
                        })),
                    }
                }
            };
            // Migratable acceptors leave with the rest.
            let builder = match number % 2 {
                0 => Builder::new(),
                _ => migratable(),
            };
            runtime.spawn_with(builder.processor(number), accept).unwrap()
        };
        let acceptors: Vec<_> = (0..4).map(accept).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let talked = Arc::new(AtomicUsize::new(0));
        let client = |number: usize| {
            let (is_over, talked) = (Arc::clone(&is_over), Arc::clone(&talked));
            let talk = move || {
                while !is_over.load(Ordering::Relaxed) {
                    let mut stream = TcpStream::connect(address).unwrap();
                    for round in 0..20 {
                        converse(&mut stream, number + round);
                        talked.fetch_add(1, Ordering::Relaxed);
                    }
                    fiber::park_timeout(Duration::from_millis(1));
                }
            };
            let builder = match number % 2 {
                0 => Builder::new(),
                _ => migratable(),
            };
            runtime.spawn_with(builder, talk).unwrap()
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let mut dice = 0x5eed_u64;
        let mut going = Vec::new();
        let mut removed = HashSet::new();
        let curtain = Instant::now() + Duration::from_secs(3);
        // The test runs until this has happened, however long it takes.
        let is_enough = |removed: &HashSet<usize>, going: usize| {
            let has_talked = talked.load(Ordering::Relaxed) > CLIENTS * 20;
            has_talked && removed.len() > 1 && going > 20
        };
        let waits = |is_enough: bool| match Instant::now() {
            now if is_enough => now < curtain,
            now => now < curtain + PATIENCE,
        };
        while waits(is_enough(&removed, going.len())) {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = (dice >> 33) as usize;
            if roll.is_multiple_of(2) && runtime.processor_count() < 6 {
                match runtime.add_processor() {
                    Ok(_) => {}
                    // Retiring processors count as well.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}"),
                }
            } else if runtime.processor_count() > 1 {
                let running = runtime.processors();
                let running: Vec<_> = running.iter().filter(|one| !one.is_retiring).collect();
                let index = running[roll / 2 % running.len()].index;
                removed.insert(index);
                going.push(runtime.remove_processor(index).unwrap());
            }
            std::thread::sleep(Duration::from_millis(roll as u64 % 7));
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|one| one.join().unwrap());
        listener.close();
        acceptors.into_iter().for_each(|one| one.join().unwrap());
        for retirement in &going {
            assert!(retirement.wait(PATIENCE), "{retirement:?}\n{}", runtime.dump());
        }
        let talked = talked.load(Ordering::Relaxed);
        assert!(is_enough(&removed, going.len()), "{} went, {talked} talks", going.len());
    });
}

#[test]
fn shutdown_during_removal() {
    each_backend(3, |runtime| {
        runtime.spawn_with(Builder::new().processor(2), || fiber::sleep(LONG)).unwrap();
        drop(runtime.remove_processor(2).unwrap());
        drop(runtime.remove_processor(1).unwrap());
        runtime.cancel_all();
    });
    let _alone = alone();
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(2).backend(backend);
        let runtime = builder.start().unwrap();
        let stays = runtime.spawn_with(Builder::new().processor(1), || {
            fiber::uncancellable(|| fiber::sleep(LONG));
        });
        until("it sleeps", || runtime.counters()[1].fibers_started == 1);
        let retirement = runtime.remove_processor(1).unwrap();
        assert_eq!(runtime.shutdown(Duration::ZERO), 1);
        assert!(retirement.is_over(), "the thread has ended with the others");
        drop(stays);
    }
}

/// Seen: the first processor that was added after a failure for lack of descriptors ran, was not
/// listed, and got no messages. Cause: the failed attempt did not wait for its thread, which closed
/// the slot when the next processor had it.
#[test]
fn failed_add_frees_the_place() {
    const NAME: &str = "failed_add_frees_the_place";
    if std::env::var_os("CHILD").is_some() {
        return add_after_failures();
    }
    // The pipes to the child are descriptors as well.
    let _alone = alone();
    // In a process of its own: the limit is the whole process's.
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", NAME, "--nocapture"]);
    let output = child.env("CHILD", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn add_after_failures() {
    use std::os::fd::AsRawFd;
    each_backend(1, |runtime| {
        let mut refused_count = 0;
        while refused_count < 200 {
            let unlimited = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
            // One more, which is not enough.
            let limited =
                rustix::process::Rlimit { current: Some(next + 1), maximum: unlimited.maximum };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limited).unwrap();
            let refused = runtime.add_processor();
            rustix::process::setrlimit(rustix::process::Resource::Nofile, unlimited).unwrap();
            if let Ok(number) = refused {
                // The processor that was removed last closed a descriptor only now.
                remove(runtime, number);
                continue;
            }
            refused_count += 1;
            let number = runtime.add_processor().unwrap();
            let here = Builder::new().processor(number);
            let fiber = runtime.spawn_with(here, || ()).unwrap();
            until("the fiber runs", || fiber.is_finished());
            let listed = runtime.processors();
            assert!(listed.iter().any(|one| one.index == number), "{listed:?}");
            remove(runtime, number);
        }
    });
}
