use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::Dir;
use serde::Serialize;
use session::FileStamp;

use super::entry::{Body, Entry};
use super::head::{self, Description};
use super::open::{Blocking, Kind, Miss, Root, miss_of};
use super::rules::Rules;
use crate::lookup::{ListingFormat, ListingSort, Lookup, SortKey};

/// A directory with more entries is listed as far as they were read, with a note: a listing is for
/// people, and its page for ten thousand files already weighs 3 MB.
const ENTRIES_MAX: usize = 10_000;

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

/// What is in a directory, as far as it may be shown.
#[derive(Debug, Default)]
struct Listing {
    items: Vec<Item>,
    is_cut: bool,
}

#[derive(Debug)]
struct Item {
    /// For people; what is not UTF-8 in it is replaced by U+FFFD.
    name: String,
    /// Whether the name is UTF-8. Another cannot be asked for, so it is shown without a link.
    is_reachable: bool,
    is_directory: bool,
    len: u64,
    modified_s: i64,
}

fn read(root: &Root, path: &str, hidden: bool) -> Result<Listing, Miss> {
    let fd = root.open_directory(path)?;
    let mut listing = Listing::default();
    for entry in Dir::read_from(fd.as_fd()).map_err(miss_of)? {
        let entry = entry.map_err(miss_of)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || (name.starts_with(b".") && !hidden) {
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
        match root.look(&format!("{path}{reachable}"), Blocking::Allowed) {
            Ok((kind, stamp)) => listing.items.push(Item::new(reachable, kind, stamp)),
            // Otherwise the listing would be empty.
            Err(miss @ Miss::OutOfDescriptors) => return Err(miss),
            // The same look-up as for a request: what it does not find (a link that leads out, a
            // pipe) is not listed either.
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
        Item {
            name,
            is_reachable: false,
            is_directory: false,
            len: 0,
            modified_s: 0,
        }
    }

    /// Relative to the directory. `./` first, or `a:b` would be a URL with the scheme `a`. RFC 3986
    /// 4.2
    fn link(&self) -> Option<String> {
        let slash = if self.is_directory { "/" } else { "" };
        self.is_reachable
            .then(|| format!("./{}{slash}", percent_encoded(&self.name)))
    }
}

/// Directories first, whichever way the rest goes; equal ones by name.
fn order(a: &Item, b: &Item, sort: ListingSort) -> Ordering {
    let by_name = || natural(&a.name, &b.name);
    let order = match sort.by {
        SortKey::Name => by_name(),
        SortKey::Size => a.len.cmp(&b.len),
        SortKey::Time => a.modified_s.cmp(&b.modified_s),
    };
    let order = if sort.descending {
        order.reverse()
    } else {
        order
    };
    b.is_directory
        .cmp(&a.is_directory)
        .then(order)
        .then_with(by_name)
}

/// As people count: `file2` before `file10`, capitals beside small letters.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(l), Some(r)) = (left.chars().next(), right.chars().next()) {
        let order = if l.is_ascii_digit() && r.is_ascii_digit() {
            let (l, r) = (take_number(&mut left), take_number(&mut right));
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

/// Cuts the digits off the front; returns them without zeros before them.
fn take_number<'a>(text: &mut &'a str) -> &'a str {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    *text = rest;
    number.trim_start_matches('0')
}

// ---- JSON

#[derive(Serialize)]
struct JsonListing<'a> {
    path: &'a str,
    /// Whether there is more than is listed.
    truncated: bool,
    entries: Vec<JsonItem<'a>>,
}

#[derive(Serialize)]
struct JsonItem<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Bytes; `null` for directories.
    size: Option<u64>,
    modified: Option<String>,
    /// Relative to the directory; `null` for a name that is not UTF-8 and so cannot be asked for.
    url: Option<String>,
}

fn json(listing: &Listing, path: &str) -> String {
    let entries = listing.items.iter().map(|item| JsonItem {
        name: &item.name,
        kind: if item.is_directory {
            "directory"
        } else {
            "file"
        },
        size: (item.is_reachable && !item.is_directory).then_some(item.len),
        modified: item.is_reachable.then(|| Date(item.modified_s).rfc3339()),
        url: item.link(),
    });
    let path = &format!("/{path}");
    let page = JsonListing {
        path,
        truncated: listing.is_cut,
        entries: entries.collect(),
    };
    let mut text = serde_json::to_string_pretty(&page).expect("strings and numbers only");
    text.push('\n');
    text
}

// ---- HTML

fn html(listing: &Listing, path: &str, sort: ListingSort) -> String {
    let mut page = String::with_capacity(4096 + 300 * listing.items.len());
    // Writing to a string cannot fail.
    _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Index of /{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{ICONS}<main>\n",
        // A title has no elements, and so no `<bdi>`.
        Text(&path.replace(is_bidi_control, "\u{fffd}")),
    );
    write_breadcrumb(&mut page, path);
    write_table(&mut page, listing, path, sort);
    write_footer(&mut page, listing);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn write_breadcrumb(page: &mut String, path: &str) {
    page.push_str("<nav aria-label=\"Breadcrumb\"><h1>");
    let segments: Vec<&str> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect();
    let mut link = String::from("/");
    let home = "<svg aria-hidden=\"true\"><use href=\"#home\"/></svg>";
    match segments.is_empty() {
        true => _ = write!(page, "<span class=\"here\">{home}Home</span>"),
        false => _ = write!(page, "<a href=\"/\">{home}Home</a>"),
    }
    for (nth, segment) in segments.iter().enumerate() {
        _ = write!(link, "{}/", percent_encoded(segment));
        page.push_str("<i>/</i>");
        match nth + 1 == segments.len() {
            true => _ = write!(page, "<bdi class=\"here\">{}</bdi>", Text(segment)),
            false => _ = write!(page, "<a href=\"{link}\"><bdi>{}</bdi></a>", Text(segment)),
        }
    }
    page.push_str("</h1></nav>\n");
}

fn write_table(page: &mut String, listing: &Listing, path: &str, sort: ListingSort) {
    page.push_str("<table>\n<thead><tr>");
    for (label, key, name) in [
        ("Name", SortKey::Name, "name"),
        ("Size", SortKey::Size, "size"),
        ("Modified", SortKey::Time, "time"),
    ] {
        write_column(page, label, key, name, sort);
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    if !path.is_empty() {
        page.push_str(
            "<tr><td><a href=\"../\"><svg aria-hidden=\"true\"><use href=\"#up\"/></svg>\
             <span>Parent directory</span></a></td><td></td><td></td></tr>\n",
        );
    }
    for item in &listing.items {
        write_row(page, item);
    }
    if listing.items.is_empty() {
        page.push_str("<tr><td colspan=\"3\"><p>This directory is empty.</p></td></tr>\n");
    }
    page.push_str("</tbody>\n</table>\n");
}

/// A column's head: a link that sorts by it, or the other way round if it already is.
fn write_column(page: &mut String, label: &str, key: SortKey, name: &str, sort: ListingSort) {
    let is_by = sort.by == key;
    let (aria, arrow) = match (is_by, sort.descending) {
        (false, _) => ("none", ""),
        (true, false) => ("ascending", "<b aria-hidden=\"true\">\u{2191}</b>"),
        (true, true) => ("descending", "<b aria-hidden=\"true\">\u{2193}</b>"),
    };
    let next = if is_by && !sort.descending {
        "desc"
    } else {
        "asc"
    };
    _ = write!(
        page,
        "<th scope=\"col\" aria-sort=\"{aria}\"><a href=\"?sort={name}&amp;order={next}\">\
         {label}{arrow}</a></th>"
    );
}

fn write_row(page: &mut String, item: &Item) {
    let icon = if item.is_directory {
        "folder"
    } else {
        icon(&item.name)
    };
    let slash = if item.is_directory { "/" } else { "" };
    // Isolated: a name may turn the direction of writing, and must not turn that of what stands
    // beside it.
    let label = format!(
        "<svg class=\"{icon}\" aria-hidden=\"true\"><use href=\"#{icon}\"/></svg>\
         <span><bdi>{}</bdi>{slash}</span>",
        Text(&item.name)
    );
    let Some(link) = item.link() else {
        _ = writeln!(
            page,
            "<tr><td><span class=\"dead\" title=\"This name is not UTF-8, so it cannot be asked \
             for\">{label}</span></td><td></td><td></td></tr>"
        );
        return;
    };
    let size = if item.is_directory {
        String::new()
    } else {
        size(item.len)
    };
    let date = Date(item.modified_s);
    _ = writeln!(
        page,
        "<tr><td><a href=\"{link}\">{label}</a></td><td>{size}</td>\
         <td><time datetime=\"{}\">{date}</time></td></tr>",
        date.rfc3339(),
    );
}

fn write_footer(page: &mut String, listing: &Listing) {
    let directories = listing
        .items
        .iter()
        .filter(|item| item.is_directory)
        .count();
    let files = listing.items.len() - directories;
    let len = listing
        .items
        .iter()
        .filter(|item| !item.is_directory)
        .map(|item| item.len)
        .sum();
    page.push_str("<footer>");
    if listing.is_cut {
        _ = write!(
            page,
            "Only the first {ENTRIES_MAX} entries that were read are shown. "
        );
    }
    let plural = |count| if count == 1 { "" } else { "s" };
    let entry = if directories == 1 {
        "directory"
    } else {
        "directories"
    };
    _ = writeln!(
        page,
        "{directories} {entry}, {files} file{}, {} in all. Times are UTC.</footer>",
        plural(files),
        size(len)
    );
}

/// Which picture a file gets, by its type.
fn icon(name: &str) -> &'static str {
    let content_type = super::mime::by_name(name).unwrap_or_default();
    match content_type.split('/').next().unwrap_or_default() {
        "image" => "image",
        "audio" | "video" => "media",
        "font" | "text" => "text",
        _ if [
            "zip",
            "gzip",
            "tar",
            "7z-compressed",
            "xz",
            "zstd",
            "rar",
            "bzip2",
        ]
        .iter()
        .any(|packer| content_type.ends_with(packer)) =>
        {
            "archive"
        }
        "application" if content_type != "application/octet-stream" => "text",
        _ => "file",
    }
}

/// Three digits and a unit: `0 B`, `999 B`, `1.2 KB`, `34 MB`. Powers of 1000, as SI has them.
fn size(len: u64) -> String {
    if len < 1000 {
        return format!("{len} B");
    }
    let mut value = len as f64;
    let mut unit = "B";
    for larger in ["KB", "MB", "GB", "TB", "PB", "EB"] {
        // 999.95 would be shown as 1000.0.
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    if value < 9.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// Seconds since 1970 as a date, in UTC.
#[derive(Clone, Copy, Debug)]
struct Date(i64);

impl Date {
    /// Year, month and day. Days are counted from 1 March of the year 0, so that a leap day is the
    /// last of its year. H. Hinnant, *chrono-Compatible Low-Level Date Algorithms*
    fn civil(self) -> (i64, i64, i64) {
        let days = self.0.div_euclid(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        (year_of_era + era * 400 + i64::from(month <= 2), month, day)
    }

    fn rfc3339(self) -> String {
        let (year, month, day) = self.civil();
        let second = self.0.rem_euclid(86_400);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        format!(
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z",
            second % 60
        )
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        let second = self.0.rem_euclid(86_400);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {:02}:{:02}",
            second / 3600,
            second / 60 % 60
        )
    }
}

/// Text that is shown as it is, in elements and in quoted attributes. Control characters, which
/// have no place in HTML, are shown by their pictures (`␊`).
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\0'..='\x1f' => f.write_char(char::from_u32(0x2400 + c as u32).unwrap_or(c))?,
                '\x7f' => f.write_char('\u{2421}')?,
                c if c.is_control() || is_noncharacter(c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Unicode 23.7: for a program's own use, never for interchange.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}') || c as u32 & 0xfffe == 0xfffe
}

/// The characters that embed, override and isolate a direction of writing, and the marks. UAX #9, 2
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A path for a URL: everything but unreserved characters and slashes as `%XX`. RFC 3986 2.3
pub(super) fn percent_encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => _ = write!(encoded, "%{byte:02X}"),
        }
    }
    encoded
}

/// FNV-1a, 64 bits: the same on every machine. A collision gains a client nothing.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

const STYLE: &str = include_str!("listing.css");
const ICONS: &str = include_str!("listing.svg");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html_test;
    use crate::lookup::Encodings;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    fn render_in(dir: &TempDir, path: &str, listing: ListingFormat, sort: ListingSort) -> String {
        let root = Root::open(dir.path(), false, 0).unwrap();
        let lookup = Lookup {
            path,
            accepts: Encodings::NONE,
            listing,
            sort,
        };
        render(&root, &lookup, false).unwrap()
    }

    fn names(dir: &TempDir, sort: ListingSort) -> Vec<String> {
        let page = render_in(dir, "/", ListingFormat::Json, sort);
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        let entries = page["entries"].as_array().unwrap();
        entries
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn names_sort_as_people_count_and_directories_come_first() {
        let dir = TempDir::new().unwrap();
        for name in ["file10", "File2", "file1", "b"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("zoo")).unwrap();
        let sort = |by, descending| ListingSort { by, descending };
        let ascending = ["zoo", "b", "file1", "File2", "file10"];
        assert_eq!(names(&dir, sort(SortKey::Name, false)), ascending);
        let descending = ["zoo", "file10", "File2", "file1", "b"];
        assert_eq!(names(&dir, sort(SortKey::Name, true)), descending);
        let by_size = ["zoo", "file10", "file1", "File2", "b"];
        assert_eq!(names(&dir, sort(SortKey::Size, true)), by_size);
    }

    #[test]
    fn what_a_request_would_not_find_is_not_listed() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join(".hidden"), "").unwrap();
        fs::write(dir.path().join("shown"), "").unwrap();
        symlink("/etc/passwd", dir.path().join("outside")).unwrap();
        symlink("shown", dir.path().join("inside")).unwrap();
        symlink("nowhere", dir.path().join("broken")).unwrap();
        assert_eq!(names(&dir, ListingSort::default()), ["inside", "shown"]);
    }

    /// Seen: the sizes stood outside the table and the dates under "Size", since a cell had lost
    /// its tags; rows of directories lacked one. Every test asked whether a text was on the page,
    /// none where.
    #[test]
    fn every_cell_stands_in_its_column() {
        let dir = TempDir::new().unwrap();
        for name in [
            "plain.txt",
            "a<b>&\"'c",
            "\u{202e}gnp.exe",
            "\n\x01\u{fdd0}\u{9c}",
            "שלום",
        ] {
            fs::write(dir.path().join(name), "12345").unwrap();
        }
        fs::write(dir.path().join(OsStr::from_bytes(b"gr\xfcn.txt")), "").unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        let page = |path: &str| render_in(&dir, path, ListingFormat::Html, ListingSort::default());
        let top = rows(&page("/"));
        assert_eq!(top.len(), 7, "{top:?}");
        for [name, size, modified] in &top {
            let is_dated =
                |text: &str| text.len() == "2026-11-20 12:00".len() && text.starts_with("20");
            match name.as_str() {
                "folder/" => assert!(size.is_empty() && is_dated(modified), "{top:?}"),
                "gr\u{fffd}n.txt" => assert!(size.is_empty() && modified.is_empty(), "{top:?}"),
                _ => assert!(size == "5 B" && is_dated(modified), "{top:?}"),
            }
        }
        let empty = [
            ["Parent directory", "", ""],
            ["This directory is empty.", "", ""],
        ];
        assert_eq!(
            rows(&page("/folder/")),
            empty.map(|row| row.map(str::to_owned))
        );
    }

    /// The texts of each row of the table's body, by column.
    fn rows(page: &str) -> Vec<[String; 3]> {
        let html = html_test::check(page);
        let heads: Vec<_> = html_test::select(&html, "thead th")
            .map(html_test::text)
            .collect();
        assert_eq!(heads, ["Name\u{2191}", "Size", "Modified"]);
        // What is out of place in a table is moved in front of it.
        assert_eq!(
            html_test::select(&html, "main > *").count(),
            3,
            "nav, table, footer"
        );
        let main = html_test::select(&html, "main").next().unwrap();
        let stray = main.children().filter_map(|child| child.value().as_text());
        assert_eq!(stray.map(|text| text.trim()).collect::<String>(), "");

        let row = |row: scraper::ElementRef<'_>| {
            let mut texts = Vec::new();
            for cell in row.child_elements() {
                assert_eq!(cell.value().name(), "td", "{page}");
                texts.push(html_test::text(cell));
                let span = cell.attr("colspan").map_or(1, |span| span.parse().unwrap());
                texts.resize(texts.len() + span - 1, String::new());
            }
            texts
                .try_into()
                .unwrap_or_else(|texts| panic!("{texts:?} in {page}"))
        };
        html_test::select(&html, "tbody > tr").map(row).collect()
    }

    #[test]
    fn a_name_that_turns_the_direction_turns_its_own_only() {
        // Seen: `\u{202e}` (right-to-left override) in a name turned the rest of its row, and of
        // the path above.
        let dir = TempDir::new().unwrap();
        let name = "photo\u{202e}gpj.exe";
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::create_dir(dir.path().join(name).join(name)).unwrap();
        let path = format!("/{name}/");
        let page = render_in(&dir, &path, ListingFormat::Html, ListingSort::default());
        let html = html_test::check(&page);
        let isolated: Vec<_> = html_test::select(&html, "bdi")
            .map(html_test::text)
            .collect();
        assert_eq!(isolated, [name, name], "in the path and in the row");
        let title = html_test::select(&html, "title").next().unwrap();
        assert_eq!(html_test::text(title), "Index of /photo\u{fffd}gpj.exe/");
        assert_eq!(page.matches('\u{202e}').count(), 2, "{page}");
    }

    #[test]
    fn what_has_no_place_in_html_is_shown_by_a_picture_or_a_replacement() {
        let shown = |text| Text(text).to_string();
        assert_eq!(
            shown("a\n\0\x1f\x7fb"),
            "a\u{240a}\u{2400}\u{241f}\u{2421}b"
        );
        assert_eq!(shown("\u{80}\u{9f}\u{a0}"), "\u{fffd}\u{fffd}\u{a0}");
        let noncharacters = "\u{fdd0}\u{fdef}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}";
        assert_eq!(shown(noncharacters), "\u{fffd}".repeat(6));
        let neighbours = "\u{fdcf}\u{fdf0}\u{fffc}\u{1fffd}\u{20000}";
        assert_eq!(shown(neighbours), neighbours);
    }

    #[test]
    fn each_kind_of_file_has_its_picture() {
        for (names, picture) in [
            (&["a.png", "a.svg"][..], "image"),
            (&["a.mp3", "a.mp4"], "media"),
            (&["a.txt", "a.html", "a.woff2", "a.json", "a.pdf"], "text"),
            (&["a.zip", "a.gz", "a.tar", "a.zst", "a.7z"], "archive"),
            (&["a.bin", "a.unheard-of", "a"], "file"),
        ] {
            for name in names {
                assert_eq!(icon(name), picture, "{name}");
            }
        }
    }

    #[test]
    fn the_footer_counts_what_is_listed() {
        let dir = TempDir::new().unwrap();
        let footer = || {
            let page = render_in(&dir, "/", ListingFormat::Html, ListingSort::default());
            let html = html_test::check(&page);
            html_test::text(html_test::select(&html, "footer").next().unwrap())
        };
        let make = |name| fs::create_dir(dir.path().join(name)).unwrap();
        let write = |name, len| fs::write(dir.path().join(name), vec![b'x'; len]).unwrap();
        assert_eq!(
            footer(),
            "0 directories, 0 files, 0 B in all. Times are UTC."
        );
        make("a");
        write("b", 700);
        assert_eq!(
            footer(),
            "1 directory, 1 file, 700 B in all. Times are UTC."
        );
        make("c");
        write("d", 800);
        write("e", 0);
        assert_eq!(
            footer(),
            "2 directories, 3 files, 1.5 KB in all. Times are UTC."
        );
    }

    #[test]
    fn names_cannot_write_html() {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("a<b>&\"'c")).unwrap();
        fs::write(dir.path().join("a<b>&\"'c/<script>alert(1)<"), "").unwrap();
        fs::write(dir.path().join("a<b>&\"'c/javascript:x?#%41"), "").unwrap();
        let page = render_in(
            &dir,
            "/a<b>&\"'c/",
            ListingFormat::Html,
            ListingSort::default(),
        );
        assert!(
            !page.contains("<script") && !page.contains("<b>&"),
            "{page}"
        );
        assert!(
            page.contains("href=\"./%3Cscript%3Ealert%281%29%3C\""),
            "{page}"
        );
        assert!(
            page.contains("href=\"./javascript%3Ax%3F%23%2541\""),
            "{page}"
        );
        assert!(page.contains("a&lt;b&gt;&amp;&quot;&#39;c"), "{page}");
    }

    #[test]
    fn a_name_that_is_not_utf8_is_shown_without_a_link() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join(OsStr::from_bytes(b"gr\xfcn.txt")), "").unwrap();
        let page = render_in(&dir, "/", ListingFormat::Html, ListingSort::default());
        assert!(
            page.contains("gr\u{fffd}n.txt") && !page.contains("href=\"./gr"),
            "{page}"
        );
        let page = render_in(&dir, "/", ListingFormat::Json, ListingSort::default());
        assert!(page.contains("\"url\": null"), "{page}");
    }

    #[test]
    fn a_column_s_link_turns_the_order_round() {
        let dir = TempDir::new().unwrap();
        let by_size = ListingSort {
            by: SortKey::Size,
            descending: false,
        };
        let page = render_in(&dir, "/", ListingFormat::Html, by_size);
        assert!(page.contains("aria-sort=\"ascending\"><a href=\"?sort=size&amp;order=desc\">"));
        assert!(page.contains("aria-sort=\"none\"><a href=\"?sort=name&amp;order=asc\">"));
    }

    #[test]
    fn a_huge_directory_is_cut_and_says_so() {
        let dir = TempDir::new().unwrap();
        (0..=ENTRIES_MAX).for_each(|n| fs::write(dir.path().join(n.to_string()), "").unwrap());
        assert_eq!(names(&dir, ListingSort::default()).len(), ENTRIES_MAX);
        let page = render_in(&dir, "/", ListingFormat::Html, ListingSort::default());
        assert!(page.contains("Only the first 10000 entries"));
        assert!(page.len() < 5 << 20, "{} bytes", page.len());
    }

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (len, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KB"),
            (9_949, "9.9 KB"),
            (9_951, "10 KB"),
            (999_499, "999 KB"),
            (999_500, "1.0 MB"),
            (34_000_000, "34 MB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(size(len), shown, "{len}");
        }
    }

    #[test]
    fn dates_are_right_around_leap_days_and_before_1970() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_178_096, "2026-11-20T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Date(seconds).rfc3339(), date);
        }
        assert_eq!(Date(1_795_178_096).to_string(), "2026-11-20 12:34");
    }

    #[test]
    fn each_day_of_eight_centuries_has_its_date() {
        let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days_of = |year, month| match month {
            2 if is_leap(year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        // 1600-01-01, by `date -ud 1600-01-01 +%s`.
        let mut midnight = -11_676_096_000;
        for (year, month) in (1600..2400).flat_map(|year| (1..=12).map(move |month| (year, month)))
        {
            for day in 1..=days_of(year, month) {
                assert_eq!(Date(midnight).civil(), (year, month, day));
                assert_eq!(Date(midnight + 86_399).civil(), (year, month, day));
                midnight += 86_400;
            }
        }
    }
}
