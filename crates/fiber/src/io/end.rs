//! Ends of operations: by completion, deadline, cancellation or relocation.

use std::time::{Duration, Instant};

use crate::backend::{Backend, Completed, Completion};
use crate::io::op::{FAILED_AT_ONCE_MAX, FAILURE_DELAY, Op, OpCarrier};
use crate::sched::fiber::Fiber;
use crate::sched::processor::Processor;
use crate::sched::watch::NEVER;

/// Time after which an operation that was cancelled, and is still there, is cancelled again; twice
/// as long each time, [`DOUBLINGS_MAX`] times.
const CANCEL_AGAIN: Duration = Duration::from_millis(10);
const DOUBLINGS_MAX: u8 = 7;

/// Takes one result of the back end's turn: makes the fiber ready that waited for it.
pub(crate) fn take(processor: &Processor, completed: Completed) {
    match completed {
        Completed::Operation(op, completion) => {
            // SAFETY: the fiber that made it waits until it is completed, which is here.
            unsafe { &*op.cast::<Op>() }.complete(processor, completion);
        }
        Completed::Accept(id, completion) => {
            processor.acceptors.accepted(processor, id, completion);
        }
        Completed::Missed(id) => processor.acceptors.missed(processor, id),
        Completed::Listener(id) => processor.acceptors.readable(processor, id),
    }
}

/// Calls `f` with the operation that the fiber waits for on this processor, if there is one.
fn with_operation(processor: &Processor, fiber: &Fiber, f: impl FnOnce(&Op)) {
    if let Some((op, _)) = fiber.control.operation_here(processor.shared()) {
        // SAFETY: in flight here, so only this thread completes it, and until then it stays.
        f(unsafe { &*op.cast::<Op>() });
    }
}

/// A watch's timer has expired: perhaps the operation's deadline has passed, perhaps another one is
/// in flight, with a later deadline.
pub(crate) fn expire_watch(processor: &Processor, fiber: &Fiber) {
    let watch = fiber.control.watch();
    if !watch.uncover(processor.shared()) {
        return; // The fiber has moved on to another processor.
    }
    // An operation on another processor is covered there.
    let Some((_, tick)) = fiber.control.operation_here(processor.shared()) else {
        return;
    };
    let is_late = tick <= processor.timers.borrow().now();
    with_operation(processor, fiber, |op| {
        if is_late && !op.timed_out.replace(true) && op.carrier != OpCarrier::Watch {
            processor.shared().counters.operations_timed_out.add(1);
        }
        if op.is_ending() {
            let errno = if op.is_cancelled() { libc::ECANCELED } else { libc::ETIMEDOUT };
            end(processor, op, Completion::error(errno));
        } else if tick != NEVER {
            processor.cover(fiber.clone(), tick);
        }
    });
}

/// Ends the wait of a cancelled fiber, whose home is this processor.
pub(crate) fn cancel(processor: &Processor, fiber: &Fiber) {
    // Without an operation the fiber runs, is ready, parks, or has finished.
    with_operation(processor, fiber, |op| {
        if fiber.control.cancellation().is_due() {
            op.note_cancelled(processor);
            end(processor, op, Completion::error(libc::ECANCELED));
        }
    });
}

/// Ends the wait for the next step that a cancelled fiber has begun. After many ignored ends it
/// does so a moment later, so that the fiber does not use the processor up.
pub(crate) fn cancel_begun(processor: &Processor, fiber: &Fiber) {
    if fiber.control.cancellation().count_ignored() < FAILED_AT_ONCE_MAX {
        return cancel(processor, fiber);
    }
    with_operation(processor, fiber, |op| {
        op.note_cancelled(processor);
        processor.end_watch(op.fiber());
        let at = Instant::now() + FAILURE_DELAY;
        processor.cover(fiber.clone(), processor.tick_of(at));
    });
}

/// Ends the wait of a fiber that is interrupted, or that may leave because its processor retires.
pub(crate) fn relocate(processor: &Processor, fiber: &Fiber) {
    with_operation(processor, fiber, |op| {
        if !op.is_bound.get() && !op.relocated.replace(true) {
            end(processor, op, Completion::error(libc::ECANCELED));
        }
    });
}

/// Ends an operation in flight; the reason is noted for its fiber.
pub(super) fn end(processor: &Processor, op: &Op, early: Completion) {
    match (op.carrier, &processor.backend) {
        (OpCarrier::Backend, Backend::Uring(uring)) => {
            // The completion comes later: cancelled, or the result if the operation ended before.
            uring.cancel(&processor.shared().counters, op.address());
            schedule_cancel(processor, op);
        }
        (OpCarrier::Backend, Backend::Epoll(epoll)) => {
            if let Some(fd) = op.waits_for.take() {
                epoll.end_wait(fd, op.address());
            }
            op.complete(processor, early);
        }
        (OpCarrier::Watch, _) => op.complete(processor, early),
        (OpCarrier::Acceptors, _) => {
            if processor.acceptors.withdraw(processor, op) {
                op.complete(processor, early);
            }
        }
    }
}

/// Schedules another cancel of an operation that may not have ended. The kernel does not find one
/// on its way from its poll to a worker thread, and the worker may sleep forever.
fn schedule_cancel(processor: &Processor, op: &Op) {
    let times = op.cancels.get();
    if times > 0 {
        processor.shared().counters.cancels_repeated.add(1);
    }
    op.cancels.set(times.saturating_add(1));
    processor.end_watch(op.fiber());
    let at = Instant::now() + CANCEL_AGAIN * (1 << times.min(DOUBLINGS_MAX));
    processor.cover(op.fiber().handle(), processor.tick_of(at));
}
