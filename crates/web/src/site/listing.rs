//! Directory listings: `directory` (contents and order) · `page` (HTML and JSON) · `show` (display
//! of sizes, dates, text and paths).

mod directory;
mod page;
mod show;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::cors::Readers;
use super::entry::{Body, Entry};
use super::head::{self, Description, Modified};
use super::open::{Miss, Root};
use crate::lookup::{ListingFormat, ListingSort, Lookup};
use directory::{order, read};
use page::{html, json};
pub(crate) use show::{path_encoded, percent_encoded};

/// Recent listings: repeated requests for one do not read the directory each time, and slow
/// receivers of the same listing share its bytes.
#[derive(Debug, Default)]
pub(super) struct Listings {
    kept: Mutex<Vec<KeptListing>>,
    held_len: Arc<AtomicU64>,
    refused: AtomicU64,
}

#[derive(Debug)]
struct KeptListing {
    site: u32,
    path: Box<str>,
    format: ListingFormat,
    sort: ListingSort,
    made_ns: u64,
    entry: Arc<Entry>,
}

/// Limits on kept listings, by number and by total bytes: a few of the longest, of about 3 MB each.
const KEPT_MAX: usize = 16;
const KEPT_LEN_MAX: u64 = 16 << 20;

/// Maximum bytes of listings kept or being sent. Above it none is made: clients that do not read
/// their replies could fill the memory.
pub(super) const HELD_LEN_MAX: u64 = 128 << 20;

/// A page, counted until its last reference is dropped.
struct ListingPage {
    text: String,
    held_len: Arc<AtomicU64>,
}

impl AsRef<[u8]> for ListingPage {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for ListingPage {
    fn drop(&mut self) {
        self.held_len.fetch_sub(self.text.len() as u64, Relaxed);
    }
}

impl Listings {
    pub(super) fn get(
        &self,
        site: u32,
        lookup: &Lookup<'_>,
        is_fresh: impl Fn(u64) -> bool,
    ) -> Option<Arc<Entry>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.iter().find(|kept| kept.answers(site, lookup) && is_fresh(kept.made_ns))?;
        Some(Arc::clone(&kept.entry))
    }

    /// Returns whether another listing may be made, and counts a refusal.
    pub(super) fn admit(&self) -> bool {
        let has_room = self.held_len() < HELD_LEN_MAX;
        self.refused.fetch_add((!has_room).into(), Relaxed);
        has_room
    }

    /// Bytes of listings that are kept or being sent.
    pub(super) fn held_len(&self) -> u64 {
        self.held_len.load(Relaxed)
    }

    /// Listings refused for lack of memory.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Counts a new page.
    pub(super) fn hold(&self, mut text: String) -> Bytes {
        text.shrink_to_fit();
        self.held_len.fetch_add(text.len() as u64, Relaxed);
        let held_len = Arc::clone(&self.held_len);
        Bytes::from_owner(ListingPage { text, held_len })
    }

    /// Keeps a new listing; returns the one to serve: the previous one if it is equal, whose bytes
    /// other replies may share.
    pub(super) fn put(
        &self,
        site: u32,
        lookup: &Lookup<'_>,
        made: Arc<Entry>,
        made_ns: u64,
    ) -> Arc<Entry> {
        // Compared outside the lock, which loops and processors wait for.
        let before = self.get(site, lookup, |_| true);
        let entry = before.filter(|it| is_same(it, &made)).unwrap_or(made);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| !kept.answers(site, lookup));
        let kept_len = |kept: &[KeptListing]| kept.iter().map(|kept| kept.entry.len).sum::<u64>();
        while kept.len() == KEPT_MAX
            || (kept_len(&kept) + entry.len > KEPT_LEN_MAX && !kept.is_empty())
        {
            kept.remove(0);
        }
        kept.push(KeptListing {
            site,
            path: lookup.path.into(),
            format: lookup.listing,
            sort: lookup.sort,
            made_ns,
            entry: Arc::clone(&entry),
        });
        entry
    }

    /// Removes the listings of a site.
    pub(super) fn clear(&self, site: u32) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.site != site);
    }
}

impl KeptListing {
    fn answers(&self, site: u32, lookup: &Lookup<'_>) -> bool {
        self.site == site
            && (&*self.path, self.format, self.sort) == (lookup.path, lookup.listing, lookup.sort)
    }
}

/// True if two listings have the same bytes.
fn is_same(a: &Entry, b: &Entry) -> bool {
    matches!((&a.body, &b.body), (Body::Memory(a), Body::Memory(b)) if a == b)
}

/// Reads a directory and writes its listing. Blocks.
pub(super) fn render(
    root: &Root,
    lookup: &Lookup<'_>,
    is_shown: impl Fn(&str) -> bool,
) -> Result<String, Miss> {
    let path = lookup.path.trim_start_matches('/');
    let mut listing = read(root, path, is_shown)?;
    listing.items.sort_by(|a, b| order(a, b, lookup.sort));
    Ok(match lookup.listing {
        ListingFormat::Html => html(&listing, path, lookup.sort),
        ListingFormat::Json => json(&listing, path),
    })
}

/// Makes a listing's entry. Its ETag is a hash of the page: the directory's own time does not
/// change when a file in it grows.
pub(super) fn entry(page: Bytes, lines: &str, lookup: &Lookup<'_>, since_epoch: Duration) -> Entry {
    let content_type = match lookup.listing {
        ListingFormat::Html => "text/html; charset=utf-8",
        ListingFormat::Json => "application/json",
    };
    let description = Description {
        content_type,
        encoding: None,
        len: page.len() as u64,
        etag: Some(format!("\"{:x}-{:x}\"", page.len(), head::fnv1a(&page))),
        // The time of reading. Not sent: the directory may change again within that second.
        modified: Modified { s: since_epoch.as_secs(), is_told: false, is_strong: false },
        vary: Some("Accept"),
        extra: lines,
        area: None,
        address_area: None,
        readers: Readers::Own,
    };
    head::entry(&description, Body::Memory(page))
}
