//! Memory management: allocate, evict, free.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{hint, mem, thread};

use crate::store::figures::Eviction;
use crate::store::index::{At, Locked};
use crate::store::memory::arena::Chunk;
use crate::store::memory::layout::Layout;
use crate::store::memory::mark;
use crate::store::pool::counters::add;
use crate::store::pool::mover::Stolen;
use crate::store::pool::{Pool, thread_stripe};
use crate::store::rule::{Seconds, StoreError};
use crate::store::slab::{Class, Clock, HELD_MAX, Victim, is_long, item_len};

/// Bytes that a full class evicts at a time, so that the next few items are allocated without a
/// search.
const EVICT_LEN_AT_ONCE: usize = 4096;
const EVICT_AT_ONCE_MAX: usize = 16;

/// Used items that an eviction skips before it takes one anyway: about 20 µs.
const EVICT_STEPS_MAX: u32 = 256;

/// Attempts without success, for instance while other threads hold victims or pages.
const ROUNDS_MAX: u32 = 1200;

/// Checks for memory whose readers are about to leave, before more is evicted: some microseconds.
const CHECKS_MAX: u32 = 16;

/// Pages that an allocation tries to empty for a class with nothing to evict.
const STEALS_MAX: u32 = 64;

/// Next victims checked for dead items before a class gets another page.
const DEAD_CHECKS_MAX: usize = 32;

impl Pool {
    /// Allocates a chunk of a class. Evicts if the memory is full. The caller must hold no lock and
    /// no pin.
    pub(crate) fn allocate(&self, id: u8, clock: Clock) -> Result<Chunk, StoreError> {
        let mut tries = Tries::default();
        let mut waited_until = None;
        let is_behind_readers = loop {
            match self.try_allocate(id, clock, &mut tries) {
                Tried::Got(chunk) => return Ok(chunk),
                Tried::Nothing => break false,
                Tried::Progress => {
                    waited_until = None;
                    continue;
                }
                Tried::Busy => {
                    waited_until = None;
                    thread::yield_now();
                }
                Tried::Held if self.wait(&mut waited_until, &mut tries) => {}
                // A reader running on another processor leaves soon.
                Tried::Held if tries.checks < CHECKS_MAX => hint::spin_loop(),
                Tried::Held => break true,
            }
            tries.rounds += 1;
            if tries.rounds == ROUNDS_MAX {
                break true;
            }
        };
        if is_behind_readers {
            add(&self.counters.stripe(thread_stripe()).refused_behind_readers);
        }
        self.class(id).counts.out_of_memory += 1;
        Err(StoreError::OutOfMemory)
    }

    fn try_allocate(&self, id: u8, clock: Clock, tries: &mut Tries) -> Tried {
        let mut class = self.class(id);
        if let Some(chunk) = self.take_or_reap(&mut class) {
            return Tried::Got(chunk);
        }
        drop(class);
        // Dead items are reused before untouched memory; a full class finds them when it evicts.
        let looks_for_dead = self.has_page() || !self.config.evicts;
        let may_reuse = looks_for_dead && (self.evict_dead(id, clock) || id == self.lens.last());
        if may_reuse && self.advance() && self.reap_limbo(id) == Reaped::Some {
            return Tried::Progress;
        }
        if let Some(page) = self.take_page() {
            self.class(id).add_page(&self.owners, page);
            return Tried::Progress;
        }
        // Recently removed chunks become free as soon as newly evicted ones would, so they come
        // first.
        let limbo = self.reap_limbo(id);
        if limbo == Reaped::Some {
            return Tried::Progress;
        }
        if limbo == Reaped::Later && tries.checks < CHECKS_MAX {
            tries.checks += 1;
            return if self.advance() { Tried::Progress } else { Tried::Held };
        }
        let mut evicted = self.config.evicts && self.evict_some(id, clock, false);
        if !evicted && self.config.evicts {
            // All next victims were used: prefer unused items of another class.
            let stolen = match limbo {
                Reaped::Nothing => self.steal_cold_page(id, clock),
                _ => Stolen::Nothing,
            };
            match stolen {
                Stolen::Page => return Tried::Progress,
                Stolen::Later => {}
                _ => evicted = self.evict_some(id, clock, true),
            }
        }
        self.balance(id, clock);
        let advanced = self.advance();
        if evicted && advanced {
            return Tried::Progress;
        }
        if !evicted && limbo == Reaped::Nothing {
            let stolen = if self.config.evicts {
                self.steal_page(id, tries.given_up, clock)
            } else if tries.given_up == 0 {
                self.take_empty_page(id, tries.checks < CHECKS_MAX)
            } else {
                Stolen::Nothing
            };
            match stolen {
                Stolen::Page => return Tried::Progress,
                Stolen::Later => tries.checks += u32::from(!self.config.evicts),
                Stolen::GaveUp => tries.given_up += 1,
                // Items beyond those checked may have no references.
                Stolen::Nothing if self.class(id).items() > u64::from(HELD_MAX) => {
                    tries.given_up += 1;
                }
                Stolen::Nothing => return Tried::Nothing,
            }
        }
        if tries.given_up == STEALS_MAX {
            Tried::Nothing
        } else if advanced {
            Tried::Busy
        } else {
            Tried::Held
        }
    }

    /// Waits briefly for readers, unless stores have waited for long enough. Counts each allocation
    /// that waits once.
    fn wait(&self, until: &mut Option<Duration>, tries: &mut Tries) -> bool {
        let waits = self.patience.wait(until);
        if waits && !mem::replace(&mut tries.has_waited, true) {
            add(&self.counters.stripe(thread_stripe()).reader_waits);
        }
        waits
    }

    /// Advances two epochs: memory removed before is then free. False if a reader holds the epoch.
    pub(crate) fn advance(&self) -> bool {
        self.epochs.try_advance() && self.epochs.try_advance()
    }

    /// Reaps where a chunk of this class may come from: the class itself, and the last class, whose
    /// long items may end with a chunk of any class.
    fn reap_limbo(&self, id: u8) -> Reaped {
        let own = self.reap_long_after(self.class(id));
        if own == Reaped::Some || id == self.lens.last() {
            return own;
        }
        match self.reap_long_after(self.class(self.lens.last())) {
            Reaped::Nothing => own,
            reaped => reaped,
        }
    }

    fn take_or_reap(&self, class: &mut Class) -> Option<Chunk> {
        const REAP_AT_ONCE: usize = 64;
        // Recently used chunks are preferred to untouched memory: they are in the processor's
        // caches, and the kernel has backed them already.
        let may_reap = class.id != self.lens.last();
        if may_reap && class.take_limbo_lot() {
            self.epochs.try_advance();
            self.reap_short(class, REAP_AT_ONCE);
        }
        if let Some(chunk) = class.take_free(&self.arena, &self.owners) {
            return Some(chunk);
        }
        if may_reap && class.limbo_len() > 0 {
            self.reap_short(class, REAP_AT_ONCE);
        }
        class.take_free(&self.arena, &self.owners)
    }

    /// Reaps in a class that has no long items.
    fn reap_short(&self, class: &mut Class, count_max: usize) {
        let mut none_long = Vec::new();
        class.reap(&self.arena, &self.owners, &self.epochs, count_max, &mut none_long);
    }

    /// Reaps in a class that may have long items; chunks of any class may then be free.
    fn reap_long_after(&self, mut class: MutexGuard<'_, Class>) -> Reaped {
        const REAP_AT_ONCE: usize = 4;
        let limbo_len = class.limbo_len();
        let mut long = Vec::new();
        let reaped = class.reap(&self.arena, &self.owners, &self.epochs, REAP_AT_ONCE, &mut long);
        drop(class);
        long.into_iter().for_each(|chunk| self.free_item(chunk));
        match (reaped, limbo_len) {
            (0, 0) => Reaped::Nothing,
            (0, _) => Reaped::Later,
            _ => Reaped::Some,
        }
    }

    /// Frees an unreachable item: its chunk, and its further chunks if it is long.
    pub(crate) fn free_item(&self, chunk: Chunk) {
        if is_long(&self.arena, chunk) {
            let parts = Layout::of(&self.arena, chunk).parts;
            (0..parts).for_each(|at| self.free_chunk(self.part(chunk, at)));
        }
        self.free_chunk(chunk);
    }

    pub(crate) fn free_chunk(&self, chunk: Chunk) {
        self.class_of(chunk).free(&self.arena, &self.owners, chunk);
    }

    /// Removes dead items at the tails of a class's queues. False if there is none.
    fn evict_dead(&self, id: u8, clock: Clock) -> bool {
        let pinned = self.pin();
        let mut class = self.class(id);
        let clock = self.clock_under_lock(clock);
        let dead = class.take_dead(&self.arena, clock, DEAD_CHECKS_MAX, EVICT_AT_ONCE_MAX);
        drop(class);
        for chunk in &dead {
            let is_dead = true;
            self.evict(Victim { chunk: *chunk, is_dead }, clock);
        }
        drop(pinned);
        !dead.is_empty()
    }

    /// Evicts one or a few items of a class. False if there is none, or if all that were checked
    /// are in use and eviction is not a `must`.
    fn evict_some(&self, id: u8, clock: Clock, must: bool) -> bool {
        let pinned = self.pin();
        let mut victims = [const { None }; EVICT_AT_ONCE_MAX];
        let mut class = self.class(id);
        let clock = self.clock_under_lock(clock);
        let limit = (EVICT_LEN_AT_ONCE / class.chunk_len).clamp(1, EVICT_AT_ONCE_MAX);
        // Behind a preempted reader, further victims would only wait with the others.
        let waits = class.limbo_len() > 64 + class.items() / 8;
        // Skip each item only once: in a class of few items the most used would soon look unused.
        let mut steps = EVICT_STEPS_MAX.min(class.items().max(1) as u32);
        for (at, victim) in victims.iter_mut().take(if waits { 0 } else { limit }).enumerate() {
            let hash_of = |chunk| self.hash_of(chunk);
            *victim = class.pick(&self.arena, clock, (&mut steps, must && at == 0), hash_of);
        }
        drop(class);
        for victim in victims.iter().flatten() {
            self.evict(*victim, clock);
        }
        drop(pinned);
        waits || victims[0].is_some()
    }

    /// Removes an item that the caller has taken from its queue, unless another thread just did.
    /// The epoch must have been pinned since before it was taken.
    pub(crate) fn evict(&self, victim: Victim, clock: Clock) -> bool {
        let locked = self.index.lock(self.hash_of(victim.chunk));
        let Some((at, _)) = locked.find(|chunk| chunk == victim.chunk) else {
            return false;
        };
        locked.remove(at);
        let mut class = self.class_of(victim.chunk);
        class.count_victim(&self.arena, victim, clock.now);
        class.retire(&self.arena, victim.chunk, &self.epochs);
        drop(class);
        drop(locked);
        if let Some(observe) = self.observer.get().filter(|_| !victim.is_dead) {
            observe(self.eviction(victim.chunk, clock.now));
        }
        true
    }

    fn eviction(&self, chunk: Chunk, now: Seconds) -> Eviction<'_> {
        let header = self.arena.header(chunk);
        Eviction {
            key: self.key(chunk),
            was_fetched: header.state.load(Relaxed) & mark::FETCHED != 0,
            exptime: header.exptime.load(Relaxed),
            last_access: header.last_access.load(Relaxed),
            class_id: self.owners.class_of(chunk),
            size: item_len(&self.arena, chunk),
            now,
        }
    }

    /// Removes an item from its locked bucket, and puts it into limbo.
    pub(crate) fn remove(&self, locked: &Locked<'_>, at: At<'_>, chunk: Chunk) {
        locked.remove(at);
        self.class_of(chunk).retire(&self.arena, chunk, &self.epochs);
    }
}

/// Failed attempts of an allocation.
#[derive(Default)]
struct Tries {
    rounds: u32,
    /// Checks for memory whose readers are about to leave.
    checks: u32,
    /// Pages that could not be emptied.
    given_up: u32,
    has_waited: bool,
}

/// Result of one attempt.
enum Tried {
    Got(Chunk),
    /// The next attempt may succeed.
    Progress,
    /// Other threads hold a victim or a page, or a page is being emptied.
    Busy,
    /// Readers hold all reclaimable memory.
    Held,
    /// No memory can be freed.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaped {
    /// Some chunks are free now.
    Some,
    /// Some chunks will be, after their readers.
    Later,
    /// There is nothing to reap.
    Nothing,
}
