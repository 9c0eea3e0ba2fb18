//! The item store: keys and values under a hard memory limit. No sockets, no clock, no protocol.
//!
//! A [`Store`] is a handle that is cloned to whoever needs it. All access goes through a [`Turn`], which one
//! call of a session takes and drops again, and which carries the time:
//!
//! ```
//! use cache::store::{Config, Mode, Outcome, Store};
//!
//! let store = Store::new(Config::default()).unwrap();
//! let mut turn = store.turn(2);
//! let stored = turn.store(b"key", b"value", 7, 0, Mode::Set.into()).unwrap();
//! assert!(matches!(stored, Outcome::Stored { .. }));
//! let item = turn.get(b"key").unwrap();
//! assert_eq!((item.slices().next().unwrap(), item.flags()), (&b"value"[..], 7));
//! ```
//!
//! * **Reading** gives an [`Item`]: one version of it, which never changes, borrowed from the turn. Small values
//!   are copied into the outbox from [`Item::slices`]; large ones are sent where they lie
//!   through [`Item::shared`], and keep their memory until the last byte has left.
//! * **Writing** a value that has arrived whole is [`Turn::store`]. A longer one gets a [`Draft`] first, whose
//!   [`room`](Draft::room) is the item's own memory, so that the driver receives straight into it; then [`Turn::commit`].
//!   A draft that is dropped gives its memory back.
//! * A turn must be short: memory that is given up while it lasts comes back only after it. It is not `Send`,
//!   so it cannot outlive the call.

mod arena;
mod classes;
mod config;
mod counters;
mod crawl;
mod draft;
mod epoch;
mod ghost;
mod index;
mod item;
mod layout;
mod mark;
mod mover;
mod pool;
mod queue;
mod rule;
mod sizes;
mod slab;
mod snapshot;
mod stats;
mod sync;
mod turn;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

pub use config::Config;
pub use crawl::Cursor;
pub use draft::Draft;
pub use item::Item;
pub use rule::{
    Arithmetic, Counted, DeleteRule, Deleted, Direction, EXPIRED, Miss, Mode, NEVER, Outcome, Rule,
    Seconds, StoreError,
};
pub use snapshot::{RestoreError, Snapshot, SnapshotTime};
pub use stats::{ClassStats, Eviction, Stats};
pub use turn::Turn;

use arena::PAGE_LEN;
use pool::Pool;

/// Items under a hard memory limit. A handle: clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Pool>);

impl Store {
    /// An empty store. Fails when the kernel refuses the address space.
    pub fn new(config: Config) -> io::Result<Store> {
        Ok(Store(Arc::new(Pool::new(config)?)))
    }

    /// Begins a turn. `now` is at least 2.
    #[inline]
    pub fn turn(&self, now: Seconds) -> Turn<'_> {
        Turn::new(self, now)
    }

    /// How the store was cut.
    pub fn config(&self) -> &Config {
        &self.pool().config
    }

    /// Changes the memory limit (`cache_memlimit`). What is above it is taken back by
    /// [`maintain`](Store::maintain), page by page. Fails below a page, and above what the address space was
    /// reserved for: 64 GiB, or four times the first limit.
    pub fn set_memory_max(&self, memory_max: u64) -> Result<(), StoreError> {
        self.pool().set_pages_limit(memory_max / PAGE_LEN as u64)
    }

    /// The slab classes: the bytes of a chunk, and how many of them a page has. The first is class 1. `memcached -vv`
    /// prints them at the start.
    pub fn chunk_lens(&self) -> Vec<(usize, usize)> {
        let lens = self.pool().lens.as_slice().iter();
        lens.map(|len| (*len, PAGE_LEN / len)).collect()
    }

    /// What `stats sizes` says: how many items of each size, sizes rounded up to 32 bytes, ascending.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        let pool = self.pool();
        let mut sizes = BTreeMap::new();
        for id in pool.class_ids() {
            for (size, count) in pool.class(id).sizes.all() {
                *sizes.entry(size).or_default() += count;
            }
        }
        sizes.into_iter().collect()
    }

    #[inline]
    fn pool(&self) -> &Pool {
        &self.0
    }
}

impl AsRef<Pool> for Store {
    fn as_ref(&self) -> &Pool {
        &self.0
    }
}

impl AsRef<Pool> for &Pool {
    fn as_ref(&self) -> &Pool {
        self
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("config", self.config())
            .finish_non_exhaustive()
    }
}
