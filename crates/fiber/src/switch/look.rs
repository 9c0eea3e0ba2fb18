//! State that a fiber shows to observers: the list of fibers, a debugger, the overflow handler.
//!
//! Each switch leaves a mark in the control block, a plain store: the state. The address of the
//! waiting frame is in the [`Context`](crate::switch::context::Context). A debugger sets its
//! registers to that frame and unwinds from there (`tools/gdb/fibers.py`); the runtime itself
//! resumes the fiber, only to make its backtrace.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// State of a fiber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum FiberState {
    /// Not started yet.
    Unstarted,
    /// Gave way to others.
    Ready,
    /// Runs.
    Running,
    /// Waits, or has just got what it waited for.
    Waiting,
    /// Between two steps, without a stack: waits for input, or has just got it.
    BetweenSteps,
    /// Has just finished.
    Finished,
}

impl FiberState {
    const ALL: [FiberState; 6] = [
        FiberState::Unstarted,
        FiberState::Ready,
        FiberState::Running,
        FiberState::Waiting,
        FiberState::BetweenSteps,
        FiberState::Finished,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            FiberState::Unstarted => "unstarted",
            FiberState::Ready => "ready",
            FiberState::Running => "running",
            FiberState::Waiting => "waiting",
            FiberState::BetweenSteps => "between steps",
            FiberState::Finished => "finished",
        }
    }
}

impl fmt::Display for FiberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The marks. Written by the processor that runs the fiber, read by any thread.
pub(crate) struct Look {
    state: AtomicU8,
}

impl Look {
    pub(crate) fn new() -> Look {
        Look { state: AtomicU8::new(FiberState::Unstarted as u8) }
    }

    #[inline]
    pub(crate) fn enter(&self, state: FiberState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// A reader that sees that it waits also sees where (its home).
    pub(crate) fn state(&self) -> FiberState {
        FiberState::ALL[usize::from(self.state.load(Ordering::Acquire))]
    }
}
