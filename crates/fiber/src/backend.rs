//! The back end of a processor: how its fibers' operations reach the kernel and how completions
//! come back.
//!
//! It knows neither fibers nor processors. An operation is an address here, and a turn returns
//! values, which the processor's loop takes.
//!
//! An `enum`, not a trait: there are two, they are chosen once at start, and there is no third.
//!
//! | | `uring` | `epoll` |
//! |---|---|---|
//! | an operation is | a ring entry, submitted with all others of the turn | a system call, tried first |
//! | what waits | the operation itself | the fiber, for readiness (edge-triggered, registered when first needed) |
//! | files | ring reads | offload threads |
//! | a deadline | cancels the operation and awaits its completion | ends the wait |

mod completion;
mod epoll;
mod lent;
mod probe;
mod ring;
mod uring;
mod waker;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

pub use probe::{Denied, DeniedCause, Ring, probe};

pub(crate) use completion::{Completed, Completion, SleepLimit, ring_len};
pub(crate) use epoll::{Epoll, Interest};
pub(crate) use lent::{LENT_GROUP, LentMemory, RECEIVE_LEN_MAX};
pub(crate) use uring::Uring;
pub(crate) use waker::Waker;

use crate::base::counters::Counters;

/// Back end that a runtime is asked to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring if this kernel and its administrator allow it, else epoll.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// epoll.
    Epoll,
}

/// Back end that a runtime uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// io_uring: operations in batches.
    Uring,
    /// epoll: system calls, and waiting for readiness.
    Epoll,
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BackendKind::Uring => "io_uring",
            BackendKind::Epoll => "epoll",
        })
    }
}

#[expect(clippy::large_enum_variant, reason = "one for each processor")]
pub(crate) enum Backend {
    Uring(Uring),
    Epoll(Epoll),
}

impl Backend {
    /// # Errors
    /// Errors of the kernel for a new ring or epoll instance.
    pub(crate) fn new(
        kind: BackendKind,
        waker: &Waker,
        lent_memory: &OnceLock<Arc<LentMemory>>,
        wake_fd: Arc<OwnedFd>,
    ) -> io::Result<Backend> {
        Ok(match kind {
            BackendKind::Uring => Backend::Uring(Uring::new(waker, lent_memory, wake_fd)?),
            BackendKind::Epoll => Backend::Epoll(Epoll::new(wake_fd)?),
        })
    }

    pub(crate) fn kind(&self) -> BackendKind {
        match self {
            Backend::Uring(_) => BackendKind::Uring,
            Backend::Epoll(_) => BackendKind::Epoll,
        }
    }

    /// Hands over operations, and adds the ended ones to `done`.
    pub(crate) fn turn(&self, counters: &Counters, wait: SleepLimit, done: &mut Vec<Completed>) {
        match self {
            Backend::Uring(uring) => uring.turn(counters, wait, done),
            Backend::Epoll(epoll) => epoll.turn(counters, wait, done),
        }
    }

    /// True if a turn would not sleep: it submits a send, which completes at once unless the socket
    /// is full.
    pub(crate) fn expects_completion(&self) -> bool {
        matches!(self, Backend::Uring(uring) if uring.expects_completion())
    }

    /// True if a turn would submit or complete something, as far as is known without a system call.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        matches!(self, Backend::Uring(uring) if uring.has_pending())
    }

    /// True if the kernel has nothing left to complete, and no buffer is lent.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Backend::Uring(uring) => uring.is_quiet(),
            // A fiber that waits is in the processor's count, or has been relocated.
            Backend::Epoll(_) => true,
        }
    }

    /// Takes back a piece of receive buffer `id`, which has been read.
    pub(crate) fn take_buffer_back(&self, id: u16) {
        if let Backend::Uring(uring) = self {
            uring.buffers.give_back(id);
        }
    }

    /// Asks the kernel to release everything, before the processor's thread ends.
    pub(crate) fn begin_shut_down(&self, waker: &Waker) {
        if let Backend::Uring(uring) = self {
            uring.begin_shut_down(waker);
        }
    }

    /// Makes one attempt at that, and adds the operations it has ended to `completed`.
    pub(crate) fn shut_down_turn(&self, counters: &Counters, completed: &mut Vec<Completed>) {
        if let Backend::Uring(uring) = self {
            uring.shut_down_turn(counters, completed);
        }
    }

    /// True until the kernel has let go of everything, after
    /// [`begin_shut_down`](Backend::begin_shut_down).
    pub(crate) fn is_shutting_down(&self) -> bool {
        matches!(self, Backend::Uring(uring) if uring.is_in_flight())
    }
}
