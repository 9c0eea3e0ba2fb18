//! Several clusters in one process, and fibers that go from one to another.

mod patience;

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fiber::net::{Input, UnixStream};
use fiber::{BackendChoice, Builder, ClusterHandle, Flow, Runtime, Source, Stackless, move_to};
use patience::{PATIENCE, until};

const LONG: Duration = Duration::from_secs(3600);

/// Two runtimes, over every pair of back ends, with one and with two processors each.
fn each_pair(test: impl Fn(&Runtime, &Runtime)) {
    use BackendChoice::{Epoll, Uring};
    for (here, there) in [
        (Uring, Uring),
        (Epoll, Epoll),
        (Uring, Epoll),
        (Epoll, Uring),
    ] {
        for processors in [1, 2] {
            let start = |choice| {
                let builder = Runtime::builder().processors(processors);
                builder.backend(choice).start().unwrap()
            };
            let (a, b) = (start(here), start(there));
            test(&a, &b);
            assert_eq!(
                a.shutdown(PATIENCE),
                0,
                "left in the first of {here:?} and {there:?}"
            );
            assert_eq!(
                b.shutdown(PATIENCE),
                0,
                "left in the second of {here:?} and {there:?}"
            );
        }
    }
}

fn here() -> ClusterHandle {
    ClusterHandle::current().unwrap()
}

fn migratable() -> Builder {
    // SAFETY: the fibers of these tests use no thread-local storage, and what they have across a
    // wait is `Send`.
    unsafe { Builder::new().migratable() }
}

/// A closure for each step, which is handed the number of the step.
struct Script<F>(F, usize);

impl<F: FnMut(usize) -> Flow + Send + 'static> Stackless for Script<F> {
    fn begin(&mut self) -> Flow {
        self.resumed()
    }

    fn resumed(&mut self) -> Flow {
        self.1 += 1;
        (self.0)(self.1 - 1)
    }
}

#[test]
fn spawn_into_another_cluster() {
    each_pair(|a, b| {
        let (to_a, to_b) = (a.cluster(), b.cluster());
        assert_ne!(to_a, to_b);
        assert_eq!(to_b.spawn(here).join().unwrap(), to_b);
        let (first, second) = (to_a.clone(), to_b.clone());
        a.run(move || {
            assert_eq!(here(), first);
            assert_eq!(second.spawn(here).join().unwrap(), second);
            let builder = Builder::new().cluster(&second).processor(0);
            assert_eq!(builder.spawn(here).unwrap().join().unwrap(), second);
            assert_eq!(fiber::spawn(here).join().unwrap(), first);
        });
        let seen = Arc::new(Mutex::new(None));
        let sees = Arc::clone(&seen);
        let look = move |_| {
            *sees.lock().unwrap() = Some(here());
            Flow::Done
        };
        let builder = Builder::new().cluster(&to_b);
        builder
            .spawn_stackless(Script(look, 0))
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(to_b));
    });
}

#[test]
fn call_borrows_and_passes_panics() {
    each_pair(|a, b| {
        let to_b = b.cluster();
        let numbers: Vec<u64> = (0..1000).collect();
        // From a plain thread, and from a fiber, which keeps its own thread.
        assert_eq!(to_b.run(|| numbers.iter().sum::<u64>()), 499_500);
        a.run(|| {
            let thread = std::thread::current().id();
            let borrowed = &numbers[..10];
            let first = to_b.run(|| {
                fiber::sleep(Duration::from_millis(1));
                assert_eq!(here(), to_b);
                &borrowed[0]
            });
            assert_eq!((*first, std::thread::current().id()), (0, thread));
            let call = AssertUnwindSafe(|| to_b.run(|| panic!("over there")));
            let caught = std::panic::catch_unwind(call);
            let payload = caught.unwrap_err();
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"over there"));
        });
    });
}

#[test]
fn cancel_reaches_call_elsewhere() {
    each_pair(|a, b| {
        let (to_b, ended) = (b.cluster(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&ended);
        let caller = a.spawn(move || {
            to_b.run(|| {
                fiber::sleep(LONG);
                assert!(fiber::is_cancelled());
                ends.store(true, Ordering::SeqCst);
            });
            assert!(fiber::is_cancelled());
        });
        until("it is there", || b.fiber_count() == 1);
        caller.cancel();
        caller.join().unwrap();
        assert!(ended.load(Ordering::SeqCst));
    });
}

#[test]
fn move_of_pinned_fiber_is_refused() {
    let runtime = Runtime::builder().processors(1).start().unwrap();
    let cluster = runtime.cluster();
    let on_a_thread = move_to(&cluster).unwrap_err();
    assert_eq!(on_a_thread.kind(), ErrorKind::Unsupported);
    let error = fiber::run(move || move_to(&cluster).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("ClusterHandle::run"), "{error}");
}

#[test]
fn migratable_fiber_moves_at_once() {
    fiber::fiber_local! {
        static MARK: Cell<u32> = Cell::new(0);
    }
    each_pair(|a, b| {
        let (to_a, to_b) = (a.cluster(), b.cluster());
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mover = move || {
            MARK.set(7);
            for round in 0..50u8 {
                let target = if round % 2 == 0 { &to_b } else { &to_a };
                move_to(target).unwrap();
                move_to(target).unwrap();
                assert_eq!(here(), *target);
                assert_eq!(MARK.get(), 7);
                far.write_all(&[round]).unwrap();
                let mut byte = [0];
                far.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [round]);
                fiber::spawn(fiber::yield_now).join().unwrap();
                fiber::park_timeout(Duration::from_micros(100));
            }
            move_to(&to_b).unwrap();
        };
        let moving = a.spawn_with(migratable(), mover).unwrap();
        let echo = a.spawn(move || {
            let mut byte = [0];
            while near.read_exact(&mut byte).is_ok() {
                near.write_all(&byte).unwrap();
            }
        });
        moving.join().unwrap();
        echo.join().unwrap();
    });
}

/// An echo that is at home in the other cluster after each answer.
struct Wanderer {
    stream: UnixStream,
    clusters: [ClusterHandle; 2],
    answered: usize,
    patience: Option<Duration>,
}

impl Stackless for Wanderer {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn deadline(&self) -> Option<Instant> {
        self.patience.map(|patience| Instant::now() + patience)
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        assert_eq!(here(), self.clusters[self.answered % 2]);
        match input {
            Ok(input) if !input.is_empty() => self.stream.write_all(&input).unwrap(),
            // On a busy machine the other end may take longer than the patience.
            Err(error) if error.kind() == ErrorKind::TimedOut => return Flow::Receive,
            _ => return Flow::Done,
        }
        self.answered += 1;
        move_to(&self.clusters[self.answered % 2]).unwrap();
        // In the step that named it, it is where it was.
        assert_eq!(here(), self.clusters[(self.answered + 1) % 2]);
        Flow::Receive
    }
}

#[test]
fn stackless_fibers_move_losing_nothing() {
    each_pair(|a, b| {
        let mut all = Vec::new();
        for _ in 0..20 {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            near.set_read_timeout(Some(PATIENCE)).unwrap();
            let wanderer = Wanderer {
                stream: UnixStream::from(far),
                clusters: [a.cluster(), b.cluster()],
                answered: 0,
                patience: None,
            };
            all.push((near, a.spawn_stackless_with(Builder::new(), wanderer)));
        }
        for round in 0..50u8 {
            for (near, _) in &mut all {
                near.write_all(&[round; 300]).unwrap();
            }
            for (near, _) in &mut all {
                let mut got = [0; 300];
                near.read_exact(&mut got).unwrap();
                assert_eq!(got, [round; 300]);
            }
        }
        for (near, steps) in all {
            drop(near);
            steps.join().unwrap();
        }
    });
}

#[test]
fn it_is_counted_and_listed_where_it_is() {
    each_pair(|a, b| {
        let to_b = b.cluster();
        let script = move |step| match step {
            0 => {
                move_to(&to_b).unwrap();
                Flow::Park
            }
            _ if fiber::is_cancelled() => Flow::Done,
            _ => Flow::Park,
        };
        let builder = Builder::new().name("guest");
        let guest = a.spawn_stackless_with(builder, Script(script, 0));
        until("it has moved", || a.fiber_count() == 0);
        assert_eq!(b.fiber_count(), 1);
        assert!(a.dump().fibers.is_empty());
        assert_eq!(b.dump().fibers[0].name.as_deref(), Some("guest"));
        // Of the other runtime, it does not hold this one up; and that one ends it.
        b.cancel_all();
        guest.join().unwrap();
    });
}

/// An unpark may find it here, on its way, or there: no unpark is lost.
#[test]
fn unparks_race_with_move() {
    const ROUNDS: usize = 500;
    each_pair(|a, b| {
        let clusters = [a.cluster(), b.cluster()];
        let (asked, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (asks, sees) = (Arc::clone(&asked), Arc::clone(&seen));
        let script = move |step: usize| {
            let now = asks.load(Ordering::SeqCst);
            sees.store(now, Ordering::SeqCst);
            move_to(&clusters[step % 2]).unwrap();
            match now {
                ROUNDS => Flow::Done,
                _ => Flow::Park,
            }
        };
        let parker = a.spawn_stackless_with(Builder::new(), Script(script, 0));
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::SeqCst);
            parker.fiber().unpark();
            if round % 3 == 0 {
                until("it sees the request", || {
                    seen.load(Ordering::SeqCst) == round
                });
            }
        }
        parker.join().unwrap();
    });
}

#[test]
fn cancel_races_with_moves() {
    each_pair(|a, b| {
        for pause in 0..60 {
            let clusters = [a.cluster(), b.cluster()];
            let (_near, far) = UnixStream::pair().unwrap();
            let mover = a.spawn_with(migratable(), move || {
                for target in clusters.iter().cycle() {
                    move_to(target).unwrap();
                    if fiber::is_cancelled() {
                        return;
                    }
                    far.set_read_timeout(Some(Duration::from_micros(1)))
                        .unwrap();
                    match (&far).read(&mut [0]).unwrap_err() {
                        error if fiber::is_cancellation(&error) => return,
                        error => assert_eq!(error.kind(), ErrorKind::TimedOut),
                    }
                }
            });
            let clusters = [a.cluster(), b.cluster()];
            let steps = a.spawn_stackless_with(
                Builder::new(),
                Script(
                    move |step| {
                        move_to(&clusters[step % 2]).unwrap();
                        if fiber::is_cancelled() {
                            Flow::Done
                        } else {
                            Flow::Yield
                        }
                    },
                    0,
                ),
            );
            std::thread::sleep(Duration::from_micros(pause * 10));
            let mover = mover.unwrap();
            mover.cancel();
            steps.cancel();
            mover.join().unwrap();
            steps.join().unwrap();
        }
    });
}

#[test]
fn closed_cluster_refuses_fibers() {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        let start = || {
            Runtime::builder()
                .processors(1)
                .backend(choice)
                .start()
                .unwrap()
        };
        let (a, b) = (start(), start());
        let gone = b.cluster();
        assert_eq!(b.shutdown(PATIENCE), 0);
        let spawned = Builder::new().cluster(&gone).spawn(|| ());
        assert_eq!(spawned.unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(
            gone.add_processor().unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        let to_gone = gone.clone();
        let moved = a
            .spawn_with(migratable(), move || move_to(&to_gone))
            .unwrap();
        assert_eq!(
            moved.join().unwrap().unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        assert_eq!((a.shutdown(PATIENCE), gone.fiber_count()), (0, 0));
    }
}

/// A runtime that is shut down while fibers come and go: each ends in one of the two, and none is
/// left or lost.
#[test]
fn shutdown_during_moves() {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        for round in 0..10u64 {
            let start = || {
                Runtime::builder()
                    .processors(2)
                    .backend(choice)
                    .start()
                    .unwrap()
            };
            let (a, b) = (start(), start());
            let ended = Arc::new(AtomicUsize::new(0));
            let travellers: Vec<_> = (0..20)
                .map(|_| {
                    let (clusters, ends) = ([a.cluster(), b.cluster()], Arc::clone(&ended));
                    a.spawn_with(migratable(), move || {
                        for target in clusters.iter().cycle() {
                            let moved = move_to(target);
                            if moved.is_err() || fiber::is_cancelled() {
                                break;
                            }
                            fiber::yield_now();
                        }
                        ends.fetch_add(1, Ordering::SeqCst);
                    })
                    .unwrap()
                })
                .collect();
            std::thread::sleep(Duration::from_micros(100 * round));
            let outcome = b.shutdown_with(Duration::ZERO, PATIENCE);
            assert_eq!(outcome.left, 0);
            travellers.into_iter().for_each(|one| one.join().unwrap());
            assert_eq!(ended.load(Ordering::SeqCst), 20);
            assert_eq!(a.shutdown(PATIENCE), 0);
        }
    }
}

#[test]
fn moves_and_processor_removal() {
    each_pair(|a, b| {
        let is_over = Arc::new(AtomicBool::new(false));
        let travellers: Vec<_> = (0..8)
            .map(|_| {
                let (clusters, is_over) = ([a.cluster(), b.cluster()], Arc::clone(&is_over));
                a.spawn_with(migratable(), move || {
                    for target in clusters.iter().cycle() {
                        if is_over.load(Ordering::SeqCst) {
                            return;
                        }
                        move_to(target).unwrap();
                        fiber::sleep(Duration::from_micros(100));
                    }
                })
                .unwrap()
            })
            .collect();
        let mut going = Vec::new();
        for _ in 0..10 {
            for runtime in [a, b] {
                runtime.add_processor().unwrap();
                let first = runtime
                    .processors()
                    .iter()
                    .find(|one| !one.is_retiring)
                    .unwrap()
                    .index;
                going.push(runtime.remove_processor(first).unwrap());
            }
        }
        assert!(going.iter().all(|one| one.wait(PATIENCE)), "{going:?}");
        is_over.store(true, Ordering::SeqCst);
        travellers.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// Seen: 23,884 timers expired where 192 were due, and each kept its fiber in memory until then.
/// Cause: a fiber that waited with a deadline, and moved, left its timer behind and set a new one,
/// at every hop. Cure: the old one is taken back.
#[test]
fn moves_leave_no_timers() {
    const HOPS: u64 = 100;
    let patience = Duration::from_millis(300);
    each_pair(|a, b| {
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        let wanderer = Wanderer {
            stream: UnixStream::from(far),
            clusters: [a.cluster(), b.cluster()],
            answered: 0,
            patience: Some(patience),
        };
        let steps = a.spawn_stackless_with(Builder::new(), wanderer);
        for hop in 0..HOPS as u8 {
            near.write_all(&[hop]).unwrap();
            near.read_exact(&mut [0; 1]).unwrap();
        }
        drop(near);
        steps.join().unwrap();
        // Timers expire in their order, so those that were left behind on any processor have by the
        // end of these.
        let sleep = move || fiber::sleep(patience + Duration::from_millis(1));
        let sleepers = [a, b].map(|runtime| {
            let on = |index| {
                runtime
                    .spawn_with(Builder::new().processor(index), sleep)
                    .unwrap()
            };
            (0..runtime.processor_count()).map(on).collect::<Vec<_>>()
        });
        let sleeper_count = sleepers.iter().map(Vec::len).sum::<usize>() as u64;
        sleepers
            .into_iter()
            .flatten()
            .for_each(|sleeper| sleeper.join().unwrap());
        let expired = |runtime: &Runtime| -> u64 {
            runtime
                .counters()
                .iter()
                .map(|counters| counters.timers_expired)
                .sum()
        };
        let left_behind = expired(a) + expired(b) - sleeper_count;
        // A slow machine may let the one that is set expire once or twice; it sets itself anew.
        assert!(
            left_behind < HOPS / 4,
            "{left_behind} timers of {HOPS} hops expired"
        );
    });
}
