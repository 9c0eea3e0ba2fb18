//! Resources of this process's runtimes besides memory, for tests and for the search for a leak.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::switch::stack;

/// Resources that the runtimes of this process hold, or have left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// Stacks in use: of fibers that have not finished, and a few that each processor keeps at
    /// hand. 0 when all runtimes have been shut down and none has left a fiber behind.
    pub stacks_taken: usize,
    /// Stacks in use or free. They are used again, and never given back to the kernel.
    pub stacks_made: usize,
    /// Rings that ended although the kernel had not let go of all operations: their memory stays.
    pub rings_left: usize,
    /// Pieces of receive buffers that were held when their processor ended.
    pub buffers_left: usize,
    /// Threads of processors that have ended and left fibers behind: such a thread sleeps for as
    /// long as the process lives, because a fiber's frame may have lent a `thread_local!` of it.
    pub threads_left: usize,
}

static RINGS_LEFT: AtomicUsize = AtomicUsize::new(0);
static BUFFERS_LEFT: AtomicUsize = AtomicUsize::new(0);
static THREADS_LEFT: AtomicUsize = AtomicUsize::new(0);

/// Returns the resources that the runtimes of this process hold, or have left behind.
pub fn resources() -> Resources {
    let (stacks_taken, stacks_made) = stack::taken_and_made();
    Resources {
        stacks_taken,
        stacks_made,
        rings_left: RINGS_LEFT.load(Ordering::Relaxed),
        buffers_left: BUFFERS_LEFT.load(Ordering::Relaxed),
        threads_left: THREADS_LEFT.load(Ordering::Relaxed),
    }
}

/// Counts a processor's thread that stays after its processor has ended.
pub(crate) fn thread_stays() {
    THREADS_LEFT.fetch_add(1, Ordering::Relaxed);
}

/// Counts a ring that has ended.
pub(crate) fn ring_ended(operations_left: usize, buffers_left: usize) {
    if operations_left > 0 {
        RINGS_LEFT.fetch_add(1, Ordering::Relaxed);
    }
    BUFFERS_LEFT.fetch_add(buffers_left, Ordering::Relaxed);
}
