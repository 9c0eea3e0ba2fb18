//! Directory listings: `directory` (what is in it, and in which order) · `page` (as HTML and JSON)
//! · `show` (sizes, dates, text and paths as pages show them).

mod directory;
mod page;
mod show;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::entry::{Body, Entry};
use super::head::{self, Description};
use super::open::{Miss, Root};
use super::rules::Rules;
use crate::lookup::{ListingFormat, ListingSort, Lookup};
use directory::{order, read};
use page::{html, json};
pub(super) use show::percent_encoded;

/// The last listings, so that a flood of requests for one does not read the directory each time.
#[derive(Debug, Default)]
pub(super) struct Listings {
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    path: Box<str>,
    format: ListingFormat,
    sort: ListingSort,
    made_ns: u64,
    entry: Arc<Entry>,
}

/// How many listings are kept, and how long one may be to be kept: 4 MiB in all.
const KEPT_MAX: usize = 16;
const KEPT_LEN_MAX: u64 = 256 << 10;

impl Listings {
    pub(super) fn get(
        &self,
        lookup: &Lookup<'_>,
        is_fresh: impl Fn(u64) -> bool,
    ) -> Option<Arc<Entry>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept
            .iter()
            .find(|kept| kept.answers(lookup) && is_fresh(kept.made_ns))?;
        Some(Arc::clone(&kept.entry))
    }

    pub(super) fn put(&self, lookup: &Lookup<'_>, entry: &Arc<Entry>, made_ns: u64) {
        if entry.len > KEPT_LEN_MAX {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| !kept.answers(lookup));
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Kept {
            path: lookup.path.into(),
            format: lookup.listing,
            sort: lookup.sort,
            made_ns,
            entry: Arc::clone(entry),
        });
    }

    pub(super) fn clear(&self) {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl Kept {
    fn answers(&self, lookup: &Lookup<'_>) -> bool {
        (&*self.path, self.format, self.sort) == (lookup.path, lookup.listing, lookup.sort)
    }
}

/// Reads a directory and writes its listing. Blocks.
pub(super) fn render(root: &Root, lookup: &Lookup<'_>, hidden: bool) -> Result<String, Miss> {
    let path = lookup.path.trim_start_matches('/');
    let mut listing = read(root, path, hidden)?;
    listing.items.sort_by(|a, b| order(a, b, lookup.sort));
    Ok(match lookup.listing {
        ListingFormat::Html => html(&listing, path, lookup.sort),
        ListingFormat::Json => json(&listing, path),
    })
}

/// Makes a listing's entry. Its ETag is a hash of the page: the directory's own time does not
/// change when a file in it grows.
pub(super) fn entry(
    page: String,
    rules: &Rules,
    lookup: &Lookup<'_>,
    since_epoch: Duration,
) -> Entry {
    let content_type = match lookup.listing {
        ListingFormat::Html => "text/html; charset=utf-8",
        ListingFormat::Json => "application/json",
    };
    let description = Description {
        content_type,
        encoding: None,
        len: page.len() as u64,
        etag: format!("\"{:x}-{:x}\"", page.len(), fnv1a(page.as_bytes())),
        // When it was read: before that, something may have been different.
        modified_s: since_epoch.as_secs(),
        modified_is_strong: false,
        vary: Some("Accept"),
        extra: &rules.lines(lookup.path.trim_start_matches('/')),
    };
    head::entry(&description, Body::Memory(Bytes::from(page)))
}

/// FNV-1a, 64 bits: the same on every machine. A collision gains a client nothing.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
