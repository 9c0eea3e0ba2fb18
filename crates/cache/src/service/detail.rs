//! `stats detail`: gets, hits, sets and deletes by key prefix. Off by default.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::words::push_plain;

/// Maximum number of prefixes; keys with further ones count only in [`Detail::uncounted`].
pub(crate) const PREFIXES_MAX: usize = 65_536;

/// Event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Get { hit: bool },
    Set,
    Delete,
}

/// Counts by prefix.
#[derive(Debug)]
pub(crate) struct Detail {
    is_on: AtomicBool,
    delimiter: u8,
    prefixes: Mutex<HashMap<Box<[u8]>, Counts>>,
    uncounted: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

impl Detail {
    pub(crate) fn new(delimiter: u8, is_on: bool) -> Detail {
        Detail {
            is_on: AtomicBool::new(is_on),
            delimiter,
            prefixes: Mutex::default(),
            uncounted: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn switch(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Sets all counts to zero.
    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    /// Counts an event, if counting is on. A key without the delimiter has no prefix.
    #[cold]
    pub(crate) fn count(&self, key: &[u8], event: Event) {
        let Some(len) = memchr::memchr(self.delimiter, key) else {
            return;
        };
        let mut prefixes = self.lock();
        if prefixes.len() >= PREFIXES_MAX && !prefixes.contains_key(&key[..len]) {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let counts = prefixes.entry(key[..len].into()).or_default();
        match event {
            Event::Get { hit } => {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            }
            Event::Set => counts.sets += 1,
            Event::Delete => counts.deletes += 1,
        }
    }

    /// The reply to `stats detail dump`, without its end marker.
    pub(crate) fn dump(&self, to: &mut Vec<u8>) {
        for (prefix, counts) in self.lock().iter() {
            to.extend_from_slice(b"PREFIX ");
            push_plain(prefix, to);
            let text = format!(
                " get {} hit {} set {} del {}\r\n",
                counts.gets, counts.hits, counts.sets, counts.deletes
            );
            to.extend_from_slice(text.as_bytes());
        }
    }

    /// Events not counted because there were too many prefixes.
    pub(crate) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Counts>> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_count_by_prefix() {
        let detail = Detail::new(b':', true);
        detail.count(b"user:1", Event::Set);
        detail.count(b"user:2", Event::Get { hit: true });
        detail.count(b"user:2", Event::Get { hit: false });
        detail.count(b"user:2", Event::Delete);
        detail.count(b"plain", Event::Set);
        let mut dump = Vec::new();
        detail.dump(&mut dump);
        assert_eq!(dump, b"PREFIX user get 2 hit 1 set 1 del 1\r\n");
    }

    #[test]
    fn there_is_a_limit_of_prefixes() {
        let detail = Detail::new(b':', true);
        for at in 0..=PREFIXES_MAX {
            detail.count(format!("{at}:x").as_bytes(), Event::Set);
        }
        assert_eq!(detail.uncounted(), 1);
    }
}
