//! Cancellation: a request, which the fiber meets at its present or next suspension point.
//!
//! ```text
//!   cancel() ──▶ the flag is set ──▶ a message to the fiber's processor, which looks what it waits for
//!                                        │
//!              ┌─────────────────────────┼──────────────────────────┬──────────────────────┐
//!              ▼                         ▼                          ▼                      ▼
//!      an operation of the ring     readiness (epoll),        a park: it returns      it runs, or is masked:
//!      is cancelled and awaited     a connection, a sleep:    once, as it may at      the next suspension
//!      (the kernel has its          the wait ends             any time                point tells
//!      buffer until then)
//! ```
//!
//! **What was completed in the race counts.** If bytes have come, or a connection, when the request
//! arrives, the call returns them, and the next suspension point fails. Nothing is read and
//! dropped.
//!
//! **The request stays.** Once cancelled, every suspension point fails, so that a fiber that has
//! ten files open and five calls to go finds its end quickly. Clean-up that must wait goes into
//! [`uncancellable`].
//!
//! **The error is [`Cancelled`] inside an `io::Error` of kind `Other`**
//! ([`is_cancellation`](crate::is_cancellation) tells). Not `Interrupted`: `std`'s `read_exact`,
//! `write_all` and `io::copy` repeat what was interrupted, forever. Not `TimedOut`: code that gets
//! that may try again, and here must not. Not `ConnectionAborted`, because nothing is wrong with
//! the connection.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::base::cancelled::Cancelled;
use crate::io::{end, op};
use crate::sched::block::{self, current, left_until_deadline};
use crate::sched::cluster::Message;
use crate::sched::fiber::Fiber;
use crate::sched::processor::{self, Processor};

/// True if the calling fiber was cancelled and is not in [`uncancellable`]. False on a plain
/// thread.
pub fn is_cancelled() -> bool {
    processor::with_current(|_, fiber| fiber.control().cancellation().is_due()).unwrap_or(false)
}

/// For loops that compute or [`park`](crate::park): fails where a suspension point would.
///
/// # Errors
/// [`Cancelled`], or `TimedOut` past the deadline of [`timeout`](crate::timeout).
pub fn checkpoint() -> io::Result<()> {
    let Some((cancelled, deadline)) = processor::with_current(|_, fiber| {
        (fiber.control().cancellation().is_due(), fiber.deadline())
    }) else {
        return Ok(());
    };
    if cancelled {
        return Err(Cancelled.into());
    }
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(())
    }
}

/// Waits for a call of [`Fiber::unpark`]; returns at once if there was one since the last
/// `park`. May return for no reason, as [`std::thread::park`] may, and does when the fiber is
/// [cancelled](Fiber::cancel) or at the deadline of [`timeout`](crate::timeout). On a plain thread
/// it is just that.
///
/// A wait of another kind (a lock, a channel, `join`, `offload`) parks as well, and may use such a
/// call up. So do not count calls: check the condition before each `park`.
pub fn park() {
    let has_deadline = processor::with_current(|processor, fiber| {
        let has_deadline = fiber.deadline().is_some();
        if !has_deadline {
            block::park_fiber(processor, fiber);
        }
        has_deadline
    });
    match has_deadline {
        Some(true) => park_timeout(Duration::MAX),
        Some(false) => {}
        None => block::park(),
    }
}

/// Same as [`park`], but not longer than `timeout`; with no time it yields, as [`yield_now`].
///
/// [`yield_now`]: crate::yield_now
pub fn park_timeout(timeout: Duration) {
    let left = left_until_deadline();
    if left.is_some_and(|left| left.is_zero()) {
        // A loop around it that ignores the cancellation must not use the processor up.
        processor::with_current(|_, fiber| fiber).inspect(|&fiber| op::pause(fiber, timeout));
    }
    block::park_timeout(left.map_or(timeout, |left| left.min(timeout)));
}

/// Runs `f`, in which the calling fiber cannot be cancelled: for what has to be brought to its end,
/// such as a transaction or a farewell to the peer. A request that comes meanwhile waits until
/// after it. On a plain thread `f` just runs.
///
/// # Panics
/// If it is nested more than 255 deep.
pub fn uncancellable<R>(f: impl FnOnce() -> R) -> R {
    struct Unmask(Fiber);
    impl Drop for Unmask {
        fn drop(&mut self) {
            let masks = &self.0.control.cancellation().masks;
            masks.set(masks.get() - 1);
        }
    }
    let _unmask = current().map(|fiber| {
        let masks = &fiber.control.cancellation().masks;
        let more = masks.get().checked_add(1);
        masks.set(more.expect("uncancellable is nested 255 deep"));
        Unmask(fiber)
    });
    f()
}

impl Fiber {
    /// Asks the fiber to end, from any thread: its present or next suspension point fails with
    /// [`Cancelled`], and so do those after it, until it has returned. A second request changes
    /// nothing. The fiber is not joined by this.
    ///
    /// | waiting in | cancelled, it |
    /// |---|---|
    /// | [stackless fibers](crate::Stackless), between two steps | runs the next step with the error |
    /// | reads, writes, `accept`, `connect`, datagrams, pipes, `Child::wait`, `Signals::wait` | returns [`Cancelled`]; what was completed before is returned first |
    /// | [`sleep`](crate::sleep) | returns early |
    /// | [`park`](crate::park), [`park_timeout`](crate::park_timeout) | returns once; check [`is_cancelled`] before each |
    /// | [`JoinHandle::wait`](crate::JoinHandle::wait), [`JoinSet::wait_next`](crate::JoinSet::wait_next), [`try_offload`](crate::try_offload), [`checkpoint`] | returns [`Cancelled`] |
    /// | `recv` and `send` of channels, [`select!`](crate::select) | fails, as if the other side were gone: a loop over a receiver ends |
    /// | [`sync`](crate::sync) with a time-out | ends the wait, as if the time were over |
    /// | [`sync`](crate::sync) without, where it returns a guard or nothing: `lock`, `acquire`, `Condvar::wait`, `Event::wait`, `Barrier::wait` | keeps waiting |
    /// | [`JoinHandle::join`](crate::JoinHandle::join) | keeps waiting |
    /// | the end of [`scope`](crate::scope), [`JoinSet`](crate::JoinSet) | cancels the fibers it waits for, and keeps waiting |
    /// | [`offload`](crate::offload()) | keeps waiting: the call may borrow |
    /// | a disk operation that has begun | gets its result |
    ///
    /// A fiber that has not started starts, and meets the request at its first suspension point.
    pub fn cancel(&self) {
        let control = &self.control;
        if control.cancellation().requested.swap(true, Ordering::SeqCst) {
            return;
        }
        self.unpark();
        send_cancel(self);
    }

    /// Ends the present wait of the fiber early, from any thread: one for readiness returns as it
    /// may at any time, one for bytes is begun again, and so is one of [`sleep`](crate::sleep). It
    /// is an [`unpark`](Fiber::unpark) as well. A fiber that runs, or waits for a disk, continues.
    ///
    /// For loops that wait for a socket and for something else: publish the news first, then call
    /// this, as with `unpark`.
    pub fn interrupt(&self) {
        self.unpark();
        let fiber = self.clone();
        let job = move || processor::here(|processor| interrupt_here(processor, &fiber));
        self.control.send_home(|| Message::Job(Box::new(job)));
    }

    /// True if the fiber was asked to end.
    pub fn is_cancel_requested(&self) -> bool {
        self.control.cancellation().requested.load(Ordering::Relaxed)
    }
}

/// Sends a message to the fiber's home processor, if the fiber has started and so has a home.
fn send_cancel(fiber: &Fiber) {
    let cancelled = fiber.clone();
    let job = move || processor::here(|processor| cancel_here(processor, &cancelled));
    fiber.control.send_home(|| Message::Job(Box::new(job)));
}

/// Interrupts a fiber on the processor that was its home when the message was sent. A fiber that
/// has moved on runs or has run since.
fn interrupt_here(processor: &Processor, fiber: &Fiber) {
    if fiber.control.is_home(processor.shared()) {
        end::relocate(processor, fiber);
    }
}

/// Cancels a fiber on the processor that was its home when the message was sent.
pub(crate) fn cancel_here(processor: &Processor, fiber: &Fiber) {
    if fiber.control.is_home(processor.shared()) {
        end::cancel(processor, fiber);
    } else {
        send_cancel(fiber); // It has moved on.
    }
}
