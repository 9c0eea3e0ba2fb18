use std::sync::atomic::Ordering;

use session::{Now, Outbox};

use super::storage::Storage;
use crate::service::Service;
use crate::service::connections::Connection;
use crate::service::counters::Count;
use crate::store::{Guard, Mode, Seconds, StoreError};

/// Context of a command, for one call of [`receive`](session::Session::receive). The state is
/// passed beside it.
pub(crate) struct Context<'a> {
    pub(crate) service: &'a Service,
    pub(crate) items: Guard<'a>,
    pub(crate) seconds: Seconds,
    pub(crate) now: Now,
    pub(crate) out: &'a mut Outbox,
    pub(crate) connection: &'a Connection,
    /// True if each command is reported to a watcher or `stats detail`.
    pub(super) is_observed: bool,
}

impl<'a> Context<'a> {
    #[inline]
    pub(crate) fn new(
        service: &'a Service,
        connection: &'a Connection,
        now: Now,
        out: &'a mut Outbox,
    ) -> Context<'a> {
        let seconds = service.seconds(now);
        connection.last_command.store(seconds, Ordering::Relaxed);
        Context {
            service,
            items: service.store().access(seconds),
            seconds,
            now,
            out,
            connection,
            is_observed: service.is_observed(),
        }
    }

    /// Turns `stats detail` on or off, also for the rest of the input.
    pub(crate) fn turn_detail(&mut self, on: bool) {
        self.service.detail.switch(on);
        self.is_observed = self.service.is_observed();
    }

    /// Converts an expiry time of the protocol to the store's time.
    pub(crate) fn deadline(&self, exptime: i64) -> Seconds {
        self.service.deadline(exptime, self.seconds)
    }

    /// Writes a line, unless the client suppressed it.
    #[inline]
    pub(crate) fn answer(&mut self, reply: &[u8], is_quiet: bool) {
        if !is_quiet {
            self.out.put(reply);
        }
    }

    /// Flushes now, or at a time given like an expiry time.
    pub(crate) fn flush(&mut self, delay: i64) {
        self.service.counters.add(Count::Flush, 1);
        let at = match delay {
            ..=0 => self.seconds,
            _ => self.deadline(delay).max(self.seconds),
        };
        self.service.store().flush(at, self.seconds);
    }

    /// Counts and reports a failed store.
    #[cold]
    pub(crate) fn store_failed(&mut self, storage: &Storage<'_>, error: StoreError) {
        self.count_failed(error);
        if storage.forgets {
            self.items.forget(storage.key);
        }
        self.observe_store(storage, Err(error));
    }

    /// True if only the joined value of an append or prepend does not fit, as far as its length
    /// says: the old one stays, and memcached replies "not stored".
    pub(crate) fn is_join_failed(&self, storage: &Storage<'_>) -> bool {
        let joins = matches!(storage.rule.mode, Mode::Append | Mode::Prepend);
        joins && self.items.fits(storage.key, storage.value_len)
    }

    /// Counts a store that failed for lack of memory.
    #[cold]
    pub(crate) fn count_failed(&self, error: StoreError) {
        self.service.counters.add(
            match error {
                StoreError::TooLarge => Count::StoreTooLarge,
                StoreError::OutOfMemory => Count::StoreNoMemory,
            },
            1,
        );
    }
}
