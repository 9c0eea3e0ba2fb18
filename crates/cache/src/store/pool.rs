//! State shared by all guards of a store.

pub(crate) mod allocate;
pub(crate) mod counters;
pub(crate) mod flush;
pub(crate) mod mover;
pub(crate) mod patience;
pub(crate) mod publish;
pub(crate) mod reservation;
pub(crate) mod state;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::available_parallelism;

use foldhash::quality::RandomState;

use crate::store::config::Config;
use crate::store::figures::Eviction;
use crate::store::index::Index;
use crate::store::memory::arena::{Arena, CHUNK_BITS, Chunk, PAGE_LEN};
use crate::store::memory::classes::ChunkLens;
use crate::store::memory::epoch::{Epochs, Pin};
use crate::store::pool::counters::StoreCounters;
use crate::store::pool::patience::Patience;
use crate::store::pool::state::{Mover, Sweep};
use crate::store::rule::StoreError;
use crate::store::slab::{Class, Owners, Use};

pub(crate) struct Pool {
    pub(crate) config: Config,
    pub(crate) arena: Arena,
    pub(crate) owners: Owners,
    pub(crate) index: Index,
    pub(crate) epochs: Epochs,
    pub(crate) lens: ChunkLens,
    classes: Box<[ClassCell]>,
    pages: Mutex<Pages>,
    /// The memory limit, in pages.
    pages_limit: AtomicU32,
    hasher: RandomState,
    cas: AtomicU64,
    /// Memory held by incomplete values.
    pub(crate) upload_len: AtomicU64,
    /// The generation, and the time of the next flush: see `crawl::Flush`.
    pub(crate) flush: AtomicU64,
    pub(crate) sweep: Mutex<Sweep>,
    pub(crate) mover: Mutex<Mover>,
    pub(crate) is_moving: AtomicBool,
    pub(crate) counters: StoreCounters,
    pub(crate) observer: OnceLock<Observer>,
    pub(crate) patience: Patience,
}

pub(crate) type Observer = Box<dyn Fn(Eviction<'_>) + Send + Sync>;

/// Different processors lock neighbouring classes, so each has its own cache lines.
#[repr(align(128))]
struct ClassCell(Mutex<Class>);

pub(crate) struct Pages {
    /// First page that was never used.
    fresh: u32,
    /// Pages that were used and freed.
    free: Vec<u32>,
    in_use: u32,
}

/// Stripes of counters and pins; further threads share them.
const STRIPES_MAX: usize = 128;

impl Pool {
    pub(crate) fn new(config: Config) -> io::Result<Pool> {
        // Addresses cost nothing, and the limit may be raised at run time.
        const PAGES_WANTED_MIN: u64 = 64 << 10;
        const PAGES_MAX: u64 = ((1 << CHUNK_BITS) / (PAGE_LEN as u64 / 8)) - 1;
        // The owners' table has 24 bits per place.
        let pages_limit = (config.memory_max / PAGE_LEN as u64).clamp(1, PAGES_MAX);
        let wanted = (4 * pages_limit).clamp(PAGES_WANTED_MIN, PAGES_MAX);
        let arena = Arena::reserve(pages_limit as u32, wanted as u32, config.huge_pages)?;
        let lens = ChunkLens::new(&config);
        let class = |(at, len): (usize, &usize)| {
            let len_below = at.checked_sub(1).map_or(0, |below| lens.as_slice()[below]);
            ClassCell(Mutex::new(Class::new(at as u8 + 1, len_below, *len)))
        };
        // A writer that reclaims memory checks all of them.
        let stripes = (4 * available_parallelism().map_or(16, NonZero::get)).clamp(8, STRIPES_MAX);
        Ok(Pool {
            owners: Owners::new(arena.pages_max),
            index: Index::new(u32::from(config.hash_power)),
            epochs: Epochs::new(stripes),
            classes: lens.as_slice().iter().enumerate().map(class).collect(),
            pages: Mutex::new(Pages { fresh: 1, free: Vec::new(), in_use: 0 }),
            pages_limit: AtomicU32::new(pages_limit as u32),
            hasher: RandomState::default(),
            cas: AtomicU64::new(0),
            upload_len: AtomicU64::new(0),
            flush: AtomicU64::new(0),
            sweep: Mutex::default(),
            mover: Mutex::new(Mover::new(lens.as_slice().len())),
            is_moving: AtomicBool::new(false),
            counters: StoreCounters::new(stripes),
            observer: OnceLock::new(),
            patience: Patience::new(),
            arena,
            lens,
            config,
        })
    }

    // ---- small helpers

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The hash of an item in the table or in a queue, under the lock that keeps it there.
    pub(crate) fn hash_of(&self, chunk: Chunk) -> u64 {
        self.hash(self.key(chunk))
    }

    /// The key of an item.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn key(&self, chunk: Chunk) -> &[u8] {
        let key_len = self.arena.header(chunk).key_len.load(Relaxed);
        // SAFETY: the key was written before the item was published or queued, is at the start of
        // the chunk, and is not written again; callers hold the item by a pin, a reference or a
        // lock.
        unsafe { self.arena.bytes(chunk, 0, usize::from(key_len)) }
    }

    pub(crate) fn class(&self, id: u8) -> MutexGuard<'_, Class> {
        self.classes[usize::from(id) - 1].0.lock().expect("no panic under a class's lock")
    }

    pub(crate) fn class_of(&self, chunk: Chunk) -> MutexGuard<'_, Class> {
        self.class(self.owners.class_of(chunk))
    }

    pub(crate) fn class_ids(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.lens.last()
    }

    /// The cas of a new version: the requested one, or the next.
    pub(crate) fn cas_of(&self, asked: Option<u64>) -> u64 {
        match asked {
            Some(cas) if cas != 0 && self.config.counts_cas => cas,
            _ => self.next_cas(),
        }
    }

    fn next_cas(&self) -> u64 {
        if !self.config.counts_cas {
            return 0;
        }
        // Skip 0, which means no cas: a snapshot may contain the last number.
        match self.cas.fetch_add(1, Relaxed).wrapping_add(1) {
            0 => self.next_cas(),
            cas => cas,
        }
    }

    /// The last assigned cas, for a snapshot.
    pub(crate) fn last_cas(&self) -> u64 {
        self.cas.load(Relaxed)
    }

    pub(crate) fn raise_cas(&self, cas: u64) {
        self.cas.fetch_max(cas, Relaxed);
    }

    #[inline]
    pub(crate) fn pin(&self) -> Pinned<'_> {
        Pinned { epochs: &self.epochs, pin: self.epochs.pin(thread_stripe()) }
    }

    // ---- pages

    pub(crate) fn pages_limit(&self) -> u32 {
        self.pages_limit.load(Relaxed)
    }

    pub(crate) fn set_pages_limit(&self, limit: u64) -> Result<(), StoreError> {
        if limit == 0 || limit > u64::from(self.arena.pages_max) {
            return Err(StoreError::OutOfMemory);
        }
        self.pages_limit.store(limit as u32, Relaxed);
        Ok(())
    }

    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("no panic under the pages' lock")
    }

    pub(crate) fn pages_in_use(&self) -> u32 {
        self.pages().in_use
    }

    /// True if some page belongs to no class.
    pub(crate) fn has_page(&self) -> bool {
        self.pages().in_use < self.pages_limit()
    }

    pub(crate) fn take_page(&self) -> Option<u32> {
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

    /// Returns an empty page of no class to the kernel.
    #[allow(unsafe_code)]
    pub(crate) fn return_page(&self, number: u32) {
        // SAFETY: all chunks of the page were free, which requires that no reader and no reference
        // is left; the page belongs to no class, so none is allocated.
        unsafe { self.arena.give_back(number) };
        let mut pages = self.pages();
        pages.free.push(number);
        pages.in_use -= 1;
    }

    pub(crate) fn uses(&self, chunk: Chunk) -> Use {
        Use::of(&self.arena, chunk)
    }
}

/// A pin that ends with the scope.
pub(crate) struct Pinned<'p> {
    epochs: &'p Epochs,
    pin: Pin,
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.epochs.unpin(self.pin);
    }
}

/// Counter stripe of this thread, assigned round-robin.
#[inline]
pub(crate) fn thread_stripe() -> usize {
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

impl AsRef<Pool> for &Pool {
    fn as_ref(&self) -> &Pool {
        self
    }
}
