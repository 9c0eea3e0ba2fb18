//! Public interface of the store: handle, guard, items, reservations, walks, figures, snapshots.

mod crawl;
mod guard;
mod handle;
mod item;
mod reservation;
mod snapshot;
mod stats;
mod write;

pub use guard::{Guard, PREFETCHED_MAX};
pub use handle::Store;
pub use item::Item;
pub use reservation::Reservation;
pub use snapshot::{RestoreError, Snapshot, SnapshotTime};
