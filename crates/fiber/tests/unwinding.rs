//! Code of a processor that cannot suspend: a destructor while its fiber unwinds, and calls on the
//! processor's own stack.

extern crate weftwork_fiber as fiber;

mod patience;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fiber::sync::{Condvar, Mutex, RwLock, Semaphore};
use fiber::{Builder, ClusterHandle, Inspector, JoinSet, Runtime};
use patience::{PATIENCE, until};

/// Calls `f` in a destructor while the caller unwinds.
fn while_it_unwinds(f: impl FnOnce()) {
    struct Calls<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Calls<F> {
        fn drop(&mut self) {
            self.0.take().unwrap()();
        }
    }
    let unwinds = AssertUnwindSafe(move || {
        let _calls = Calls(Some(f));
        panic_quietly();
    });
    assert!(catch_unwind(unwinds).unwrap_err().is::<Deliberate>());
}

struct Deliberate;

/// Panics without the panic hook, which would print a message.
fn panic_quietly() {
    let payload: Box<dyn Any + Send> = Box::new(Deliberate);
    std::panic::resume_unwind(payload);
}

/// A destructor while the caller unwinds, or the processor's own stack.
fn where_nothing_suspends(n: usize, f: impl FnOnce()) {
    match n % 2 {
        0 => while_it_unwinds(f),
        _ => fiber::on_processor_stack(f),
    }
}

/// Waits without giving the processor away.
fn spin_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::hint::spin_loop();
    }
}

/// Waits on a plain thread for the end of something. If it does not end, the runtime is neither
/// dropped nor joined: that would wait forever as well.
fn ends(runtime: Runtime, what: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        what();
        let _ = sender.send(());
    });
    if receiver.recv_timeout(2 * PATIENCE).is_err() {
        let dump = runtime.inspector().dump();
        std::mem::forget(runtime);
        panic!("a processor stands still:\n{dump}");
    }
}

fn waits(inspector: &Inspector, name: &str) -> bool {
    let fibers = inspector.dump().fibers;
    let mut named = fibers.iter().filter(|f| f.name.as_deref() == Some(name));
    named.any(|fiber| fiber.waits_for.is_some())
}

/// Seen: a processor that hung forever, though no code had the lock for longer than an
/// increment. Cause: the lock was handed over to a fiber that had not run yet, and code of the same
/// processor that could not suspend blocked its thread to wait for it. Cure: such code takes the
/// lock back.
fn takes_a_kept_lock(n: usize) {
    let runtime = Runtime::builder().processors(1).start().unwrap();
    let inspector = runtime.inspector();
    let lock = Arc::new(Mutex::new(0));
    let stage = Arc::new(AtomicUsize::new(0));
    let guard = lock.lock().unwrap(); // this plain thread
    let waiter = {
        let lock = Arc::clone(&lock);
        let named = Builder::new().name("waiter");
        runtime.spawn_with(named, move || *lock.lock().unwrap() += 1)
    };
    until("the waiter waits", || waits(&inspector, "waiter"));
    // It has the processor, and no other fiber runs there until it yields.
    let blocker = {
        let (lock, stage) = (Arc::clone(&lock), Arc::clone(&stage));
        runtime.spawn(move || {
            stage.store(1, Ordering::SeqCst);
            spin_until("unlocked and locked", || stage.load(Ordering::SeqCst) == 2);
            // The waiter runs: it was woken and comes too late.
            (0..10).for_each(|_| fiber::yield_now());
            stage.store(3, Ordering::SeqCst);
            spin_until("it is kept", || stage.load(Ordering::SeqCst) == 4);
            where_nothing_suspends(n, || *lock.lock().unwrap() += 1);
        })
    };
    spin_until("the blocker", || stage.load(Ordering::SeqCst) == 1);
    drop(guard); // wakes the waiter, which cannot run
    let guard = lock.try_lock().expect("free for a moment: see Fairness");
    stage.store(2, Ordering::SeqCst);
    spin_until("overtaken", || stage.load(Ordering::SeqCst) == 3);
    drop(guard); // keeps it for the waiter, which cannot run yet
    stage.store(4, Ordering::SeqCst);
    ends(runtime, move || {
        blocker.join().unwrap();
        waiter.unwrap().join().unwrap();
        assert_eq!(*lock.lock().unwrap(), 2);
    });
}

#[test]
fn destructor_takes_kept_lock() {
    takes_a_kept_lock(0);
}

#[test]
fn processor_stack_takes_kept_lock() {
    takes_a_kept_lock(1);
}

/// Permits that were granted to fibers which cannot run yet are taken back, by code that needs more
/// than any of them got. The fibers get permits when that code has released its own.
#[test]
fn granted_permits_are_taken_back() {
    for n in 0..2 {
        let runtime = Runtime::builder().processors(1).start().unwrap();
        let inspector = runtime.inspector();
        let permits = Arc::new(Semaphore::new(3));
        let held = permits.acquire_many(3);
        let waiters = ["one", "two"].map(|name| {
            let waiter = Arc::clone(&permits);
            let count = name.len() - 2;
            let named = Builder::new().name(name);
            let started = runtime.spawn_with(named, move || drop(waiter.acquire_many(count)));
            until("it waits", || waits(&inspector, name));
            started.unwrap()
        });
        let stage = Arc::new(AtomicUsize::new(0));
        let blocker = {
            let (permits, stage) = (Arc::clone(&permits), Arc::clone(&stage));
            runtime.spawn(move || {
                stage.store(1, Ordering::SeqCst);
                spin_until("granted", || stage.load(Ordering::SeqCst) == 2);
                where_nothing_suspends(n, || drop(permits.acquire_many(3)));
            })
        };
        spin_until("the blocker", || stage.load(Ordering::SeqCst) == 1);
        drop(held);
        stage.store(2, Ordering::SeqCst);
        ends(runtime, move || {
            blocker.join().unwrap();
            waiters.into_iter().for_each(|w| w.join().unwrap());
            assert_eq!(permits.available(), 3);
        });
    }
}

/// Fibers of two processors and plain threads use locks for an instant each, now and then from
/// where nothing suspends. Whatever is handed over to which, all come to their end.
fn storm(name: &str, turn: impl Fn(usize) + Send + Sync + 'static) {
    const FIBERS: usize = 8;
    const ROUNDS: usize = 3_000;
    let runtime = Runtime::builder().processors(2).start().unwrap();
    let turn = Arc::new(turn);
    let work = |seed: usize, is_fiber: bool| {
        let turn = Arc::clone(&turn);
        move || {
            for n in 0..ROUNDS {
                let call = || turn(seed + n);
                match (seed * 7 + n * 5) % 6 {
                    _ if !is_fiber => call(),
                    0 => while_it_unwinds(call),
                    1 => fiber::on_processor_stack(call),
                    2 => fiber::yield_now(),
                    _ => call(),
                }
            }
        }
    };
    let fibers: Vec<_> = (0..FIBERS)
        .map(|n| runtime.spawn_with(Builder::new().name(name.to_owned()), work(n, true)))
        .collect();
    let threads: Vec<_> = (0..2).map(|n| thread::spawn(work(FIBERS + n, false))).collect();
    ends(runtime, move || {
        fibers.into_iter().for_each(|f| f.unwrap().join().unwrap());
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_storm_on_a_mutex_ends() {
    let lock = Mutex::new(0);
    storm("mutex", move |_| {
        *lock.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    });
}

#[test]
fn a_storm_on_a_read_write_lock_ends() {
    let lock = RwLock::new(0);
    storm("read-write", move |n| match n % 3 {
        0 => *lock.write().unwrap_or_else(PoisonError::into_inner) += 1,
        _ => drop(lock.read().unwrap_or_else(PoisonError::into_inner)),
    });
}

#[test]
fn a_storm_on_a_semaphore_ends() {
    let permits = Semaphore::new(2);
    storm("semaphore", move |n| drop(permits.acquire_many(1 + n % 2)));
}

/// Waits that end early race with hand-overs and taken-back permits; afterwards all are there.
#[test]
fn a_storm_with_time_outs_loses_nothing() {
    const PERMITS: usize = 3;
    const SHORT: Duration = Duration::from_micros(1);
    let permits = Arc::new(Semaphore::new(PERMITS));
    let lock = Arc::new(RwLock::new(0));
    let mutex = Arc::new(Mutex::new(0));
    let all = (Arc::clone(&permits), Arc::clone(&lock), Arc::clone(&mutex));
    storm("time-outs", move |n| match n % 8 {
        0 => drop(all.0.acquire_timeout(SHORT)),
        1 => drop(all.0.acquire_many(1 + n % PERMITS)),
        2 => drop(all.1.write_timeout(SHORT).map(|mut count| *count += 1)),
        3 => drop(all.1.read_timeout(SHORT).map(|count| *count)),
        4 => drop(all.1.write().map(|mut count| *count += 1)),
        5 => drop(all.1.read().map(|count| *count)),
        6 => drop(all.2.lock_timeout(SHORT).map(|mut count| *count += 1)),
        _ => drop(all.2.lock().map(|mut count| *count += 1)),
    });
    assert_eq!(permits.available(), PERMITS);
    assert!(permits.try_acquire_many(PERMITS).is_some());
    lock.clear_poison();
    mutex.clear_poison();
    assert!(lock.try_write().is_ok() && mutex.try_lock().is_ok());
}

#[test]
fn a_storm_on_a_condition_ends() {
    let shared = (Mutex::new(0), Condvar::new());
    storm("condition", move |n| {
        let mut count = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        if n % 3 == 0 {
            let ended = shared.1.wait_timeout(count, Duration::from_micros(10));
            drop(ended.unwrap_or_else(PoisonError::into_inner));
        } else {
            shared.1.notify_one();
        }
    });
}

/// A lock that a fiber of the same processor holds across a wait cannot be had where nothing
/// suspends. That is an error, and not a wait. (While a fiber unwinds, this ends the process.)
#[test]
fn endless_wait_is_refused() {
    let runtime = Runtime::builder().processors(1).start().unwrap();
    let told = runtime.spawn(|| {
        let lock = Arc::new(Mutex::new(0));
        let gate = Arc::new(fiber::sync::Event::new());
        let holder = {
            let (lock, gate) = (Arc::clone(&lock), Arc::clone(&gate));
            fiber::spawn(move || {
                let _guard = lock.lock();
                gate.wait();
            })
        };
        while lock.try_lock().is_ok() {
            fiber::yield_now();
        }
        let refused = |f: &mut dyn FnMut()| {
            let call = AssertUnwindSafe(|| fiber::on_processor_stack(f));
            catch_unwind(call).is_err()
        };
        let timed_out =
            fiber::on_processor_stack(|| lock.lock_timeout(Duration::from_millis(1)).is_err());
        let mut joined = Some(holder);
        let lock_refused = refused(&mut || drop(lock.lock()));
        let wait_refused = refused(&mut || joined.as_ref().unwrap().wait().unwrap());
        // It has not started, and there is no other processor.
        let fresh = fiber::spawn(|| ());
        let fresh_refused = refused(&mut || fresh.wait().unwrap());
        let cluster = ClusterHandle::current().unwrap();
        let run_refused = refused(&mut || cluster.run(|| ()));
        gate.set();
        joined.take().unwrap().join().unwrap();
        fresh.join().unwrap();
        drop(lock.lock().unwrap());
        [timed_out, lock_refused, wait_refused, fresh_refused, run_refused]
    });
    ends(runtime, move || assert_eq!(told.join().unwrap(), [true; 5]));
}

/// Seen: `spawn` in a destructor ended the process ("not in a fiber"), and so one handler's panic
/// all connections. Cause: a fiber that unwinds was taken for a plain thread. Cure: only what
/// suspends does so.
#[test]
fn fibers_are_started_while_one_unwinds() {
    let ways: [fn(&Arc<AtomicUsize>); 5] = [
        |count| drop(fiber::spawn(counts(count))),
        |count| drop(JoinSet::new().spawn(counts(count))),
        |count| fiber::scope(|scope| drop(scope.spawn(counts(count)))),
        |count| drop(ClusterHandle::current().unwrap().spawn(counts(count))),
        |count| drop(Builder::new().stack_size(1 << 18).spawn(counts(count))),
    ];
    let runtime = Runtime::builder().processors(2).start().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let unwinds = runtime.spawn(move || {
        for way in ways {
            let id = fiber::current().map(|fiber| fiber.id());
            while_it_unwinds(|| {
                assert_eq!(fiber::current().map(|fiber| fiber.id()), id);
                way(&counted);
            });
        }
    });
    ends(runtime, move || {
        unwinds.join().unwrap();
        until("all have run", || count.load(Ordering::SeqCst) == ways.len());
    });
}

fn counts(count: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
    let count = Arc::clone(count);
    move || {
        count.fetch_add(1, Ordering::SeqCst);
    }
}
