use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use crate::store::access::handle::Store;
use crate::store::memory::arena::Chunk;
use crate::store::memory::layout::Layout;
use crate::store::memory::mark;
use crate::store::memory::mark::READERS_MAX;
use crate::store::pool::Pool;
use crate::store::rule::Seconds;
use crate::store::slab::item_len;

/// One version of an item, immutable except for its marks. Borrowed from a
/// [`Guard`](super::Guard).
#[derive(Clone, Copy)]
pub struct Item<'t> {
    store: &'t Store,
    chunk: Chunk,
    /// Marks and time before this access.
    state: u32,
    last_access: Seconds,
}

/// A reference to an item's memory, which prevents its reuse for longer than a guard.
pub(crate) struct Held<S: AsRef<Pool>> {
    pool: S,
    pub(crate) chunk: Chunk,
}

/// A piece of a value that is sent in place. All pieces of a reply share one reference.
struct Piece {
    held: Arc<Held<Store>>,
    at: usize,
}

impl<'t> Item<'t> {
    /// The caller must have pinned the epoch for `'t` before it found the chunk.
    pub(crate) fn new(store: &'t Store, chunk: Chunk) -> Item<'t> {
        let header = store.pool().arena.header(chunk);
        let state = header.state.load(Relaxed);
        let last_access = header.last_access.load(Relaxed);
        Item { store, chunk, state, last_access }
    }

    /// The item, marked as used.
    #[inline]
    pub(crate) fn hit(store: &'t Store, chunk: Chunk, now: Seconds) -> Item<'t> {
        let header = store.pool().arena.header(chunk);
        let state = mark::hit(&header.state);
        let last_access = header.last_access.load(Relaxed);
        if last_access != now {
            header.last_access.store(now, Relaxed);
        }
        Item { store, chunk, state, last_access }
    }

    fn pool(&self) -> &'t Pool {
        self.store.pool()
    }

    /// The key.
    pub fn key(&self) -> &'t [u8] {
        self.pool().key(self.chunk)
    }

    /// The value's length in bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.pool().arena.header(self.chunk).value_len.load(Relaxed) as usize
    }

    /// The value, in one slice per chunk: a single one below half a MiB.
    #[inline]
    pub fn slices(&self) -> impl Iterator<Item = &'t [u8]> + use<'t> {
        let pool = self.pool();
        let chunk = self.chunk;
        let layout = Layout::of(&pool.arena, chunk);
        (0..layout.pieces()).map(move |at| pool.piece(chunk, &layout, at))
    }

    /// The value without a copy, in one piece per chunk. The pieces keep the item's memory until
    /// they are dropped, which is worth it from 16 KiB on. None if so many replies (61,440) already
    /// send this item that another one is refused.
    pub fn shared(&self) -> Option<impl Iterator<Item = Bytes> + use<'t>> {
        let held = Held::take(self.store.clone(), self.chunk, READERS_MAX)?;
        let layout = Layout::of(&self.pool().arena, self.chunk);
        let held = Arc::new(held);
        let piece = move |at| Piece { held: held.clone(), at };
        Some((0..layout.pieces()).map(move |at| Bytes::from_owner(piece(at))))
    }

    /// The client's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.pool().arena.header(self.chunk).flags.load(Relaxed)
    }

    /// The item's cas (0 with `-C`).
    #[inline]
    pub fn cas(&self) -> u64 {
        self.pool().arena.header(self.chunk).cas.load(Relaxed)
    }

    /// Expiry time: [`NEVER`](crate::store::NEVER), or a time.
    pub fn exptime(&self) -> Seconds {
        self.pool().arena.header(self.chunk).exptime.load(Relaxed)
    }

    /// Time of the last use before this one.
    pub fn last_access(&self) -> Seconds {
        self.last_access
    }

    /// True if the item was fetched before.
    pub fn was_fetched(&self) -> bool {
        self.state & mark::FETCHED != 0
    }

    /// True if the item is marked as stale.
    pub fn is_stale(&self) -> bool {
        self.state & mark::STALE != 0
    }

    /// True if the win token is taken.
    pub fn is_win_taken(&self) -> bool {
        self.state & mark::WIN != 0
    }

    /// Takes the win token: true for exactly one caller, until the item is stored or invalidated.
    pub fn take_win(&self) -> bool {
        let pool = self.pool();
        // Under the bucket's lock, so that the token is not lost when the item is copied to another
        // chunk.
        let locked = pool.index.lock(pool.hash(self.key()));
        match locked.find(|chunk| pool.key(chunk) == self.key()) {
            Some((_, chunk)) => {
                let header = pool.arena.header(chunk);
                header.cas.load(Relaxed) == self.cas() && mark::take_win(&header.state)
            }
            // A removed item needs no recaching: the next get misses.
            None => false,
        }
    }

    /// The number of the item's slab class.
    pub fn class_id(&self) -> u8 {
        self.pool().owners.class_of(self.chunk)
    }

    /// The item's size in bytes as `stats sizes` counts it: header, key and value.
    pub fn size(&self) -> u64 {
        item_len(&self.pool().arena, self.chunk)
    }
}

impl fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(self.key());
        f.debug_struct("Item").field("key", &key).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<S: AsRef<Pool>> Held<S> {
    /// None if the item has `count_max` references. The caller must have pinned the epoch before it
    /// found the item, or hold the lock of its bucket.
    pub(crate) fn take(pool: S, chunk: Chunk, count_max: u32) -> Option<Held<S>> {
        let taken = mark::reference(&pool.as_ref().arena.header(chunk).state, count_max);
        // Created only if the reference was taken: dropping a `Held` gives one back.
        taken.then(|| Held { pool, chunk })
    }
}

impl<S: AsRef<Pool>> Drop for Held<S> {
    fn drop(&mut self) {
        let pool = self.pool.as_ref();
        if mark::unreference(&pool.arena.header(self.chunk).state) {
            pool.free_item(self.chunk);
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        let pool = self.held.pool.pool();
        pool.piece(self.held.chunk, &Layout::of(&pool.arena, self.held.chunk), self.at)
    }
}
