//! Ways of a fiber to give its processor away: yield, park, and waits with a deadline.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::base::clock::{after, earlier};
use crate::base::thread_wait;
use crate::sched::fiber::{Body, Control, Fiber, FiberRef, Flow, RESUME, Suspend, TRACE};
use crate::sched::processor::{self, Expiry, Processor};
use crate::sched::run::end_here;
use crate::sched::waiting;
use crate::switch::context::Context;
use crate::switch::look::FiberState;
use crate::switch::reason::WaitReason;
use crate::switch::stack::FiberStack;

/// The fiber that calls, or `None` on a plain thread and in
/// [`on_processor_stack`](crate::on_processor_stack).
pub fn current() -> Option<Fiber> {
    processor::with_running(|_, fiber| fiber.handle())
}

/// The fiber that calls, if it can suspend: not while it unwinds.
pub(crate) fn suspendable() -> Option<Fiber> {
    processor::with_current(|_, fiber| fiber.handle())
}

/// Gives the other ready fibers of this processor their turn. On a plain thread,
/// [`std::thread::yield_now`].
pub fn yield_now() {
    let yielded = processor::with_current(|processor, fiber| {
        suspend_fiber(processor, fiber, Suspend::Yield);
    });
    if yielded.is_none() {
        std::thread::yield_now();
    }
}

/// Operations that a fiber does without suspending before it yields. One counts once more for
/// each so many bytes that it has moved: a megabyte of a file takes as long as many small ones.
const UNSUSPENDED_MAX: u8 = 32;
const COUNTED_LEN: usize = 16 * 1024;

/// Counts an operation that did not wait and has moved `len` bytes; yields after many, because a
/// peer that is always ready must not keep the processor from the other fibers.
pub(crate) fn consume_budget(len: usize) {
    let count = u8::try_from(1 + len / COUNTED_LEN).unwrap_or(u8::MAX);
    let due = processor::with_current(|processor, _| {
        processor.count_unsuspended(count) > UNSUSPENDED_MAX
    });
    if due == Some(true) {
        yield_now();
    }
}

/// Same as [`park`](crate::park), ignoring the deadline of the fiber.
pub(crate) fn park() {
    if processor::with_current(park_fiber).is_some() {
        return;
    }
    // A fiber that unwinds may not suspend (see processor::with_current). Returning for no reason
    // is allowed.
    if processor::is_here() {
        std::thread::yield_now();
    } else {
        thread_wait::for_fibers(std::thread::park);
    }
}

/// Same as [`park`]; `fiber` is the caller, on `processor`.
#[inline]
pub(crate) fn park_fiber(processor: &Processor, fiber: FiberRef) {
    if !fiber.take_token() {
        let _noted = waiting::on_unless_noted(fiber, WaitReason::Park);
        suspend_fiber(processor, fiber, Suspend::Park);
    }
}

/// Same as [`park`], but not longer than `timeout`.
pub(crate) fn park_timeout(timeout: Duration) {
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return thread_wait::for_fibers(|| std::thread::park_timeout(timeout));
    };
    if fiber.take_token() {
        return;
    }
    if timeout.is_zero() {
        return yield_now();
    }
    let deadline = after(timeout);
    let handle = fiber.handle();
    let _noted = waiting::on_unless_noted(fiber, WaitReason::Park);
    let (timer, number, keeper) = processor::here(|processor| {
        let timer = processor.set_timer(deadline, Expiry::Unpark(handle));
        (timer, processor.id, NonNull::from(processor.shared()))
    });
    suspend(Suspend::Park);
    // SAFETY: `keeper` is of a cluster that the fiber has been in, which its control block keeps.
    let keeper = unsafe { keeper.as_ref() };
    processor::here(|processor| processor.cancel_timer(keeper, number, timer));
}

/// Same as [`park`], but not past the deadline of [`timeout`].
pub(crate) fn park_until_deadline() {
    match left_until_deadline() {
        Some(left) => park_timeout(left),
        None => park(),
    }
}

/// Time left until the deadline of [`timeout`], if there is one.
pub(crate) fn left_until_deadline() -> Option<Duration> {
    let deadline = processor::with_current(|_, fiber| fiber.deadline()).flatten()?;
    Some(deadline.saturating_duration_since(Instant::now()))
}

/// Runs `f` with a deadline: waits that it is in `duration` from now, or begins later, fail with
/// [`TimedOut`](std::io::ErrorKind::TimedOut), or in another way where there is no such error.
/// Nested deadlines only shorten. Fibers that `f` spawns do not inherit it. On a plain thread `f`
/// just runs.
///
/// | bounded | not bounded |
/// |---|---|
/// | all of [`net`](crate::net), pipes, [`Child::wait`](crate::process::Child::wait), [`Signals::wait`](crate::signal::Signals::wait) | looking up names that are borrowed: see [`resolve_name`](crate::net::resolve_name) |
/// | [`JoinHandle::wait`](crate::JoinHandle::wait), [`JoinSet::wait_next`](crate::JoinSet::wait_next), [`checkpoint`](crate::checkpoint) | [`JoinHandle::join`](crate::JoinHandle::join), [`JoinSet::join_next`](crate::JoinSet::join_next), the end of [`scope`](crate::scope) |
/// | `recv` and `send` of channels, [`select!`](crate::select); [`sync`](crate::sync) with a time-out | what returns a guard or nothing: `lock`, `acquire`, `Condvar::wait`, `Event::wait`, `Barrier::wait` |
/// | [`sleep`](crate::sleep), [`park`](crate::park) (return early) | |
/// | [`try_offload`](crate::try_offload) | [`offload`](crate::offload()) |
/// | [`fs`](crate::fs) on a ring, until the disk has begun | `fs` with epoll |
pub fn timeout<R>(duration: Duration, f: impl FnOnce() -> R) -> R {
    deadline(after(duration), f)
}

/// Same as [`timeout`], with the time at which it is over.
pub fn deadline<R>(at: Instant, f: impl FnOnce() -> R) -> R {
    struct Restore<'a>(&'a Control, Option<Instant>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            self.0.rare().deadline.set(self.1);
            self.0.cancellation().forget_ignored();
        }
    }
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return f();
    };
    let of_fiber = &fiber.control().rare().deadline;
    let outer = of_fiber.get();
    let _restore = Restore(fiber.control(), outer);
    of_fiber.set(earlier(outer, Some(at)));
    f()
}

/// Runs `f` on the big stack of the processor instead of the fiber's own, for code that needs much
/// stack and does not wait: pages that a deep call touches stay with a fiber, and ten thousand of
/// them add up.
///
/// Inside `f` nothing suspends: it is as on a plain thread, so what waits blocks the processor. On
/// a plain thread `f` just runs.
pub fn on_processor_stack<R>(f: impl FnOnce() -> R) -> R {
    /// The fiber is on its own stack again, also after a panic.
    struct Back(FiberRef);
    impl Drop for Back {
        fn drop(&mut self) {
            // In the child of a fork there is no processor any more.
            if processor::is_here() {
                processor::here(|processor| processor.set_current(Some(self.0)));
            }
        }
    }
    let Some(fiber) = processor::with_current(|processor, fiber| {
        processor.set_current(None);
        fiber
    }) else {
        return f();
    };
    let _back = Back(fiber);
    processor::here(|processor| {
        // SAFETY: the loop waits while a fiber runs, and no fiber is current in the call, so it
        // does not suspend.
        unsafe { processor.context.call(f) }
    })
}

/// Gives the processor away. The caller is a fiber, and something will make it ready again.
pub(crate) fn suspend(how: Suspend) {
    processor::with_current(|processor, fiber| suspend_fiber(processor, fiber, how))
        .expect("suspended outside a fiber");
}

/// Same as [`suspend`]; `fiber` is the caller, on `processor`.
///
/// Not inlined: after the switch, an address in thread-local storage that was computed before it is
/// wrong, and a call boundary keeps the compiler from reusing one in the frames above.
#[inline(never)]
fn suspend_fiber(processor: &Processor, fiber: FiberRef, how: Suspend) {
    let control = fiber.control();
    control.look.enter(match how {
        Suspend::Yield => FiberState::Ready,
        Suspend::Park | Suspend::Wait => FiberState::Waiting,
    });
    let mut word = processor.give_away(fiber, how);
    while word == TRACE {
        fiber.trace_here();
        word = processor::here(|processor| {
            // SAFETY: the fiber runs, and the loop waits until it has reported its backtrace.
            unsafe { control.context.switch_to(&processor.context, RESUME) }
        });
    }
    control.look.enter(FiberState::Running);
}

/// Closures up to this many bytes lie at the base of the fiber's stack, larger ones on the heap.
const CLOSURE_LEN_MAX: usize = 512;

/// A fiber that runs `f`.
pub(crate) fn once<F: FnOnce() + Send + 'static>(stack: FiberStack, f: F) -> Body {
    if size_of::<F>() > CLOSURE_LEN_MAX || align_of::<F>() > CLOSURE_LEN_MAX {
        let boxed: Box<dyn FnOnce() + Send> = Box::new(f);
        return once(stack, boxed);
    }
    Body::Once(Context::new(stack, move || {
        f();
        end_here(Flow::Done)
    }))
}
