//! Fibers of a cluster: listed, counted and found.

use std::io;

use crate::sched::cluster::{Cluster, Message, stopped};
use crate::sched::fiber::{Fiber, FiberRef};
use crate::sched::registry::SHARDS;

impl Cluster {
    /// Counts and lists a new fiber, under the lock of the list: a cancellation of all that finds
    /// it counted also finds it listed. A refused fiber is never listed: a handle from the list
    /// would keep its closure longer than the closure's borrows last.
    ///
    /// # Errors
    /// The runtime has been shut down; the fiber is not taken.
    pub(super) fn admit(&self, fiber: FiberRef) -> io::Result<()> {
        self.process.check("spawn a fiber");
        let control = fiber.control();
        let slot = &control.registry_slot;
        let admitted = self.registry.add(control.id(), fiber, slot, || self.count_in());
        if admitted { Ok(()) } else { Err(stopped()) }
    }

    /// Takes a fiber off the list, before it is released.
    pub(crate) fn unlist(&self, fiber: FiberRef) {
        let control = fiber.control();
        self.registry.remove(control.id(), fiber, &control.registry_slot);
    }

    /// Starts a fiber on one processor: the running one after `index` others, modulo their number.
    ///
    /// # Errors
    /// The runtime has been shut down; the fiber is not taken.
    pub(crate) fn spawn_on(&self, fiber: FiberRef, index: usize) -> io::Result<()> {
        self.admit(fiber)?;
        self.send_to_running(index, Message::Start(fiber));
        Ok(())
    }

    /// All fibers, shard by shard: those that come meanwhile may be missing.
    pub(crate) fn fibers(&self) -> Vec<Fiber> {
        (0..SHARDS).flat_map(|shard| self.fibers_of_shard(shard)).collect()
    }

    /// Fibers of one of [`SHARDS`] shards. None is released before it has left the list.
    pub(crate) fn fibers_of_shard(&self, shard: usize) -> Vec<Fiber> {
        self.registry.map(shard, FiberRef::handle)
    }

    /// Same as [`fibers`](Cluster::fibers), for a debugger, which has stopped the world: `None` if
    /// a change was under way.
    pub(crate) fn try_fibers(&self) -> Option<Vec<Fiber>> {
        let mut found = Vec::new();
        for shard in 0..SHARDS {
            found.extend(self.registry.try_map(shard, FiberRef::handle)?);
        }
        Some(found)
    }

    /// The fiber with this number.
    pub(crate) fn find_fiber(&self, id: u64) -> Option<Fiber> {
        self.registry.find(id, |fiber| (fiber.control().id() == id).then(|| fiber.handle()))
    }
}
