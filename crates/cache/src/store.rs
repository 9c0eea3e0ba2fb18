//! The item store: keys and values under a hard memory limit. No sockets, no clock, no protocol.
//!
//! A [`Store`] is a handle that can be cloned. All access goes through a [`Guard`], which one call
//! of a session takes and drops again, and which carries the time:
//!
//! ```
//! use weftwork_cache::store::{Config, Mode, StoreOutcome, Store};
//!
//! let store = Store::new(Config::default()).unwrap();
//! let mut guard = store.access(2);
//! let stored = guard.store(b"key", b"value", 7, 0, Mode::Set.into()).unwrap();
//! assert!(matches!(stored, StoreOutcome::Stored { .. }));
//! let item = guard.get(b"key").unwrap();
//! assert_eq!((item.slices().next().unwrap(), item.flags()), (&b"value"[..], 7));
//! ```
//!
//! * **Reading** gives an [`Item`]: one immutable version, borrowed from the guard. Small values
//!   are copied into the outbox from [`Item::slices`]; large ones are sent in place through
//!   [`Item::shared`], and keep their memory until the last byte is sent.
//! * **Writing** a complete value is [`Guard::store`]. A longer one first gets a [`Reservation`],
//!   whose [`space`](Reservation::space) is the item's own memory, so that the driver receives
//!   straight into it; then [`Guard::commit`]. Dropping a reservation frees its memory.
//! * A guard must be short: memory freed during its life is reused only afterwards. It is not
//!   `Send`, so it cannot outlive the call.

// Bottom up: each module knows only those above it.
mod config;
mod figures;
mod rule;

mod memory;

mod index;

mod slab;

mod pool;

mod access;

pub use access::{
    Guard, Item, PREFETCHED_MAX, Reservation, RestoreError, Snapshot, SnapshotTime, Store,
};
pub use config::Config;
pub use figures::{ClassStats, Eviction, Stats};
pub use index::Cursor;
pub use rule::{
    Arithmetic, Counted, DeleteRule, Deleted, Direction, EXPIRED, Miss, Mode, NEVER, Rule, Seconds,
    StoreError, StoreOutcome,
};
