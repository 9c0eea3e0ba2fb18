//! Starting fibers and waiting for them: [`spawn`], [`Builder`], [`JoinHandle`], [`scope`].

use std::borrow::Cow;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::abort::while_lent;
use crate::base::home::Home;
use crate::base::lock::lock;
use crate::io::cancel::is_cancelled;
use crate::io::fork::notice_forks;
use crate::sched::block::{current, once, park};
use crate::sched::cluster::Cluster;
use crate::sched::fiber::{Body, Control, Fiber, FiberRef};
use crate::sched::unparker::Unparker;
use crate::sched::{processor, waiting};
use crate::spawn::handle::ClusterHandle;
use crate::spawn::packet::{FiberResult, JoinHandle, Packet, ScopeData, end};
use crate::spawn::stackless::{Stackless, StacklessFiber};
use crate::switch::reason::WaitReason;
use crate::switch::stack::{FiberStack, STACK_SIZE_DEFAULT};

/// Starts a fiber in the calling fiber's runtime, like [`std::thread::spawn`].
///
/// It may start on any processor of the runtime, and from then on stays there: values inside it
/// need not be `Send`. If the handle is dropped, the fiber runs on detached.
///
/// Values that move into the fiber cross threads:
///
/// ```compile_fail,E0277
/// let not_send = std::rc::Rc::new(1);
/// weftwork_fiber::spawn(move || drop(not_send));
/// ```
///
/// The result crosses threads, too:
///
/// ```compile_fail,E0277
/// weftwork_fiber::spawn(|| std::rc::Rc::new(1));
/// ```
///
/// # Panics
/// On a plain thread (use [`Runtime::spawn`](crate::Runtime::spawn)), or if no stack can be had.
#[track_caller]
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(f).expect("failed to spawn a fiber")
}

/// Starts a [stackless fiber](Stackless) in the calling fiber's runtime.
///
/// # Panics
/// On a plain thread: use [`Runtime::spawn_stackless_with`](crate::Runtime::spawn_stackless_with).
#[track_caller]
pub fn spawn_stackless(value: impl Stackless) -> JoinHandle<()> {
    let started = Builder::new().spawn_stackless(value);
    started.expect("failed to spawn a fiber")
}

/// Settings of a new fiber, like [`std::thread::Builder`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    name: Option<Arc<Cow<'static, str>>>,
    stack_size: Option<usize>,
    cluster: Option<ClusterHandle>,
    processor: Option<usize>,
    is_migratable: bool,
}

impl Builder {
    /// No name, a stack of 64 KiB, any processor.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the fiber, for messages. Fibers of one builder, cloned, share the memory.
    #[must_use]
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Builder {
        self.name = Some(Arc::new(name.into()));
        self
    }

    /// Address space for the stack in bytes, its guard page included: from 16 KiB to just below 1
    /// GiB, whatever is asked for. Only pages that are touched cost memory.
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// Lets the fiber continue on any processor after any wait, so that others may help when its
    /// own is busy. Without this a fiber stays where it has started.
    ///
    /// # Safety
    /// Between two waits the fiber may be on another kernel thread, in the middle of a function.
    /// So these rules hold for all that it calls, libraries included:
    ///
    /// * Nothing may keep an address, or a value, of thread-local storage across a wait: no wait
    ///   inside [`LocalKey::with`](std::thread::LocalKey::with), and no wait in a function that
    ///   uses a `thread_local!` before and after it, because the compiler may keep the address that
    ///   it has computed (which happens;
    ///   [rust-lang/rust#33368](https://github.com/rust-lang/rust/issues/33368)).
    ///   [`fiber_local!`](crate::fiber_local) moves with the fiber.
    /// * Whatever is alive across a wait must be [`Send`], as if it were moved to another thread
    ///   there: no `Rc`, no guard of a `std::sync::Mutex` (which must be released by the thread
    ///   that took it; those of [`fiber::sync`](crate::sync) are fine).
    /// * Nothing may rely on the kernel thread's identity across a wait: its id, name, signal mask,
    ///   CPU affinity or priority.
    #[must_use]
    pub unsafe fn migratable(mut self) -> Builder {
        self.is_migratable = true;
        self
    }

    /// Starts it in this cluster, instead of the calling fiber's; from a plain thread as well.
    #[must_use]
    pub fn cluster(mut self, cluster: &ClusterHandle) -> Builder {
        self.cluster = Some(cluster.clone());
        self
    }

    /// Starts it on processor `index` (modulo their number, of those that run; on another if that
    /// one is just being removed) and nowhere else.
    #[must_use]
    pub fn processor(mut self, index: usize) -> Builder {
        self.processor = Some(index);
        self
    }

    /// Starts the fiber in the calling fiber's runtime, or in the [cluster](Builder::cluster) that
    /// was named.
    ///
    /// # Errors
    /// `OutOfMemory` if no stack can be had; `Unsupported` on a plain thread without a cluster;
    /// `NotConnected` if the runtime has been shut down.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(
        self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let cluster = self.named_or_current_cluster()?;
        self.spawn_in(cluster, Location::caller(), f)
    }

    pub(crate) fn spawn_in<T: Send + 'static>(
        self,
        cluster: Arc<Cluster>,
        spawned_at: &'static Location<'static>,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let packet = Arc::new(Packet::new(None));
        let whole = entry(Some(Arc::clone(&packet)), f);
        let fiber = self.start(cluster, spawned_at, whole)?;
        Ok(JoinHandle { fiber, packet })
    }

    /// Starts a fiber that no other waits for, as [`spawn`](Builder::spawn) does, for less memory.
    ///
    /// # Errors
    /// Like `spawn`.
    #[track_caller]
    pub fn spawn_detached(self, f: impl FnOnce() + Send + 'static) -> io::Result<Fiber> {
        let cluster = self.named_or_current_cluster()?;
        self.start(cluster, Location::caller(), entry(None, f))
    }

    /// Starts a [stackless fiber](Stackless) in the calling fiber's runtime, or in the
    /// [cluster](Builder::cluster) that was named. Its stacks have the default size.
    ///
    /// # Errors
    /// `Unsupported` on a plain thread without a cluster; `NotConnected` if the runtime has been
    /// shut down.
    #[track_caller]
    pub fn spawn_stackless(self, value: impl Stackless) -> io::Result<JoinHandle<()>> {
        let cluster = self.named_or_current_cluster()?;
        self.spawn_stackless_in(cluster, Location::caller(), value)
    }

    fn named_or_current_cluster(&self) -> io::Result<Arc<Cluster>> {
        match &self.cluster {
            Some(named) => Ok(Arc::clone(&named.0)),
            None => current_cluster(),
        }
    }

    pub(crate) fn spawn_stackless_in(
        self,
        cluster: Arc<Cluster>,
        spawned_at: &'static Location<'static>,
        value: impl Stackless,
    ) -> io::Result<JoinHandle<()>> {
        let packet = Arc::new(Packet::new(None));
        let body = StacklessFiber::new(value, Some(Arc::clone(&packet)));
        let fiber = self.start_body(cluster, spawned_at, Body::Stackless(Box::new(body)))?;
        Ok(JoinHandle { fiber, packet })
    }

    /// Starts a stackless fiber that no other waits for, as
    /// [`spawn_stackless`](Builder::spawn_stackless) does, for less memory.
    ///
    /// # Errors
    /// Like `spawn_stackless`.
    #[track_caller]
    pub fn spawn_stackless_detached(self, value: impl Stackless) -> io::Result<Fiber> {
        let cluster = self.named_or_current_cluster()?;
        let body = Body::Stackless(Box::new(StacklessFiber::new(value, None)));
        self.start_body(cluster, Location::caller(), body)
    }

    fn start(
        self,
        cluster: Arc<Cluster>,
        spawned_at: &'static Location<'static>,
        entry: impl FnOnce() + Send + 'static,
    ) -> io::Result<Fiber> {
        let body = self.body(entry)?;
        self.start_body(cluster, spawned_at, body)
    }

    /// Body that calls `entry`, on a stack of its own.
    fn body(&self, entry: impl FnOnce() + Send + 'static) -> io::Result<Body> {
        let stack = match self.stack_size.unwrap_or(STACK_SIZE_DEFAULT) {
            STACK_SIZE_DEFAULT => processor::with_running(|processor, _| processor.stacks.take())
                .unwrap_or_else(|| FiberStack::take(STACK_SIZE_DEFAULT)),
            size => FiberStack::take(size),
        };
        Ok(once(stack?, entry))
    }

    fn start_body(
        self,
        cluster: Arc<Cluster>,
        spawned_at: &'static Location<'static>,
        body: Body,
    ) -> io::Result<Fiber> {
        let processor = self.processor;
        let (fiber, reference) = self.make(cluster, spawned_at, body);
        let cluster = fiber.control.cluster();
        let started = match processor {
            Some(index) => cluster.spawn_on(reference, index),
            None => cluster.spawn(reference),
        };
        match started {
            Ok(()) => Ok(fiber),
            Err(error) => {
                reference.release();
                Err(error)
            }
        }
    }

    /// A fiber that is yet to start, or to be released.
    fn make(
        self,
        cluster: Arc<Cluster>,
        spawned_at: &'static Location<'static>,
        body: Body,
    ) -> (Fiber, FiberRef) {
        let control = Control::new(cluster, self.name, spawned_at, self.is_migratable, body);
        let fiber = Fiber { control: Arc::clone(&control) };
        (fiber, FiberRef::new(control))
    }
}

fn current_cluster() -> io::Result<Arc<Cluster>> {
    let current = ClusterHandle::current().map(|current| current.0);
    current.ok_or_else(|| {
        let message = "not in a fiber: start a runtime with fiber::run or fiber::Runtime";
        io::Error::new(io::ErrorKind::Unsupported, message)
    })
}

const NEVER_RUNS: &str = "a fiber that is waited for would never run: its only processor is held \
     by a destructor of a fiber that panics, or by on_processor_stack";

/// Runs `f`, which may borrow, in a fiber of `cluster`, and waits for it: see
/// [`ClusterHandle::run`].
pub(crate) fn run_in<T: Send>(
    cluster: &Arc<Cluster>,
    spawned_at: &'static Location<'static>,
    f: impl FnOnce() -> T + Send,
) -> T {
    let packet = Arc::new(Packet::new(None));
    let run = entry(Some(Arc::clone(&packet)), f);
    let caller = Unparker::current();
    let whole = move || {
        run();
        caller.unpark();
    };
    assert!(!processor::blocks_all_of(cluster), "{}", NEVER_RUNS);
    // SAFETY: this frame stays, and does not unwind, before the fiber has left its result, and the
    // fiber has dropped the closure by then. (In the child of a fork the wait panics, and there the
    // fiber never runs.) A fiber that is refused has no other handle, and its closure is dropped in
    // `start`. The result is taken here, so the fiber's share of the packet borrows nothing when it
    // goes. If the runtime stops first, the fiber never runs again, and this call never returns; if
    // the caller is a fiber that its runtime leaves behind, its stack and its kernel thread stay.
    let whole = unsafe { outlive_borrows(Box::new(whole)) };
    let started = Builder::new().start(Arc::clone(cluster), spawned_at, whole);
    let fiber = started.expect("failed to spawn a fiber");
    let _noted = waiting::on(WaitReason::Join { fiber: fiber.id() });
    while !packet.is_finished() {
        fiber.control.cluster().process.check("wait for a fiber");
        while_lent(|| {
            if is_cancelled() {
                fiber.cancel();
            }
            park();
        });
    }
    packet
        .take()
        .expect("a fiber leaves one result")
        .unwrap_or_else(|payload| resume_unwind(payload))
}

/// Lets a fiber run a closure that borrows.
///
/// # Safety
/// The borrows of `f` last until `f`, and every value that it gave away, have been dropped, if they
/// ever are.
unsafe fn outlive_borrows<'a>(f: Box<dyn FnOnce() + Send + 'a>) -> Box<dyn FnOnce() + Send> {
    // SAFETY: only the lifetime differs, for which the caller vouches.
    unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'a>, Box<dyn FnOnce() + Send>>(f) }
}

/// Code of a fiber: runs the closure, stores its result, wakes the one that waits. Nothing unwinds
/// beyond it.
fn entry<T: Send>(
    packet: Option<Arc<Packet<T>>>,
    f: impl FnOnce() -> T + Send,
) -> impl FnOnce() + Send {
    move || end(packet, catch_unwind(AssertUnwindSafe(f)))
}

/// Fibers that may borrow from the caller, because [`scope`] waits for them.
pub struct Scope<'scope, 'env: 'scope> {
    data: Arc<ScopeData>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs `f`, which may spawn fibers that borrow from here, and waits for all of them, like
/// [`std::thread::scope`].
///
/// Cancellation goes down: when `f` panics, or when the fiber that called `scope` is
/// [cancelled](Fiber::cancel) and waits at the end of it, the scope's fibers are cancelled. They
/// are waited for in any case.
///
/// # Panics
/// If a fiber panicked that was not joined; on a plain thread, when `f` spawns; or in the child of
/// a fork that `f` has made, because the scope's fibers stayed with the parent.
pub fn scope<'env, T>(f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    notice_forks();
    let data = Arc::new(ScopeData {
        process: Home::here(),
        running: AtomicUsize::new(0),
        fibers: Mutex::default(),
        panicked: AtomicBool::new(false),
        owner: Unparker::current(),
    });
    let scope = Scope { data, scope: PhantomData, env: PhantomData };
    // Whatever happens in `f`, its frame's borrows end only after all fibers have.
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    if result.is_err() {
        scope.data.cancel();
    }
    while scope.data.running.load(Ordering::Acquire) != 0 {
        if !scope.data.process.is_here() && result.is_err() {
            // The fibers are the parent's and never run here: nothing that they borrow is in use.
            break;
        }
        scope.data.process.check("wait for scoped fibers");
        while_lent(|| {
            if is_cancelled() {
                scope.data.cancel();
            }
            park();
        });
    }
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if scope.data.panicked.load(Ordering::Relaxed) => panic!("a scoped fiber panicked"),
        Ok(value) => value,
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Cancels all fibers of the scope that run: see [`Fiber::cancel`].
    pub fn cancel_all(&self) {
        self.data.cancel();
    }

    /// Starts a fiber that may borrow what outlives the scope.
    ///
    /// # Panics
    /// On a plain thread, or if no stack can be had; and where the caller
    /// [cannot suspend](crate::sync#code-that-cannot-suspend) and there is no other processor.
    #[track_caller]
    pub fn spawn<T: Send + 'scope>(
        &'scope self,
        f: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let cluster = current_cluster().expect("failed to spawn a scoped fiber");
        assert!(!processor::blocks_all_of(&cluster), "{}", NEVER_RUNS);
        let data = Arc::clone(&self.data);
        let packet = Arc::new(Packet::new(Some(Arc::clone(&data))));
        let run = entry(Some(Arc::clone(&packet)), f);
        let whole: Box<dyn FnOnce() + Send + 'scope> = Box::new(move || {
            // Drops its share of the packet at its end: the result may borrow, so unless the handle
            // keeps it, it goes before the scope does.
            run();
            data.count_out(current().map(|fiber| fiber.id()));
        });
        // SAFETY: `scope` does not return, even by unwinding, before `running` is back at zero, and
        // the fiber touches nothing borrowed after it has counted itself out. If the runtime stops
        // first, the frame of `scope` is never left, and its stack and kernel thread stay. A fiber
        // that is refused has no other handle, and its closure is dropped here.
        let whole = unsafe { outlive_borrows(whole) };
        let counted_in = CountedIn::new(&self.data);
        let builder = Builder::new();
        let body = builder.body(whole).expect("failed to spawn a scoped fiber");
        let (fiber, reference) = builder.make(cluster, Location::caller(), body);
        // Held until the fiber is listed, so that it cannot unlist itself before. No user code runs
        // under it.
        let mut fibers = lock(&self.data.fibers);
        let started = fiber.control.cluster().spawn(reference);
        if started.is_ok() {
            counted_in.has_started();
            fibers.insert(fiber.id(), fiber.clone());
        }
        drop(fibers);
        if let Err(error) = started {
            // This drops the closure.
            reference.release();
            drop(fiber);
            panic!("failed to spawn a scoped fiber: {error}");
        }
        ScopedJoinHandle { inner: JoinHandle { fiber, packet }, scope: PhantomData }
    }
}

/// A fiber that a scope waits for. It is counted out here if it does not start.
struct CountedIn<'a>(&'a ScopeData);

impl CountedIn<'_> {
    fn new(data: &ScopeData) -> CountedIn<'_> {
        data.running.fetch_add(1, Ordering::Relaxed);
        CountedIn(data)
    }

    /// Counts the fiber out once it has started.
    fn has_started(self) {
        std::mem::forget(self);
    }
}

impl Drop for CountedIn<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for a scoped fiber.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    inner: JoinHandle<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Same as [`JoinHandle::join`].
    ///
    /// # Errors
    /// The payload of its panic, if it panicked.
    pub fn join(self) -> FiberResult<T> {
        self.inner.join()
    }

    /// Same as [`JoinHandle::wait`].
    ///
    /// # Errors
    /// `TimedOut`, or [`Cancelled`](crate::Cancelled).
    pub fn wait(&self) -> io::Result<()> {
        self.inner.wait()
    }

    /// Same as [`JoinHandle::cancel`].
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// The fiber's handle.
    pub fn fiber(&self) -> &Fiber {
        self.inner.fiber()
    }

    /// Same as [`JoinHandle::is_finished`].
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }
}
