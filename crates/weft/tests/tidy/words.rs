//! One name for one idea: type names, the glossary, and the length of lines.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Findings, files, has_word, is_test_file, lines_outside_tests, prose_lines, read, root,
    rust_files, without_code_spans,
};

/// Public type names defined in more than one place, and the idea that they share.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Malformed", "bytes that break the rules of their protocol: cache's, netstack's"),
    ("Peer", "the other end, as web and cache name it in their logs"),
    ("Progress", "what a run of load or lab tells of itself as it goes on"),
    ("Random", "a seeded generator; load shares no code with what it measures"),
    ("Receiver", "of a channel, as in std: one consumer, or many"),
    ("Select", "select(2) in event, the select! macro in fiber"),
    ("Sender", "of a channel, as in std: one consumer, or many"),
    ("Session", "the trait, and the two protocols that are one"),
    ("Settings", "what a thing is started with"),
    ("TcpListener", "as in std: fiber's is the kernel's, sockets' a netstack's"),
    ("TcpStream", "as in std: fiber's is the kernel's, sockets' a netstack's"),
    ("Tls", "with the feature `tls` and without"),
    ("Work", "what a session hands out (session, web, cache); the work of an experiment (lab)"),
];

/// Type names defined in more than one place of a crate, and the idea that they share.
const SHARED_WITHIN: &[(&str, &str, &str)] = &[
    ("event", "Entry", "a descriptor's row, in FDM and in LAP"),
    ("event", "Slot", "where a descriptor is polled, in FDM and in LAP"),
    ("event", "Watched", "a descriptor's row, of signals and of the ring"),
    ("fiber", "ShortLock", "under loom and otherwise"),
    ("fiber", "PendingWaiter", "under loom and otherwise"),
    ("lab/programs", "Connection", "a connection of a ceiling"),
    ("load", "Reader", "HTTP's, memcached's, and either"),
    ("serve", "Acceptor", "of sockets, and of a netstack's listeners"),
    ("serve", "Connection", "a connection as its engine keeps it"),
    ("serve", "Connections", "of one loop, and of the registry"),
    ("serve", "EventLoop", "over sockets, and over a netstack"),
    ("serve", "Listener", "as its engine accepts from it"),
    ("serve", "TlsConnection", "with the feature `tls` and without"),
    ("weft", "Prepared", "a web server and a cache before they run"),
    ("weft", "Running", "a web server and a cache that run"),
    ("weft", "Terminal", "standard error of either server"),
];

/// Public types named by a term of the glossary outside of its home, and the reason.
const NAMED_BY_A_TERM: &[(&str, &str, &str)] = &[
    ("cache", "Session", "it is one"),
    ("load", "Page", "of a web server, to request"),
    ("load", "Stage", "of a course of rates"),
    ("netstack", "Offload", "a device offload, in the module of devices"),
    ("web", "Session", "it is one"),
];

#[test]
fn a_public_type_name_stands_for_one_thing() {
    let places = types(&["pub "]);
    let mut findings = Findings::default();
    for (name, places) in &places {
        let is_shared = SHARED_NAMES.iter().any(|(shared, _)| shared == name);
        if (places.len() > 1) != is_shared {
            findings.add(
                places.join(" "),
                format!("{name}: listed {is_shared}, places {}", places.len()),
            );
        }
    }
    for (name, _) in SHARED_NAMES {
        if !places.contains_key(*name) {
            findings.add("tidy/words.rs", format!("{name} is listed and is no type"));
        }
    }
    findings.assert_none();
}

#[test]
fn a_crates_type_name_stands_for_one_thing() {
    let mut by_crate: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, places) in types(&["pub ", "pub(crate) ", "pub(super) ", ""]) {
        if SHARED_NAMES.iter().any(|(shared, _)| *shared == name) {
            continue;
        }
        for place in places {
            let key = (package_of(&place).to_owned(), name.clone());
            by_crate.entry(key).or_default().push(place);
        }
    }
    by_crate.retain(|_, places| places.len() > 1);
    assert_listed("stands in several places", &by_crate, SHARED_WITHIN);
}

/// Compares findings and their places with a list: crate, name, reason.
fn assert_listed(
    what: &str,
    found: &BTreeMap<(String, String), Vec<String>>,
    listed: &[(&str, &str, &str)],
) {
    let mut findings = Findings::default();
    let is_listed = |package: &str, name: &str| {
        let mut rows = listed.iter();
        rows.any(|row| (row.0, row.1) == (package, name) && !row.2.is_empty())
    };
    for ((package, name), places) in found {
        if !is_listed(package, name) {
            findings.add(places.join(" "), format!("{name} {what}"));
        }
    }
    for (package, name, _) in listed {
        if !found.contains_key(&((*package).to_owned(), (*name).to_owned())) {
            findings.add("tidy/words.rs", format!("{name} of {package} is listed in vain"));
        }
    }
    findings.assert_none();
}

/// Places of type definitions with one of these visibilities, by name.
fn types(visibilities: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files() {
        if !file.name.contains("/src/") || is_test_file(&file.name) {
            continue;
        }
        for (at, line) in lines_outside_tests(&file.text) {
            if let Some(name) = type_of(line, visibilities) {
                let place = format!("{}:{}", file.name, at + 1);
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    places
}

/// `NAME` of `crates/NAME/src/..`, `lab/programs` of `crates/lab/programs/src/..`.
pub(super) fn package_of(place: &str) -> &str {
    let place = place.trim_start_matches("crates/");
    place.split("/src/").next().unwrap_or_default()
}

/// The name of the type that a line defines with one of these visibilities.
fn type_of<'a>(line: &'a str, visibilities: &[&str]) -> Option<&'a str> {
    let code = line.trim_start();
    let item = visibilities.iter().find_map(|start| code.strip_prefix(start))?;
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let rest = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    // Associated types belong to their trait, and a file's alias names a type of another file.
    let is_seen_widely = code.starts_with("pub ") || code.starts_with("pub(crate) ");
    let is_alias = item.starts_with("type ") && (line.starts_with(' ') || !is_seen_widely);
    (!is_alias).then_some(name)
}

#[test]
fn the_glossary_defines_each_term_once() {
    let terms = terms();
    let names: BTreeSet<_> = terms.iter().map(|term| &term.name).collect();
    // One screen: words of a man page or an RFC need no entry.
    assert!((20..=60).contains(&names.len()), "{} terms", names.len());
    let times = |name: &str| terms.iter().filter(|term| term.name == name).count();
    let twice: Vec<_> = names.iter().filter(|name| times(name) > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    for Term { name, meaning, .. } in &terms {
        assert!(meaning.trim().len() > 20, "{name} has no meaning");
    }
}

#[test]
fn a_term_names_public_types_only_at_home() {
    let terms = terms();
    let mut strangers: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, places) in types(&["pub "]) {
        let Some(term) = terms.iter().find(|term| term.name == in_words(&name)) else {
            continue;
        };
        for place in places {
            let package = package_of(&place).to_owned();
            if term.home != "everywhere" && !has_word(&term.home, &package) {
                let key = (package, name.clone());
                strangers.entry(key).or_default().push(place);
            }
        }
    }
    assert_listed("is a term of another home", &strangers, NAMED_BY_A_TERM);
}

/// A row of the glossary, once for each name in it.
struct Term {
    /// In lower case.
    name: String,
    meaning: String,
    home: String,
}

fn terms() -> Vec<Term> {
    let glossary = read(&root().join("docs/glossary.md"));
    let mut terms = Vec::new();
    for row in glossary.lines().filter_map(|line| line.strip_prefix("| **")) {
        let (names, rest) = row.split_once("** |").expect("a term and its meaning");
        let (meaning, home) =
            rest.trim_end_matches(['|', ' ']).rsplit_once('|').unwrap_or_default();
        terms.extend(names.split(", ").map(|name| Term {
            name: name.to_lowercase(),
            meaning: meaning.to_owned(),
            home: home.trim().to_owned(),
        }));
    }
    terms
}

/// `path mtu` for `PathMtu`.
fn in_words(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}

/// Words for persons. Threads, sockets and code are "it".
const PERSONS: &[&str] =
    &["anybody", "everybody", "herself", "himself", "nobody", "somebody", "whoever", "whomever"];

#[test]
fn things_are_it() {
    let mut findings = Findings::default();
    for file in files(&["rs", "md"]) {
        if file.name == "CHANGELOG.md" {
            continue;
        }
        let is_page = file.name.ends_with(".md");
        // Messages are in the sources; tests may use such words for their clients.
        let has_messages = file.name.contains("/src/") || file.name.ends_with("/crates.rs");
        for (at, line) in prose_lines(&file.text) {
            let prose = match is_page || line.trim_start().starts_with("//") {
                // Code spans quote accounts, commands and names of other projects.
                true => without_code_spans(line).to_lowercase(),
                // Variants begin with capital letters, and one of the words is an account.
                false if has_messages => line.replace("-u nobody", ""),
                false => continue,
            };
            if let Some(word) = PERSONS.iter().find(|word| has_word(&prose, word)) {
                findings.add_line(&file, at, format!("'{word}' is a person"));
            }
        }
    }
    findings.assert_none();
}

const COMMENT_COLUMNS_MAX: usize = 100;

/// Limit inside a fenced block.
const DRAWING_COLUMNS_MAX: usize = 120;

/// Tables, drawings, pictures and HTML stay as they are; a line of one word, such as an address,
/// cannot be broken.
#[test]
fn documents_fit_into_100_columns() {
    let mut findings = Findings::default();
    for file in files(&["md"]) {
        let mut is_drawing = false;
        for (at, line) in file.text.lines().enumerate() {
            let text = line.trim_start();
            let is_fence = text.starts_with("```");
            is_drawing ^= is_fence;
            let stays = is_drawing || is_fence || text.starts_with(['|', '<', '#', '!']);
            let text = text.trim_start_matches("- ");
            let is_word = !without_code_spans(text).trim().contains(' ');
            let columns = line.chars().count();
            if columns > COMMENT_COLUMNS_MAX && !stays && !is_word {
                findings.add_line(&file, at, format!("a line of {columns} columns"));
            }
        }
    }
    findings.assert_none();
}

#[test]
fn comments_fit_into_100_columns() {
    let mut findings = Findings::default();
    for file in files(&["rs"]) {
        let mut is_drawing = false;
        for (at, line) in file.text.lines().enumerate() {
            let comment = line.trim_start();
            let fence = comment.starts_with("//") && comment.contains("```");
            is_drawing = comment.starts_with("//") && (is_drawing ^ fence);
            // A table row cannot be broken.
            let is_row = ["//! |", "/// |"].iter().any(|start| comment.starts_with(start));
            let columns_max = if is_drawing { DRAWING_COLUMNS_MAX } else { COMMENT_COLUMNS_MAX };
            let columns = line.chars().count();
            let has_comment = comment.starts_with("//") || line.contains(" // ");
            if has_comment && !is_row && columns > columns_max {
                findings.add_line(&file, at, format!("a comment of {columns} columns"));
            }
        }
    }
    findings.assert_none();
}
