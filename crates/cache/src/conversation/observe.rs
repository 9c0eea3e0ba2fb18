//! Reports of single commands to watchers and `stats detail`.

use std::fmt::Write as _;

use super::context::Context;
use crate::service::detail::Event;
use crate::service::watch::Kinds;
use crate::store::{Item, Miss, StoreError, StoreOutcome};
use crate::words::push_encoded;

/// A store command and its result.
pub(crate) struct Stored<'a> {
    pub(crate) key: &'a [u8],
    /// memcached's word for the command: `set`, `add`, `cas` …
    pub(crate) command: &'a str,
    pub(crate) exptime: u32,
    pub(crate) value_len: usize,
    pub(crate) result: Result<StoreOutcome, StoreError>,
}

impl Context<'_> {
    /// Reports a lookup to watchers and `stats detail`.
    #[inline]
    pub(crate) fn observe_get(&self, key: &[u8], found: &Result<Item<'_>, Miss>) {
        if self.is_observed {
            get(self, key, found);
            if self.service.detail.is_on() {
                let hit = found.is_ok();
                self.service.detail.count(key, Event::Get { hit });
            }
        }
    }

    /// Reports a store to watchers and `stats detail`.
    #[inline]
    pub(crate) fn observe_store(&self, stored: &Stored<'_>) {
        if self.is_observed {
            store(self, stored);
            if self.service.detail.is_on() {
                self.service.detail.count(stored.key, Event::Set);
            }
        }
    }

    /// Reports a delete to watchers and `stats detail`.
    #[inline]
    pub(crate) fn observe_delete(&self, key: &[u8]) {
        if self.is_observed && self.service.detail.is_on() {
            self.service.detail.count(key, Event::Delete);
        }
    }
}

/// `item_get`
#[cold]
fn get(cx: &Context<'_>, key: &[u8], found: &Result<Item<'_>, Miss>) {
    let watchers = &cx.service.watchers;
    if !watchers.kinds().overlap(Kinds::FETCHERS) {
        return;
    }
    let (status, class, len) = match found {
        Ok(item) => ("found", item.class_id(), item.len()),
        Err(Miss::NotFound) => ("not_found", 0, 0),
        Err(Miss::Expired) => ("expired", 0, 0),
        Err(Miss::Flushed) => ("flushed", 0, 0),
    };
    watchers.log(Kinds::FETCHERS, cx.now, |line| {
        line.push_str("type=item_get key=");
        push_encoded(key, line);
        let id = cx.connection.id;
        let _ = write!(line, " status={status} clsid={class} cfd={id} size={len}");
    });
}

/// `item_store`
#[cold]
fn store(cx: &Context<'_>, stored: &Stored<'_>) {
    let watchers = &cx.service.watchers;
    if !watchers.kinds().overlap(Kinds::MUTATIONS) {
        return;
    }
    let status = match stored.result {
        Ok(StoreOutcome::Stored { .. }) => "stored",
        Ok(StoreOutcome::NotStored) => "not_stored",
        Ok(StoreOutcome::Exists) => "exists",
        Ok(StoreOutcome::NotFound) => "not_found",
        Err(StoreError::TooLarge) => "too_large",
        Err(StoreError::OutOfMemory) => "no_memory",
    };
    let kept = cx.items.peek(stored.key);
    let (class, len, exptime) = match (&stored.result, &kept) {
        (Ok(StoreOutcome::Stored { .. }), Some(item)) => {
            (item.class_id(), item.len(), item.exptime())
        }
        (Ok(_), Some(item)) => (item.class_id(), stored.value_len, stored.exptime),
        _ => (0, stored.value_len, stored.exptime),
    };
    let ttl = match exptime {
        0 => 0,
        at => at.saturating_sub(cx.seconds),
    };
    watchers.log(Kinds::MUTATIONS, cx.now, |line| {
        line.push_str("type=item_store key=");
        push_encoded(stored.key, line);
        let command = stored.command;
        let id = cx.connection.id;
        let _ = write!(
            line,
            " status={status} cmd={command} ttl={ttl} clsid={class} cfd={id} size={len}"
        );
    });
}
