//! Making fibers ready, from anywhere: here and now if the caller is the right processor.

use std::io;
use std::sync::atomic::Ordering;

use crate::base::stamp;
use crate::sched::cluster::{Cluster, Message, ProcessorShared};
use crate::sched::fiber::{Fiber, FiberRef};
use crate::sched::processor;

impl Fiber {
    /// Lets the fiber's [`park`](crate::park) return, now or at its next call. From any thread.
    pub fn unpark(&self) {
        if self.control.token.unpark() {
            self.make_ready();
        }
    }

    /// Only the caller that moved it from parked to ready comes here, so it enters one queue.
    fn make_ready(&self) {
        let fiber = FiberRef::of(self);
        // SAFETY: a parked fiber has started, so `home` was set, to a shared half that lives as
        // long as the cluster, which the control block holds.
        let home = unsafe { &*self.control.home.load(Ordering::Acquire) };
        if fiber.is_movable() {
            self.control.cluster().push_movable(fiber, home.index);
        } else {
            home.push_ready(fiber);
        }
    }
}

impl FiberRef {
    /// True if the fiber, which has frames, is pinned to the calling thread: it does not go on
    /// before the caller gives the processor away.
    pub(crate) fn waits_for_caller(self) -> bool {
        let control = self.control();
        // SAFETY: as in `make_ready`.
        let home = unsafe { &*control.home.load(Ordering::Relaxed) };
        !control.is_migratable() && processor::at(home, |_| {})
    }
}

impl Cluster {
    /// Starts a fiber on whichever processor comes first.
    ///
    /// # Errors
    /// The runtime has been shut down; the fiber is not taken.
    pub(crate) fn spawn(&self, fiber: FiberRef) -> io::Result<()> {
        self.admit(fiber)?;
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.push_movable(fiber, next % self.open_slots().len().max(1));
        Ok(())
    }

    /// Makes a fiber ready that any processor may run: in a run queue of the calling processor or,
    /// if the caller is none of the cluster's, of processor `index`.
    pub(crate) fn push_movable(&self, fiber: FiberRef, index: usize) {
        if !processor::push_movable_if_in(self, fiber) {
            self.queue.push_remote(index, stamp::now(), fiber);
            self.notify();
        }
    }
}

impl ProcessorShared {
    /// Makes one of this processor's own fibers ready, from any thread.
    pub(crate) fn push_ready(&self, fiber: FiberRef) {
        if !processor::push_ready_if_here(self, fiber) {
            self.send(Message::Ready(fiber));
        }
    }
}
