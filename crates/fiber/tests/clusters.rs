//! Several clusters in one process.

extern crate weftwork_fiber as fiber;

mod patience;

use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fiber::{BackendChoice, Builder, ClusterHandle, Flow, Runtime, Stackless};
use patience::{PATIENCE, until};

const LONG: Duration = Duration::from_secs(3600);

/// Two runtimes, over every pair of back ends, with one and with two processors each.
fn each_pair(test: impl Fn(&Runtime, &Runtime)) {
    use BackendChoice::{Epoll, Uring};
    for (here, there) in [(Uring, Uring), (Epoll, Epoll), (Uring, Epoll), (Epoll, Uring)] {
        for processors in [1, 2] {
            let start = |choice| {
                let builder = Runtime::builder().processors(processors);
                builder.backend(choice).start().unwrap()
            };
            let (a, b) = (start(here), start(there));
            test(&a, &b);
            assert_eq!(a.shutdown(PATIENCE), 0, "fibers left in the first, {here:?} {there:?}");
            assert_eq!(b.shutdown(PATIENCE), 0, "fibers left in the second, {here:?} {there:?}");
        }
    }
}

fn here() -> ClusterHandle {
    ClusterHandle::current().unwrap()
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
        builder.spawn_stackless(Script(look, 0)).unwrap().join().unwrap();
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
fn closed_cluster_refuses_fibers() {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        let start = || Runtime::builder().processors(1).backend(choice).start().unwrap();
        let (a, b) = (start(), start());
        let gone = b.cluster();
        assert_eq!(b.shutdown(PATIENCE), 0);
        let spawned = Builder::new().cluster(&gone).spawn(|| ());
        assert_eq!(spawned.unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(gone.add_processor().unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!((a.shutdown(PATIENCE), gone.fiber_count()), (0, 0));
    }
}
