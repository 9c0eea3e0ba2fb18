//! All fibers of a cluster, started or not: for cancelling them, and for showing them.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::base::lock::lock;
use crate::sched::fiber::{Fiber, FiberRef};

/// Fibers start and end on all processors at once, so the list is in parts, by the fiber's number.
pub(crate) const SHARDS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    shards: [Mutex<Shard>; SHARDS],
}

/// A part of the list. A fiber keeps its place in it, so that it comes and goes in constant time.
#[derive(Debug, Default)]
struct Shard {
    places: Vec<Option<FiberRef>>,
    free: Vec<u32>,
}

impl Shard {
    fn add(&mut self, fiber: FiberRef) {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(None);
                u32::try_from(self.places.len() - 1).expect("fewer than 2^32 fibers")
            }
        };
        self.places[place as usize] = Some(fiber);
        fiber.control().place.store(place, Ordering::Relaxed);
    }

    fn remove(&mut self, fiber: FiberRef) {
        let place = fiber.control().place.load(Ordering::Relaxed);
        let was = self.places[place as usize].take();
        assert_eq!(
            was,
            Some(fiber),
            "place {place} of the registry is another's"
        );
        self.free.push(place);
    }

    /// A fiber in the list is not released before it has been taken out, under the lock that `self`
    /// is in.
    fn fibers(&self) -> Vec<Fiber> {
        self.places
            .iter()
            .flatten()
            .map(|fiber| fiber.handle())
            .collect()
    }
}

impl Registry {
    /// Lists a fiber if `admit` says so, before a processor can find it. A fiber that is refused is
    /// never in the list: a handle that was taken from there would keep its closure, and what that
    /// borrows may be gone by then.
    pub(crate) fn add(&self, fiber: FiberRef, admit: impl FnOnce() -> bool) -> bool {
        let mut shard = lock(self.shard_of(fiber.control().id()));
        let admitted = admit();
        if admitted {
            shard.add(fiber);
        }
        admitted
    }

    /// Before the fiber is released.
    pub(crate) fn remove(&self, fiber: FiberRef) {
        lock(self.shard_of(fiber.control().id())).remove(fiber);
    }

    /// Moves a fiber into another list, if `admit` says so: a walk through one list finds it there,
    /// or it is in the other by then.
    pub(crate) fn hand_over(
        &self,
        fiber: FiberRef,
        to: &Registry,
        admit: impl FnOnce() -> bool,
    ) -> bool {
        let id = fiber.control().id();
        let (from, to) = (self.shard_of(id), to.shard_of(id));
        assert!(!std::ptr::eq(from, to), "a move to where the fiber is");
        // In the order of their addresses: others may go the other way.
        let (mut from, mut to) = if std::ptr::from_ref(from) < std::ptr::from_ref(to) {
            let from = lock(from);
            (from, lock(to))
        } else {
            let to = lock(to);
            (lock(from), to)
        };
        let admitted = admit();
        if admitted {
            from.remove(fiber);
            to.add(fiber);
        }
        admitted
    }

    /// All that there are, one part after the other: fibers that come meanwhile may be missing.
    pub(crate) fn fibers(&self) -> Vec<Fiber> {
        (0..SHARDS).flat_map(|part| self.part(part)).collect()
    }

    /// The fiber with this number.
    pub(crate) fn find(&self, id: u64) -> Option<Fiber> {
        let shard = lock(self.shard_of(id));
        let mut fibers = shard.places.iter().flatten();
        let found = fibers.find(|fiber| fiber.control().id() == id);
        found.map(|fiber| fiber.handle())
    }

    /// Those of one part of [`SHARDS`].
    pub(crate) fn part(&self, part: usize) -> Vec<Fiber> {
        lock(&self.shards[part]).fibers()
    }

    /// The same for a debugger, which has stopped the world: `None` if a change was under way.
    pub(crate) fn try_fibers(&self) -> Option<Vec<Fiber>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.try_lock().ok()?.fibers());
        }
        Some(found)
    }

    fn shard_of(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }
}
