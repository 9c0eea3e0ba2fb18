//! Attempts of safe code to break memory: leaks, drops in odd places, and a runtime that goes
//! first. See docs/fiber/soundness.md.

extern crate weftwork_fiber as fiber;

mod patience;

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use fiber::net::{Input, UnixStream};
use fiber::{BackendChoice, Builder, ClusterHandle, Flow, Runtime, Scope, Source, Stackless};
use patience::{PATIENCE, until};

fn start(choice: BackendChoice, processors: usize) -> Runtime {
    let builder = Runtime::builder().processors(processors);
    builder.backend(choice).start().unwrap()
}

fn each_backend(test: impl Fn(BackendChoice)) {
    for choice in [BackendChoice::Uring, BackendChoice::Epoll] {
        test(choice);
    }
}

/// A value of a kernel thread that notes its end.
#[derive(Default)]
struct OfThread {
    is_gone: Arc<AtomicBool>,
}

impl Drop for OfThread {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

thread_local! {
    static OF_THREAD: OfThread = OfThread::default();
}

/// A thread that borrows a value: reports it, and keeps it until the test stops it.
struct Borrower {
    sender: mpsc::Sender<Arc<AtomicBool>>,
    stop: Mutex<mpsc::Receiver<()>>,
}

impl Borrower {
    fn borrow(&self, lent: &OfThread) {
        self.sender.send(Arc::clone(&lent.is_gone)).unwrap();
        let _ = self.stop.lock().unwrap().recv();
        assert!(!lent.is_gone.load(Ordering::SeqCst));
    }
}

/// Drops the runtime while a fiber of it has lent a value of its thread by `lend`.
fn outlives_the_runtime(lend: fn(&OfThread, &Borrower, &ClusterHandle)) {
    each_backend(|choice| {
        let (runtime, other) = (start(choice, 1), start(choice, 1));
        let elsewhere = other.cluster();
        let ((sender, receiver), (stop, stops)) = (mpsc::channel(), mpsc::channel());
        let borrower = Borrower { sender, stop: Mutex::new(stops) };
        let threads_before = fiber::resources().threads_left;
        runtime.spawn(move || OF_THREAD.with(|lent| lend(lent, &borrower, &elsewhere)));
        let is_gone = receiver.recv_timeout(PATIENCE).unwrap();
        drop(runtime);
        assert!(!is_gone.load(Ordering::SeqCst), "the value was dropped while it was lent");
        assert!(fiber::resources().threads_left > threads_before);
        drop(stop);
        assert_eq!(other.shutdown(PATIENCE), 0);
    });
}

/// Seen: a value of a `thread_local!` was read on another thread after it had been dropped. Cause:
/// when a runtime stopped, the stacks of fibers that had not ended stayed, but the kernel threads
/// that they had run on ended. Cure: such a thread stays too.
#[test]
fn offload_borrows_thread_local() {
    outlives_the_runtime(|lent, borrower, _| fiber::offload(|| borrower.borrow(lent)));
}

/// The same for a scope.
#[test]
fn scope_borrows_thread_local() {
    outlives_the_runtime(|lent, borrower, _| {
        fiber::scope(|scope| {
            scope.spawn(|| fiber::offload(|| borrower.borrow(lent)));
        });
    });
}

/// The same for another cluster.
#[test]
fn cluster_borrows_thread_local() {
    outlives_the_runtime(|lent, borrower, elsewhere| elsewhere.run(|| borrower.borrow(lent)));
}

/// The same for a list of fibers, which reads the owner of the lock that a fiber waits for.
#[test]
fn dump_reads_lock_of_dead_thread() {
    thread_local! {
        static LOCK: fiber::sync::Mutex<OfThread> = fiber::sync::Mutex::default();
    }
    each_backend(|choice| {
        let runtime = start(choice, 1);
        let inspector = runtime.inspector();
        let (sender, receiver) = mpsc::channel();
        runtime.spawn(move || {
            LOCK.with(|lock| {
                let guard = lock.lock().unwrap();
                sender.send(Arc::clone(&guard.is_gone)).unwrap();
                drop(lock.lock());
            });
        });
        let is_gone = receiver.recv_timeout(PATIENCE).unwrap();
        let waits = || inspector.dump().fibers[0].waits_for.clone();
        until("the fiber waits", || waits().is_some());
        drop(runtime);
        assert!(waits().unwrap().starts_with("mutex"));
        assert!(!is_gone.load(Ordering::SeqCst));
    });
}

/// A stackless fiber that forgets what it receives.
struct Forgets {
    stream: UnixStream,
    forgotten: Arc<AtomicUsize>,
}

impl Stackless for Forgets {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn received(&mut self, input: io::Result<Input<'_>>) -> Flow {
        let input = input.unwrap();
        if input.is_empty() {
            return Flow::Done;
        }
        std::mem::forget(input);
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        Flow::Receive
    }
}

fn stream() -> (std::os::unix::net::UnixStream, UnixStream) {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    (near, OwnedFd::from(far).into())
}

/// Seen: a processor whose stackless fiber had forgotten an input could not be removed, and after
/// 64 of them it had no buffer left; and bytes of a leaked input were read after the buffer was
/// unmapped. Cause: the user owned the buffer. Cure: the user borrows it for the step, after which
/// the runtime takes it back. (That it cannot be kept for longer is shown at `Input`, by examples
/// that do not compile.)
#[test]
fn forgotten_input_returns_buffer() {
    const FORGOTTEN: usize = 200;
    each_backend(|choice| {
        let runtime = start(choice, 1);
        let forgotten = Arc::new(AtomicUsize::new(0));
        let (mut near, stream) = stream();
        let steps = Forgets { stream, forgotten: Arc::clone(&forgotten) };
        let steps = runtime.spawn_stackless_with(Builder::new(), steps);
        for round in 1..=FORGOTTEN {
            // A buffer's worth, so that each takes one.
            near.write_all(&[7; 16 * 1024]).unwrap();
            until("it is received", || forgotten.load(Ordering::SeqCst) >= round);
        }
        assert_eq!(runtime.counters()[0].buffers_exhausted, 0);
        drop(near);
        steps.join().unwrap();
        runtime.add_processor().unwrap();
        let retirement = runtime.remove_processor(0).unwrap();
        assert!(retirement.wait(PATIENCE), "the removal waits for lent buffers");
        assert_eq!(runtime.shutdown(PATIENCE), 0);
    });
}

/// A value that must end on the thread that made it.
struct Bound(ThreadId, Rc<()>);

static ENDED_ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

impl Drop for Bound {
    fn drop(&mut self) {
        if self.0 != thread::current().id() || Rc::strong_count(&self.1) != 1 {
            ENDED_ELSEWHERE.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fiber::fiber_local! {
    static BOUND: Bound = Bound(thread::current().id(), Rc::default());
}

/// A result whose destructor does all that a fiber may.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        BOUND.with(|_| ());
        if fiber::current().is_some() {
            fiber::yield_now();
            fiber::sleep(Duration::from_millis(1));
            fiber::spawn(|| BOUND.with(|_| ())).join().unwrap();
            fiber::offload(|| ());
        }
        BOUND.with(|_| ());
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs a fiber whose `Busy` no handle takes, and drops the last handle of the fiber on this
/// thread.
fn ends_where_it_was(spawn: fn(&Runtime, Busy, mpsc::Receiver<()>) -> fiber::Fiber) {
    each_backend(|choice| {
        for processors in [1, 2] {
            let runtime = start(choice, processors);
            let is_dropped = Arc::new(AtomicBool::new(false));
            let (go_on, waits) = mpsc::channel();
            let fiber = spawn(&runtime, Busy(Arc::clone(&is_dropped)), waits);
            drop(go_on);
            until("the fiber ends", || runtime.fiber_count() == 0);
            assert!(is_dropped.load(Ordering::SeqCst), "the handle keeps the value");
            drop(fiber);
            assert_eq!(ENDED_ELSEWHERE.load(Ordering::SeqCst), 0);
        }
    });
}

/// Seen: a fiber-local value that is not `Send` was dropped on another thread. Cause: the
/// destructor of a result that no handle wanted made it after the fiber's values had been dropped,
/// and so it stayed in the control block. Cure: values that are left are dropped at the end of the
/// fiber, by the fiber, and then it can have no values any more.
#[test]
fn result_drop_stays_on_its_thread() {
    ends_where_it_was(|runtime, busy, waits| {
        let handle = runtime.spawn(move || {
            let _ = waits.recv();
            BOUND.with(|_| ());
            busy
        });
        handle.fiber().clone()
    });
}

/// Seen: the payload of a panic that no handle wanted stayed in the control block, and was dropped
/// with the last handle.
#[test]
fn unwanted_payload_drops_in_fiber() {
    struct Panics(Mutex<Option<(Busy, mpsc::Receiver<()>)>>);
    impl Stackless for Panics {
        fn begin(&mut self) -> Flow {
            let (busy, waits) = self.0.get_mut().unwrap().take().unwrap();
            let _ = waits.recv();
            panic_any(AssertUnwindSafe(busy));
        }
    }
    ends_where_it_was(|runtime, busy, waits| {
        let steps = Panics(Mutex::new(Some((busy, waits))));
        let handle = runtime.spawn_stackless_with(Builder::new(), steps);
        handle.fiber().clone()
    });
}

/// Seen: a crash. Cause: a fiber was listed before it was refused, because the runtime had been
/// shut down. A list of the fibers that was made in between had a handle, and dropped the closure
/// with it after the refusing call had returned and the closure's borrows had ended. Cure: a
/// refused fiber is never listed.
#[test]
fn refused_closure_drops_first() {
    let runtime = start(BackendChoice::Epoll, 1);
    let (cluster, inspector) = (runtime.cluster(), runtime.inspector());
    assert_eq!(runtime.shutdown(PATIENCE), 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                inspector.dump();
            }
        });
        let kept_by_others = (0..100_000).filter(|_| {
            let kept = Arc::new(());
            let keeps = Arc::clone(&kept);
            let refused = Builder::new().cluster(&cluster).spawn(move || drop(keeps));
            refused.is_ok() || Arc::strong_count(&kept) != 1
        });
        let kept_by_others = kept_by_others.count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(kept_by_others, 0);
    });
}

/// Seen (in review): a fiber that spawned into its scope while its runtime was shut down hung
/// forever. Cause: a refused closure was dropped while the scope's list was locked, and a value
/// that it owned used the scope. Cure: the closure is dropped after the unlock.
#[test]
fn refused_closure_may_use_scope() {
    struct Cancels<'scope, 'env>(&'scope Scope<'scope, 'env>);
    impl Drop for Cancels<'_, '_> {
        fn drop(&mut self) {
            self.0.cancel_all();
        }
    }
    each_backend(|choice| {
        let runtime = start(choice, 1);
        let (sender, receiver) = mpsc::channel();
        let (start, started) = mpsc::channel();
        runtime.spawn(move || {
            start.send(()).unwrap();
            let refused = catch_unwind(|| {
                fiber::scope(|scope| {
                    // It does not wait, so the runtime cannot stop before it ends.
                    let is_closed = || Builder::new().spawn(|| ()).is_err();
                    until("a shutdown", || fiber::is_cancelled() && is_closed());
                    let cancels = Cancels(scope);
                    scope.spawn(move || drop(cancels));
                });
            });
            sender.send(refused.is_err()).unwrap();
        });
        started.recv_timeout(PATIENCE).expect("a fiber that runs");
        thread::spawn(move || runtime.shutdown_with(Duration::ZERO, Duration::ZERO));
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true));
    });
}

/// Seen: spawning a closure of more than a kilobyte panicked ("type is too big to transfer").
/// Cause: closures lay at the base of the fiber's stack, which takes no more. Cure: large ones lie
/// on the heap.
#[test]
fn large_closure_runs() {
    #[derive(Clone, Copy)]
    #[repr(align(256))]
    struct Aligned([u8; 4096]);
    let runtime = start(BackendChoice::Epoll, 1);
    let large = Aligned([1; 4096]);
    let sum = move || large.0.iter().map(|&byte| usize::from(byte)).sum::<usize>();
    assert_eq!(runtime.spawn(sum).join().unwrap(), 4096);
    assert_eq!(runtime.run(sum), 4096);
    // One that never runs is dropped.
    let cluster = runtime.cluster();
    assert_eq!(runtime.shutdown(PATIENCE), 0);
    let kept = Arc::new(());
    let keeps = Arc::clone(&kept);
    let refused = Builder::new().cluster(&cluster).spawn(move || (large.0, keeps));
    assert!(refused.is_err());
    assert_eq!(Arc::strong_count(&kept), 1);
}

/// A closure of every kind of size and alignment runs once, and is dropped once.
#[test]
fn closures_of_all_sizes() {
    #[repr(align(16))]
    struct To16;
    #[repr(align(512))]
    struct To512;
    fn runs_and_drops<const LEN: usize, A: Send + 'static>(runtime: &Runtime, align: fn() -> A) {
        let kept = Arc::new(());
        let (bytes, aligned, keeps) = ([7u8; LEN], align(), Arc::clone(&kept));
        let fiber = runtime.spawn(move || {
            let _keeps = keeps;
            assert!(std::hint::black_box(&bytes).iter().all(|&byte| byte == 7));
            assert!(std::ptr::from_ref(&aligned).is_aligned());
            fiber::yield_now();
            assert!(std::hint::black_box(&bytes).iter().all(|&byte| byte == 7));
        });
        fiber.join().unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    }
    fn each<A: Send + 'static>(runtime: &Runtime, align: fn() -> A) {
        runs_and_drops::<0, A>(runtime, align);
        runs_and_drops::<1, A>(runtime, align);
        runs_and_drops::<487, A>(runtime, align);
        runs_and_drops::<495, A>(runtime, align);
        runs_and_drops::<496, A>(runtime, align);
        runs_and_drops::<497, A>(runtime, align);
        runs_and_drops::<512, A>(runtime, align);
        runs_and_drops::<513, A>(runtime, align);
        runs_and_drops::<5000, A>(runtime, align);
    }
    let runtime = start(BackendChoice::Epoll, 1);
    each(&runtime, || ());
    each(&runtime, || To16);
    each(&runtime, || To512);
}

/// A fiber that was left behind has nodes in the queues of locks and channels, and others have
/// handles to it: all may be used. Run by `./ci.sh asan`, which would see a use of a freed frame.
#[test]
fn handle_outlives_runtime() {
    use fiber::sync::{Event, Mutex, mpmc};
    thread_local! {
        static BUFFER: RefCell<[u8; 64]> = const { RefCell::new([0; 64]) };
    }
    each_backend(|choice| {
        let runtime = start(choice, 2);
        let inspector = runtime.inspector();
        let ((sender, receiver), (to, from)) = (mpmc::rendezvous(), mpmc::rendezvous::<String>());
        let (lock, event) = (Arc::new(Mutex::new(1)), Arc::new(Event::new()));
        let guard = lock.lock().unwrap();
        let (open, (mut near, far)) = (receiver.clone(), stream());
        let (shared_lock, shared_event) = (Arc::clone(&lock), Arc::clone(&event));
        let waits: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(move || drop(receiver.recv())),
            Box::new(move || drop(to.send("never received".to_owned()))),
            Box::new(move || drop(fiber::select! { recv(open) -> word => word })),
            Box::new(move || *shared_lock.lock().unwrap() += 1),
            Box::new(move || shared_event.wait()),
            Box::new(fiber::park),
            Box::new(|| fiber::park_timeout(PATIENCE * 100)),
            Box::new(|| fiber::sleep(PATIENCE * 100)),
            // The kernel has a buffer of the thread.
            Box::new(move || BUFFER.with_borrow_mut(|buffer| drop((&far).read(buffer)))),
        ];
        let count = waits.len();
        let handles: Vec<_> = waits.into_iter().map(|wait| runtime.spawn(wait)).collect();
        let all_wait = || {
            let waiting = |fiber: &&fiber::DumpedFiber| fiber.waits_for.is_some();
            inspector.dump().fibers.iter().filter(waiting).count() == count
        };
        until("all wait", all_wait);
        drop(runtime);
        near.write_all(b"never read").unwrap();
        // Each receiver takes a message and never runs again.
        sender.send("lost".to_owned()).unwrap();
        sender.send("as well".to_owned()).unwrap();
        assert_eq!(from.recv().unwrap(), "never received");
        event.set();
        drop(guard);
        assert_eq!(*lock.lock().unwrap(), 1);
        for handle in &handles {
            handle.fiber().unpark();
            handle.cancel();
        }
        assert_eq!(inspector.dump_with_backtraces().fibers.len(), count);
        drop(handles);
        assert_eq!(inspector.dump().fibers.len(), count);
    });
}

/// Seen: the queue of a channel pointed into a frame that had ended. Cause: an operation is not
/// `Sync`, and was taken for the select's own; but fibers of one processor share a `thread_local!`,
/// and the second put its node over that of the first, which waited. Cure: it is refused.
#[test]
fn select_operation_is_exclusive() {
    use fiber::sync::{Receiving, Select, mpmc};
    thread_local! {
        static IS_WAITING: Cell<bool> = const { Cell::new(false) };
        static ENDS: (mpmc::Sender<u32>, &'static mpmc::Receiver<u32>) = {
            let (sender, receiver) = mpmc::bounded(1);
            (sender, Box::leak(Box::new(receiver)))
        };
        static WORD: Receiving<'static, u32> = ENDS.with(|(_, receiver)| receiver.receiving());
    }
    let runtime = start(BackendChoice::Epoll, 1);
    runtime.run(|| {
        let first = fiber::spawn(|| {
            WORD.with(|word| {
                let mut select = Select::new();
                select.receive(word);
                IS_WAITING.set(true);
                select.wait()
            })
        });
        while !IS_WAITING.get() {
            fiber::yield_now();
        }
        let second = fiber::spawn(|| {
            WORD.with(|word| {
                let mut select = Select::new();
                select.receive(word);
                select.wait_timeout(Duration::ZERO)
            })
        });
        assert!(second.join().is_err(), "two waits shared one node");
        ENDS.with(|(sender, _)| sender.send(7).unwrap());
        assert_eq!(first.join().unwrap(), 0);
    });
}
