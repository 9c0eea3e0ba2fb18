//! Reports of single commands to watchers and `stats detail`.

use std::fmt::Write as _;

use super::context::Context;
use super::storage::Storage;
use crate::service::detail::Event;
use crate::service::watch::Kinds;
use crate::store::{Item, Miss, StoreError, StoreOutcome};
use crate::words::push_encoded;

/// An item that is about to be deleted, as watchers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deletion {
    class_id: u8,
    len: usize,
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
    pub(crate) fn observe_store(
        &self,
        storage: &Storage<'_>,
        result: Result<StoreOutcome, StoreError>,
    ) {
        if self.is_observed {
            store(self, storage, result);
            if self.service.detail.is_on() {
                self.service.detail.count(storage.key, Event::Set);
            }
        }
    }

    /// Reports a delete to `stats detail`.
    #[inline]
    pub(crate) fn observe_delete(&self, key: &[u8]) {
        if self.is_observed && self.service.detail.is_on() {
            self.service.detail.count(key, Event::Delete);
        }
    }

    /// Looks at an item before it is deleted. `None` without a watcher of deletions.
    #[inline]
    pub(crate) fn watched_deletion(&self, key: &[u8]) -> Option<Deletion> {
        if !self.is_observed || !self.service.watchers.kinds().overlap(Kinds::DELETIONS) {
            return None;
        }
        let item = self.items.peek(key)?;
        Some(Deletion { class_id: item.class_id(), len: item.len() })
    }

    /// Reports a deleted item to watchers.
    #[inline]
    pub(crate) fn observe_deletion(&self, key: &[u8], command: &str, deletion: Option<Deletion>) {
        if let Some(deletion) = deletion {
            deleted(self, key, command, deletion);
        }
    }
}

impl Deletion {
    /// The deletion of a value only: an item without one stays.
    pub(crate) fn of_value(self) -> Deletion {
        Deletion { len: 0, ..self }
    }
}

/// `deleted`
#[cold]
fn deleted(cx: &Context<'_>, key: &[u8], command: &str, deletion: Deletion) {
    let Deletion { class_id, len } = deletion;
    cx.service.watchers.log(Kinds::DELETIONS, cx.now, |line| {
        line.push_str("type=deleted key=");
        push_encoded(key, line);
        let _ = write!(line, " cmd={command} clsid={class_id} size={len}");
    });
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
fn store(cx: &Context<'_>, storage: &Storage<'_>, result: Result<StoreOutcome, StoreError>) {
    let watchers = &cx.service.watchers;
    if !watchers.kinds().overlap(Kinds::MUTATIONS) {
        return;
    }
    let status = match result {
        Ok(StoreOutcome::Stored { .. }) => "stored",
        Ok(StoreOutcome::NotStored) => "not_stored",
        Ok(StoreOutcome::Exists) => "exists",
        Ok(StoreOutcome::NotFound) => "not_found",
        Err(StoreError::TooLarge) => "too_large",
        Err(StoreError::OutOfMemory) => "no_memory",
    };
    let kept = cx.items.peek(storage.key);
    let (class, len, exptime) = match (result, &kept) {
        (Ok(StoreOutcome::Stored { .. }), Some(item)) => {
            (item.class_id(), item.len(), item.exptime())
        }
        (Ok(_), Some(item)) => (item.class_id(), storage.value_len, storage.exptime),
        _ => (0, storage.value_len, storage.exptime),
    };
    let ttl = match exptime {
        0 => 0,
        at => at.saturating_sub(cx.seconds),
    };
    watchers.log(Kinds::MUTATIONS, cx.now, |line| {
        line.push_str("type=item_store key=");
        push_encoded(storage.key, line);
        let command = storage.name;
        let id = cx.connection.id;
        let _ = write!(
            line,
            " status={status} cmd={command} ttl={ttl} clsid={class} cfd={id} size={len}"
        );
    });
}
