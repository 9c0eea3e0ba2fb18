//! Plays the packet scripts of `tests/scripts`, and keeps the page that counts them.
//! `NETSTACK_SCRIPT=text` plays those whose name contains it; `NETSTACK_UPDATE=1` writes the page.

extern crate weftwork_netstack as netstack;

mod script;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn every_script_passes() {
    let only = std::env::var("NETSTACK_SCRIPT").unwrap_or_default();
    let scripts = script::all(&here().join("tests/scripts"));
    let chosen: Vec<_> = scripts.iter().filter(|script| script.name.contains(&only)).collect();
    assert!(!chosen.is_empty(), "no script's name contains {only:?}");
    let failures: Vec<String> = chosen.iter().filter_map(|script| script.run().err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {} scripts\n\n{}",
        failures.len(),
        chosen.len(),
        failures.join("\n")
    );
}

#[test]
fn wrong_scripts_say_where_and_why() {
    let text = "# A script\nlisten\n< S 0 win 100 mss 1000\n> S. 0 ack 7\n";
    let report = script::Script::new("wrong", text).run().expect_err("the script is wrong");
    assert!(report.starts_with("wrong.txt:4: > S. 0 ack 7\n"), "{report}");
    assert!(report.contains("in its place came  > S. 0 ack 1 win"), "{report}");
    let text = "# A script\nlisten\n< S 0 win 100 mss 1000\n";
    let report = script::Script::new("short", text).run().expect_err("more segments were sent");
    assert!(report.contains("does not expect  > S. 0 ack 1"), "{report}");
    let text = "# A script\nlisten\n+1s > S. 0 ack 1\n";
    let report = script::Script::new("silent", text).run().expect_err("nothing is sent");
    assert!(report.contains("nothing was sent at 1000.000 ms"), "{report}");
}

const PAGE: &str = "../../docs/netstack-conformance.md";
const BEGIN: &str = "<!-- The rest is made by the test: NETSTACK_UPDATE=1. -->\n";

#[test]
fn the_page_counts_every_script() {
    let path = here().join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, counted) = page.split_once(BEGIN).expect("the generated part");
    let scripts = script::all(&here().join("tests/scripts"));
    let made = summary(&scripts);
    if std::env::var_os("NETSTACK_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{made}")).expect("the page is written");
    } else {
        assert!(made == counted, "{PAGE} is outdated: run this test with NETSTACK_UPDATE=1");
    }
    // The tables of requirements above name scripts and tests, too.
    let tests = tests_of(&["", "../sockets", "../serve", "../weft"]);
    for name in names_in(before) {
        let exists = if is_script(name) {
            scripts.iter().any(|script| script.name == name)
        } else {
            !is_test(name) || tests.contains(name)
        };
        assert!(exists, "the page names {name}, which does not exist");
    }
}

#[test]
fn each_requirement_is_on_the_page_once() {
    let page = std::fs::read_to_string(here().join(PAGE)).expect("the page");
    let (before, rest) = page.split_once("\n## The requirements\n").expect("a part");
    let given_up = musts_in(before);
    let (tables, _) = rest.split_once(BEGIN).expect("the end of the tables");
    let mut requirements = Vec::new();
    for row in tables.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [requirement, what, shown] = cells[..] else {
            panic!("three cells: {row}");
        };
        if shown == "shown by" {
            continue;
        }
        let is_named = names_in(shown).any(|name| is_script(name) || is_test(name));
        let has_reason = shown.starts_with("not done, see above");
        assert!(is_named || has_reason, "{what}: no test or reason shows it");
        if let Some(numbers) = requirement.strip_prefix("MUST-") {
            let numbers = numbers_in(numbers);
            let is_above = numbers.iter().all(|number| given_up.contains(number));
            assert!(!has_reason || is_above, "{what}: no reason is above");
            requirements.extend(numbers);
        }
    }
    requirements.sort_unstable();
    let all: Vec<u32> = (1..=MUSTS_OF_RFC9293).collect();
    assert_eq!(requirements, all, "the numbers of the table");
    for rfc in ["9293", "6298", "5681", "7323", "2018", "5961"] {
        let title = format!("\n### RFC {rfc}\n");
        assert!(tables.contains(&title), "no table of RFC {rfc}");
    }
}

/// RFC 9293 appendix B: MUST-1 to this one.
const MUSTS_OF_RFC9293: u32 = 69;

/// `2`, `8, 9`, `30 to 33`
fn numbers_in(text: &str) -> Vec<u32> {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text} is not a number"));
    let ranges = text.split(", ").map(|part| match part.split_once(" to ") {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    });
    ranges.flatten().collect()
}

/// The numbers behind each `MUST-`, up to the closing bracket.
fn musts_in(text: &str) -> Vec<u32> {
    let lists = text.split("MUST-").skip(1);
    let lists = lists.map(|it| it.split([')', '|', '\n', ';']).next().unwrap_or_default());
    lists.flat_map(numbers_in).collect()
}

/// Names between backticks.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_script(name: &str) -> bool {
    name.starts_with("rfc") && name.contains('/')
}

/// True for lower-case words with underscores.
fn is_test(name: &str) -> bool {
    let is_word = |c: char| c == '_' || c.is_ascii_digit() || c.is_ascii_lowercase();
    name.contains('_') && name.chars().all(is_word)
}

/// The names of the tests of some crates.
fn tests_of(crates: &[&str]) -> HashSet<String> {
    let mut names = HashSet::new();
    let mut paths: Vec<PathBuf> = (crates.iter())
        .flat_map(|name| ["src", "tests"].map(|folder| here().join(name).join(folder)))
        .filter(|folder| folder.exists())
        .collect();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a folder");
            paths.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            // The first function behind the mark: others have no promise to keep.
            let marked = text.split("#[test]").skip(1);
            names.extend(marked.filter_map(|it| {
                let (name, _) = it.split_once("fn ")?.1.split_once('(')?;
                Some(name.to_owned())
            }));
        }
    }
    names
}

/// Table of the folders, one for each RFC, with the number of their scripts.
fn summary(scripts: &[script::Script]) -> String {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for script in scripts {
        let (folder, _) = script.name.split_once('/').expect("a folder and a name");
        let number = folder.trim_start_matches("rfc").parse();
        *counts.entry(number.expect("a number")).or_default() += 1;
    }
    let mut summary = "\n| RFC | scripts |\n|---|---|\n".to_owned();
    for (number, count) in counts {
        let _ = writeln!(summary, "| {number} | {count} |");
    }
    let _ = writeln!(summary, "| all | {} |", scripts.len());
    summary
}
