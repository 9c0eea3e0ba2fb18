//! What the store's users have in hand: the store, turns, items, drafts, walks, figures, snapshots.

mod crawl;
mod draft;
mod handle;
mod item;
mod snapshot;
mod stats;
mod turn;
mod write;

pub use draft::Draft;
pub use handle::Store;
pub use item::Item;
pub use snapshot::{RestoreError, Snapshot, SnapshotTime};
pub use turn::{PREFETCHED_MAX, Turn};
