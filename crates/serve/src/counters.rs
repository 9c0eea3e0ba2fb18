//! Counters of connections, bytes and errors.
//!
//! ```text
//!   thread 1          thread 2          thread 3 (ended)
//!  ┌──────────┐      ┌──────────┐
//!  │ cells    │      │ cells    │       added to `retired`
//!  └──────────┘      └──────────┘
//!        ▲                 ▲                 ▲
//!        └──── snapshot() adds them up ──────┘
//! ```
//!
//! A thread writes only its own cells, so counting is a load and a store without a lock prefix, in
//! cache lines that no other thread writes.

mod cells;
mod reasons;
mod snapshot;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cells::{Cell, DURATION_BOUNDS_US, NAMED_CELLS, Registry};
pub use reasons::{AcceptError, Closed};
pub use snapshot::CounterSnapshot;

/// The counters of one server. Any thread may count at low cost; share it by reference or `Arc`.
#[derive(Debug, Default)]
pub struct Counters {
    registry: Arc<Registry>,
}

impl Counters {
    /// Counts an accepted connection. It must be counted as [`closed`](Counters::closed) exactly
    /// once.
    pub fn accepted(&self) {
        self.registry.count(|cells| cells.add(Cell::Accepted, 1));
    }

    /// Counts a connection that ended.
    pub fn closed(&self, reason: Closed) {
        self.registry.count(|cells| cells.add(reason.cell(), 1));
    }

    /// Counts a failure of accept(2). Returns its class, which determines whether to pause.
    pub fn accept_failed(&self, error: &io::Error) -> AcceptError {
        let class = AcceptError::of(error);
        self.registry.count(|cells| cells.add(class.cell(), 1));
        class
    }

    /// Counts a PROXY header of this version; 0 is a connection without one.
    pub(crate) fn proxied(&self, version: u8) {
        let cell = match version {
            0 => Cell::ProxyAbsent,
            1 => Cell::ProxyV1,
            _ => Cell::ProxyV2,
        };
        self.registry.count(|cells| cells.add(cell, 1));
    }

    /// Counts a pause of accepting: the connection limit is reached, or accept(2) fails.
    pub fn accept_paused(&self) {
        self.registry.count(|cells| cells.add(Cell::AcceptPauses, 1));
    }

    /// Counts a receive of `len` bytes.
    pub fn received(&self, len: usize) {
        self.registry.count(|cells| {
            cells.add(Cell::Receives, 1);
            cells.add(Cell::BytesReceived, len as u64);
        });
    }

    /// Counts a send of `len` bytes.
    pub fn sent(&self, len: usize) {
        self.registry.count(|cells| {
            cells.add(Cell::Sends, 1);
            cells.add(Cell::BytesSent, len as u64);
        });
    }

    /// Counts `count` replies, each of which took `took` from the first byte of the request to the
    /// last byte of the reply; and the last send of `sent_len` bytes, unless it is 0.
    pub fn replied(&self, count: u64, took: Duration, sent_len: usize) {
        let us = took.as_micros() as u64;
        // Most replies are in the first or second bucket, so search from the front.
        let bound = DURATION_BOUNDS_US.iter().position(|bound| us <= *bound);
        let bucket = NAMED_CELLS + bound.unwrap_or(DURATION_BOUNDS_US.len());
        self.registry.count(|cells| {
            cells.add(Cell::Sends, u64::from(sent_len > 0));
            cells.add(Cell::BytesSent, sent_len as u64);
            cells.add(Cell::DurationNs, took.as_nanos() as u64 * count);
            cells.add_at(bucket, count);
        });
    }

    /// Counts a call of `Session::work`.
    pub fn worked(&self) {
        self.registry.count(|cells| cells.add(Cell::WorkCalls, 1));
    }

    /// Returns the sums over all threads.
    ///
    /// A snapshot never shows more connections closed than accepted, even while other threads
    /// count.
    pub fn snapshot(&self) -> CounterSnapshot {
        let values = self.registry.sum();
        CounterSnapshot { values }
    }
}
