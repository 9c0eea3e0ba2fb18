//! Making fibers ready, from anywhere: here and now if the caller is the right processor.

use std::io;
use std::sync::atomic::Ordering;

use crate::base::stamp;
use crate::sched::cluster::Cluster;
use crate::sched::fiber::{Fiber, FiberRef};
use crate::sched::processor::{self, Processor};

impl Fiber {
    /// Lets the fiber's [`park`](crate::park) return, now or at its next call. From any thread.
    pub fn unpark(&self) {
        if self.control.token.unpark() {
            self.make_ready();
        }
    }

    /// Called only by the thread that moved the fiber from parked to ready, so the fiber enters one
    /// queue.
    fn make_ready(&self) {
        let fiber = FiberRef::of(self);
        // SAFETY: a parked fiber has started, so `home` was set, to a shared half that lives as
        // long as the cluster, which the control block holds.
        let home = unsafe { &*self.control.home.load(Ordering::Acquire) };
        if fiber.is_movable() {
            let cluster = self.control.cluster();
            cluster.push_movable(fiber, stamp::now(), || home.index);
        } else if !processor::push_ready_if_here(home, fiber) {
            home.send_ready(fiber, &self.control.next);
        }
    }
}

impl FiberRef {
    /// Makes a pinned fiber ready that has given its processor away and that nothing else makes
    /// ready: from any thread.
    pub(crate) fn make_ready_at_home(self) {
        // SAFETY: as in `make_ready`.
        let home = unsafe { &*self.control().home.load(Ordering::Relaxed) };
        if !processor::push_ready_if_here(home, self) {
            // `home` is of the fiber's cluster, and the fiber may finish at once.
            let _kept = (!processor::is_in_cluster_of(home)).then(|| self.handle());
            home.send_ready(self, &self.control().next);
        }
    }

    /// True if the fiber, which has frames, is pinned to the calling thread: it does not continue
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
        self.push_movable(fiber, fiber.control().spawned, || {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            next % self.open_slots().len().max(1)
        });
        Ok(())
    }

    /// Makes a fiber ready at `now` that any processor may run: in a run queue of the calling
    /// processor or, if the caller is none of the cluster's, of processor `index`.
    fn push_movable(&self, fiber: FiberRef, now: u64, index: impl FnOnce() -> usize) {
        if !processor::push_movable_if_in(self, now, fiber) {
            self.queue.push_remote(index(), now, fiber);
            self.notify();
        }
    }
}

impl Processor {
    /// Makes ready what others have made ready, the first that has come first.
    pub(crate) fn take_ready(&self) {
        let mut latest = self.shared().take_ready();
        let mut first = std::ptr::null_mut();
        while let Some(fiber) = latest {
            let before = fiber.control().next.load(Ordering::Relaxed);
            fiber.control().next.store(first, Ordering::Relaxed);
            first = fiber.address().as_ptr();
            latest = FiberRef::at_some(before);
        }
        while let Some(fiber) = FiberRef::at_some(first) {
            first = fiber.control().next.load(Ordering::Relaxed);
            self.shared().counters.messages.add(1);
            self.shares_work.set(true);
            self.push_ready(fiber);
        }
    }
}
