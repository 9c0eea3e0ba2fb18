//! A runtime ends cleanly: it cancels all waits that it can, and reports the rest.

extern crate weftwork_fiber as fiber;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use fiber::net::{TcpListener, TcpStream, pipe};
use fiber::{BackendChoice, Runtime, Shutdown, is_cancellation};

mod patience;

const LONG: Duration = Duration::from_secs(3600);

/// One after the other: some of these tests count what the whole process has.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn each_runtime(mut test: impl FnMut(Runtime)) {
    let _alone = alone();
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        for processors in [1, 2] {
            let builder = Runtime::builder().processors(processors);
            test(builder.backend(backend).start().unwrap());
        }
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn fiber_that_finishes_in_time() {
    each_runtime(|runtime| {
        let cancelled = Arc::new(AtomicBool::new(false));
        for _ in 0..10 {
            let cancelled = Arc::clone(&cancelled);
            runtime.spawn(move || {
                fiber::sleep(Duration::from_millis(5));
                cancelled.fetch_or(fiber::is_cancelled(), Ordering::SeqCst);
            });
        }
        let outcome = runtime.shutdown_with(LONG, LONG);
        assert_eq!(outcome, Shutdown { cancelled: 0, left: 0 });
        assert!(!cancelled.load(Ordering::SeqCst));
    });
}

#[test]
fn waiting_fibers_are_cancelled() {
    each_runtime(|runtime| {
        let ended = Arc::new(AtomicUsize::new(0));
        let waits: [fn(); 5] = [
            || fiber::sleep(LONG),
            || {
                while !fiber::is_cancelled() {
                    fiber::park()
                }
            },
            || {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                assert!(is_cancellation(&listener.accept().unwrap_err()));
            },
            || {
                let (mut reader, _writer) = pipe().unwrap();
                assert!(is_cancellation(&reader.read(&mut [0; 8]).unwrap_err()));
            },
            || {
                let mut set = fiber::JoinSet::new();
                set.spawn(|| fiber::sleep(LONG));
                set.join_next().unwrap().unwrap();
            },
        ];
        for wait in waits.repeat(20) {
            let ended = Arc::clone(&ended);
            runtime.spawn(move || {
                wait();
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        let outcome = runtime.shutdown_with(Duration::from_millis(20), LONG);
        assert_eq!(outcome.left, 0);
        assert!(outcome.cancelled >= 100, "{outcome:?}");
        assert_eq!(ended.load(Ordering::SeqCst), 100);
    });
}

#[test]
fn received_input_is_answered() {
    each_runtime(|runtime| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = TcpStream::from(listener.accept().unwrap().0);
        let (begun, has_begun) = mpsc::channel();
        runtime.spawn(move || {
            let mut word = [0; 4];
            (&served).read_exact(&mut word).unwrap();
            begun.send(()).unwrap();
            // The answer takes its time; the request to end comes meanwhile.
            let answered = fiber::uncancellable(|| {
                fiber::sleep(Duration::from_millis(30));
                (&served).write_all(&word)
            });
            answered.unwrap();
            assert!(is_cancellation(&(&served).read(&mut word).unwrap_err()));
        });
        client.write_all(b"last").unwrap();
        has_begun.recv().unwrap();
        let outcome = runtime.shutdown_with(Duration::from_millis(1), LONG);
        assert_eq!(outcome, Shutdown { cancelled: 1, left: 0 });
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "last");
    });
}

#[test]
fn fiber_that_ignores_cancel_is_left() {
    each_runtime(|runtime| {
        // It waits for nothing that can be cancelled.
        runtime.spawn(|| fiber::uncancellable(|| fiber::sleep(LONG)));
        runtime.spawn(|| fiber::sleep(LONG));
        runtime.cancel_all();
        while runtime.fiber_count() > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let soon = Duration::from_millis(20);
        let outcome = runtime.shutdown_with(soon, soon);
        assert_eq!(outcome, Shutdown { cancelled: 1, left: 1 });
    });
}

/// Seen (in review): `shutdown` never came back, whatever its patience, and nor did `run`, where a
/// fiber blocked its thread or computed without an end. Cause: each processor's thread was joined,
/// and nothing can take the thread from such a fiber. Cure: the thread is left behind with it, and
/// ends by itself if the fiber ever gives it away.
#[test]
fn blocking_fiber_is_left() {
    let _alone = alone();
    // Descriptors that stay open from the first runtime on.
    fiber::run(|| ());
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let descriptors = open_descriptors();
        let runtime = Runtime::builder().processors(2).backend(backend).start().unwrap();
        let (begun, is_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let blocked = runtime.spawn(move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
        is_begun.recv().unwrap();
        let (told, tells) = mpsc::channel();
        let soon = Duration::from_millis(20);
        let shut_down = move || told.send(runtime.shutdown_with(soon, soon));
        let ending = std::thread::spawn(shut_down);
        let outcome = tells.recv_timeout(patience::PATIENCE);
        drop(release);
        assert_eq!(outcome, Ok(Shutdown { cancelled: 1, left: 1 }), "{backend:?}");
        ending.join().unwrap().unwrap();
        blocked.join().unwrap();
        patience::until("the thread has ended", || open_descriptors() == descriptors);
    }
}

#[test]
fn no_descriptor_stays_behind() {
    // The offload threads and what std opens once.
    fiber::run(|| fiber::offload(|| ()));
    let mut before = None;
    each_runtime(|runtime| {
        runtime.run(|| {
            let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let address = listener.local_addr().unwrap();
            // Some are accepted, some are with the kernel or the runtime when the listener goes.
            let connections: Vec<_> =
                (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
            let accepted: Vec<_> = (0..5).map(|_| listener.accept().unwrap()).collect();
            drop((listener, connections, accepted));
            fiber::spawn(|| fiber::sleep(LONG));
        });
        assert_eq!(runtime.shutdown_with(Duration::ZERO, LONG).left, 0);
        let after = open_descriptors();
        assert_eq!(*before.get_or_insert(after), after);
    });
}

/// Seen: dropping a runtime took a second and left a ring behind. Cause: a fiber still waited for
/// connections, so when the accept in the ring had been cancelled for the shutdown, it was begun
/// anew. Cure: not any more at that time.
#[test]
fn waiting_accept_frees_the_ring() {
    each_runtime(|runtime| {
        let left_before = fiber::resources().rings_left;
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        runtime.spawn(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            begins.store(true, Ordering::SeqCst);
            fiber::uncancellable(|| listener.accept()).map(drop)
        });
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(5));
        drop(runtime);
        assert_eq!(fiber::resources().rings_left, left_before);
    });
}

/// Seen: "failed to join thread: Resource deadlock avoided", when the last owner of a runtime was
/// one of its own fibers, or its stall listener. Cause: the thread waited for itself. Cure: it
/// waits for the other threads, and its processor ends when the fiber does.
#[test]
fn runtime_dropped_by_its_fiber() {
    each_runtime(|runtime| {
        let runtime = Arc::new(Mutex::new(Some(runtime)));
        let (own, other) = (Arc::clone(&runtime), Arc::clone(&runtime));
        let locked = runtime.lock().unwrap();
        let fiber = locked.as_ref().unwrap().spawn(move || {
            drop(own.lock().unwrap().take());
            "goes on"
        });
        drop(locked);
        assert_eq!(fiber.join().unwrap(), "goes on");
        assert!(other.lock().unwrap().is_none());
    });
}

#[test]
fn runtime_dropped_by_stall_callback() {
    let _alone = alone();
    let place: Arc<Mutex<Option<Runtime>>> = Arc::default();
    let own = Arc::clone(&place);
    let stalls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&stalls);
    let on_stall = move |_: &fiber::Stall| {
        if seen.fetch_add(1, Ordering::SeqCst) == 0 {
            panic!("the first time");
        }
        drop(own.lock().unwrap().take());
    };
    let builder = Runtime::builder().processors(1).on_stall(on_stall);
    let runtime = builder.stall_detector(Duration::from_millis(5)).start();
    *place.lock().unwrap() = Some(runtime.unwrap());
    let is_gone = || place.lock().unwrap().is_none();
    // Each keeps its processor until the listener has been told.
    for told in 1..=2 {
        let stalls = Arc::clone(&stalls);
        let keep = move || while stalls.load(Ordering::SeqCst) < told {};
        if let Some(runtime) = &*place.lock().unwrap() {
            drop(runtime.spawn(keep));
        }
        patience::until("the listener was told", || is_gone() || told == 1);
    }
    patience::until("the runtime was dropped", is_gone);
}
