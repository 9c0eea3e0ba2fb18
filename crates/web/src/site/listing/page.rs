//! A listing as a page for people, and as JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use super::directory::{ENTRIES_MAX, Item, Listing};
use super::show::{Date, Text, percent_encoded, size};
use crate::lookup::{ListingSort, SortKey};
use crate::site::mime;

const STYLE: &str = include_str!("../listing.css");
const ICONS: &str = include_str!("../listing.svg");

// ---- JSON

#[derive(Serialize)]
struct JsonListing<'a> {
    path: &'a str,
    /// True if the listing is truncated.
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
    /// Relative to the directory; `null` for a name that is not UTF-8 and cannot be requested.
    url: Option<String>,
}

pub(super) fn json(listing: &Listing, path: &str) -> String {
    let entries = listing.items.iter().map(|item| JsonItem {
        name: &item.name,
        kind: if item.is_directory { "directory" } else { "file" },
        size: (item.is_reachable && !item.is_directory).then_some(item.len),
        modified: item.is_reachable.then(|| Date(item.modified_s).rfc3339()),
        url: item.link(),
    });
    let path = &format!("/{path}");
    let page = JsonListing { path, truncated: listing.is_cut, entries: entries.collect() };
    let mut text = serde_json::to_string_pretty(&page).expect("strings and numbers only");
    text.push('\n');
    text
}

// ---- HTML

pub(super) fn html(listing: &Listing, path: &str, sort: ListingSort) -> String {
    let mut page = String::with_capacity(4096 + 300 * listing.items.len());
    // Writing to a string cannot fail.
    _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Index of /{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{ICONS}<main>\n",
        Text(path),
    );
    write_breadcrumb(&mut page, path);
    write_table(&mut page, listing, path, sort);
    write_footer(&mut page, listing);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn write_breadcrumb(page: &mut String, path: &str) {
    page.push_str("<nav aria-label=\"Breadcrumb\"><h1>");
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let mut link = String::from("/");
    let home = "<svg aria-hidden=\"true\"><use href=\"#home\"/></svg>";
    if segments.is_empty() {
        _ = write!(page, "<span class=\"here\">{home}Home</span>")
    } else {
        _ = write!(page, "<a href=\"/\">{home}Home</a>")
    }
    for (nth, segment) in segments.iter().enumerate() {
        _ = write!(link, "{}/", percent_encoded(segment));
        page.push_str("<i>/</i>");
        if nth + 1 == segments.len() {
            _ = write!(page, "<bdi class=\"here\">{}</bdi>", Text(segment))
        } else {
            _ = write!(page, "<a href=\"{link}\"><bdi>{}</bdi></a>", Text(segment))
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

/// Writes a column's head: a link that sorts by it, or reverses the order if it already does.
fn write_column(page: &mut String, label: &str, key: SortKey, name: &str, sort: ListingSort) {
    let is_by = sort.by == key;
    let (aria, arrow) = match (is_by, sort.descending) {
        (false, _) => ("none", ""),
        (true, false) => ("ascending", "<b aria-hidden=\"true\">\u{2191}</b>"),
        (true, true) => ("descending", "<b aria-hidden=\"true\">\u{2193}</b>"),
    };
    let next = if is_by && !sort.descending { "desc" } else { "asc" };
    _ = write!(
        page,
        "<th scope=\"col\" aria-sort=\"{aria}\"><a href=\"?sort={name}&amp;order={next}\">\
         {label}{arrow}</a></th>"
    );
}

fn write_row(page: &mut String, item: &Item) {
    let icon = if item.is_directory { "folder" } else { icon(&item.name) };
    let slash = if item.is_directory { "/" } else { "" };
    // Isolated: a name with bidirectional controls must not affect the text beside it.
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
    let size = if item.is_directory { String::new() } else { size(item.len) };
    let date = Date(item.modified_s);
    _ = writeln!(
        page,
        "<tr><td><a href=\"{link}\">{label}</a></td><td>{size}</td>\
         <td><time datetime=\"{}\">{date}</time></td></tr>",
        date.rfc3339(),
    );
}

fn write_footer(page: &mut String, listing: &Listing) {
    let directories = listing.items.iter().filter(|item| item.is_directory).count();
    let files = listing.items.len() - directories;
    let len = listing.items.iter().filter(|item| !item.is_directory).map(|item| item.len).sum();
    page.push_str("<footer>");
    if listing.is_cut {
        _ = write!(page, "Only the first {ENTRIES_MAX} entries that were read are shown. ");
    }
    let plural = |count| if count == 1 { "" } else { "s" };
    let entry = if directories == 1 { "directory" } else { "directories" };
    _ = writeln!(
        page,
        "{directories} {entry}, {files} file{}, {} in all. Times are UTC.</footer>",
        plural(files),
        size(len)
    );
}

/// Icon of a file by its type.
pub(super) fn icon(name: &str) -> &'static str {
    let content_type = mime::by_name(name).unwrap_or_default();
    match content_type.split('/').next().unwrap_or_default() {
        "image" => "image",
        "audio" | "video" => "media",
        "font" | "text" => "text",
        _ if ["zip", "gzip", "tar", "7z-compressed", "xz", "zstd", "rar", "bzip2"]
            .iter()
            .any(|packer| content_type.ends_with(packer)) =>
        {
            "archive"
        }
        "application" if content_type != "application/octet-stream" => "text",
        _ => "file",
    }
}
