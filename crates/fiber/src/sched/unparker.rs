//! Wake-ups of parked fibers and threads.

use crate::sched::block::suspendable;
use crate::sched::fiber::Fiber;

/// Handle to a parked fiber or plain thread.
#[derive(Debug)]
pub(crate) enum Unparker {
    Fiber(Fiber),
    Thread(std::thread::Thread),
}

impl Unparker {
    /// The calling fiber, or the thread, if that is what a wait would block.
    pub(crate) fn current() -> Unparker {
        suspendable().map_or_else(|| Unparker::Thread(std::thread::current()), Unparker::Fiber)
    }

    pub(crate) fn unpark(&self) {
        match self {
            Unparker::Fiber(fiber) => fiber.unpark(),
            Unparker::Thread(thread) => thread.unpark(),
        }
    }
}
