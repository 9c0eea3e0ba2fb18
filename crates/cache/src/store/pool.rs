//! What all turns of a store share, and how memory goes round in it: allocate, evict, free.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;

use super::arena::{Arena, CHUNK_BITS, Chunk, PAGE_LEN};
use super::classes::ChunkLens;
use super::counters::{Counters, add};
use super::crawl::Sweep;
use super::draft::RawDraft;
use super::epoch::{Epochs, Pin};
use super::index::{At, Index, Locked};
use super::layout::Layout;
use super::mark;
use super::mover::{Mover, Stolen};
use super::slab::{Class, Clock, HELD_MAX, Owners, Use, Victim, is_long, item_len};
use super::{Config, Eviction, Seconds, StoreError};

pub(super) struct Pool {
    pub(super) config: Config,
    pub(super) arena: Arena,
    pub(super) owners: Owners,
    pub(super) index: Index,
    pub(super) epochs: Epochs,
    pub(super) lens: ChunkLens,
    classes: Box<[ClassCell]>,
    pages: Mutex<Pages>,
    /// The memory limit, in pages.
    pages_limit: AtomicU32,
    hasher: RandomState,
    cas: AtomicU64,
    /// The generation and when the next flush is due: see `crawl::Flush`.
    pub(super) flush: AtomicU64,
    pub(super) sweep: Mutex<Sweep>,
    pub(super) mover: Mutex<Mover>,
    pub(super) is_moving: AtomicBool,
    pub(super) counters: Counters,
    pub(super) observer: OnceLock<Observer>,
    /// The epoch in which an allocation waited for readers in vain. 0: in none.
    outwaited: AtomicU64,
}

pub(super) type Observer = Box<dyn Fn(Eviction<'_>) + Send + Sync>;

/// Neighbouring classes are locked by different processors, so each has its own lines.
#[repr(align(128))]
struct ClassCell(Mutex<Class>);

struct Pages {
    /// Pages from here on were never used.
    fresh: u32,
    /// Pages that were used and given back.
    free: Vec<u32>,
    in_use: u32,
}

/// Stripes of counters and pins: threads beyond these share.
const STRIPES_MAX: usize = 128;

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
    pub(super) fn new(config: Config) -> io::Result<Pool> {
        // Addresses cost nothing, and the limit may be raised while the server runs.
        const PAGES_WANTED_MIN: u64 = 64 << 10;
        const PAGES_MAX: u64 = ((1 << CHUNK_BITS) / (PAGE_LEN as u64 / 8)) - 1;
        // The owners' table has 24 bits for a place.
        let pages_limit = (config.memory_max / PAGE_LEN as u64).clamp(1, PAGES_MAX);
        let wanted = (4 * pages_limit).clamp(PAGES_WANTED_MIN, PAGES_MAX);
        let arena = Arena::reserve(pages_limit as u32, wanted as u32, config.huge_pages)?;
        let lens = ChunkLens::new(&config);
        let class = |(at, len): (usize, &usize)| {
            let len_below = at.checked_sub(1).map_or(0, |below| lens.as_slice()[below]);
            ClassCell(Mutex::new(Class::new(at as u8 + 1, len_below, *len)))
        };
        // A writer that wants memory back looks at all of them.
        let stripes = (4 * available_parallelism().map_or(16, NonZero::get)).clamp(8, STRIPES_MAX);
        Ok(Pool {
            owners: Owners::new(arena.pages_max),
            index: Index::new(u32::from(config.hash_power)),
            epochs: Epochs::new(stripes),
            classes: lens.as_slice().iter().enumerate().map(class).collect(),
            pages: Mutex::new(Pages {
                fresh: 1,
                free: Vec::new(),
                in_use: 0,
            }),
            pages_limit: AtomicU32::new(pages_limit as u32),
            hasher: RandomState::default(),
            cas: AtomicU64::new(0),
            flush: AtomicU64::new(0),
            sweep: Mutex::default(),
            mover: Mutex::new(Mover::new(lens.as_slice().len())),
            is_moving: AtomicBool::new(false),
            counters: Counters::new(stripes),
            observer: OnceLock::new(),
            outwaited: AtomicU64::new(0),
            arena,
            lens,
            config,
        })
    }

    // ---- small helpers

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The hash of an item that is in the table or in a queue, under the lock that keeps it there.
    pub(super) fn hash_of(&self, chunk: Chunk) -> u64 {
        self.hash(self.key(chunk))
    }

    /// The key of an item.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn key(&self, chunk: Chunk) -> &[u8] {
        let key_len = self.arena.header(chunk).key_len.load(Relaxed);
        // SAFETY: the key was written before the item was published or queued, stands at the start of the
        // chunk, and is not written again; callers hold the item by a pin, a reference or a lock.
        unsafe { self.arena.bytes(chunk, 0, usize::from(key_len)) }
    }

    pub(super) fn class(&self, id: u8) -> MutexGuard<'_, Class> {
        self.classes[usize::from(id) - 1]
            .0
            .lock()
            .expect("no panic under a class's lock")
    }

    pub(super) fn class_of(&self, chunk: Chunk) -> MutexGuard<'_, Class> {
        self.class(self.owners.class_of(chunk))
    }

    pub(super) fn class_ids(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.lens.last()
    }

    pub(super) fn next_cas(&self) -> u64 {
        if self.config.counts_cas {
            self.cas.fetch_add(1, Relaxed) + 1
        } else {
            0
        }
    }

    /// The last cas that was given out, for a snapshot.
    pub(super) fn last_cas(&self) -> u64 {
        self.cas.load(Relaxed)
    }

    pub(super) fn raise_cas(&self, cas: u64) {
        self.cas.fetch_max(cas, Relaxed);
    }

    #[inline]
    pub(super) fn pin(&self) -> Pinned<'_> {
        Pinned {
            epochs: &self.epochs,
            pin: self.epochs.pin(thread_stripe()),
        }
    }

    // ---- pages

    pub(super) fn pages_limit(&self) -> u32 {
        self.pages_limit.load(Relaxed)
    }

    pub(super) fn set_pages_limit(&self, limit: u64) -> Result<(), StoreError> {
        if limit == 0 || limit > u64::from(self.arena.pages_max) {
            return Err(StoreError::OutOfMemory);
        }
        self.pages_limit.store(limit as u32, Relaxed);
        Ok(())
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("no panic under the pages' lock")
    }

    pub(super) fn pages_in_use(&self) -> u32 {
        self.pages().in_use
    }

    /// Whether there is a page that no class has.
    fn has_page(&self) -> bool {
        self.pages().in_use < self.pages_limit()
    }

    fn take_page(&self) -> Option<u32> {
        let mut pages = self.pages();
        if pages.in_use >= self.pages_limit() {
            return None;
        }
        let fresh = pages.fresh;
        let number = match pages.free.pop() {
            Some(number) => number,
            None if fresh <= self.arena.pages_max => {
                pages.fresh += 1;
                fresh
            }
            None => return None,
        };
        pages.in_use += 1;
        Some(number)
    }

    /// Gives an empty page of no class back to the kernel.
    #[allow(unsafe_code)]
    pub(super) fn return_page(&self, number: u32) {
        // SAFETY: all chunks of the page were free, which a chunk is only when no reader and no reference is
        // left, and the page belongs to no class, so nobody takes one.
        unsafe { self.arena.give_back(number) };
        let mut pages = self.pages();
        pages.free.push(number);
        pages.in_use -= 1;
    }

    // ---- allocation

    /// A chunk of a class, as a draft. Evicts when the memory is full. The caller holds no lock and no pin.
    pub(super) fn allocate(&self, id: u8, clock: Clock) -> Result<Chunk, StoreError> {
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
    pub(super) fn free_item(&self, chunk: Chunk) {
        if is_long(&self.arena, chunk) {
            let parts = Layout::of(&self.arena, chunk).parts;
            (0..parts).for_each(|at| self.free_chunk(self.part(chunk, at)));
        }
        self.free_chunk(chunk);
    }

    pub(super) fn free_chunk(&self, chunk: Chunk) {
        self.class_of(chunk).free(&self.arena, &self.owners, chunk);
    }

    // ---- eviction

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
    pub(super) fn evict(&self, victim: Victim, clock: Clock) -> bool {
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
    pub(super) fn remove(&self, locked: &Locked<'_>, at: At<'_>, chunk: Chunk) {
        locked.remove(at);
        self.class_of(chunk)
            .retire(&self.arena, chunk, &self.epochs);
    }

    /// The first of a draft's chunks, with its header filled in.
    pub(super) fn begin(
        &self,
        key: &[u8],
        value_len: usize,
        flags: u32,
        exptime: Seconds,
        clock: Clock,
    ) -> Result<RawDraft, StoreError> {
        let item_len = super::arena::HEADER_LEN + key.len() + value_len;
        if item_len > self.config.item_len_max as usize || key.len() > usize::from(u8::MAX) {
            return Err(StoreError::TooLarge);
        }
        let layout = Layout::new(key.len(), value_len);
        let chunk = self.allocate(self.lens.class_for(layout.first_chunk_len()), clock)?;
        Ok(RawDraft::new(self, chunk, key, value_len, flags, exptime))
    }

    pub(super) fn uses(&self, chunk: Chunk) -> Use {
        Use::of(&self.arena, chunk)
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

/// A pin that ends with the scope.
pub(super) struct Pinned<'p> {
    epochs: &'p Epochs,
    pin: Pin,
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.epochs.unpin(self.pin);
    }
}

/// The stripe of this thread: threads are dealt out in turn.
#[inline]
pub(super) fn thread_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, Relaxed) % STRIPES_MAX);
        }
        stripe.get()
    })
}
