//! Moves pages between slab classes when the sizes of the items change.
//!
//! A page is worth the hits that it brings. The ghost queue of a class estimates them: it counts
//! keys that come back soon after their eviction. A page goes from the class that would lose the
//! fewest hits to the class that would win the most, if these differ by half even after the move,
//! so that no page moves to and fro.
//!
//! A new class remembers too few keys to count. Therefore an idle class, to which no evicted key
//! comes back and which has nearly stopped evicting, gives page after page to the class that evicts
//! most, oldest items first, including its last page.
//!
//! To empty a page, used items are copied to free chunks of their class, or of a longer one, where
//! unused items make space for them; the others are evicted, and the page goes once the last reader
//! has left. Of several pages, the one with the fewest used items goes. This is done in steps, by
//! allocations and by `Store::maintain`. A class with nothing left to evict takes a page at once.
//! Where eviction is off, it takes only a page without items.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, TryLockError};

use crate::store::memory::arena::{Chunk, PAGE_LEN};
use crate::store::memory::layout::Layout;
use crate::store::memory::mark;
use crate::store::pool::counters::add;
use crate::store::pool::reservation::RawReservation;
use crate::store::pool::state::{Move, Mover};
use crate::store::pool::{Pool, thread_stripe};
use crate::store::slab::{
    Clock, LONG_WORTH, Pace, Use, Victim, generation, is_long, set_generation,
};

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MoveStep {
    Moved,
    GoesOn,
    GaveUp,
}

/// Result of taking a page from another class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stolen {
    /// The page is available.
    Page,
    /// The page is available once readers have left, or another thread has finished a move.
    Later,
    /// A chunk of the page cannot be freed: an upload or a reply in progress. Try another page.
    GaveUp,
    /// No other class has a page.
    Nothing,
}

/// Number of pages of a class checked for one that can be emptied.
const PAGES_CHECKED_MAX: usize = 16;

/// Number of their chunks checked: some 50 µs.
const CHUNKS_CHECKED_MAX: usize = 8192;

/// Chunk length from which a class searches for a page without used items before it evicts a used
/// item.
const SEARCHED_FOR_MIN: usize = 64 << 10;

/// Number of longer classes checked for space for a used item whose own class loses its last page:
/// the chunks of the last one are about six times as long.
const CLASSES_CHECKED_MAX: u8 = 8;

/// Minimum number of chunks of the moving page visited per eviction. Classes of long items visit
/// more, because a page of short ones has thousands. At most about 40 µs.
const CHUNKS_PER_EVICTION_MIN: usize = 16;
const CHUNKS_PER_EVICTION_MAX: usize = 256;
const BYTES_EVICTED_PER_CHUNK: usize = 256;

/// Number of passes over a page before another is tried.
const ROUNDS_MAX: u32 = 64;

/// The same while an upload or a reply in progress holds a chunk: a short one has ended by then.
const STUCK_ROUNDS_MAX: u32 = 4;

/// Pages of free chunks above which a class gives one up.
const FREE_PAGES_MAX: u64 = 3;

/// Bytes evicted between two moves among active classes: fewer give no reliable hit counts. Pages
/// of an idle class move at once.
const MOVE_AFTER: u64 = 2 * PAGE_LEN as u64;

impl Pool {
    fn mover(&self) -> Option<MutexGuard<'_, Mover>> {
        match self.mover.try_lock() {
            Ok(mover) => Some(mover),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked while it moved a page"),
        }
    }

    /// One step of the current move, or a check whether one is due; called by a class that evicts.
    pub(crate) fn balance(&self, id: u8, clock: Clock) {
        if self.is_moving.load(Relaxed) {
            if let Some(mut mover) = self.mover() {
                let chunks = self.lens.as_slice()[usize::from(id) - 1] / BYTES_EVICTED_PER_CHUNK;
                let budget = chunks.clamp(CHUNKS_PER_EVICTION_MIN, CHUNKS_PER_EVICTION_MAX);
                self.step(&mut mover, budget as u32, clock);
            }
        } else if self.class(id).is_balance_due()
            && let Some(mut mover) = self.mover()
        {
            self.look_at_balance(&mut mover, clock);
        }
    }

    /// Continues housekeeping: frees memory that readers have left, moves a page, returns memory to
    /// the kernel. Returns whether more remains.
    pub(crate) fn maintain_pages(&self, budget: usize, clock: Clock) -> bool {
        let Some(mut mover) = self.mover() else {
            return false;
        };
        // Twice: memory removed in this epoch is free in the one after the next.
        let _ = self.epochs.try_advance() && self.epochs.try_advance();
        let mut reaps = false;
        self.class_ids().for_each(|id| reaps |= self.reap_some(id));
        if mover.current.is_none() && !self.look_for_surplus(&mut mover) {
            return reaps;
        }
        self.step(&mut mover, budget as u32, clock) != MoveStep::GaveUp || reaps
    }

    /// Begins to remove a page that no class should keep: above the memory limit, or of a class
    /// with many free chunks.
    fn look_for_surplus(&self, mover: &mut Mover) -> bool {
        let is_above = self.pages_in_use() > self.pages_limit();
        let free_pages = |id: &u8| {
            let class = self.class(*id);
            (class.free_len() / u64::from(class.per_page), class.page_count())
        };
        let most = self.class_ids().max_by_key(free_pages).expect("there are classes");
        let (free, pages) = free_pages(&most);
        let is_surplus = (is_above && pages > 0) || (free > FREE_PAGES_MAX && pages > 1);
        is_surplus && self.begin_move(mover, most, None, is_above)
    }

    fn look_at_balance(&self, mover: &mut Mover, clock: Clock) {
        let mut paces = Vec::new();
        for id in self.class_ids() {
            let mut class = self.class(id);
            if class.page_count() > 0 {
                paces.push(class.pace(&self.arena, clock.now));
            }
            mover.evicted_since_move += class.begin_balance();
        }
        let may_be_small = mover.evicted_since_move >= MOVE_AFTER;
        let pair = idle_pair(&paces).or_else(|| may_be_small.then(|| busy_pair(&paces)).flatten());
        if let Some((from, to)) = pair {
            mover.evicted_since_move = 0;
            self.begin_move(mover, from, Some(to), false);
        }
    }

    /// False if no page of the class can be emptied. A page with a used long item, which would be
    /// lost, is taken only if it `must` be.
    fn begin_move(&self, mover: &mut Mover, from: u8, to: Option<u8>, must: bool) -> bool {
        let class = self.class(from);
        let next = &mut mover.next_page[usize::from(from)];
        let pages_max = CHUNKS_CHECKED_MAX.div_ceil(class.per_page as usize);
        let mut coldest = None;
        for _ in 0..class.page_count().min(PAGES_CHECKED_MAX).min(pages_max) {
            *next = next.wrapping_add(1);
            let page = class.page_number(*next);
            let Some(worth) = class.page_worth(&self.arena, &self.owners, page) else {
                continue;
            };
            if coldest.is_none_or(|(least, _)| worth < least) {
                coldest = Some((worth, page));
            }
            if worth == 0 {
                break;
            }
        }
        let Some((_, page)) = coldest.filter(|(worth, _)| must || *worth < LONG_WORTH) else {
            return false;
        };
        drop(class);
        self.set_out(mover, page, from, to);
        true
    }

    fn set_out(&self, mover: &mut Mover, page: u32, from: u8, to: Option<u8>) {
        self.class(from).set_leaving(&self.owners, page, true);
        mover.current = Some(Move { page, from, to, at: 0, rounds: 0, room: 0 });
        self.is_moving.store(true, Relaxed);
    }

    /// Takes a page of another class at once, for a class that has nothing to evict. `given_up`:
    /// number of pages tried before.
    pub(crate) fn steal_page(&self, to: u8, given_up: u32, clock: Clock) -> Stolen {
        let Some(mut mover) = self.mover() else {
            // A page is being moved, perhaps for this class.
            return Stolen::Later;
        };
        if mover.current.is_none() {
            let donors = self.donors(to);
            let Some(from) = donors.get(given_up as usize % donors.len().max(1)) else {
                return Stolen::Nothing;
            };
            let must = given_up as usize >= donors.len();
            if !self.begin_move(&mut mover, *from, Some(to), must) {
                return Stolen::GaveUp;
            }
        }
        if let Some(current) = &mut mover.current {
            current.to = Some(to);
        }
        self.finish_move(&mut mover, clock)
    }

    /// Takes an empty page of another class, for a class that must not evict. `Later`, if the
    /// caller `waits`: readers still hold removed items.
    pub(crate) fn take_empty_page(&self, to: u8, waits: bool) -> Stolen {
        // Above a lowered limit, pages go back to the kernel.
        if self.pages_in_use() > self.pages_limit() {
            return Stolen::Nothing;
        }
        // The lock keeps other threads from moving the page.
        let Some(_mover) = self.mover() else {
            return if waits { Stolen::Later } else { Stolen::Nothing };
        };
        let mut is_left_later = false;
        for from in self.class_ids().filter(|id| *id != to) {
            while self.reap_some(from) {}
            let mut class = self.class(from);
            is_left_later |= class.limbo_len() > 0;
            if let Some(page) = class.remove_empty_page(&self.owners) {
                drop(class);
                self.class(to).add_page(&self.owners, page);
                add(&self.counters.stripe(thread_stripe()).pages_moved);
                return Stolen::Page;
            }
        }
        if waits && is_left_later { Stolen::Later } else { Stolen::Nothing }
    }

    /// Runs one round over the whole page: at most some ten thousand evictions of 200 ns.
    fn finish_move(&self, mover: &mut Mover, clock: Clock) -> Stolen {
        match self.step(mover, u32::MAX, clock) {
            MoveStep::Moved => Stolen::Page,
            MoveStep::GoesOn => Stolen::Later,
            MoveStep::GaveUp => Stolen::GaveUp,
        }
    }

    /// Takes a page without used items from another class, for a class of long items whose victims
    /// were all used. Classes of shorter items have many, so they evict their least used one, and
    /// the ghost queues balance the classes.
    pub(crate) fn steal_cold_page(&self, to: u8, clock: Clock) -> Stolen {
        let is_worth_it = self.class(to).chunk_len >= SEARCHED_FOR_MIN;
        let Some(mut mover) = self.mover().filter(|_| is_worth_it) else {
            return Stolen::Nothing;
        };
        if let Some(current) = &mut mover.current {
            current.to = Some(to);
            return self.finish_move(&mut mover, clock);
        }
        let cold = self.class_ids().filter(|id| *id != to).find_map(|id| {
            let class = self.class(id);
            let pages =
                (0..class.page_count().min(PAGES_CHECKED_MAX)).map(|at| class.page_number(at));
            let is_cold = |page: &u32| class.is_cold(&self.arena, &self.owners, *page);
            Some((id, pages.into_iter().find(is_cold)?))
        });
        let Some((from, page)) = cold else {
            return Stolen::Nothing;
        };
        self.set_out(&mut mover, page, from, Some(to));
        self.finish_move(&mut mover, clock)
    }

    /// Classes that may give a page to another: those with the most pages first, and among classes
    /// with one page the class with the least used items.
    fn donors(&self, to: u8) -> Vec<u8> {
        let donor = |id: u8| {
            let class = self.class(id);
            let worth = match class.page_count() {
                1 => class.page_worth(&self.arena, &self.owners, class.page_number(0)),
                _ => Some(0),
            };
            (Reverse(class.page_count()), worth.unwrap_or(u32::MAX), id)
        };
        // Its own pages have nothing to evict, though chunks on them may wait for readers.
        let others = self.class_ids().filter(|id| *id != to);
        let mut donors: Vec<_> = others.map(donor).collect();
        donors.retain(|(Reverse(pages), ..)| *pages > 0);
        donors.sort_unstable();
        donors.into_iter().map(|(.., id)| id).collect()
    }

    /// Visits the chunks of the moving page, at most one round over all of them.
    fn step(&self, mover: &mut Mover, budget: u32, clock: Clock) -> MoveStep {
        let Some(mut current) = mover.current else {
            return MoveStep::GaveUp;
        };
        let chunk_len = self.class(current.from).chunk_len;
        let carved = self.class(current.from).set_leaving(&self.owners, current.page, true);
        let mut steps = 0;
        while current.at < carved && steps < budget {
            let chunk = Chunk::new(current.page, current.at as usize * chunk_len);
            self.vacate(chunk, &mut current, clock);
            current.at += 1;
            steps += 1;
        }
        mover.current = Some(current);
        if current.at < carved {
            return MoveStep::GoesOn;
        }
        self.end_round(mover, current)
    }

    fn end_round(&self, mover: &mut Mover, mut current: Move) -> MoveStep {
        // Long items are in the limbo of the last class, whatever page their chunks are on.
        let reap = || self.reap_some(current.from) | self.reap_some(self.lens.last());
        while self.epochs.try_advance() && reap() {}
        let mut class = self.class(current.from);
        if class.remove_page(&self.owners, current.page) {
            drop(class);
            self.hand_over(current);
        } else if current.rounds < STUCK_ROUNDS_MAX
            || (current.rounds < ROUNDS_MAX
                && !class.is_stuck(&self.arena, &self.owners, current.page))
        {
            (current.at, current.rounds) = (0, current.rounds + 1);
            mover.current = Some(current);
            return MoveStep::GoesOn;
        } else {
            class.set_leaving(&self.owners, current.page, false);
            mover.current = None;
            self.is_moving.store(false, Relaxed);
            return MoveStep::GaveUp;
        }
        mover.current = None;
        self.is_moving.store(false, Relaxed);
        MoveStep::Moved
    }

    fn hand_over(&self, done: Move) {
        match done.to.filter(|_| self.pages_in_use() <= self.pages_limit()) {
            Some(to) => {
                self.class(to).add_page(&self.owners, done.page);
                add(&self.counters.stripe(thread_stripe()).pages_moved);
            }
            None => self.return_page(done.page),
        }
    }

    /// Frees chunks that readers have left, in one class. False if there was none.
    fn reap_some(&self, id: u8) -> bool {
        const REAP_AT_ONCE: usize = 256;
        let mut long = Vec::new();
        let reaped =
            self.class(id).reap(&self.arena, &self.owners, &self.epochs, REAP_AT_ONCE, &mut long);
        long.into_iter().for_each(|chunk| self.free_item(chunk));
        reaped > 0
    }

    /// Makes a chunk free eventually: evicts its item, or copies it elsewhere. While memory is
    /// sufficient nothing is evicted for the kernel's sake: an item that cannot be copied (a long
    /// one) keeps its page.
    fn vacate(&self, chunk: Chunk, current: &mut Move, clock: Clock) {
        let from = current.from;
        let is_spare = current.to.is_none() && self.pages_in_use() <= self.pages_limit();
        let mut pinned = self.pin();
        let class = self.class(from);
        let clock = self.clock_under_lock(clock);
        let item = match self.uses(chunk) {
            Use::Small | Use::Main => chunk,
            // The owner may still be a reservation, or be gone: then this round does nothing.
            Use::Part => match Chunk::from_units(self.arena.header(chunk).cas.load(Relaxed)) {
                Some(owner) => owner,
                None => return,
            },
            _ => return,
        };
        let state = self.arena.header(item).state.load(Relaxed);
        let is_used = mark::used(state) > 0 || self.uses(item) == Use::Main;
        let is_dead = clock.is_dead(&self.arena, item);
        drop(class);
        let is_kept = !is_dead && (is_used || is_spare);
        if mark::is_referenced(state) && !is_dead {
            // Eviction would not free its memory now, and a write may be about to change it.
            return;
        }
        if is_kept && item == chunk && self.rescue(chunk, from, from) || is_kept && is_spare {
            return;
        }
        let is_worth_a_place = is_kept && item == chunk && mark::used(state) > 0;
        if is_worth_a_place && !is_long(&self.arena, item) {
            drop(pinned);
            if self.make_room(chunk, current, clock) {
                return;
            }
            pinned = self.pin();
        }
        if self.class_of(item).unlink_from_queue(&self.arena, item) {
            self.evict(Victim { chunk: item, is_dead }, clock);
        }
        drop(pinned);
    }

    /// Copies a used item into the chunk of an unused one of its class. If its class has no other
    /// page, a longer class is used, with a free or an evicted chunk. False if there is none; true
    /// if the item was copied, or may be in the next round. No epoch may be pinned.
    fn make_room(&self, chunk: Chunk, current: &mut Move, clock: Clock) -> bool {
        let from = current.from;
        let class = self.class(from);
        let is_last_page = class.page_count() == 1;
        let per_page = class.per_page;
        drop(class);
        let classes = if is_last_page {
            from + 1..=self.lens.last().min(from + CLASSES_CHECKED_MAX)
        } else {
            from..=from
        };
        for to in classes {
            let pinned = self.pin();
            if to != from && self.rescue(chunk, from, to) {
                return true;
            }
            // Evicting frees nothing while a reader is there: at most two are evicted per item.
            if current.room >= 2 * per_page {
                return false;
            }
            let hash_of = |chunk| self.hash_of(chunk);
            let mut class = self.class(to);
            let clock = self.clock_under_lock(clock);
            let cold = class.take_cold(&self.arena, clock, current.page, hash_of);
            drop(class);
            let Some(cold) = cold else { continue };
            self.evict(cold, clock);
            current.room += 1;
            drop(pinned);
            // At once, before another store takes the chunk.
            if self.advance() {
                self.reap_some(to);
            }
            let _pinned = self.pin();
            if matches!(self.uses(chunk), Use::Small | Use::Main) {
                self.rescue(chunk, from, to);
            }
            return true;
        }
        false
    }

    /// Copies an item to a free chunk of a class, its own or a longer one, if there is one. The
    /// epoch must be pinned.
    fn rescue(&self, chunk: Chunk, from: u8, to: u8) -> bool {
        let arena = &self.arena;
        let header = arena.header(chunk);
        let layout = Layout::of(arena, chunk);
        if layout.parts > 0 {
            return false;
        }
        let Some(new) = self.class(to).take_free(arena, &self.owners) else {
            return false;
        };
        let key = self.key(chunk);
        let value = self.piece(chunk, &layout, 0);
        let clock = Clock { now: 0, generation: 0 };
        let mut copy = RawReservation::new(self, new, key, value.len(), 0, 0);
        copy.fill(self, value, clock).expect("one chunk, already taken");
        let locked = self.index.lock(self.hash_of(chunk));
        let Some((at, _)) = locked.find(|found| found == chunk) else {
            drop(locked);
            copy.discard(self);
            return true;
        };
        // Under the bucket's lock: fields that change in place (flags, stale, win, expiry, cas)
        // change only under it.
        let copied = arena.header(new);
        set_generation(copied, generation(header, header.state.load(Relaxed)));
        copied.state.store(mark::inherited(header.state.load(Relaxed)), Relaxed);
        copied.flags.store(header.flags.load(Relaxed), Relaxed);
        copied.exptime.store(header.exptime.load(Relaxed), Relaxed);
        copied.last_access.store(header.last_access.load(Relaxed), Relaxed);
        copied.cas.store(header.cas.load(Relaxed), Relaxed);
        locked.replace(at, new);
        let mut class = self.class(from);
        let place = match Use::of(arena, chunk) {
            Use::Main => Use::Main,
            _ => Use::Small,
        };
        if from == to {
            class.replace(arena, chunk, new);
            class.retire(arena, chunk, &self.epochs);
        } else {
            class.retire(arena, chunk, &self.epochs);
            drop(class);
            class = self.class(to);
            class.enqueue_in(arena, new, place);
        }
        // Not a store: the item is the same.
        class.counts.stored -= 1;
        drop(class);
        add(&self.counters.stripe(thread_stripe()).rescues);
        true
    }
}

/// An idle class, and the class that evicts most: from, to.
fn idle_pair(paces: &[Pace]) -> Option<(u8, u8)> {
    let by_pace = |a: &&Pace, b: &&Pace| a.bytes_a_page.total_cmp(&b.bytes_a_page);
    let to = paces.iter().max_by(by_pace)?;
    // Among equally idle classes, the one with the longest unused items.
    let by_age = |a: &&Pace, b: &&Pace| by_pace(a, b).then(b.tail_age.cmp(&a.tail_age));
    let idle = paces.iter().filter(|from| from.gives_idle_page_to(to));
    idle.min_by(by_age).map(|from| (from.id, to.id))
}

/// The class that would lose the fewest hits with a page, and the class that would win the most:
/// from, to.
fn busy_pair(paces: &[Pace]) -> Option<(u8, u8)> {
    let to = paces.iter().max_by(|a, b| a.gain().total_cmp(&b.gain()))?;
    let from = paces.iter().min_by(|a, b| a.loss().total_cmp(&b.loss()))?;
    from.gives_a_page_to(to).then_some((from.id, to.id))
}

#[cfg(test)]
mod tests {
    use crate::store::{Config, Mode, NEVER, Store};

    #[test]
    fn upload_memory_returns_without_loss() {
        // Seen: fifty clients died during a long set, and fifty long items that had not been
        // requested since were gone. Cause: the pages that the uploads had filled were surplus, and
        // the items of a page were evicted to return it.
        let config = Config { memory_max: 256 << 20, ..Config::default() };
        let store = Store::new(config).unwrap();
        let mut guard = store.access(2);
        for (len, name) in [(900_000, "long"), (300_000, "middle"), (50_000, "short")] {
            for at in 0..30 {
                let key = format!("{name}{at}");
                let value = vec![b'x'; len];
                guard.store(key.as_bytes(), &value, 0, NEVER, Mode::Set.into()).unwrap();
            }
            let reservations = (0..100).map(|at| {
                let key = format!("upload{at}");
                let mut reservation = guard.reserve(key.as_bytes(), len, 0, NEVER).unwrap();
                reservation.fill(&vec![b'x'; len / 2]).unwrap();
                reservation
            });
            drop(reservations.collect::<Vec<_>>());
        }
        drop(guard);
        for _ in 0..10_000 {
            store.maintain(256, 2);
        }
        let stats = store.stats();
        assert_eq!((stats.curr_items, stats.evictions), (90, 0));
        assert!(stats.total_malloced < 128 << 20, "{stats:?}");
    }
}
