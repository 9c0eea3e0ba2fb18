//! Cancellation of a fiber: the error, and the request in its control block.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The fiber was cancelled: see [`Fiber::cancel`](crate::Fiber::cancel).
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

/// True if an error says that the fiber was cancelled.
pub fn is_cancellation(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Cancelled>())
}

/// Cancellation state in a fiber's control block.
#[derive(Default)]
pub(crate) struct Cancellation {
    pub(crate) requested: AtomicBool,
    /// Nesting depth of [`uncancellable`](crate::uncancellable). Touched by the processor that runs
    /// the fiber, or where it waits.
    pub(crate) masks: Cell<u8>,
    /// Number of suspension points that have failed, or returned early, because a cancellation was
    /// due or the deadline had passed.
    ignored: Cell<u16>,
}

impl Cancellation {
    /// True if the next suspension point fails.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        // Sequentially consistent: a fiber that has published its home and does not see the flag
        // gets a message. On x86-64 it is a plain load.
        self.requested.load(Ordering::SeqCst) && self.masks.get() == 0
    }

    /// Counts a suspension point that tells the fiber to end; returns the number of earlier ones.
    pub(crate) fn count_ignored(&self) -> u16 {
        let before = self.ignored.get();
        self.ignored.set(before.saturating_add(1));
        before
    }

    /// Resets the count, because a deadline begins or ends.
    pub(crate) fn forget_ignored(&self) {
        self.ignored.set(0);
    }
}
