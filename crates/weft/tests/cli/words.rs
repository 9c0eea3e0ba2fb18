//! Output on request: help, versions, manual pages, completions, lists of the laboratory, and the
//! doctor.

use std::fs;
use std::process::Stdio;

use super::{refused, run, weft};

#[test]
fn help_has_every_heading_and_examples() {
    let short = run(&mut weft(&["serve", "-h"])).out;
    let long = run(&mut weft(&["serve", "--help"])).out;
    for heading in
        ["Site:", "Listen:", "Replies:", "TLS:", "Limits:", "Log:", "Process:", "Engine:"]
    {
        assert!(short.contains(heading) && long.contains(heading), "{heading}");
    }
    for flag in ["--listen", "--engine", "--workers", "--access-log"] {
        assert!(short.contains(flag) && long.contains(flag), "{flag}");
    }
    assert!(long.contains("Examples:") && long.contains("Exit status:") && long.contains("SIGHUP"));
    assert!(long.contains("[key: access_log] [env: WEFT_ACCESS_LOG]"), "{long}");
    assert!(short.len() < long.len() / 2, "the short help is short");
}

#[test]
fn the_version_is_said() {
    let ran = run(&mut weft(&["--version"]));
    assert_eq!((ran.code, ran.out), (0, format!("weft {}\n", env!("CARGO_PKG_VERSION"))));
}

/// Seen: `weft help`, `weft help serve` and `weft version` were unknown commands, without a tip.
#[test]
fn help_is_a_command_and_version_a_flag() {
    for words in [&["help"][..], &["help", "load", "http"], &["load", "help", "http"]] {
        let ran = run(&mut weft(words));
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        assert!(ran.out.contains("Usage: weft"), "{words:?}: {}", ran.out);
    }
    let long = run(&mut weft(&["serve", "--help"])).out;
    assert_eq!(run(&mut weft(&["help", "serve"])).out, long);
    refused("version", "weft --version");
    let page = run(&mut weft(&["man", "load", "http"])).out;
    assert!(page.contains(".TH WEFT-LOAD-HTTP 1"), "{page}");
    for spelled in ["load http", "load-http"] {
        assert_eq!(run(&mut weft(&["man", spelled])).out, page);
    }
    refused("man load nothing", "no command 'load nothing'");
}

#[test]
fn every_shell_gets_completions_of_every_flag() {
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let ran = run(&mut weft(&["completions", shell]));
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("memory-budget"), "{shell}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&mut weft(&["completions", shell]));
        for name in ["load-http", "check-config"] {
            assert!(ran.out.contains(name), "{shell} does not know {name}");
        }
        for name in ["web-rows", "cache-latency"] {
            assert_eq!(ran.out.contains(name), cfg!(feature = "lab"), "{shell}: {name}");
        }
    }
    refused("completions sea", "bash");
}

#[test]
fn manual_pages_are_printed_and_written() {
    let page = run(&mut weft(&["man", "serve"]));
    assert_eq!(page.code, 0);
    assert!(page.out.contains(".TH WEFT-SERVE 1"), "{}", page.out);
    let folder = tempfile::tempdir().unwrap();
    let all = run(&mut weft(&["man", "--dir", folder.path().to_str().unwrap()]));
    assert_eq!(all.out.lines().count(), fs::read_dir(folder.path()).unwrap().count());
    assert_eq!(fs::read_to_string(folder.path().join("weft-serve.1")).unwrap(), page.out);
}

/// Seen: an unknown experiment printed a list of 25 names, and a missing one no hint; `lab report
/// --out DIR` was refused although `lab run` writes there with that flag; "tokio, may  built with
/// cargo" read as if they were built already.
#[cfg(feature = "lab")]
#[test]
fn the_lab_says_how_to_go_on() {
    refused("lab run", "weft lab list");
    refused("lab run rt-yeild", "no experiment is called 'rt-yeild'; did you mean rt-yield?");
    refused("lab list zzzzzz", "weft lab list names them");
    // Seen: an unknown form was skipped silently, so a regression passed.
    refused(
        "lab compare no such --forms weft,epoll",
        "no form of weft is called 'epoll'; there are weft; weft epoll; ",
    );
    refused(
        "lab compare no such",
        "there is neither a build of weft nor a folder of results at 'no'",
    );
    // Seen: with --limit nan nothing was ever worse, and --configurations was ignored.
    for limit in ["0", "nan", "inf"] {
        refused(&format!("lab compare no such --limit {limit}"), "a ratio of at least 1");
    }
    for flag in ["--quick", "--repeat 3", "--sample 1s", "--configurations 400", "--out x"] {
        refused(&format!("lab compare . . {flag}"), "two results are compared as they are");
    }
    // Seen: the column was as wide as most names, and longer ones pushed their words to the right.
    let list = run(&mut weft(&["lab", "list"])).out;
    let column = |line: &str| line.len() - line.split_once(' ').unwrap().1.trim_start().len();
    let columns: std::collections::BTreeSet<_> = list.lines().map(column).collect();
    assert_eq!(columns.len(), 1, "{list}");
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().to_str().unwrap();
    for words in ["lab report", "lab report --out"] {
        refused(&format!("{words} {results}"), &format!("there are no samples in {results}"));
    }
    // Seen: "there are no samples …: weft lab run makes them", printed by weft lab run itself;
    // after an earlier run in the same folder, the old report and exit code 0.
    super::check(
        &mut weft(&["lab", "run", "file-table", "--configurations", "no such", "--out", results]),
        2,
        "nothing was measured",
    );
    // Seen: a folder that was misspelled was made, on another disk, and stayed there.
    let none = folder.path().join("no/such");
    let words = ["lab", "run", "file-table", "--out", results, "--scratch", none.to_str().unwrap()];
    super::check(&mut weft(&words), 1, "no/such: ");
    assert!(!none.exists());
    let servers = run(&mut weft(&["lab", "servers"])).out;
    for line in servers.lines().filter(|line| line.contains("built")) {
        assert!(line.contains("built at the first run, with") || line.contains("not built"));
    }
    assert_eq!(servers.matches(" built").count(), 2, "{servers}");
}

#[test]
fn the_doctor_speaks_json() {
    let ran = run(&mut weft(&["doctor", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let named = |name: &str| findings.iter().any(|finding| finding["name"] == name);
    assert!(named("io_uring") && named("open files") && named("accept queue"), "{report}");
    let is_bad = findings.iter().any(|finding| finding["verdict"] == "bad");
    assert_eq!(ran.code, i32::from(is_bad));
    for finding in findings.iter().filter(|finding| finding["verdict"] != "ok") {
        assert!(finding["advice"].is_string(), "{finding}");
    }
}

#[test]
fn the_doctor_colours_on_a_terminal_or_if_asked() {
    assert!(!run(&mut weft(&["doctor"])).out.contains('\x1b'));
    assert!(run(&mut weft(&["doctor", "--color", "always"])).out.contains("\x1b[32mok"));
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let mut child = weft(&["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
