//! What other threads know of a loop: its bell, and what it counts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use event::Waker;

use super::counters::LoopCounters;

/// What is known elsewhere of one loop, or of the dealer.
pub(crate) struct Loop {
    pub(crate) bell: Bell,
    /// There is room for a connection, for which it has waited.
    pub(crate) has_room: AtomicBool,
    /// Connections that it has, and those on their way to it.
    pub(crate) open: AtomicUsize,
    pub(crate) counters: LoopCounters,
}

impl Loop {
    pub(crate) fn new() -> io::Result<Arc<Loop>> {
        Ok(Arc::new(Loop {
            bell: Bell::new()?,
            has_room: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            counters: LoopCounters::default(),
        }))
    }
}

/// Wakes a loop that may be waiting.
#[derive(Debug)]
pub(crate) struct Bell {
    waker: Waker,
    /// Rung, and the loop has not looked since: ringing again would be a system call for nothing.
    is_rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell {
            waker: Waker::new()?,
            is_rung: AtomicBool::new(false),
        })
    }

    /// Ends the present wait of the loop, or the next one. From any thread.
    pub(crate) fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Makes it ready to ring again. The loop looks at what it was rung for **afterwards**: one
    /// that rings meanwhile finds it rung and writes nothing. The swap makes seen what that one did
    /// before.
    pub(crate) fn reset(&self) {
        self.waker.reset();
        self.is_rung.swap(false, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::SeqCst)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
