//! How memory goes round: allocate, evict, free.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

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

/// How much a full class gives up at once, so that the next few items find room without a search.
const EVICT_LEN_AT_ONCE: usize = 4096;
const EVICT_AT_ONCE_MAX: usize = 16;

/// How many items are passed over, because they were used, until one goes all the same: some 20 µs.
const EVICT_STEPS_MAX: u32 = 256;

/// How many rounds an allocation makes that find nothing, as while other threads have victims or
/// pages in hand.
const ROUNDS_MAX: u32 = 1200;

/// How long an allocation waits at most for a reader that the kernel took off its processor, when
/// that one looks at all memory that it could have. The connections of this processor wait as well.
/// If the reader is not back by then, stores are refused without a wait until it is.
const READER_WAIT_MAX: Duration = Duration::from_millis(2);

/// How often it does so before it evicts more than what waits already: some microseconds.
const WAITS_MAX: u32 = 16;

/// How many pages an allocation tries to empty for a class that has nothing to evict.
const STEALS_MAX: u32 = 64;

/// How many of the items that are next to go are looked at for dead ones before a class gets another page.
const DEAD_LOOKS_MAX: usize = 32;

impl Pool {
    /// A chunk of a class, as a draft. Evicts when the memory is full. The caller holds no lock and no pin.
    pub(crate) fn allocate(&self, id: u8, clock: Clock) -> Result<Chunk, StoreError> {
        let (mut rounds, mut waits, mut given_up) = (0, 0, 0);
        let mut waited = Duration::ZERO;
        while rounds < ROUNDS_MAX && given_up < STEALS_MAX {
            let mut class = self.class(id);
            if let Some(chunk) = self.take_or_reap(&mut class) {
                return Ok(chunk);
            }
            drop(class);
            // What is dead comes before memory that was never used; a full class finds it as it evicts.
            let looks_for_dead = self.has_page() || !self.config.evicts;
            let may_reuse =
                looks_for_dead && (self.evict_dead(id, clock) || id == self.lens.last());
            if may_reuse && self.advance() && self.reap_limbo(id) == Reaped::Some {
                continue;
            }
            if let Some(page) = self.take_page() {
                self.class(id).add_page(&self.owners, page);
                continue;
            }
            // What was taken out lately comes back as soon as what would be evicted now: it comes first.
            let limbo = self.reap_limbo(id);
            if limbo == Reaped::Some {
                continue;
            }
            if limbo == Reaped::Later && waits < WAITS_MAX {
                waits += 1;
                if !self.advance() {
                    if self.is_outwaited() {
                        break;
                    }
                    thread::yield_now();
                }
                continue;
            }
            let evicted = self.config.evicts && self.evict_some(id, clock);
            self.balance(id, clock);
            let advanced = self.advance();
            if evicted && advanced {
                continue;
            }
            if !evicted && limbo == Reaped::Nothing {
                let stolen = match self.config.evicts {
                    true => self.steal_page(id, given_up, clock),
                    false => Stolen::Nothing,
                };
                match stolen {
                    Stolen::Page => continue,
                    Stolen::Later => {}
                    Stolen::GaveUp => given_up += 1,
                    // Further items may be free of references.
                    Stolen::Nothing if self.class(id).items() > u64::from(HELD_MAX) => {
                        given_up += 1;
                    }
                    Stolen::Nothing => break,
                }
            }
            // What there is waits for readers, or for those who have a victim or a page in hand.
            rounds += 1;
            let began = Instant::now();
            if !advanced && waited >= READER_WAIT_MAX {
                self.outwaited.store(self.epochs.stamp(), Relaxed);
            }
            if !advanced && self.is_outwaited() {
                break;
            }
            thread::yield_now();
            if !advanced {
                let is_first = waited.is_zero();
                let waits = &self.counters.stripe(thread_stripe()).reader_waits;
                waits.fetch_add(u64::from(is_first), Relaxed);
                waited += began.elapsed();
            }
        }
        if self.is_outwaited() {
            add(&self.counters.stripe(thread_stripe()).refused_behind_readers);
        }
        self.class(id).counts.out_of_memory += 1;
        Err(StoreError::OutOfMemory)
    }

    /// Whether an allocation has already waited in vain for those who read now.
    fn is_outwaited(&self) -> bool {
        self.outwaited.load(Relaxed) == self.epochs.stamp()
    }

    /// Two epochs on: what was taken out before is free now. False when a reader holds the epoch.
    fn advance(&self) -> bool {
        self.epochs.try_advance() && self.epochs.try_advance()
    }

    /// Reaps what a chunk of this class may come from: the class itself, and the last one, where long items are, whose
    /// last chunks lie in any class.
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
        // What was in use lately is used again before memory that nobody has touched: it is in the processor's
        // caches, and the kernel has given it already.
        let may_reap = class.id != self.lens.last();
        if may_reap && class.is_limbo_due() {
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

    /// Reaps in a class without long items.
    fn reap_short(&self, class: &mut Class, count_max: usize) {
        let mut none_long = Vec::new();
        class.reap(
            &self.arena,
            &self.owners,
            &self.epochs,
            count_max,
            &mut none_long,
        );
    }

    /// Reaps what may be long, after which chunks of any class may be free.
    fn reap_long_after(&self, mut class: MutexGuard<'_, Class>) -> Reaped {
        const REAP_AT_ONCE: usize = 4;
        let limbo_len = class.limbo_len();
        let mut long = Vec::new();
        let reaped = class.reap(
            &self.arena,
            &self.owners,
            &self.epochs,
            REAP_AT_ONCE,
            &mut long,
        );
        drop(class);
        long.into_iter().for_each(|chunk| self.free_item(chunk));
        match (reaped, limbo_len) {
            (0, 0) => Reaped::Nothing,
            (0, _) => Reaped::Later,
            _ => Reaped::Some,
        }
    }

    /// Frees an item that nobody can reach: its chunk, and its further chunks if it is long.
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

    /// Takes out dead items at the tails of a class's queues. False when there is none.
    fn evict_dead(&self, id: u8, clock: Clock) -> bool {
        let pinned = self.pin();
        let mut class = self.class(id);
        let dead = class.take_dead(&self.arena, clock, DEAD_LOOKS_MAX, EVICT_AT_ONCE_MAX);
        drop(class);
        for chunk in &dead {
            let is_dead = true;
            self.evict(
                Victim {
                    chunk: *chunk,
                    is_dead,
                },
                clock,
            );
        }
        drop(pinned);
        !dead.is_empty()
    }

    /// Evicts an item or a few of a class. False when there is none.
    fn evict_some(&self, id: u8, clock: Clock) -> bool {
        let pinned = self.pin();
        let mut victims = [const { None }; EVICT_AT_ONCE_MAX];
        let mut class = self.class(id);
        let limit = (EVICT_LEN_AT_ONCE / class.chunk_len).clamp(1, EVICT_AT_ONCE_MAX);
        // Behind a reader that the kernel took off its processor, more victims would only wait with the others.
        let waits = class.limbo_len() > 64 + class.items() / 8;
        let mut steps = EVICT_STEPS_MAX;
        for (at, victim) in victims
            .iter_mut()
            .take(if waits { 0 } else { limit })
            .enumerate()
        {
            let hash_of = |chunk| self.hash_of(chunk);
            *victim = class.pick(&self.arena, clock, (&mut steps, at == 0), hash_of);
        }
        drop(class);
        for victim in victims.iter().flatten() {
            self.evict(*victim, clock);
        }
        drop(pinned);
        waits || victims[0].is_some()
    }

    /// Takes an item that the caller has in hand out of the table, unless somebody else just did. The epoch
    /// is pinned since before it was taken in hand.
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

    /// Takes an item out of its locked bucket, and sets it aside.
    pub(crate) fn remove(&self, locked: &Locked<'_>, at: At<'_>, chunk: Chunk) {
        locked.remove(at);
        self.class_of(chunk)
            .retire(&self.arena, chunk, &self.epochs);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaped {
    /// Some chunks are free now.
    Some,
    /// There are some, with readers.
    Later,
    /// There is nothing to reap.
    Nothing,
}
