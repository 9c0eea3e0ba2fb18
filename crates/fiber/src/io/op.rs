//! Operations: what a fiber has asked for, and waits for.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::backend::Completion;
use crate::base::cancelled::Cancelled;
use crate::base::clock::{after, earlier};
use crate::sched::block::{suspend, yield_now};
use crate::sched::fiber::{FiberRef, Suspend};
use crate::sched::processor::{self, Processor};
use crate::sched::waiting;
use crate::sched::watch::NEVER;
use crate::switch::reason::{Operation, WaitReason};

/// An operation or a wait of one fiber, on the stack of that fiber, which waits for it.
///
/// All of it is in one cell. Completing it makes the fiber ready, and another processor may then
/// continue the frame in which it lies, and leave it, before the call that holds a reference to it
/// has returned. A reference to data outside of a cell promises that the data stays until then
/// (Stacked and Tree Borrows call it protected); one to a cell does not. The kernel never writes to
/// it: it stores the address as a number and hands that back.
pub(crate) struct Op(UnsafeCell<Fields>);

pub(crate) struct Fields {
    fiber: FiberRef,
    completion: Cell<Option<Completion>>,
    /// True if its deadline passed first; the completion may be yet to come.
    pub(super) timed_out: Cell<bool>,
    /// Descriptor whose list of waits contains it, with epoll.
    pub(super) waits_for: Cell<Option<RawFd>>,
    /// True if its fiber was cancelled; the completion may be yet to come.
    cancelled: Cell<bool>,
    /// True if it ended because its processor retires; the fiber begins it anew, on another.
    pub(super) relocated: Cell<bool>,
    /// Times that the ring was asked to cancel it.
    pub(super) cancels: Cell<u8>,
    /// True if it must not be begun anew.
    pub(super) is_bound: Cell<bool>,
    pub(super) carrier: OpCarrier,
}

/// Part of the runtime that holds an operation and gets a message when it ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpCarrier {
    /// The ring, or epoll's list of waits.
    Backend,
    /// The processor's acceptors.
    Acceptors,
    /// The fiber's watch, and nothing else.
    Watch,
}

impl std::ops::Deref for Op {
    type Target = Fields;

    #[inline(always)]
    fn deref(&self) -> &Fields {
        // SAFETY: only shared references to the fields are made; what changes is in cells of its
        // own.
        unsafe { &*self.0.get() }
    }
}

impl Op {
    /// An operation of the calling fiber, and its deadline: the given one, or an earlier one of
    /// [`timeout`](crate::timeout).
    ///
    /// # Errors
    /// The fiber was cancelled.
    pub(crate) fn begin(deadline: Option<Instant>) -> io::Result<(Op, Option<Instant>)> {
        let fiber = processor::with_current(|_, fiber| fiber);
        let fiber = fiber.expect("only a fiber makes an operation");
        check_cancelled(fiber)?;
        Ok((Op::new(fiber), earlier(deadline, fiber.deadline())))
    }

    pub(crate) fn new(fiber: FiberRef) -> Op {
        Op::carried_by(OpCarrier::Backend, fiber)
    }

    pub(crate) fn carried_by(carrier: OpCarrier, fiber: FiberRef) -> Op {
        Op(UnsafeCell::new(Fields {
            fiber,
            completion: Cell::new(None),
            timed_out: Cell::new(false),
            waits_for: Cell::new(None),
            cancelled: Cell::new(false),
            relocated: Cell::new(false),
            cancels: Cell::new(0),
            is_bound: Cell::new(false),
            carrier,
        }))
    }

    /// Keeps the operation on its processor until it is over.
    pub(crate) fn bind(&self) {
        self.is_bound.set(true);
    }

    /// Address of the operation, by which the back end and the fiber's watch know it.
    pub(crate) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Makes the operation end when its deadline passes or its fiber is cancelled. Returns `true`
    /// if the fiber is cancelled already: the caller then ends it at once.
    #[must_use]
    pub(crate) fn watch(&self, processor: &Processor, deadline: Option<Instant>) -> bool {
        let control = self.fiber.control();
        match deadline {
            Some(deadline) => processor.watch(self.fiber, self.address(), deadline),
            None => control.watch().begin(self.address(), NEVER),
        }
        // Only for a fiber on its own stack. A stackless one would become ready here and could run
        // elsewhere, while its value is still borrowed for the beginning of this wait: see
        // `Processor::begin_wait`.
        let is_due = control.cancellation().is_due() && processor.running() == Some(self.fiber);
        if is_due {
            self.note_cancelled(processor);
        }
        is_due
    }

    /// Notes that its fiber was cancelled.
    pub(super) fn note_cancelled(&self, processor: &Processor) {
        processor.shared().counters.operations_cancelled.add(1);
        self.cancelled.set(true);
    }

    /// Ends the [`watch`](Op::watch) of an operation that could not be begun. Otherwise
    /// [`complete`](Op::complete) does.
    pub(crate) fn unwatch(&self) {
        self.fiber.control().watch().end();
    }

    /// The completion, if it has ended.
    pub(crate) fn completion(&self) -> Option<Completion> {
        self.completion.get()
    }

    pub(crate) fn fiber(&self) -> FiberRef {
        self.fiber
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn is_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// True if it was asked to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.relocated.get() || self.cancelled.get() || self.timed_out.get()
    }

    /// True if it was ended only because its processor retires. Nothing has been done then.
    pub(crate) fn is_relocated(&self) -> bool {
        self.relocated.get() && !self.cancelled.get() && !self.timed_out.get()
    }

    /// Completes the operation, once: a deadline and the real end may come in the same turn.
    pub(crate) fn complete(&self, processor: &Processor, completion: Completion) {
        if self.completion.get().is_none() {
            self.completion.set(Some(completion));
            // Here, not when the fiber continues, which may be on another processor: see
            // `Control::operation_here`.
            self.unwatch();
            // A fiber that finds itself cancelled as it begins to wait is still on its stack, where
            // no other processor may run it. It checks before it suspends.
            let fiber = self.fiber;
            if processor.running() != Some(fiber) {
                // From here on the operation may be gone.
                processor.make_ready(fiber);
            }
        }
    }

    /// Suspends the calling fiber, which must be the one that made the operation, until it is over.
    /// The list of fibers says meanwhile that it waits for this operation on this descriptor.
    pub(crate) fn wait_for(&self, fd: RawFd, operation: Operation) -> Completion {
        self.wait(WaitReason::Io { fd, operation })
    }

    /// Same as [`wait_for`](Op::wait_for), for an operation without a descriptor.
    pub(crate) fn wait(&self, reason: WaitReason) -> Completion {
        let _noted = waiting::on(reason);
        loop {
            if let Some(completion) = self.completion.get() {
                return completion;
            }
            suspend(Suspend::Wait);
        }
    }
}

/// Sleeps for at least `duration` (rounded up to milliseconds) without holding the processor; less
/// if the fiber is [cancelled](crate::Fiber::cancel), and not past the deadline of
/// [`timeout`](crate::timeout). A sleep of no time yields, as [`yield_now`](crate::yield_now).
/// On a plain thread, [`std::thread::sleep`].
///
/// It returns nothing, as `std`'s, so a loop around it asks [`is_cancelled`](crate::is_cancelled)
/// or [`checkpoint`](crate::checkpoint):
///
/// ```
/// # use std::time::Duration;
/// fn tick() -> std::io::Result<()> {
///     loop {
///         weftwork_fiber::checkpoint()?;
///         // ... what is to be done every second
///         weftwork_fiber::sleep(Duration::from_secs(1));
///     }
/// }
/// # let told = weftwork_fiber::run(|| {
/// #     let ticks = weftwork_fiber::spawn(tick);
/// #     ticks.cancel();
/// #     ticks.join().unwrap()
/// # });
/// # assert!(weftwork_fiber::is_cancellation(&told.unwrap_err()));
/// ```
///
/// A loop that does not ask continues: the first sleep after the request returns at once, and the
/// later ones take longer and longer again, up to a tenth of a second (or `duration`, if that is
/// less), so that it uses no processor up.
pub fn sleep(duration: Duration) {
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return std::thread::sleep(duration);
    };
    let is_past = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= Instant::now());
    if fiber.control().cancellation().is_due() || is_past(fiber.deadline()) {
        return pause(fiber, duration);
    }
    if duration.is_zero() {
        return yield_now();
    }
    sleep_until(fiber, earlier(Some(after(duration)), fiber.deadline()));
}

fn sleep_until(fiber: FiberRef, until: Option<Instant>) {
    loop {
        let op = Op::carried_by(OpCarrier::Watch, fiber);
        processor::here(|processor| {
            if op.watch(processor, until) {
                op.complete(processor, Completion::error(libc::ECANCELED));
            }
        });
        op.wait(WaitReason::Timer);
        if !op.is_relocated() {
            return;
        }
    }
}

/// The longest pause of a fiber that continues although it is to end.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Pauses the calling fiber in a wait that is over because the fiber is to end: it was cancelled,
/// or its deadline has passed. A loop that ignores this must neither keep the processor from the
/// others nor use it up: the first such wait ends at once, the next ones later and later.
pub(crate) fn pause(fiber: FiberRef, longest: Duration) {
    let cancellation = fiber.control().cancellation();
    let before = u32::from(cancellation.count_ignored());
    let masked = cancellation.masks.get().checked_add(1);
    let Some(masked) = masked.filter(|_| before > 0) else {
        return yield_now();
    };
    let pause = Duration::from_millis(1 << (before - 1).min(16));
    cancellation.masks.set(masked);
    sleep_until(fiber, Some(after(pause.min(PAUSE_MAX).min(longest))));
    cancellation.masks.set(masked - 1);
}

/// Operations of a cancelled fiber that fail without delay, and the delay of the others.
pub(super) const FAILED_AT_ONCE_MAX: u16 = 1000;
pub(super) const FAILURE_DELAY: Duration = Duration::from_millis(1);

/// Fails if `fiber`, which calls, was cancelled. A loop that ignores the error is slowed down.
///
/// # Errors
/// [`Cancelled`].
#[inline]
pub(crate) fn check_cancelled(fiber: FiberRef) -> io::Result<()> {
    if fiber.control().cancellation().is_due() { Err(refuse(fiber)) } else { Ok(()) }
}

#[cold]
fn refuse(fiber: FiberRef) -> io::Error {
    if fiber.control().cancellation().count_ignored() >= FAILED_AT_ONCE_MAX {
        pause(fiber, FAILURE_DELAY);
    }
    Cancelled.into()
}
