//! Pages as clients receive them.

use super::directory::ENTRIES_MAX;
use super::page::icon;
use super::show::Text;
use super::*;
use crate::html_test;
use crate::lookup::{Encodings, SortKey};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

fn render_in(dir: &TempDir, path: &str, listing: ListingFormat, sort: ListingSort) -> String {
    let root = Root::open(dir.path(), false, 0).unwrap();
    let lookup = Lookup { path, accepts: Encodings::NONE, listing, sort };
    render(&root, &lookup, |path| !path.contains("/.") && !path.starts_with('.')).unwrap()
}

fn names(dir: &TempDir, sort: ListingSort) -> Vec<String> {
    let page = render_in(dir, "/", ListingFormat::Json, sort);
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let entries = page["entries"].as_array().unwrap();
    entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn natural_order_directories_first() {
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
fn unreachable_names_are_not_listed() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join(".hidden"), "").unwrap();
    fs::write(dir.path().join("shown"), "").unwrap();
    symlink("/etc/passwd", dir.path().join("outside")).unwrap();
    symlink("shown", dir.path().join("inside")).unwrap();
    symlink("nowhere", dir.path().join("broken")).unwrap();
    assert_eq!(names(&dir, ListingSort::default()), ["inside", "shown"]);
}

/// Seen: sizes stood outside the table and dates under "Size", because a cell had lost its tags;
/// rows of directories lacked a cell. Every test checked whether a text was on the page, none
/// checked its place.
#[test]
fn cells_stand_in_their_columns() {
    let dir = TempDir::new().unwrap();
    for name in ["plain.txt", "a<b>&\"'c", "\u{202e}gnp.exe", "\n\x01\u{fdd0}\u{9c}", "שלום"] {
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
    let empty = [["Parent directory", "", ""], ["This directory is empty.", "", ""]];
    assert_eq!(rows(&page("/folder/")), empty.map(|row| row.map(str::to_owned)));
}

/// The texts of each row of the table's body, by column.
fn rows(page: &str) -> Vec<[String; 3]> {
    let html = html_test::check(page);
    let heads: Vec<_> = html_test::select(&html, "thead th").map(html_test::text).collect();
    assert_eq!(heads, ["Name\u{2191}", "Size", "Modified"]);
    // A parser moves misplaced content in front of the table.
    assert_eq!(html_test::select(&html, "main > *").count(), 3, "nav, table, footer");
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
        texts.try_into().unwrap_or_else(|texts| panic!("{texts:?} in {page}"))
    };
    html_test::select(&html, "tbody > tr").map(row).collect()
}

#[test]
fn bidi_name_turns_nothing() {
    // Seen: `\u{202e}` (right-to-left override) in a name reversed the rest of its row and of the
    // path above.
    let dir = TempDir::new().unwrap();
    let name = "photo\u{202e}gpj.exe";
    fs::create_dir(dir.path().join(name)).unwrap();
    fs::create_dir(dir.path().join(name).join(name)).unwrap();
    let path = format!("/{name}/");
    let page = render_in(&dir, &path, ListingFormat::Html, ListingSort::default());
    let html = html_test::check(&page);
    let isolated: Vec<_> = html_test::select(&html, "bdi").map(html_test::text).collect();
    // Seen: isolated but still reversed, the name read `photoexe.jpg`.
    let shown = "photo[U+202E]gpj.exe";
    assert_eq!(isolated, [shown, shown], "in the path and in the row");
    let title = html_test::select(&html, "title").next().unwrap();
    assert_eq!(html_test::text(title), format!("Index of /{shown}/"));
    assert_eq!(page.matches('\u{202e}').count(), 0, "{page}");
}

#[test]
fn control_characters_are_replaced() {
    let shown = |text| Text(text).to_string();
    assert_eq!(shown("a\n\0\x1f\x7fb"), "a\u{240a}\u{2400}\u{241f}\u{2421}b");
    assert_eq!(shown("\u{80}\u{9f}\u{a0}"), "\u{fffd}\u{fffd}\u{a0}");
    let noncharacters = "\u{fdd0}\u{fdef}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}";
    assert_eq!(shown(noncharacters), "\u{fffd}".repeat(6));
    let neighbours = "\u{fdcf}\u{fdf0}\u{fffc}\u{1fffd}\u{20000}";
    assert_eq!(shown(neighbours), neighbours);
}

#[test]
fn file_types_have_icons() {
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
fn footer_counts_the_entries() {
    let dir = TempDir::new().unwrap();
    let footer = || {
        let page = render_in(&dir, "/", ListingFormat::Html, ListingSort::default());
        let html = html_test::check(&page);
        html_test::text(html_test::select(&html, "footer").next().unwrap())
    };
    let make = |name| fs::create_dir(dir.path().join(name)).unwrap();
    let write = |name, len| fs::write(dir.path().join(name), vec![b'x'; len]).unwrap();
    assert_eq!(footer(), "0 directories, 0 files, 0 B in all. Times are UTC.");
    make("a");
    write("b", 700);
    assert_eq!(footer(), "1 directory, 1 file, 700 B in all. Times are UTC.");
    make("c");
    write("d", 800);
    write("e", 0);
    assert_eq!(footer(), "2 directories, 3 files, 1.5 KB in all. Times are UTC.");
}

#[test]
fn names_cannot_write_html() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("a<b>&\"'c")).unwrap();
    fs::write(dir.path().join("a<b>&\"'c/<script>alert(1)<"), "").unwrap();
    fs::write(dir.path().join("a<b>&\"'c/javascript:x?#%41"), "").unwrap();
    let page = render_in(&dir, "/a<b>&\"'c/", ListingFormat::Html, ListingSort::default());
    assert!(!page.contains("<script") && !page.contains("<b>&"), "{page}");
    assert!(page.contains("href=\"./%3Cscript%3Ealert%281%29%3C\""), "{page}");
    assert!(page.contains("href=\"./javascript%3Ax%3F%23%2541\""), "{page}");
    assert!(page.contains("a&lt;b&gt;&amp;&quot;&#39;c"), "{page}");
}

#[test]
fn non_utf8_name_has_no_link() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join(OsStr::from_bytes(b"gr\xfcn.txt")), "").unwrap();
    let page = render_in(&dir, "/", ListingFormat::Html, ListingSort::default());
    assert!(page.contains("gr\u{fffd}n.txt") && !page.contains("href=\"./gr"), "{page}");
    let page = render_in(&dir, "/", ListingFormat::Json, ListingSort::default());
    assert!(page.contains("\"url\": null"), "{page}");
}

#[test]
fn json_sizes_for_files_only() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("f"), "abc").unwrap();
    let page = render_in(&dir, "/", ListingFormat::Json, ListingSort::default());
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let [folder, file] = [0, 1].map(|at| &page["entries"][at]);
    assert!(folder["size"].is_null() && folder["name"] == "d", "{page}");
    assert!(file["size"] == 3 && file["name"] == "f", "{page}");
}

#[test]
fn breadcrumb_links_every_ancestor() {
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(dir.path().join("a b/c")).unwrap();
    let page = render_in(&dir, "/a b/c/", ListingFormat::Html, ListingSort::default());
    assert!(page.contains("<a href=\"/a%20b/\"><bdi>a b</bdi></a>"));
    assert!(page.contains("<bdi class=\"here\">c</bdi>"));
    assert!(!page.contains("href=\"/a%20b/c/\""));
}

#[test]
fn column_link_reverses_the_order() {
    let dir = TempDir::new().unwrap();
    let by_size = ListingSort { by: SortKey::Size, descending: false };
    let page = render_in(&dir, "/", ListingFormat::Html, by_size);
    assert!(page.contains("aria-sort=\"ascending\"><a href=\"?sort=size&amp;order=desc\">"));
    assert!(page.contains("aria-sort=\"none\"><a href=\"?sort=name&amp;order=asc\">"));
}

#[test]
fn huge_directory_is_truncated() {
    let dir = TempDir::new().unwrap();
    (0..=ENTRIES_MAX).for_each(|n| fs::write(dir.path().join(n.to_string()), "").unwrap());
    assert_eq!(names(&dir, ListingSort::default()).len(), ENTRIES_MAX);
    let page = render_in(&dir, "/", ListingFormat::Html, ListingSort::default());
    assert!(page.contains("Only the first 10000 entries"));
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
}

#[test]
fn kept_listings_are_bounded() {
    let listings = Listings::default();
    let lookup = |path| Lookup {
        path,
        accepts: Encodings::NONE,
        listing: ListingFormat::Html,
        sort: ListingSort::default(),
    };
    let made = |page: String| entry(listings.hold(page), "", &lookup("/"), Duration::ZERO);
    let paths = ["/a/", "/b/", "/c/"];
    for path in paths {
        let half = made("x".repeat((KEPT_LEN_MAX / 2) as usize));
        listings.put(0, &lookup(path), Arc::new(half), 0);
    }
    let of_site = |site, path| listings.get(site, &lookup(path), |_| true).is_some();
    let is_kept = |path| of_site(0, path);
    assert_eq!(paths.map(is_kept), [false, true, true], "the oldest goes");
    listings.clear(1);
    assert!(is_kept("/b/") && !of_site(1, "/b/"));
    assert_eq!(listings.held_len(), KEPT_LEN_MAX);
    let etag = |page: &str| made(page.to_owned()).etag;
    assert_eq!(etag("old"), etag("old"));
    assert_ne!(etag("old"), etag("new"), "as long as the other");
}
