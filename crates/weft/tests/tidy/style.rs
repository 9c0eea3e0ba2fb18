//! Sentences and names: beginnings of comments, effects of predicates, lengths of test names.

use std::collections::BTreeMap;

use super::words::package_of;
use super::{Findings, Source, rust_files};

/// Words that begin a clause where a reader expects a thing or a verb.
const CLAUSE_WORDS: &[&str] =
    &["As", "How", "It", "Of", "So", "Those", "What", "When", "Where", "Whether", "Which", "Why"];

/// Share of the doc comments of a crate that may begin with one of [`CLAUSE_WORDS`].
const CLAUSE_PERCENT_MAX: usize = 5;

/// Limit on the letters in the name of a test, so that it can be typed.
const TEST_NAME_LEN_MAX: usize = 50;

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let mut findings = Findings::default();
    let files = rust_files();
    let mut by_package: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.name.contains("/src/")) {
        by_package.entry(package_of(&file.name)).or_default().push(file);
    }
    for files in by_package.into_values() {
        let mut count = 0;
        let mut clauses = Vec::new();
        for file in files {
            for (line_index, words) in doc_comments(&file.text) {
                count += 1;
                let first = words.split([' ', ',']).next().unwrap_or_default();
                if CLAUSE_WORDS.contains(&first) {
                    clauses.push((file, line_index, words));
                }
            }
        }
        if clauses.len() * 100 > count * CLAUSE_PERCENT_MAX {
            for (file, line_index, words) in clauses {
                findings.add_line(file, line_index, format!("begins with a clause: {words}"));
            }
        }
    }
    findings.assert_none();
}

/// First line of each doc comment, and its index.
fn doc_comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let doc = |line: &'_ str| line.trim_start().starts_with("///");
    let mut is_inside = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_first = doc(line) && !is_inside;
        is_inside = doc(line);
        is_first.then(|| (index, line.trim_start().trim_start_matches('/').trim_start()))
    })
}

#[test]
fn predicates_ask_and_change_nothing() {
    let mut findings = Findings::default();
    for file in rust_files() {
        for (line_index, line) in file.text.lines().enumerate() {
            let Some((_, item)) = line.split_once("fn ") else {
                continue;
            };
            let asks = ["is_", "has_", "are_"].iter().any(|start| item.starts_with(start));
            if asks && item.contains("(&mut self") && !line.trim_start().starts_with("//") {
                findings.add_line(
                    &file,
                    line_index,
                    "a question with &mut self: name it by a verb",
                );
            }
        }
    }
    findings.assert_none();
}

#[test]
fn names_of_tests_can_be_typed() {
    let mut findings = Findings::default();
    for file in rust_files() {
        let mut is_test = false;
        for (line_index, line) in file.text.lines().enumerate() {
            let code = line.trim_start();
            if let Some(item) = code.strip_prefix("fn ") {
                let name = item.split('(').next().unwrap_or_default();
                if is_test && name.len() > TEST_NAME_LEN_MAX {
                    let what = format!("{} letters, more than {TEST_NAME_LEN_MAX}", name.len());
                    findings.add_line(&file, line_index, what);
                }
                is_test = false;
            }
            is_test |= code == "#[test]";
        }
    }
    findings.assert_none();
}

#[test]
fn each_let_defines_one_thing() {
    let mut findings = Findings::default();
    for file in rust_files() {
        for (line_index, line) in file.text.lines().enumerate() {
            if pairs_two_things(line.trim()) {
                findings.add_line(&file, line_index, "two things in one `let`: take two lines");
            }
        }
    }
    findings.assert_none();
}

/// True for `let (a, b) = (x, y);` where neither side destructures anything.
fn pairs_two_things(code: &str) -> bool {
    let Some((names, values)) =
        code.strip_prefix("let (").and_then(|rest| rest.split_once(") = ("))
    else {
        return false;
    };
    let names: Vec<&str> = names.split(", ").map(|name| name.trim_start_matches("mut ")).collect();
    let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let first = values.split(", ").next().unwrap_or_default();
    names.len() == 2
        && names.iter().all(is_name)
        && values.ends_with(");")
        && values.contains(", ")
        && !first.contains(['(', ')'])
}

#[test]
fn a_pair_of_values_is_told_from_a_pattern() {
    assert!(pairs_two_things("let (a, mut b) = (1, Vec::new());"));
    assert!(!pairs_two_things("let (a, b) = split(1, 2);"));
    assert!(!pairs_two_things("let (a, Some(b)) = (1, c) else {"));
}
