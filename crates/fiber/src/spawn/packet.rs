//! Result of a fiber, and the wait for it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::abort::{AbortOnUnwind, DROPPED};
use crate::base::home::Home;
use crate::base::lock::lock;
use crate::io::cancel::checkpoint;
use crate::sched::block::{park, park_until_deadline, suspendable};
use crate::sched::fiber::Fiber;
use crate::sched::processor::{is_fiber_of_here, running_here};
use crate::sched::unparker::Unparker;
use crate::sched::{local, waiting};
use crate::switch::reason::WaitReason;

/// The end of a fiber, in the fiber: puts its result away. Afterwards its control block, which
/// others may keep for as long as they like and drop on any thread, has nothing of the user's.
pub(crate) fn end<T>(packet: Arc<Packet<T>>, result: FiberResult<T>) {
    // What is left may run destructors of the user's.
    let abort = AbortOnUnwind(DROPPED);
    clear_here();
    packet.finish(result);
    // A result that no handle wants goes here.
    drop(packet);
    local::end_here();
    std::mem::forget(abort);
}

/// Drops the values of the calling fiber, before those that wait for it go on.
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
    if suspendable().is_none() && is_fiber_of_here(fiber) {
        return refused("the fiber cannot run while this processor waits for it");
    }
    Ok(())
}

/// Shared cell for the result of a fiber.
pub(crate) struct Packet<T> {
    /// There while `progress` is FINISHED.
    result: UnsafeCell<MaybeUninit<FiberResult<T>>>,
    progress: AtomicU8,
    waiters: Mutex<Waiters>,
    /// Told of a panic that was not looked at.
    scope: Option<Arc<ScopeData>>,
}

const RUNNING: u8 = 0;
const FINISHED: u8 = 1;
/// And the result has been taken.
const TAKEN: u8 = 2;

/// Several may share a handle, and wait; mostly it is one, which costs no memory.
#[derive(Debug, Default)]
enum Waiters {
    #[default]
    None,
    One(Unparker),
    #[expect(
        clippy::box_collection,
        reason = "every fiber has this, few have several that wait"
    )]
    Several(Box<Vec<Unparker>>),
}

// SAFETY: `result` is written once before `progress` says so, and taken only after, by the one
// handle.
unsafe impl<T: Send> Sync for Packet<T> {}
// SAFETY: the result may move between threads.
unsafe impl<T: Send> Send for Packet<T> {}

impl<T> Packet<T> {
    pub(super) fn new(scope: Option<Arc<ScopeData>>) -> Packet<T> {
        Packet {
            result: UnsafeCell::new(MaybeUninit::uninit()),
            progress: AtomicU8::new(RUNNING),
            waiters: Mutex::default(),
            scope,
        }
    }

    pub(crate) fn finish(&self, result: FiberResult<T>) {
        // SAFETY: only the fiber itself comes here, once, before any look.
        unsafe { (*self.result.get()).write(result) };
        self.progress.store(FINISHED, Ordering::Release);
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        match waiters {
            Waiters::None => {}
            Waiters::One(waiter) => waiter.unpark(),
            Waiters::Several(waiters) => waiters.iter().for_each(Unparker::unpark),
        }
    }

    /// The result of a fiber that has finished.
    pub(super) fn take(&self) -> Option<FiberResult<T>> {
        let taken =
            self.progress
                .compare_exchange(FINISHED, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        // SAFETY: it is there, and the thread that changed FINISHED to TAKEN has it alone.
        taken
            .ok()
            .map(|_| unsafe { (*self.result.get()).assume_init_read() })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.progress.load(Ordering::Acquire) != RUNNING
    }

    pub(super) fn wait(&self, fiber: &Fiber) {
        while !self.is_finished() {
            fiber.control.cluster().process.check("join a fiber");
            self.wait_once(park);
        }
    }

    /// Same as [`wait`](Packet::wait), but a suspension point like others.
    pub(super) fn try_wait(&self) -> io::Result<()> {
        while !self.is_finished() {
            checkpoint()?;
            self.wait_once(park_until_deadline);
        }
        Ok(())
    }

    pub(super) fn wait_once(&self, park: impl FnOnce()) {
        lock(&self.waiters).add(Unparker::current());
        // Checked again: it may have finished before it could see the waiter.
        if !self.is_finished() {
            park();
        }
        if !self.is_finished() {
            // It gives up, or stands in line again.
            lock(&self.waiters).remove_caller();
        }
    }
}

impl Waiters {
    fn add(&mut self, waiter: Unparker) {
        *self = match std::mem::take(self) {
            Waiters::None => Waiters::One(waiter),
            Waiters::One(first) => Waiters::Several(Box::new(vec![first, waiter])),
            Waiters::Several(mut waiters) => {
                waiters.push(waiter);
                Waiters::Several(waiters)
            }
        };
    }

    fn remove_caller(&mut self) {
        match self {
            Waiters::One(waiter) if waiter.is_caller() => *self = Waiters::None,
            Waiters::Several(waiters) => waiters.retain(|waiter| !waiter.is_caller()),
            _ => {}
        }
    }
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
    /// If it would wait for ever: in the fiber itself, or where the caller
    /// [cannot suspend](crate::sync#code-that-cannot-suspend) and the fiber can run on the caller's
    /// processor only.
    pub fn join(self) -> FiberResult<T> {
        let fiber = self.fiber.id();
        if !self.packet.is_finished()
            && let Err(error) = refuse_to_wait_for(fiber)
        {
            panic!("failed to join a fiber: {error}");
        }
        let _noted = waiting::on(WaitReason::Join { fiber });
        self.packet.wait(&self.fiber);
        self.packet.take().expect("a fiber leaves one result")
    }

    /// Waits until the fiber has finished, and unlike [`join`](JoinHandle::join) is a suspension
    /// point like others: it ends at the deadline of [`timeout`](crate::timeout), and when the
    /// fiber that waits is [cancelled](Fiber::cancel). The fiber that is waited for goes on then.
    ///
    /// # Errors
    /// `TimedOut`, or [`Cancelled`](crate::Cancelled); `Deadlock` where `join` panics.
    pub fn wait(&self) -> io::Result<()> {
        if !self.packet.is_finished() {
            refuse_to_wait_for(self.fiber.id())?;
            self.fiber
                .control
                .cluster()
                .process
                .check("wait for a fiber");
        }
        self.packet.try_wait()
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
        f.debug_struct("JoinHandle")
            .field("fiber", &self.fiber)
            .finish_non_exhaustive()
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
