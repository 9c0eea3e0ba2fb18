//! The store's promises as a map under one lock: slow, plain, and without a memory limit.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::*;

/// Items under a hard memory limit. A handle: clones are the same store.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

struct Shared {
    config: Config,
    memory_max: AtomicU64,
    cas: AtomicU64,
    map: Mutex<Map>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Map {
    entries: HashMap<Box<[u8]>, Arc<Entry>>,
    flush_at: Option<Seconds>,
    stats: Stats,
}

struct Entry {
    key: Box<[u8]>,
    value: Bytes,
    flags: u32,
    cas: AtomicU64,
    exptime: AtomicU32,
    last_access: AtomicU32,
    fetched: AtomicBool,
    stale: AtomicBool,
    win_taken: AtomicBool,
    flushed: AtomicBool,
}

/// What one call of a session does to the store. Short; not `Send`.
#[derive(Debug)]
pub struct Turn<'s> {
    store: &'s Store,
    now: Seconds,
    not_send: PhantomData<*const ()>,
}

/// One version of an item, which never changes but for its marks.
pub struct Item<'t> {
    entry: Arc<Entry>,
    last_access: Seconds,
    was_fetched: bool,
    turn: PhantomData<&'t ()>,
}

/// An item on its way in: room for its value, in its final place.
#[derive(Debug)]
pub struct Draft {
    key: Box<[u8]>,
    value: Vec<u8>,
    filled: usize,
    flags: u32,
    exptime: Seconds,
}

impl Store {
    /// An empty store. Fails when the kernel refuses the address space.
    pub fn new(config: Config) -> io::Result<Store> {
        let memory_max = AtomicU64::new(config.memory_max);
        Ok(Store(Arc::new(Shared {
            config,
            memory_max,
            cas: AtomicU64::new(0),
            map: Mutex::default(),
        })))
    }

    /// Begins a turn. `now` is at least 2.
    #[inline]
    pub fn turn(&self, now: Seconds) -> Turn<'_> {
        self.map().settle_flush(now);
        Turn {
            store: self,
            now,
            not_send: PhantomData,
        }
    }

    /// How the store was cut.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// What `stats` says.
    pub fn stats(&self) -> Stats {
        let map = self.map();
        let mut stats = map.stats.clone();
        stats.curr_items = map.entries.len() as u64;
        stats.bytes = map.entries.values().map(|entry| entry.len()).sum();
        stats.limit_maxbytes = self.0.memory_max.load(Relaxed);
        stats
    }

    /// What `stats items` and `stats slabs` say: the classes that own a page.
    pub fn class_stats(&self, now: Seconds) -> Vec<ClassStats> {
        let _ = now;
        Vec::new()
    }

    /// What `stats sizes` says: how many items of each size, sizes rounded up to 32 bytes, ascending.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        let mut sizes = std::collections::BTreeMap::new();
        for entry in self.map().entries.values() {
            *sizes.entry(entry.len().next_multiple_of(32)).or_default() += 1;
        }
        sizes.into_iter().collect()
    }

    /// Sets the counters to 0 (`stats reset`).
    pub fn reset_stats(&self) {
        self.map().stats = Stats::default();
    }

    /// Changes the memory limit (`cache_memlimit`). What is above it is taken back by
    /// [`maintain`](Store::maintain), page by page. Fails above what the address space was reserved for.
    pub fn set_memory_max(&self, memory_max: u64) -> Result<(), StoreError> {
        self.0.memory_max.store(memory_max, Relaxed);
        Ok(())
    }

    /// Flushes all items that are there at the time `at`; at once when that is not in the future
    /// (`flush_all`, `flush_all DELAY`). A later call replaces one that is still to come.
    pub fn flush(&self, at: Seconds, now: Seconds) {
        let mut map = self.map();
        map.flush_at = Some(at);
        map.settle_flush(now);
    }

    /// Looks at up to about `budget` items after `cursor`, takes out what is dead, and shows the others to `visit`.
    /// Returns where to go on, or `None` after the last. Items that are there throughout are seen at least once.
    pub fn crawl(
        &self,
        cursor: Cursor,
        budget: usize,
        now: Seconds,
        mut visit: impl FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        let _ = (cursor, budget);
        let mut map = self.map();
        map.settle_flush(now);
        map.entries.retain(|_, entry| entry.alive(now).is_ok());
        for entry in map.entries.values() {
            if visit(&Item::new(Arc::clone(entry), now)).is_break() {
                break;
            }
        }
        None
    }

    /// Does up to `budget` steps of housekeeping: takes out dead items, moves pages to the classes that
    /// need them, gives memory back. Returns whether there is more to do now. For an idle moment.
    pub fn maintain(&self, budget: usize, now: Seconds) -> bool {
        self.crawl(Cursor::START, budget, now, |_| ControlFlow::Continue(()))
            .is_some()
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.0.map.lock().unwrap()
    }
}

/// Where a crawl goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// The first item.
    pub const START: Cursor = Cursor(0);
}

impl Map {
    fn settle_flush(&mut self, now: Seconds) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.entries
                .values()
                .for_each(|entry| entry.flushed.store(true, Relaxed));
        }
    }

    fn live(&self, key: &[u8], now: Seconds) -> Result<Arc<Entry>, Miss> {
        let entry = self.entries.get(key).ok_or(Miss::NotFound)?;
        entry.alive(now).map(|()| Arc::clone(entry))
    }
}

impl Entry {
    fn alive(&self, now: Seconds) -> Result<(), Miss> {
        let exptime = self.exptime.load(Relaxed);
        if self.flushed.load(Relaxed) {
            return Err(Miss::Flushed);
        }
        if exptime != NEVER && exptime <= now {
            Err(Miss::Expired)
        } else {
            Ok(())
        }
    }

    fn len(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }

    fn with_value(&self, value: Vec<u8>) -> Entry {
        Entry {
            key: self.key.clone(),
            value: value.into(),
            flags: self.flags,
            cas: AtomicU64::new(self.cas.load(Relaxed)),
            exptime: AtomicU32::new(self.exptime.load(Relaxed)),
            last_access: AtomicU32::new(self.last_access.load(Relaxed)),
            fetched: AtomicBool::new(self.fetched.load(Relaxed)),
            stale: AtomicBool::new(false),
            win_taken: AtomicBool::new(false),
            flushed: AtomicBool::new(false),
        }
    }
}

impl Turn<'_> {
    /// The time that the turn was begun with.
    pub fn now(&self) -> Seconds {
        self.now
    }

    /// Finds an item and marks it as used.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Item<'_>, Miss> {
        let mut map = self.store.map();
        let found = map.live(key, self.now);
        match &found {
            Ok(_) => map.stats.get_hits += 1,
            Err(miss) => {
                map.stats.get_misses += 1;
                map.stats.get_expired += u64::from(*miss == Miss::Expired);
                map.stats.get_flushed += u64::from(*miss == Miss::Flushed);
            }
        }
        found.map(|entry| Item::touched(entry, self.now))
    }

    /// Finds an item, marks it as used and sets its expiry time (`gat`).
    pub fn get_and_touch(&self, key: &[u8], exptime: Seconds) -> Result<Item<'_>, Miss> {
        let found = self.get(key);
        let mut map = self.store.map();
        match &found {
            Ok(item) => {
                map.stats.touch_hits += 1;
                item.entry.exptime.store(exptime, Relaxed);
            }
            Err(_) => map.stats.touch_misses += 1,
        }
        found
    }

    /// Finds an item and leaves no mark (`me`).
    pub fn peek(&self, key: &[u8]) -> Option<Item<'_>> {
        let found = self.store.map().live(key, self.now).ok()?;
        Some(Item::new(found, self.now))
    }

    /// Sets an item's expiry time.
    pub fn touch(&mut self, key: &[u8], exptime: Seconds) -> Result<(), Miss> {
        let mut map = self.store.map();
        let found = map.live(key, self.now);
        match &found {
            Ok(entry) => {
                map.stats.touch_hits += 1;
                entry.exptime.store(exptime, Relaxed);
            }
            Err(_) => map.stats.touch_misses += 1,
        }
        found.map(drop)
    }

    /// Stores a value that has arrived whole. A write that cannot be stored takes away what was under the
    /// key, as in memcached: an old value must not outlive the attempt to replace it.
    pub fn store(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        exptime: Seconds,
        rule: Rule,
    ) -> Result<Outcome, StoreError> {
        let mut draft = self.reserve(key, value.len(), flags, exptime)?;
        draft.value.copy_from_slice(value);
        draft.filled = value.len();
        self.commit(draft, rule)
    }

    /// Reserves the memory of an item. The value is put into [`Draft::room`].
    pub fn reserve(
        &mut self,
        key: &[u8],
        value_len: usize,
        flags: u32,
        exptime: Seconds,
    ) -> Result<Draft, StoreError> {
        if key.len() + value_len > self.store.config().item_len_max as usize {
            return Err(StoreError::TooLarge);
        }
        let key = key.into();
        Ok(Draft {
            key,
            value: vec![0; value_len],
            filled: 0,
            flags,
            exptime,
        })
    }

    /// Makes a full draft the item, if the rule allows.
    ///
    /// # Panics
    /// If the draft is not full.
    pub fn commit(&mut self, draft: Draft, rule: Rule) -> Result<Outcome, StoreError> {
        assert!(
            draft.is_full(),
            "committed {} of {} bytes",
            draft.filled,
            draft.value.len()
        );
        let mut map = self.store.map();
        map.stats.cmd_set += 1;
        let old = map.live(&draft.key, self.now).ok();
        let mut stale = false;
        match (&old, rule.cas) {
            (None, Some(_)) => {
                map.stats.cas_misses += 1;
                return Ok(Outcome::NotFound);
            }
            (Some(old), Some(cas)) if old.cas.load(Relaxed) != cas => {
                map.stats.cas_badval += 1;
                stale = rule.invalidate && cas < old.cas.load(Relaxed);
                if !stale {
                    return Ok(Outcome::Exists);
                }
            }
            (Some(_), Some(_)) => map.stats.cas_hits += 1,
            _ => {}
        }
        let entry = match (rule.mode, old) {
            (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => draft.into_entry(),
            (Mode::Append | Mode::Prepend, None) if rule.vivify => draft.into_entry(),
            (Mode::Append, Some(old)) => old.with_value([&old.value[..], &draft.value].concat()),
            (Mode::Prepend, Some(old)) => old.with_value([&draft.value, &old.value[..]].concat()),
            _ => return Ok(Outcome::NotStored),
        };
        if entry.len() > u64::from(self.store.config().item_len_max) {
            return Err(StoreError::TooLarge);
        }
        let cas = rule.new_cas.unwrap_or_else(|| self.store.next_cas());
        entry.cas.store(cas, Relaxed);
        entry.stale.store(stale, Relaxed);
        entry.win_taken.store(rule.win_taken, Relaxed);
        entry.last_access.store(self.now, Relaxed);
        map.stats.total_items += 1;
        map.entries.insert(entry.key.clone(), Arc::new(entry));
        Ok(Outcome::Stored { cas })
    }

    /// Deletes an item, or marks it, as the rule says.
    pub fn delete(&mut self, key: &[u8], rule: DeleteRule) -> Deleted {
        let mut map = self.store.map();
        let Ok(entry) = map.live(key, self.now) else {
            map.stats.delete_misses += 1;
            return Deleted::NotFound;
        };
        if rule.cas.is_some_and(|cas| cas != entry.cas.load(Relaxed)) {
            return Deleted::Exists;
        }
        map.stats.delete_hits += 1;
        if !rule.invalidate && !rule.clear_value {
            map.entries.remove(key);
            return Deleted::Deleted;
        }
        let mut kept = entry.with_value(entry.value.to_vec());
        if rule.clear_value {
            (kept.value, kept.flags) = (Bytes::new(), 0);
        }
        if let Some(exptime) = rule.exptime.filter(|_| rule.invalidate) {
            kept.exptime.store(exptime, Relaxed);
        }
        if rule.invalidate {
            kept.stale.store(true, Relaxed);
        }
        kept.cas.store(
            rule.new_cas.unwrap_or_else(|| self.store.next_cas()),
            Relaxed,
        );
        map.entries.insert(key.into(), Arc::new(kept));
        Deleted::Deleted
    }

    /// Counts a decimal number up or down. The value keeps its length, with spaces behind, when the new number is
    /// shorter; protocol.txt, "incr/decr".
    pub fn count(&mut self, key: &[u8], by: Arithmetic) -> Result<Counted, StoreError> {
        let mut map = self.store.map();
        let up = by.direction == Direction::Up;
        let Ok(entry) = map.live(key, self.now) else {
            *if up {
                &mut map.stats.incr_misses
            } else {
                &mut map.stats.decr_misses
            } += 1;
            return Ok(Counted::NotFound);
        };
        if by.cas.is_some_and(|cas| cas != entry.cas.load(Relaxed)) {
            return Ok(Counted::Exists);
        }
        let text = std::str::from_utf8(&entry.value).unwrap_or("x").trim_end();
        let Ok(number) = text.parse::<u64>() else {
            return Ok(Counted::NotANumber);
        };
        *if up {
            &mut map.stats.incr_hits
        } else {
            &mut map.stats.decr_hits
        } += 1;
        let number = match by.direction {
            Direction::Up => number.wrapping_add(by.delta),
            Direction::Down => number.saturating_sub(by.delta),
        };
        let value = format!("{number:<len$}", len = entry.value.len()).into_bytes();
        let kept = entry.with_value(value);
        if let Some(exptime) = by.exptime {
            kept.exptime.store(exptime, Relaxed);
        }
        let cas = by.new_cas.unwrap_or_else(|| self.store.next_cas());
        kept.cas.store(cas, Relaxed);
        map.entries.insert(key.into(), Arc::new(kept));
        Ok(Counted::Stored { number, cas })
    }
}

impl Store {
    fn next_cas(&self) -> u64 {
        match self.0.config.counts_cas {
            true => self.0.cas.fetch_add(1, Relaxed) + 1,
            false => 0,
        }
    }
}

impl Item<'_> {
    fn new(entry: Arc<Entry>, _now: Seconds) -> Self {
        let last_access = entry.last_access.load(Relaxed);
        let was_fetched = entry.fetched.load(Relaxed);
        Item {
            entry,
            last_access,
            was_fetched,
            turn: PhantomData,
        }
    }

    fn touched(entry: Arc<Entry>, now: Seconds) -> Self {
        let item = Item::new(entry, now);
        item.entry.last_access.store(now, Relaxed);
        item.entry.fetched.store(true, Relaxed);
        item
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.entry.key
    }

    /// The value's length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.entry.value.len()
    }

    /// The value, in as many pieces as it lies in (one, below half a MiB).
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.entry.value[..])
    }

    /// The value without a copy, in as many pieces as it lies in. The pieces keep the item's memory until they are
    /// dropped, so they are for values which are worth it: 16 KiB and more.
    pub fn shared(&self) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.entry.value.clone())
    }

    /// The client's flags.
    pub fn flags(&self) -> u32 {
        self.entry.flags
    }

    /// The item's cas (0 with `-C`).
    pub fn cas(&self) -> u64 {
        self.entry.cas.load(Relaxed)
    }

    /// When the item expires: [`NEVER`], or a time.
    pub fn exptime(&self) -> Seconds {
        self.entry.exptime.load(Relaxed)
    }

    /// When the item was last used, before this time.
    pub fn last_access(&self) -> Seconds {
        self.last_access
    }

    /// Whether the item was fetched before this time.
    pub fn was_fetched(&self) -> bool {
        self.was_fetched
    }

    /// Whether the item is marked as stale.
    pub fn is_stale(&self) -> bool {
        self.entry.stale.load(Relaxed)
    }

    /// Whether somebody has the win token.
    pub fn is_win_taken(&self) -> bool {
        self.entry.win_taken.load(Relaxed)
    }

    /// Takes the win token: true for exactly one caller, until the item is stored or invalidated.
    pub fn take_win(&self) -> bool {
        !self.entry.win_taken.swap(true, Relaxed)
    }

    /// The number of the item's slab class.
    pub fn class_id(&self) -> u8 {
        1
    }

    /// The item's size in bytes as `stats sizes` counts it: header, key and value.
    pub fn size(&self) -> u64 {
        self.entry.len()
    }
}

impl Draft {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// How long the value will be.
    pub fn value_len(&self) -> usize {
        self.value.len()
    }

    /// How much of the value is still to come.
    pub fn missing(&self) -> usize {
        self.value.len() - self.filled
    }

    /// Whether the whole value is there.
    pub fn is_full(&self) -> bool {
        self.missing() == 0
    }

    /// Room for the next bytes of the value: not always for all of them. Empty when the draft is full. A long item
    /// gets its memory as it fills, so this may fail half way: then drop the draft and swallow the rest.
    pub fn room(&mut self) -> Result<&mut [u8], StoreError> {
        Ok(&mut self.value[self.filled..])
    }

    /// Says that `len` bytes were put at the start of the room.
    ///
    /// # Panics
    /// If the room is shorter.
    pub fn filled(&mut self, len: usize) {
        assert!(len <= self.missing(), "filled {len} of {}", self.missing());
        self.filled += len;
    }

    /// Copies as much of `input` as is still missing; returns how much.
    pub fn fill(&mut self, input: &[u8]) -> Result<usize, StoreError> {
        let mut used = 0;
        while used < input.len() && !self.is_full() {
            let room = self.room()?;
            let len = room.len().min(input.len() - used);
            room[..len].copy_from_slice(&input[used..][..len]);
            self.filled(len);
            used += len;
        }
        Ok(used)
    }

    fn into_entry(self) -> Entry {
        Entry {
            key: self.key,
            value: self.value.into(),
            flags: self.flags,
            cas: AtomicU64::new(0),
            exptime: AtomicU32::new(self.exptime),
            last_access: AtomicU32::new(0),
            fetched: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            win_taken: AtomicBool::new(false),
            flushed: AtomicBool::new(false),
        }
    }
}
