use std::fmt;

use crate::store::access::handle::Store;
use crate::store::pool::reservation::RawReservation;
use crate::store::rule::{Seconds, StoreError};

/// Memory reserved for an item, in its final place. Frees it when dropped.
pub struct Reservation {
    pub(crate) store: Store,
    /// None once the reservation is committed.
    pub(crate) raw: Option<RawReservation>,
    /// Time at which it began.
    pub(crate) now: Seconds,
}

impl Reservation {
    /// Bytes of the value that are still missing.
    pub fn missing(&self) -> usize {
        self.raw().missing()
    }

    /// True if the value is complete.
    pub fn is_full(&self) -> bool {
        self.missing() == 0
    }

    /// Space for the next bytes of the value, perhaps not for all of them. Empty when the
    /// reservation is full. A long item gets its memory as it fills, so this may fail midway: then
    /// drop the reservation and skip the rest.
    pub fn space(&mut self) -> Result<&mut [u8], StoreError> {
        // Not of the beginning: a flush since then must not make newer items look dead.
        let clock = self.store.pool().clock_as_is(self.now);
        let raw = self.raw.as_mut().expect("a reservation is whole until it is committed");
        raw.space(self.store.pool(), clock)
    }

    /// Reports that `len` bytes were put at the start of the [space](Reservation::space).
    ///
    /// # Panics
    /// If `len` is longer than the space.
    pub fn filled(&mut self, len: usize) {
        self.raw.as_mut().expect("a reservation is whole until it is committed").filled(len);
    }

    /// Copies as much of `input` as is still missing; returns the number of bytes.
    pub fn fill(&mut self, input: &[u8]) -> Result<usize, StoreError> {
        let clock = self.store.pool().clock_as_is(self.now);
        let raw = self.raw.as_mut().expect("a reservation is whole until it is committed");
        raw.fill(self.store.pool(), input, clock)
    }

    fn raw(&self) -> &RawReservation {
        self.raw.as_ref().expect("a reservation is whole until it is committed")
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            raw.discard(self.store.pool());
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("raw", &self.raw).finish_non_exhaustive()
    }
}
