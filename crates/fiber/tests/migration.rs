//! Fibers that move between kernel threads, and fibers that never do.

extern crate weftwork_fiber as fiber;

use std::cell::Cell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fiber::net::{TcpListener, TcpStream, UnixStream};
use fiber::sync::{Mutex, Semaphore, mpsc};
use fiber::{BackendChoice, Builder, Runtime};

/// Makes a test of each promise on each back end, with two processors.
macro_rules! contract {
    ($($promise:ident)*) => {
        mod uring {
            $(#[test] fn $promise() { super::run(super::BackendChoice::Uring, super::$promise) })*
        }
        mod epoll {
            $(#[test] fn $promise() { super::run(super::BackendChoice::Epoll, super::$promise) })*
        }
    };
}

contract! {
    a_fiber_with_frames_stays_on_its_thread_whatever_it_waits_for
    a_pinned_fiber_may_keep_what_is_not_send
    a_migratable_fiber_goes_on_elsewhere_when_its_processor_computes
    migratable_fibers_lose_no_bytes
    a_timed_park_of_a_fiber_that_moves_ends
    a_migratable_fiber_that_is_cancelled_as_it_begins_to_wait_is_run_by_one
}

fn run(choice: BackendChoice, promise: fn()) {
    let builder = Runtime::builder().processors(2).backend(choice);
    let runtime = builder.start().unwrap();
    runtime.run(promise);
    let left = runtime.shutdown(Duration::from_secs(60));
    assert_eq!(left, 0, "fibers left");
}

fn thread_id() -> std::thread::ThreadId {
    std::thread::current().id()
}

/// Waits in `wait`, and insists on the same thread, and the same thread-local value, on both sides.
#[track_caller]
fn probe<R>(wait: impl FnOnce() -> R) -> R {
    thread_local! {
        static MARK: Cell<usize> = const { Cell::new(0) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let thread = thread_id();
    let first = MARK.with(|mark| {
        if mark.get() == 0 {
            mark.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mark.get()
    });
    let result = wait();
    assert_eq!(thread_id(), thread, "the fiber moved");
    assert_eq!(MARK.with(Cell::get), first, "the fiber sees another thread's storage");
    result
}

fn stream_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = probe(|| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    (connected, probe(|| listener.accept().unwrap()))
}

/// Fibers that keep both processors in motion, so that there is always one to help.
fn bustle(is_over: &Arc<AtomicBool>) -> Vec<fiber::JoinHandle<()>> {
    let one = || {
        let is_over = Arc::clone(is_over);
        // SAFETY: it holds nothing across its waits but an Arc.
        let builder = unsafe { Builder::new().migratable() };
        builder.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                fiber::yield_now();
            }
        })
    };
    (0..8).map(|_| one().unwrap()).collect()
}

fn a_fiber_with_frames_stays_on_its_thread_whatever_it_waits_for() {
    let is_over = Arc::new(AtomicBool::new(false));
    let bustle = bustle(&is_over);
    for _ in 0..20 {
        probe(fiber::yield_now);
        probe(|| fiber::sleep(Duration::from_millis(1)));
        let me = fiber::current().unwrap();
        let waker = fiber::spawn(move || me.unpark());
        probe(fiber::park);
        probe(|| waker.join().unwrap());
        probe(|| fiber::park_timeout(Duration::from_millis(1)));
        probe(|| fiber::offload(|| std::hint::black_box(1)));
        let (mut near, mut far) = stream_pair();
        let echo = fiber::spawn(move || {
            let mut byte = [0; 1];
            far.read_exact(&mut byte).unwrap();
            far.write_all(&byte).unwrap();
        });
        probe(|| near.write_all(b"x").unwrap());
        probe(|| near.receive(None, <[u8]>::len).unwrap());
        probe(|| echo.join().unwrap());
        let (sender, receiver) = mpsc::sync_channel(0);
        let sending = fiber::spawn(move || sender.send(1).unwrap());
        assert_eq!(probe(|| receiver.recv().unwrap()), 1);
        probe(|| sending.join().unwrap());
        let mutex = Arc::new(Mutex::new(0));
        let (other, held) = (Arc::clone(&mutex), Arc::new(Semaphore::new(0)));
        let told = Arc::clone(&held);
        let holder = fiber::spawn(move || {
            let _guard = other.lock().unwrap();
            told.release(1);
            fiber::sleep(Duration::from_millis(1));
        });
        probe(|| held.acquire().forget());
        probe(|| drop(mutex.lock().unwrap()));
        probe(|| holder.join().unwrap());
        probe(|| fiber::fs::read("/proc/self/stat").unwrap());
        probe(|| {
            fiber::scope(|scope| {
                scope.spawn(fiber::yield_now);
            });
        });
    }
    is_over.store(true, Ordering::Relaxed);
    bustle.into_iter().for_each(|one| one.join().unwrap());
}

fn a_pinned_fiber_may_keep_what_is_not_send() {
    let fibers = (0..50).map(|_| {
        fiber::spawn(|| {
            let count = Rc::new(Cell::new(0));
            for _ in 0..10 {
                let shared = Rc::clone(&count);
                fiber::yield_now();
                shared.set(shared.get() + 1);
            }
            count.get()
        })
    });
    let fibers: Vec<_> = fibers.collect();
    for fiber in fibers {
        assert_eq!(fiber.join().unwrap(), 10);
    }
}

fn a_migratable_fiber_goes_on_elsewhere_when_its_processor_computes() {
    let (is_there, is_free) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (there, free) = (Arc::clone(&is_there), Arc::clone(&is_free));
    // SAFETY: it holds nothing across its waits but Arcs.
    let builder = unsafe { Builder::new().migratable() };
    let mover = builder.processor(1).spawn(move || {
        let began_on = thread_id();
        there.store(true, Ordering::SeqCst);
        // Behind the hog on its own processor it would yield forever.
        while thread_id() == began_on {
            fiber::yield_now();
        }
        free.store(true, Ordering::SeqCst);
    });
    while !is_there.load(Ordering::SeqCst) {
        fiber::yield_now();
    }
    let hog = Builder::new().processor(1).spawn(move || {
        while !is_free.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    });
    hog.unwrap().join().unwrap();
    mover.unwrap().join().unwrap();
}

fn migratable_fibers_lose_no_bytes() {
    const ROUNDS: usize = 300;
    let is_over = Arc::new(AtomicBool::new(false));
    let bustle = bustle(&is_over);
    let spawn = |f: Box<dyn FnOnce() + Send>| {
        // SAFETY: streams and vectors are Send, and nothing here keeps thread-local storage.
        unsafe { Builder::new().migratable() }.spawn(f).unwrap()
    };
    let mut fibers = Vec::new();
    for _ in 0..10 {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        fibers.push(spawn(Box::new(move || {
            // Lent buffers go home from wherever they are read.
            while let Ok(bytes) = far.receive(None, <[u8]>::to_vec) {
                if bytes.is_empty() {
                    return;
                }
                far.write_all(&bytes).unwrap();
            }
        })));
        fibers.push(spawn(Box::new(move || {
            for round in 0..ROUNDS {
                let sent: Vec<u8> = (0..200).map(|i| (i * 7 + round) as u8).collect();
                let mut got = vec![0; sent.len()];
                near.write_all(&sent).unwrap();
                near.read_exact(&mut got).unwrap();
                assert!(got == sent, "round {round}");
            }
        })));
    }
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    is_over.store(true, Ordering::Relaxed);
    bustle.into_iter().for_each(|one| one.join().unwrap());
}

fn a_timed_park_of_a_fiber_that_moves_ends() {
    let is_over = Arc::new(AtomicBool::new(false));
    let bustle = bustle(&is_over);
    let parkers = (0..20).map(|_| {
        // SAFETY: it holds nothing across its waits.
        unsafe { Builder::new().migratable() }.spawn(|| {
            for _ in 0..20 {
                fiber::park_timeout(Duration::from_millis(1));
            }
        })
    });
    let parkers: Vec<_> = parkers.map(Result::unwrap).collect();
    parkers.into_iter().for_each(|parker| parker.join().unwrap());
    is_over.store(true, Ordering::Relaxed);
    bustle.into_iter().for_each(|one| one.join().unwrap());
}

/// Found in review: a fiber that met the request between its last look and its suspension was put
/// into a run queue while it was still on its stack, and another processor could have run it there.
fn a_migratable_fiber_that_is_cancelled_as_it_begins_to_wait_is_run_by_one() {
    for round in 0..500 {
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        // SAFETY: it uses no thread-local storage, and what it has across the wait is `Send`.
        let builder = unsafe { Builder::new().migratable() };
        let sleeper = builder.spawn(move || {
            let on_its_stack = [round; 16];
            begins.store(true, Ordering::SeqCst);
            fiber::sleep(Duration::from_secs(3600));
            on_its_stack
        });
        let sleeper = sleeper.unwrap();
        while !begun.load(Ordering::SeqCst) {
            fiber::yield_now();
        }
        (0..round).for_each(|_| std::hint::spin_loop());
        sleeper.cancel();
        assert_eq!(sleeper.join().unwrap(), [round; 16]);
    }
}
