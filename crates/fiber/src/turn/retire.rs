//! Retirement of a processor: see [`processors`](crate::spawn::processors).

use std::sync::atomic::Ordering;

use crate::base::stamp;
use crate::io::end;
use crate::sched::cluster::Message;
use crate::sched::fiber::{Fiber, FiberRef};
use crate::sched::processor::{self, Expiry, Processor};

/// Begins the retirement, on the processor that was removed.
pub(crate) fn retire_here(_: [u64; 2]) {
    processor::here(|processor| processor.retiring.begin());
}

impl Processor {
    /// Passes on a fiber that has not started, and was sent here too late.
    pub(crate) fn pass_on(&self, fiber: FiberRef) {
        self.cluster.queue.push_remote(self.index, stamp::now(), fiber);
        self.cluster.notify();
    }

    /// Runs one turn of a retiring processor; returns true if nothing is left to do.
    pub(crate) fn wind_down(&self) -> bool {
        self.relocate_some();
        // Fibers made ready by that as well: after the last part there may be no other turn.
        if self.cluster.queue.drain_to_others(self.index) > 0 {
            self.cluster.notify();
        }
        let pinned = self.pinned();
        self.shared().pinned.store(pinned, Ordering::Relaxed);
        let has_listeners = !self.acceptors.wind_down(self);
        let is_done = pinned == 0
            && !self.retiring.is_busy()
            && !self.has_work()
            && !has_listeners
            && self.backend.is_quiet();
        if !is_done || !self.shared().close_inbox_if_empty() {
            return false;
        }
        self.hand_timers_over();
        true
    }

    /// Ends the waits of fibers that may continue elsewhere, in one part of the registry: there may
    /// be a million, and the fibers that stay need turns too. No such wait begins here any more.
    fn relocate_some(&self) {
        if !self.retiring.is_busy() {
            return;
        }
        let part = self.retiring.parts_done.get();
        self.retiring.parts_done.set(part + 1);
        for fiber in self.cluster.fibers_of_shard(part) {
            self.relocate(&fiber);
        }
    }

    fn relocate(&self, fiber: &Fiber) {
        if fiber.control.operation_here(self.shared()).is_none() {
            return;
        }
        // It waits here, so this thread may look at it: only this thread can end the wait, and no
        // fiber runs here now.
        if FiberRef::of(fiber).is_movable() {
            end::relocate(self, fiber);
        }
    }

    /// Timers that are left belong to fibers which went elsewhere.
    fn hand_timers_over(&self) {
        let left = self.timers.borrow_mut().drain();
        for (tick, expiry) in left {
            match expiry {
                Expiry::Unpark(fiber) => {
                    let deadline = self.time_of(tick);
                    let message = Message::Job(Box::new(move || {
                        processor::here(|there| there.set_timer(deadline, Expiry::Unpark(fiber)));
                    }));
                    self.cluster.send_to_running(self.index, message);
                }
                // It is covered where it waits now, or will be; not by a timer of this processor,
                // whose key means nothing later.
                Expiry::Watch(fiber) => drop(fiber.control.watch().uncover(self.shared())),
            }
        }
    }
}
