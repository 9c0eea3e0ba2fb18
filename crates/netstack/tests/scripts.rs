//! Plays the packet scripts of `tests/scripts`, and keeps the page that lists them.
//! `NETSTACK_SCRIPT=text` plays those whose name contains it; `NETSTACK_UPDATE=1` writes the page.

mod script;

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn every_script_is_played_as_it_is_written() {
    let only = std::env::var("NETSTACK_SCRIPT").unwrap_or_default();
    let scripts = script::all(&here().join("tests/scripts"));
    let chosen: Vec<_> = scripts
        .iter()
        .filter(|script| script.name.contains(&only))
        .collect();
    assert!(!chosen.is_empty(), "no script's name contains {only:?}");
    let failures: Vec<String> = chosen
        .iter()
        .filter_map(|script| script.run().err())
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} scripts\n\n{}",
        failures.len(),
        chosen.len(),
        failures.join("\n")
    );
}

#[test]
fn a_script_that_is_wrong_says_where_and_what_came_in_its_place() {
    let text = "# A script\nlisten\n< S 0 win 100 mss 1000\n> S. 0 ack 7\n";
    let report = script::Script::new("wrong", text)
        .run()
        .expect_err("it is wrong");
    assert!(
        report.starts_with("wrong.txt:4: > S. 0 ack 7\n"),
        "{report}"
    );
    assert!(
        report.contains("in its place came  > S. 0 ack 1 win"),
        "{report}"
    );
    let text = "# A script\nlisten\n< S 0 win 100 mss 1000\n";
    let report = script::Script::new("short", text)
        .run()
        .expect_err("more was sent");
    assert!(report.contains("does not expect  > S. 0 ack 1"), "{report}");
    let text = "# A script\nlisten\n+1s > S. 0 ack 1\n";
    let report = script::Script::new("silent", text)
        .run()
        .expect_err("nothing is sent");
    assert!(
        report.contains("nothing was sent at 1000.000 ms"),
        "{report}"
    );
}

const PAGE: &str = "../../docs/netstack-conformance.md";
const BEGIN: &str = "<!-- The rest is made by the test: NETSTACK_UPDATE=1. -->\n";

#[test]
fn the_conformance_page_lists_every_script() {
    let path = here().join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, listed) = page.split_once(BEGIN).expect("its made part");
    let scripts = script::all(&here().join("tests/scripts"));
    let made = listing(&scripts);
    if std::env::var_os("NETSTACK_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{made}")).expect("the page is written");
    } else {
        assert!(
            made == listed,
            "{PAGE} is old: run this test with NETSTACK_UPDATE=1"
        );
    }
    // The table of requirements above names scripts, too.
    for name in before.split('`').skip(1).step_by(2) {
        let is_script = name.starts_with("rfc") && name.contains('/');
        let exists = scripts.iter().any(|script| script.name == name);
        assert!(
            !is_script || exists,
            "the page names {name}, and there is no such script"
        );
    }
}

/// A table for each folder, which is an RFC.
fn listing(scripts: &[script::Script]) -> String {
    let mut listing = format!("\n{} scripts.\n", scripts.len());
    let mut last = "";
    for script in scripts {
        let (folder, name) = script.name.split_once('/').expect("a folder and a name");
        if folder != last {
            let number = folder.trim_start_matches("rfc");
            let _ = write!(
                listing,
                "\n## RFC {number}\n\n| script | what it shows |\n|---|---|\n"
            );
            last = folder;
        }
        let _ = writeln!(listing, "| `{name}` | {} |", script.title);
    }
    listing
}
