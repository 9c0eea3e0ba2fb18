//! One slab class: its pages, its free chunks, its queues, and chunks that wait for readers.
//!
//! ```text
//!             ┌──────── small ────────┐  used twice  ┌──────────── main ────────────┐
//!  new item ─▶│ a tenth of the class  │─────────────▶│ used: once round again       │◀─┐
//!             └──────────┬────────────┘              └──────────────┬───────────────┘──┘
//!                        │ unused                                   │ unused
//!                        ▼                                          ▼
//!                  ghost (key only)  ── comes back: main ──▶      limbo ─▶ free chunk
//! ```
//!
//! Eviction is S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP
//! 2023): most items are used once, so a new item is first on probation in a small queue. A hit
//! changes two bits of the item and no queue. docs/cache-eviction.md has the figures.
//!
//! Life of a chunk: free → reserved → queue → (floating, while an evictor looks up its bucket) →
//! limbo, until readers have left → free. All under the class's lock; a bucket's lock is taken
//! before it, never after.

pub(crate) mod ghost;
pub(crate) mod queue;
pub(crate) mod sizes;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::store::figures::ClassStats;
use crate::store::memory::arena::{Arena, Chunk, HEADER_LEN, ItemHeader, PAGE_LEN};
use crate::store::memory::classes::CHUNK_LEN_MAX;
use crate::store::memory::epoch::Epochs;
use crate::store::memory::mark;
use crate::store::rule::{NEVER, Seconds};
use crate::store::slab::ghost::Ghosts;
use crate::store::slab::queue::Queue;
use crate::store::slab::sizes::Sizes;

/// Bytes evicted by a class between two checks of the balance between classes.
const BALANCE_AFTER: u64 = PAGE_LEN as u64 / 4;

/// Worth of a used long item among the used items of a page. It cannot be copied, so it is worth
/// more than all items that fit on a page.
pub(crate) const LONG_WORTH: u32 = 1 << 14;

/// Held items skipped in the search for a victim.
pub(crate) const HELD_MAX: u32 = 256;

/// Use of a chunk: the low 3 bits of `ItemHeader::place`. The others are the high bits of an item's
/// generation, written only before it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    Free = 0,
    /// Allocated, not yet published.
    Reserved = 1,
    Small = 2,
    Main = 3,
    /// In the table but in no queue: an evictor has taken it.
    Floating = 4,
    /// Out of the table; readers may still use it.
    Limbo = 5,
    /// Not the first chunk of a long item.
    Part = 6,
}

impl Use {
    pub(crate) fn of(arena: &Arena, chunk: Chunk) -> Use {
        match arena.header(chunk).place.load(Relaxed) & USE_MASK {
            0 => Use::Free,
            1 => Use::Reserved,
            2 => Use::Small,
            3 => Use::Main,
            4 => Use::Floating,
            5 => Use::Limbo,
            6 => Use::Part,
            other => unreachable!("{chunk:?} is used as {other}"),
        }
    }

    pub(crate) fn set(self, arena: &Arena, chunk: Chunk) {
        let place = &arena.header(chunk).place;
        place.store(place.load(Relaxed) & !USE_MASK | self as u8, Relaxed);
    }
}

const USE_BITS: u32 = 3;
const USE_MASK: u8 = (1 << USE_BITS) - 1;

/// Number of generations before they wrap.
pub(crate) const GENERATIONS: u16 = 1 << (mark::GENERATION_BITS + 8 - USE_BITS);

/// The generation in which an item was stored; `state` is its header's.
#[inline]
pub(crate) fn generation(header: &ItemHeader, state: u32) -> u16 {
    let high = header.place.load(Relaxed) >> USE_BITS;
    u16::from(high) << mark::GENERATION_BITS | mark::generation(state)
}

/// Writes the generation of a reservation, or of an unpublished copy. The low bits are in
/// `mark::fresh`.
pub(crate) fn set_generation(header: &ItemHeader, generation: u16) {
    let high = (generation >> mark::GENERATION_BITS) as u8;
    let used_for = header.place.load(Relaxed) & USE_MASK;
    header.place.store(high << USE_BITS | used_for, Relaxed);
}

/// Time and generation that determine whether items are alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) now: Seconds,
    pub(crate) generation: u16,
}

impl Clock {
    #[inline]
    pub(crate) fn is_flushed(self, header: &ItemHeader) -> bool {
        generation(header, header.state.load(Relaxed)) != self.generation
    }

    pub(crate) fn is_expired(self, exptime: Seconds) -> bool {
        exptime != NEVER && exptime <= self.now
    }

    pub(crate) fn is_dead(self, arena: &Arena, chunk: Chunk) -> bool {
        let header = arena.header(chunk);
        self.is_flushed(header) || self.is_expired(header.exptime.load(Relaxed))
    }
}

/// Class of each page and its index in the class: the class in the high 8 bits.
pub(crate) struct Owners(Box<[AtomicU32]>);

impl Owners {
    pub(crate) fn new(pages_max: u32) -> Owners {
        Owners((0..=pages_max).map(|_| AtomicU32::new(0)).collect())
    }

    /// The class of a held chunk. 0 for a page of no class.
    #[inline]
    pub(crate) fn class_of(&self, chunk: Chunk) -> u8 {
        (self.0[chunk.page() as usize].load(Relaxed) >> 24) as u8
    }

    fn at(&self, page: u32) -> (u8, usize) {
        let word = self.0[page as usize].load(Relaxed);
        ((word >> 24) as u8, (word & 0xff_ffff) as usize)
    }

    fn set(&self, page: u32, class: u8, at: usize) {
        self.0[page as usize].store(u32::from(class) << 24 | at as u32, Relaxed);
    }
}

#[derive(Debug)]
struct Page {
    number: u32,
    /// List of chunks that were used and are free again.
    free_head: Option<Chunk>,
    free_len: u32,
    /// Number of chunks that were ever used.
    carved: u32,
    /// The page is leaving the class: nothing new is allocated on it.
    leaving: bool,
    /// True if the page is in `Class::pages_with_space`.
    is_noted: bool,
}

pub(crate) struct Class {
    pub(crate) id: u8,
    pub(crate) chunk_len: usize,
    pub(crate) per_page: u32,
    pages: Vec<Page>,
    /// Pages that had a free chunk when they were noted; checked again before use.
    pages_with_space: Vec<u32>,
    used: u64,
    small: Queue,
    main: Queue,
    limbo: [Queue; 3],
    limbo_stamps: [u64; 3],
    ripe: Queue,
    retired_lately: u32,
    ghosts: Ghosts,
    /// Counters; figures that are computed are filled in by `stats`.
    pub(crate) counts: ClassStats,
    pub(crate) mem_requested: u64,
    pub(crate) sizes: Sizes,
    /// Bytes evicted, with older ones weighted less; bytes since the last check of the balance.
    evicted_lately: u64,
    evicted_since_look: u64,
    ghost_hits_lately: u64,
}

/// Figures of a class's use of its memory, for the balance between classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) id: u8,
    pages: usize,
    /// Bytes evicted recently, per page.
    pub(crate) bytes_a_page: f64,
    /// Recent keys that the ghost queue remembered: with more memory they would have been hits.
    ghost_hits: f64,
    /// Seconds since the last use of the next victim.
    pub(crate) tail_age: Seconds,
    /// Age of the last victim at its eviction.
    victim_age: Seconds,
}

impl Pace {
    /// Hits that one more page would bring.
    pub(crate) fn gain(&self) -> f64 {
        self.ghost_hits / (self.pages + 1) as f64
    }

    /// Hits that one page less would cost. The last page stays.
    pub(crate) fn loss(&self) -> f64 {
        match self.pages {
            1 => f64::INFINITY,
            pages => self.ghost_hits / (pages - 1) as f64,
        }
    }

    /// True if a page is worth more to the other class, even after the move, so that it does not
    /// move back soon.
    pub(crate) fn gives_a_page_to(&self, to: &Pace) -> bool {
        self.id != to.id && self.loss() * 1.5 < to.gain()
    }

    /// True if a class without ghost hits and with hardly any evictions has items older than the
    /// next victims of the other. It gives its last page too, if its items are certainly older.
    pub(crate) fn gives_idle_page_to(&self, to: &Pace) -> bool {
        let needed_age = to.victim_age.min(to.tail_age);
        let is_old = match self.pages {
            1 => self.tail_age > needed_age,
            _ => self.tail_age >= needed_age,
        };
        let is_idle = self.ghost_hits == 0.0 && self.bytes_a_page * 16.0 < to.bytes_a_page;
        self.id != to.id && is_idle && is_old
    }
}

/// An item to evict, taken from its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) chunk: Chunk,
    pub(crate) is_dead: bool,
}

impl Class {
    /// `len_below` is the chunk length of the next shorter class, or 0.
    pub(crate) fn new(id: u8, len_below: usize, chunk_len: usize) -> Class {
        Class {
            id,
            chunk_len,
            per_page: (PAGE_LEN / chunk_len) as u32,
            pages: Vec::new(),
            pages_with_space: Vec::new(),
            used: 0,
            small: Queue::default(),
            main: Queue::default(),
            limbo: Default::default(),
            limbo_stamps: [0; 3],
            ripe: Queue::default(),
            retired_lately: 0,
            ghosts: Ghosts::default(),
            counts: ClassStats::default(),
            mem_requested: 0,
            sizes: Sizes::new(len_below, chunk_len),
            evicted_lately: 0,
            evicted_since_look: 0,
            ghost_hits_lately: 0,
        }
    }

    // ---- pages and free chunks

    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn page_number(&self, at: usize) -> u32 {
        self.pages[at % self.pages.len()].number
    }

    pub(crate) fn add_page(&mut self, owners: &Owners, number: u32) {
        owners.set(number, self.id, self.pages.len());
        self.pages.push(Page {
            number,
            free_head: None,
            free_len: 0,
            carved: 0,
            leaving: false,
            is_noted: false,
        });
        self.note_space(self.pages.len() - 1);
    }

    fn note_space(&mut self, at: usize) {
        let page = &mut self.pages[at];
        if !std::mem::replace(&mut page.is_noted, true) {
            self.pages_with_space.push(page.number);
        }
    }

    /// A chunk for a reservation, if one is free.
    pub(crate) fn take_free(&mut self, arena: &Arena, owners: &Owners) -> Option<Chunk> {
        while let Some(&number) = self.pages_with_space.last() {
            let (class, at) = owners.at(number);
            assert_eq!(class, self.id, "page {number} belongs to another class");
            let page = &mut self.pages[at];
            if let Some(chunk) = page.take(arena, self.per_page, self.chunk_len) {
                self.used += 1;
                Use::Reserved.set(arena, chunk);
                return Some(chunk);
            }
            page.is_noted = false;
            self.pages_with_space.pop();
        }
        None
    }

    /// Frees an unreachable chunk.
    pub(crate) fn free(&mut self, arena: &Arena, owners: &Owners, chunk: Chunk) {
        let (class, at) = owners.at(chunk.page());
        assert_eq!(class, self.id, "{chunk:?} freed into another class");
        if !self.pages[at].leaving {
            self.note_space(at);
        }
        let page = &mut self.pages[at];
        arena.header(chunk).set_next(page.free_head);
        Use::Free.set(arena, chunk);
        page.free_head = Some(chunk);
        page.free_len += 1;
        self.used -= 1;
    }

    /// Free chunks on pages that are not leaving.
    pub(crate) fn free_len(&self) -> u64 {
        let free = |page: &Page| u64::from(page.free_len + self.per_page - page.carved);
        self.pages.iter().filter(|page| !page.leaving).map(free).sum()
    }

    /// Marks a page as leaving, or not; returns how many of its chunks may be in use.
    pub(crate) fn set_leaving(&mut self, owners: &Owners, number: u32, leaving: bool) -> u32 {
        let (class, at) = owners.at(number);
        assert_eq!(class, self.id, "page {number} belongs to another class");
        self.pages[at].leaving = leaving;
        if !leaving {
            self.note_space(at);
        }
        self.pages[at].carved
    }

    /// Removes a page from the class if all its chunks are free.
    pub(crate) fn remove_page(&mut self, owners: &Owners, number: u32) -> bool {
        let (class, at) = owners.at(number);
        assert_eq!(class, self.id, "page {number} belongs to another class");
        if self.pages[at].free_len < self.pages[at].carved {
            return false;
        }
        self.pages.swap_remove(at);
        if let Some(moved) = self.pages.get(at) {
            owners.set(moved.number, self.id, at);
        }
        owners.set(number, 0, 0);
        self.pages_with_space.retain(|pages_with_space| *pages_with_space != number);
        true
    }

    /// Removes a used page without chunks in use, if there is one.
    pub(crate) fn remove_empty_page(&mut self, owners: &Owners) -> Option<u32> {
        let is_used = |page: &&Page| page.carved > 0 && !page.leaving;
        let mut used = self.pages.iter().filter(is_used);
        let page = used.find(|page| page.free_len == page.carved)?.number;
        self.remove_page(owners, page).then_some(page)
    }

    // ---- queues

    /// Puts a new item into its queue.
    pub(crate) fn enqueue(&mut self, arena: &Arena, chunk: Chunk, hash: u64) {
        let is_ghost = self.ghosts.remove(hash);
        self.counts.ghost_hits += u64::from(is_ghost);
        self.ghost_hits_lately += u64::from(is_ghost);
        self.enqueue_in(arena, chunk, if is_ghost { Use::Main } else { Use::Small });
    }

    pub(crate) fn enqueue_in(&mut self, arena: &Arena, chunk: Chunk, place: Use) {
        place.set(arena, chunk);
        match place {
            Use::Main => self.main.push_head(arena, chunk),
            _ => self.small.push_head(arena, chunk),
        }
        self.count_in(item_len(arena, chunk));
    }

    /// Replaces an older version of an item in its queue.
    pub(crate) fn replace(&mut self, arena: &Arena, old: Chunk, new: Chunk) {
        let place = Use::of(arena, old);
        match place {
            Use::Small => self.small.replace(arena, old, new),
            Use::Main => self.main.replace(arena, old, new),
            _ => return self.enqueue_in(arena, new, Use::Small),
        }
        place.set(arena, new);
        Use::Floating.set(arena, old);
        self.count_in(item_len(arena, new));
    }

    fn count_in(&mut self, size: u64) {
        self.mem_requested += size;
        self.sizes.add(size);
        self.counts.stored += 1;
    }

    /// Puts an item that is out of the table into limbo. Returns its former queue.
    pub(crate) fn retire(&mut self, arena: &Arena, chunk: Chunk, epochs: &Epochs) -> Use {
        let place = Use::of(arena, chunk);
        match place {
            Use::Small => self.small.remove(arena, chunk),
            Use::Main => self.main.remove(arena, chunk),
            Use::Floating => {}
            other => unreachable!("{chunk:?} is {other:?} and was in the table"),
        }
        let size = item_len(arena, chunk);
        self.mem_requested -= size;
        self.sizes.remove(size);
        Use::Limbo.set(arena, chunk);
        let stamp = epochs.stamp();
        let lane = (stamp % 3) as usize;
        if self.limbo_stamps[lane] != stamp {
            // Three epochs older, so its readers have left.
            let over = std::mem::take(&mut self.limbo[lane]);
            self.ripe.append(arena, over);
            self.limbo_stamps[lane] = stamp;
        }
        self.limbo[lane].push_head(arena, chunk);
        self.retired_lately += 1;
        place
    }

    pub(crate) fn set_part(&mut self, arena: &Arena, chunk: Chunk) {
        Use::Part.set(arena, chunk);
    }

    pub(crate) fn limbo_len(&self) -> u64 {
        self.limbo.iter().map(|queue| queue.len).sum::<u64>() + self.ripe.len
    }

    /// Takes the accumulated retired chunks, if they are enough to justify a check of the readers.
    pub(crate) fn take_limbo_lot(&mut self) -> bool {
        const LOT: u32 = 32;
        let is_due = self.retired_lately >= LOT;
        if is_due {
            self.retired_lately = 0;
        }
        is_due
    }

    /// Frees up to `count_max` chunks whose readers have left. Long items are put into `long`
    /// instead, because their other chunks belong to other classes as well.
    pub(crate) fn reap(
        &mut self,
        arena: &Arena,
        owners: &Owners,
        epochs: &Epochs,
        count_max: usize,
        long: &mut Vec<Chunk>,
    ) -> usize {
        for lane in 0..3 {
            if self.limbo[lane].len > 0 && epochs.is_over(self.limbo_stamps[lane]) {
                let over = std::mem::take(&mut self.limbo[lane]);
                self.ripe.append(arena, over);
            }
        }
        let mut reaped = 0;
        while reaped < count_max
            && let Some(chunk) = self.ripe.pop_tail(arena)
        {
            reaped += 1;
            // A reader that still sends the value from here will free the chunk.
            if mark::retire(&arena.header(chunk).state) {
                if is_long(arena, chunk) {
                    long.push(chunk)
                } else {
                    self.free(arena, owners, chunk)
                }
            }
        }
        reaped
    }

    /// Takes the next victim from its queue. If all `steps` are used up, takes the least used of
    /// the skipped items if the caller `must` have one.
    pub(crate) fn pick(
        &mut self,
        arena: &Arena,
        clock: Clock,
        (steps, must): (&mut u32, bool),
        hash_of: impl Fn(Chunk) -> u64,
    ) -> Option<Victim> {
        let items_max = self.pages.len() * self.per_page as usize;
        self.ghosts.fit(items_max);
        // An item being sent, or copied by a write, would free no memory now. In particular, a
        // write must not evict the item that it is about to change.
        let mut held = 0;
        let mut coldest = None;
        while (*steps > 0 || must) && held < HELD_MAX {
            *steps = steps.saturating_sub(1);
            let small_is_due = self.small.len * 10 >= self.small.len + self.main.len;
            let from_small = self.small.len > 0 && (small_is_due || self.main.len == 0);
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let chunk = queue.pop_tail(arena)?;
            let state = arena.header(chunk).state.load(Relaxed);
            let is_dead = clock.is_dead(arena, chunk);
            let is_held = mark::is_referenced(state) && !is_dead;
            let used = mark::used(state);
            let stays = if from_small { used > 1 } else { used > 0 };
            if is_dead || !is_held && !stays {
                Use::Floating.set(arena, chunk);
                if from_small && !is_dead {
                    self.ghosts.insert(hash_of(chunk));
                }
                return Some(Victim { chunk, is_dead });
            }
            held += u32::from(is_held);
            let left = if from_small { 0 } else { used.saturating_sub(1) };
            mark::set_use(&arena.header(chunk).state, left);
            self.counts.promoted += u64::from(from_small);
            Use::Main.set(arena, chunk);
            self.main.push_head(arena, chunk);
            if !is_held && coldest.is_none_or(|(least, _)| used < least) {
                coldest = Some((used, chunk));
            }
            if *steps == 0 && must {
                break;
            }
        }
        let (_, chunk) = coldest.filter(|_| must)?;
        let is_dead = false;
        self.unlink_from_queue(arena, chunk);
        Some(Victim { chunk, is_dead })
    }

    /// Takes up to `count_max` dead items among the next victims from their queues.
    pub(crate) fn take_dead(
        &mut self,
        arena: &Arena,
        clock: Clock,
        checks_max: usize,
        count_max: usize,
    ) -> Vec<Chunk> {
        let small = self.small.tail_first(arena).take(checks_max);
        let tails = small.chain(self.main.tail_first(arena).take(checks_max));
        let dead = tails.filter(|chunk| clock.is_dead(arena, *chunk));
        let dead: Vec<_> = dead.take(count_max).collect();
        for chunk in &dead {
            self.unlink_from_queue(arena, *chunk);
        }
        dead
    }

    /// True if a page has a chunk that eviction would not free soon: of an upload, or of a reply
    /// being sent. An estimate, since chunks of other classes are checked without their lock.
    pub(crate) fn is_stuck(&self, arena: &Arena, owners: &Owners, number: u32) -> bool {
        let (_, at) = owners.at(number);
        let is_held = |chunk| mark::is_referenced(arena.header(chunk).state.load(Relaxed));
        let is_stuck = |chunk| match Use::of(arena, chunk) {
            Use::Reserved => true,
            Use::Free => false,
            Use::Part => match Chunk::from_units(arena.header(chunk).cas.load(Relaxed)) {
                Some(owner) => Use::of(arena, owner) == Use::Reserved || is_held(owner),
                None => true,
            },
            Use::Small | Use::Main | Use::Floating | Use::Limbo => is_held(chunk),
        };
        self.chunks_of(number, at).any(is_stuck)
    }

    /// Chunks of a page that were ever used.
    fn chunks_of(&self, number: u32, at: usize) -> impl Iterator<Item = Chunk> + use<> {
        let chunk_len = self.chunk_len;
        let carved = self.pages[at].carved as usize;
        (0..carved).map(move |chunk| Chunk::new(number, chunk * chunk_len))
    }

    /// Number of recently used items of a page, a long one counting as [`LONG_WORTH`]. `None` for a
    /// page that is stuck.
    pub(crate) fn page_worth(&self, arena: &Arena, owners: &Owners, number: u32) -> Option<u32> {
        if self.is_stuck(arena, owners, number) {
            return None;
        }
        let (_, at) = owners.at(number);
        let worth = |chunk| {
            let item = match Use::of(arena, chunk) {
                Use::Small | Use::Main => chunk,
                Use::Part => Chunk::from_units(arena.header(chunk).cas.load(Relaxed))?,
                _ => return None,
            };
            let is_used = mark::used(arena.header(item).state.load(Relaxed)) > 0;
            let worth = if is_long(arena, item) { LONG_WORTH } else { 1 };
            is_used.then_some(worth)
        };
        Some(self.chunks_of(number, at).filter_map(worth).sum())
    }

    /// True if a page has items, none recently used, and is not stuck.
    pub(crate) fn is_cold(&self, arena: &Arena, owners: &Owners, number: u32) -> bool {
        let (_, at) = owners.at(number);
        let item = |chunk| match Use::of(arena, chunk) {
            Use::Small | Use::Main => Some(chunk),
            Use::Part => Chunk::from_units(arena.header(chunk).cas.load(Relaxed)),
            _ => None,
        };
        let is_used = |chunk| mark::used(arena.header(chunk).state.load(Relaxed)) > 0;
        let was_used = self.chunks_of(number, at).filter_map(item).any(is_used);
        !was_used && !self.is_stuck(arena, owners, number)
    }

    /// Takes an unused item among the next victims from its queue, to make space for a used one. It
    /// must not be on the moving page. The order of the queues stays.
    pub(crate) fn take_cold(
        &mut self,
        arena: &Arena,
        clock: Clock,
        not_on: u32,
        hash_of: impl Fn(Chunk) -> u64,
    ) -> Option<Victim> {
        const CHECKS_MAX: usize = 64;
        let is_cold = |chunk: &Chunk| {
            let state = arena.header(*chunk).state.load(Relaxed);
            let was_used = mark::used(state) > 0 && !clock.is_dead(arena, *chunk);
            chunk.page() != not_on && !was_used && !mark::is_referenced(state)
        };
        let small = self.small.tail_first(arena).take(CHECKS_MAX);
        let mut tails = small.chain(self.main.tail_first(arena).take(CHECKS_MAX));
        let chunk = tails.find(is_cold)?;
        let is_dead = clock.is_dead(arena, chunk);
        if Use::of(arena, chunk) == Use::Small && !is_dead {
            self.ghosts.insert(hash_of(chunk));
        }
        self.unlink_from_queue(arena, chunk);
        Some(Victim { chunk, is_dead })
    }

    /// Takes the given item from its queue, if it is in one.
    pub(crate) fn unlink_from_queue(&mut self, arena: &Arena, chunk: Chunk) -> bool {
        match Use::of(arena, chunk) {
            Use::Small => self.small.remove(arena, chunk),
            Use::Main => self.main.remove(arena, chunk),
            _ => return false,
        }
        Use::Floating.set(arena, chunk);
        true
    }

    pub(crate) fn count_victim(&mut self, arena: &Arena, victim: Victim, now: Seconds) {
        let header = arena.header(victim.chunk);
        let unfetched = u64::from(header.state.load(Relaxed) & mark::FETCHED == 0);
        if victim.is_dead {
            self.counts.reclaimed += 1;
            self.counts.expired_unfetched += unfetched;
            return;
        }
        self.counts.evicted += 1;
        self.counts.evicted_unfetched += unfetched;
        self.counts.evicted_nonzero += u64::from(header.exptime.load(Relaxed) != NEVER);
        self.counts.evicted_time = now.saturating_sub(header.last_access.load(Relaxed));
        let len = item_len(arena, victim.chunk).max(self.chunk_len as u64);
        self.evicted_lately += len;
        self.evicted_since_look += len;
    }

    /// True if enough was evicted for another check of the balance between classes.
    pub(crate) fn is_balance_due(&self) -> bool {
        self.evicted_since_look >= BALANCE_AFTER
    }

    /// Lowers the weight of earlier evictions and ghost hits. Returns the bytes evicted since the
    /// last check.
    pub(crate) fn begin_balance(&mut self) -> u64 {
        self.evicted_lately -= self.evicted_lately.div_ceil(8);
        self.ghost_hits_lately -= self.ghost_hits_lately.div_ceil(8);
        std::mem::take(&mut self.evicted_since_look)
    }

    pub(crate) fn pace(&self, arena: &Arena, now: Seconds) -> Pace {
        Pace {
            id: self.id,
            pages: self.pages.len(),
            bytes_a_page: self.evicted_lately as f64 / self.pages.len() as f64,
            ghost_hits: self.ghost_hits_lately as f64,
            tail_age: self.tail_age(arena, now).unwrap_or(Seconds::MAX),
            victim_age: self.counts.evicted_time,
        }
    }

    /// Seconds since the last use of the next victims, averaged over a few.
    pub(crate) fn tail_age(&self, arena: &Arena, now: Seconds) -> Option<Seconds> {
        let tails = self.main.tail_first(arena).take(4).chain(self.small.tail_first(arena).take(4));
        let ages = tails.map(|chunk| {
            u64::from(now.saturating_sub(arena.header(chunk).last_access.load(Relaxed)))
        });
        let (count, sum) = ages.fold((0, 0), |(count, sum), age| (count + 1, sum + age));
        u64::checked_div(sum, count).map(|age| age as Seconds)
    }

    /// The items of the queues, the small queue's first, oldest first.
    pub(crate) fn oldest_first(&self, arena: &Arena) -> Vec<Chunk> {
        self.small.tail_first(arena).chain(self.main.tail_first(arena)).collect()
    }

    pub(crate) fn items(&self) -> u64 {
        self.small.len + self.main.len
    }

    pub(crate) fn ghosts_len(&self) -> usize {
        self.ghosts.memory_len()
    }

    pub(crate) fn stats(&self, arena: &Arena, now: Seconds) -> ClassStats {
        let total = self.pages.len() as u64 * u64::from(self.per_page);
        let fresh = |page: &Page| u64::from(self.per_page - page.carved);
        let fresh = self.pages.iter().map(fresh).sum();
        ClassStats {
            id: self.id,
            chunk_size: self.chunk_len as u32,
            chunks_per_page: self.per_page,
            total_pages: self.pages.len() as u32,
            total_chunks: total,
            used_chunks: self.used,
            free_chunks: total - self.used - fresh,
            free_chunks_end: fresh,
            mem_requested: self.mem_requested,
            number: self.items(),
            number_small: self.small.len,
            number_main: self.main.len,
            age: self.tail_age(arena, now).unwrap_or(0),
            ..self.counts.clone()
        }
    }
}

impl Page {
    fn take(&mut self, arena: &Arena, per_page: u32, chunk_len: usize) -> Option<Chunk> {
        if self.leaving {
            return None;
        }
        if let Some(chunk) = self.free_head {
            self.free_head = arena.header(chunk).next();
            self.free_len -= 1;
            return Some(chunk);
        }
        let fresh = (self.carved < per_page).then_some(self.carved)?;
        self.carved += 1;
        Some(Chunk::new(self.number, fresh as usize * chunk_len))
    }
}

/// ItemHeader, key and value, in bytes.
pub(crate) fn item_len(arena: &Arena, chunk: Chunk) -> u64 {
    let header = arena.header(chunk);
    let key_len = u64::from(header.key_len.load(Relaxed));
    HEADER_LEN as u64 + key_len + u64::from(header.value_len.load(Relaxed))
}

/// True if an item consists of several chunks.
pub(crate) fn is_long(arena: &Arena, chunk: Chunk) -> bool {
    item_len(arena, chunk) > CHUNK_LEN_MAX as u64
}

#[cfg(test)]
mod tests;
