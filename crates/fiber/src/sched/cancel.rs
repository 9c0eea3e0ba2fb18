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
//! **What was completed in the race counts.** If bytes have come, or a connection, when the request arrives, the call
//! returns them, and the next suspension point fails. Nothing is read and dropped.
//!
//! **The request stays.** Once cancelled, every suspension point fails, so that a fiber that has ten files open
//! and five calls to go finds its end quickly. Clean-up that must wait goes into [`uncancellable`].
//!
//! **The error is [`Cancelled`] inside an `io::Error` of kind `Other`** ([`is_cancellation`] tells). Not `Interrupted`: `std`'s
//! `read_exact`, `write_all` and `io::copy` repeat what was interrupted, for ever. Not `TimedOut`: who
//! gets that may try again, and here must not. Not `ConnectionAborted`, because nothing is wrong with the connection.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::sched::cluster::Message;
use crate::sched::fiber::{Control, Fiber};
use crate::sched::processor::{self, Processor};

/// The fiber was cancelled: see [`Fiber::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fiber was cancelled")
    }
}

impl Error for Cancelled {}

impl From<Cancelled> for io::Error {
    fn from(cancelled: Cancelled) -> io::Error {
        io::Error::other(cancelled)
    }
}

/// Whether an error says that the fiber was cancelled.
pub fn is_cancellation(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Cancelled>())
}

/// Whether the calling fiber was cancelled, and is not in [`uncancellable`]. `false` on a plain thread.
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
    match deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(()),
    }
}

/// Runs `f`, in which the calling fiber cannot be cancelled: for what has to be brought to its end, such as a transaction or
/// a farewell to the peer. A request that comes meanwhile waits until after it. On a plain thread `f` just runs.
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
    let _unmask = crate::current().map(|fiber| {
        let masks = &fiber.control.cancellation().masks;
        let more = masks.get().checked_add(1);
        masks.set(more.expect("uncancellable is nested 255 deep"));
        Unmask(fiber)
    });
    f()
}

/// What a fiber's control block knows of it.
#[derive(Default)]
pub(crate) struct Cancellation {
    requested: AtomicBool,
    /// How many [`uncancellable`] it is in. Touched by the processor that runs the fiber, or where it waits.
    masks: Cell<u8>,
}

impl Cancellation {
    /// Whether the next suspension point fails.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        // Sequentially consistent: a fiber that has told where it runs (`FiberRef::start`) and does not see the flag
        // is told by a message. On x86-64 it is a plain load.
        self.requested.load(Ordering::SeqCst) && self.masks.get() == 0
    }

    /// # Errors
    /// [`Cancelled`].
    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.is_due() {
            return Err(Cancelled.into());
        }
        Ok(())
    }
}

impl Fiber {
    /// Asks the fiber to end, from any thread: its present or next suspension point fails with [`Cancelled`], and so do
    /// those after it, until it has returned. A second request changes nothing. The fiber is not joined by this.
    ///
    /// | waiting in | cancelled, it |
    /// |---|---|
    /// | [`Steps`](crate::Steps), between two of them | runs the next step with the error |
    /// | reads, writes, `accept`, `connect`, datagrams, pipes, `Child::wait`, `Signals::wait` | returns [`Cancelled`]; what was completed before is returned first |
    /// | [`sleep`](crate::sleep) | returns early |
    /// | [`park`](crate::park), [`park_timeout`](crate::park_timeout) | returns once; check [`is_cancelled`] before each |
    /// | [`JoinHandle::wait`](crate::JoinHandle::wait), [`checkpoint`] | returns [`Cancelled`] |
    /// | [`JoinHandle::join`](crate::JoinHandle::join), [`sync`](crate::sync) without a time-out | goes on waiting |
    /// | [`sync`](crate::sync) with a time-out | ends the wait, as if the time were over |
    /// | the end of [`scope`](crate::scope), [`JoinSet`](crate::JoinSet) | cancels the fibers it waits for, and goes on waiting |
    /// | [`offload`](crate::offload()) | goes on waiting: the call may borrow |
    /// | a disk operation that has begun | gets its result |
    ///
    /// A fiber that has not started starts, and meets the request at its first suspension point.
    pub fn cancel(&self) {
        let control = &self.control;
        if control
            .cancellation()
            .requested
            .swap(true, Ordering::SeqCst)
        {
            return;
        }
        self.unpark();
        control.tell_home(Message::Cancel(self.clone()));
    }

    /// Whether somebody asked the fiber to end.
    pub fn is_cancel_requested(&self) -> bool {
        self.control
            .cancellation()
            .requested
            .load(Ordering::Relaxed)
    }
}

impl Processor {
    /// A fiber was cancelled that lived here when the message was sent: ends what it waits for.
    pub(crate) fn cancel(&self, fiber: &Fiber) {
        let control: &Control = &fiber.control;
        if !control.is_home(self.shared()) {
            // It has moved on.
            return control.tell_home(Message::Cancel(fiber.clone()));
        }
        let Some((op, _)) = control.watch().operation_here(self.shared()) else {
            return; // It runs, is ready, parks, or has finished.
        };
        if control.cancellation().is_due() {
            // SAFETY: in flight here, so only this thread completes it, and until then it stays.
            self.backend.cancel(self, unsafe { &*op });
        }
    }
}
