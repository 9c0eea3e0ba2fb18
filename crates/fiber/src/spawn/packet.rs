//! Result of a fiber, and the wait for it.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::abort::{AbortOnUnwind, DROPPED};
use crate::base::home::Home;
use crate::base::lock::lock;
use crate::io::cancel::checkpoint;
use crate::sched::fiber::Fiber;
use crate::sched::local;
use crate::sched::processor::{is_fiber_of_here, running_here, with_current};
use crate::sched::unparker::Unparker;
use crate::switch::reason::WaitReason;
use crate::sync::Event;
use crate::sync::wait::Limit;

/// Ends a fiber, in the fiber: stores its result, if it has a packet. Afterwards its control block,
/// which others may keep for as long as they like and drop on any thread, holds no user data.
pub(crate) fn end<T>(packet: Option<Arc<Packet<T>>>, result: FiberResult<T>) {
    // The drops below may run user destructors.
    let abort = AbortOnUnwind(DROPPED);
    clear_here();
    match &packet {
        Some(packet) => packet.finish(result),
        None => drop(result),
    }
    // An unwanted result is dropped here.
    drop(packet);
    local::end_here();
    std::mem::forget(abort);
}

/// Drops the values of the calling fiber, before its joiners continue.
pub(crate) fn clear_here() {
    local::reset_here();
}

/// The result of a fiber, as of [`std::thread::Result`].
pub(crate) type FiberResult<T> = Result<T, Box<dyn Any + Send>>;

/// Refuses the calling fiber to wait for its own end, as `std` does for threads; and code that
/// cannot suspend, to wait for a fiber that can run on no other processor.
///
/// # Errors
/// `Deadlock`.
pub(super) fn refuse_to_wait_for(fiber: u64) -> io::Result<()> {
    let refused = |message| Err(io::Error::new(io::ErrorKind::Deadlock, message));
    if running_here().is_some_and(|caller| caller.control().id() == fiber) {
        return refused("a fiber would wait for itself");
    }
    if with_current(|_, _| ()).is_none() && is_fiber_of_here(fiber) {
        return refused("the fiber cannot run while this processor waits for it");
    }
    Ok(())
}

/// Shared cell for the result of a fiber.
pub(crate) struct Packet<T> {
    /// Present once the fiber has finished, until it is taken.
    result: UnsafeCell<MaybeUninit<FiberResult<T>>>,
    is_taken: Cell<bool>,
    finished: Event,
    /// Scope that gets a panic that no join has taken.
    scope: Option<Arc<ScopeData>>,
}

// SAFETY: `result` is written once before `finished` says so, and taken only after, with
// `is_taken`, by the one handle.
unsafe impl<T: Send> Sync for Packet<T> {}
// SAFETY: the result may move between threads.
unsafe impl<T: Send> Send for Packet<T> {}

impl<T> Packet<T> {
    pub(super) fn new(scope: Option<Arc<ScopeData>>) -> Packet<T> {
        Packet {
            result: UnsafeCell::new(MaybeUninit::uninit()),
            is_taken: Cell::new(false),
            finished: Event::new(),
            scope,
        }
    }

    pub(crate) fn finish(&self, result: FiberResult<T>) {
        // SAFETY: only the fiber itself comes here, once, before any look.
        unsafe { (*self.result.get()).write(result) };
        self.finished.set();
    }

    /// The result of a fiber that has finished. Only for the one handle.
    pub(super) fn take(&self) -> Option<FiberResult<T>> {
        let may_take = self.is_finished() && !self.is_taken.replace(true);
        // SAFETY: it is there, and taken once.
        may_take.then(|| unsafe { (*self.result.get()).assume_init_read() })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.is_set()
    }

    pub(super) fn wait(&self, fiber: &Fiber) {
        if !self.is_finished() {
            fiber.control.cluster().process.check("join a fiber");
            self.finished.wait_within(Limit::Never, reason(fiber));
        }
    }

    /// Same as [`wait`](Packet::wait), but a suspension point like others.
    pub(super) fn try_wait(&self, fiber: &Fiber) -> io::Result<()> {
        while !self.is_finished() {
            checkpoint()?;
            self.finished.wait_within(Limit::WithFiber, reason(fiber));
        }
        Ok(())
    }
}

fn reason(fiber: &Fiber) -> WaitReason {
    WaitReason::Join { fiber: fiber.id() }
}

impl<T> Drop for Packet<T> {
    fn drop(&mut self) {
        if let (Some(Err(_)), Some(scope)) = (self.take(), &self.scope) {
            scope.panicked.store(true, Ordering::Relaxed);
        }
    }
}

/// Waits for a fiber, from a fiber or a plain thread.
pub struct JoinHandle<T> {
    pub(super) fiber: Fiber,
    pub(super) packet: Arc<Packet<T>>,
}

impl<T> JoinHandle<T> {
    /// Waits until the fiber has finished and returns what it returned.
    ///
    /// # Errors
    /// The payload of its panic, if it panicked.
    ///
    /// # Panics
    /// If it would wait forever: in the fiber itself, or where the caller
    /// [cannot suspend](crate::sync#code-that-cannot-suspend) and the fiber can run on the caller's
    /// processor only.
    pub fn join(self) -> FiberResult<T> {
        let fiber = self.fiber.id();
        if !self.packet.is_finished()
            && let Err(error) = refuse_to_wait_for(fiber)
        {
            panic!("failed to join a fiber: {error}");
        }
        self.packet.wait(&self.fiber);
        self.packet.take().expect("a fiber leaves one result")
    }

    /// Waits until the fiber has finished, and unlike [`join`](JoinHandle::join) is a suspension
    /// point like others: it ends at the deadline of [`timeout`](crate::timeout), and when the
    /// fiber that waits is [cancelled](Fiber::cancel). The fiber that is waited for continues then.
    ///
    /// # Errors
    /// `TimedOut`, or [`Cancelled`](crate::Cancelled); `Deadlock` where `join` panics.
    pub fn wait(&self) -> io::Result<()> {
        if !self.packet.is_finished() {
            refuse_to_wait_for(self.fiber.id())?;
            self.fiber.control.cluster().process.check("wait for a fiber");
        }
        self.packet.try_wait(&self.fiber)
    }

    /// Asks the fiber to end: see [`Fiber::cancel`]. What it returns then is for
    /// [`join`](JoinHandle::join).
    pub fn cancel(&self) {
        self.fiber.cancel();
    }

    /// True if [`join`](JoinHandle::join) would return at once.
    pub fn is_finished(&self) -> bool {
        self.packet.is_finished()
    }

    /// The fiber's handle.
    pub fn fiber(&self) -> &Fiber {
        &self.fiber
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("fiber", &self.fiber).finish_non_exhaustive()
    }
}

/// State that a [`scope`](crate::scope) shares with its fibers.
pub(super) struct ScopeData {
    /// Process of its fibers.
    pub(super) process: Home,
    pub(super) running: AtomicUsize,
    /// Running fibers by number, for cancelling them.
    pub(super) fibers: Mutex<HashMap<u64, Fiber>>,
    pub(super) panicked: AtomicBool,
    pub(super) owner: Unparker,
}

impl ScopeData {
    /// Cancels all that run. They are named outside of the lock: cancelling wakes processors.
    pub(super) fn cancel(&self) {
        let fibers: Vec<Fiber> = lock(&self.fibers).values().cloned().collect();
        fibers.iter().for_each(Fiber::cancel);
    }

    pub(super) fn count_out(&self, id: Option<u64>) {
        id.map(|id| lock(&self.fibers).remove(&id));
        if self.running.fetch_sub(1, Ordering::Release) == 1 {
            self.owner.unpark();
        }
    }
}
