//! Contents of a directory that may be shown, in order.

use std::cmp::Ordering;
use std::os::fd::AsFd;

use rustix::fs::Dir;
use session::FileStamp;

use super::show::percent_encoded;
use crate::lookup::{ListingSort, SortKey};
use crate::site::open::{Blocking, Kind, Miss, Root, miss_of};

/// Most entries of a listing; a longer directory is listed in part, with a note. A listing is for
/// people, and a page of ten thousand files already weighs 3 MB.
pub(super) const ENTRIES_MAX: usize = 10_000;

/// Contents of a directory that may be shown.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) items: Vec<Item>,
    pub(super) is_cut: bool,
}

#[derive(Debug)]
pub(super) struct Item {
    /// For display; invalid UTF-8 is replaced by U+FFFD.
    pub(super) name: String,
    /// True if the name is UTF-8. Other names cannot be requested, so they are shown without a
    /// link.
    pub(super) is_reachable: bool,
    pub(super) is_directory: bool,
    pub(super) len: u64,
    pub(super) modified_s: i64,
}

pub(super) fn read(
    root: &Root,
    path: &str,
    is_shown: impl Fn(&str) -> bool,
) -> Result<Listing, Miss> {
    let fd = root.open_directory(path)?;
    let mut listing = Listing::default();
    for entry in Dir::read_from(fd.as_fd()).map_err(miss_of)? {
        let entry = entry.map_err(miss_of)?;
        let name = entry.file_name().to_bytes();
        let shown = String::from_utf8_lossy(name);
        if matches!(name, b"." | b"..") || !is_shown(&format!("{path}{shown}")) {
            continue;
        }
        if listing.items.len() == ENTRIES_MAX {
            listing.is_cut = true;
            break;
        }
        let Ok(reachable) = std::str::from_utf8(name) else {
            listing.items.push(Item::unreachable(name));
            continue;
        };
        match root.stat(&format!("{path}{reachable}"), Blocking::Allowed) {
            Ok((kind, stamp)) => listing.items.push(Item::new(reachable, kind, stamp)),
            // Without descriptors the listing would be empty.
            Err(miss @ Miss::OutOfDescriptors) => return Err(miss),
            // The same lookup as for a request: a name that it does not find (a link out of the
            // root, a pipe) is not listed either.
            Err(_) => {}
        }
    }
    Ok(listing)
}

impl Item {
    fn new(name: &str, kind: Kind, stamp: FileStamp) -> Item {
        Item {
            name: name.to_owned(),
            is_reachable: true,
            is_directory: kind == Kind::Directory,
            len: stamp.len,
            modified_s: stamp.mtime_ns.div_euclid(1_000_000_000) as i64,
        }
    }

    fn unreachable(name: &[u8]) -> Item {
        let name = String::from_utf8_lossy(name).into_owned();
        Item { name, is_reachable: false, is_directory: false, len: 0, modified_s: 0 }
    }

    /// Relative to the directory. Begins with `./`, since `a:b` would be a URL with the scheme `a`.
    /// RFC 3986 4.2
    pub(super) fn link(&self) -> Option<String> {
        let slash = if self.is_directory { "/" } else { "" };
        self.is_reachable.then(|| format!("./{}{slash}", percent_encoded(&self.name)))
    }
}

/// Directories first, in either direction; equal items by name.
pub(super) fn order(a: &Item, b: &Item, sort: ListingSort) -> Ordering {
    let by_name = || natural(&a.name, &b.name);
    let order = match sort.by {
        SortKey::Name => by_name(),
        SortKey::Size => a.len.cmp(&b.len),
        SortKey::Time => a.modified_s.cmp(&b.modified_s),
    };
    let order = if sort.descending { order.reverse() } else { order };
    b.is_directory.cmp(&a.is_directory).then(order).then_with(by_name)
}

/// Natural order: `file2` before `file10`, capitals beside small letters.
fn natural(a: &str, b: &str) -> Ordering {
    let mut left = a;
    let mut right = b;
    while let (Some(l), Some(r)) = (left.chars().next(), right.chars().next()) {
        let order = if l.is_ascii_digit() && r.is_ascii_digit() {
            let l = take_number(&mut left);
            let r = take_number(&mut right);
            l.len().cmp(&r.len()).then_with(|| l.cmp(r))
        } else {
            (left, right) = (&left[l.len_utf8()..], &right[r.len_utf8()..]);
            l.to_lowercase().cmp(r.to_lowercase())
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Cuts the leading digits off; returns them without leading zeros.
fn take_number<'a>(text: &mut &'a str) -> &'a str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    *text = rest;
    number.trim_start_matches('0')
}
