//! One word for one thing: type names, the glossary, and lines that fit on a page.

use std::collections::BTreeMap;

use super::{Findings, files, has_word, prose_lines, read, root, rust_files, without_code_spans};

/// Public type names that stand in more than one place, and why that is one idea.
const SHARED_NAMES: &[(&str, &str)] = &[
    (
        "Malformed",
        "bytes that break the rules of their protocol: cache's, netstack's",
    ),
    (
        "Peer",
        "the other end, as web and cache name it in their logs",
    ),
    (
        "Progress",
        "what a run of load or lab tells of itself as it goes on",
    ),
    (
        "Random",
        "a seeded generator; load shares no code with what it measures",
    ),
    ("Receiver", "of a channel, as in std: one consumer, or many"),
    ("Select", "select(2) in event, the select! macro in fiber"),
    ("Sender", "of a channel, as in std: one consumer, or many"),
    ("Session", "the trait, and the two protocols that are one"),
    ("Settings", "what a thing is started with"),
    ("Signals", "of the process, for a fiber or for a server"),
    (
        "TcpListener",
        "as in std: fiber's is the kernel's, sockets' a netstack's",
    ),
    (
        "TcpStream",
        "as in std: fiber's is the kernel's, sockets' a netstack's",
    ),
];

#[test]
fn a_public_type_name_stands_for_one_thing() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files() {
        if !file.name.contains("/src/") {
            continue;
        }
        for (at, line) in file.text.lines().enumerate() {
            if let Some(name) = public_type(line) {
                let place = format!("{}:{}", file.name, at + 1);
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
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

/// The name of the public type that a line defines.
fn public_type(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let rest = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    let name = rest
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    // Associated types are their trait's.
    let is_associated = line.starts_with(' ') && item.starts_with("type ");
    (!is_associated).then_some(name)
}

#[test]
fn the_glossary_defines_each_term_once() {
    let glossary = read(&root().join("docs/glossary.md"));
    let rows = glossary
        .lines()
        .filter_map(|line| line.strip_prefix("| **"));
    let mut terms = BTreeMap::new();
    for row in rows {
        let (names, meaning) = row.split_once("** |").expect("a term and its meaning");
        assert!(meaning.trim().len() > 20, "{names} has no meaning");
        for name in names.split(", ") {
            *terms.entry(name.to_lowercase()).or_insert(0) += 1;
        }
    }
    assert!(terms.len() > 60, "{} terms", terms.len());
    let twice: Vec<_> = terms.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// Words for persons. Threads, sockets and code are "it".
const PERSONS: &[&str] = &[
    "anybody",
    "everybody",
    "herself",
    "himself",
    "nobody",
    "somebody",
    "whoever",
    "whomever",
];

#[test]
fn things_are_it() {
    let mut findings = Findings::default();
    for file in files(&["rs", "md"]) {
        if file.name == "CHANGELOG.md" {
            continue;
        }
        let is_page = file.name.ends_with(".md");
        // Messages are in the sources; a test may have such words for its clients.
        let has_messages = file.name.contains("/src/") || file.name.ends_with("/houses.rs");
        for (at, line) in prose_lines(&file.text) {
            let prose = match is_page || line.trim_start().starts_with("//") {
                // Code spans name accounts, commands and other people's things.
                true => without_code_spans(line).to_lowercase(),
                // Variants begin with large letters, and one of the words is an account.
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

/// Inside of a fenced block.
const DRAWING_COLUMNS_MAX: usize = 120;

#[test]
fn comments_fit_into_100_columns() {
    let mut findings = Findings::default();
    for file in files(&["rs"]) {
        let mut is_drawing = false;
        for (at, line) in file.text.lines().enumerate() {
            let comment = line.trim_start();
            let fence = comment.starts_with("//") && comment.contains("```");
            is_drawing = comment.starts_with("//") && (is_drawing ^ fence);
            // A table's row cannot be broken.
            let is_row = ["//! |", "/// |"]
                .iter()
                .any(|start| comment.starts_with(start));
            let columns_max = match is_drawing {
                true => DRAWING_COLUMNS_MAX,
                false => COMMENT_COLUMNS_MAX,
            };
            let columns = line.chars().count();
            let has_comment = comment.starts_with("//") || line.contains(" // ");
            if has_comment && !is_row && columns > columns_max {
                findings.add_line(&file, at, format!("a comment of {columns} columns"));
            }
        }
    }
    findings.assert_none();
}
