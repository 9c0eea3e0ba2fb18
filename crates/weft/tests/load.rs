//! `weft load` as a user types it, against small servers on threads.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread;

/// Answers every request on every connection with this reply.
fn server(reply: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                for line in lines.map_while(Result::ok) {
                    if line.is_empty() && stream.write_all(reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn load(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft"))
        .arg("load")
        .args(words)
        .output()
        .unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_closed_loop_prints_one_screen() {
    let url = format!("http://{}/", server(HELLO));
    let output = load(&["http", &url, "--duration", "200ms", "--connections", "4"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["GET http://", "closed loop, 4 connections", "p99"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn the_json_has_what_scripts_ask_for() {
    let url = format!("http://{}/", server(HELLO));
    let words = ["http", &url, "--rate", "200", "-d", "500ms", "--json", "-"];
    for close in [&[][..], &["--close", "--arrivals", "poisson"]] {
        let output = load(&[&words[..], close].concat());
        assert!(output.status.success(), "{output:?}");
        let seen = json(&output);
        assert_eq!(seen["offered_rate_per_s"], 200.0);
        assert!(
            seen["achieved_rate_per_s"].as_f64().unwrap() > 0.0,
            "{seen}"
        );
        assert!(seen["generator_limited"].is_boolean(), "{seen}");
        assert_eq!(seen["errors"]["refused"], 0, "{seen}");
    }
}

#[test]
fn a_threshold_decides_the_exit_code() {
    let url = format!("http://{}/", server(HELLO));
    let run = |condition: &str| load(&["http", &url, "-d", "100ms", "--fail-if", condition]);
    assert_eq!(run("missed>0").status.code(), Some(0));
    let failed = run("achieved>=0");
    assert_eq!(failed.status.code(), Some(1));
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(said.contains("achieved"), "{said}");
}

#[test]
fn nobody_there_is_a_failed_run_and_a_sentence() {
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = load(&["http", &format!("http://{unused}/"), "-d", "100ms"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is the server running?"), "{said}");
}

#[test]
fn wrong_words_are_a_usage_error_that_says_what_to_write() {
    for (words, hint) in [
        (&["http", "https://127.0.0.1/"][..], "http://HOST"),
        (&["http", "http://127.0.0.1:1/", "--rate", "fast"], "--rate"),
        (
            &["http", "http://127.0.0.1:1/", "--duration", "10"],
            "--duration",
        ),
        (
            &["http", "http://127.0.0.1:1/", "--fail-if", "p99"],
            "--fail-if",
        ),
        (
            &["http", "http://127.0.0.1:1/", "--connections", "0"],
            "connection",
        ),
        (
            &["http", "http://127.0.0.1:1/", "--course", "10k"],
            "RATE:TIME",
        ),
        (
            &["http", "http://127.0.0.1:1/", "--sessions", "/nowhere"],
            "/nowhere",
        ),
        (
            &["cache", "127.0.0.1:1", "--value-size", "big"],
            "--value-size",
        ),
        (&["http"], "URL"),
    ] {
        let output = load(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(hint), "{words:?}: {said}");
    }
}

#[test]
fn a_sweep_runs_every_rate() {
    let url = format!("http://{}/", server(HELLO));
    let output = load(&[
        "http",
        &url,
        "--sweep",
        "100..300:100",
        "--pause",
        "1ms",
        "-d",
        "100ms",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{output:?}");
    let rates: Vec<f64> = json(&output)["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["rate_per_s"].as_f64().unwrap())
        .collect();
    assert_eq!(rates, [100.0, 200.0, 300.0]);
}

#[test]
fn session_logs_are_played() {
    let url = format!("http://{}/", server(HELLO));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    std::fs::write(&log, "/a think=0.01\n    /b\n/c\n\n/d\n").unwrap();
    let log = log.to_str().unwrap();
    let words = [
        "http",
        &url,
        "--sessions",
        log,
        "--rate",
        "20",
        "-d",
        "300ms",
        "--json",
        "-",
    ];
    let output = load(&words);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(json(&output)["errors"]["short_reply"], 0);
    // Three sessions of three requests, and three of one.
    assert_eq!(
        json(&output)["requests"]["sessions"]
            .as_u64()
            .or(json(&output)["sessions"].as_u64()),
        Some(6)
    );
}

/// A place to meet at: a port that was free a moment ago.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn several_agents_are_one_generator() {
    let url = format!("http://{}/", server(HELLO));
    let rendezvous = free_port();
    let agent = |rank: &str| {
        let words = [
            "http", &url, "--rate", "300", "-d", "500ms", "-c", "3", "--json", "-",
        ];
        let place = ["--agents", "3", "--rank", rank, "--rendezvous", &rendezvous];
        let (words, place) = (words.map(str::to_owned), place.map(str::to_owned));
        thread::spawn(move || {
            let words: Vec<&str> = words.iter().chain(&place).map(String::as_str).collect();
            load(&words)
        })
    };
    let [first, second, third] = ["0", "1", "2"]
        .map(agent)
        .map(|agent| agent.join().unwrap());
    let seen = json(&first);
    assert_eq!(seen["offered_rate_per_s"], 300.0);
    assert_eq!(
        seen["generator"]["threads"], 3,
        "all three are in the outcome"
    );
    for member in [second, third] {
        assert!(member.status.success(), "{member:?}");
        assert!(member.stdout.is_empty(), "only rank 0 speaks");
    }
}

#[test]
fn one_agent_that_is_killed_fails_all_and_is_named() {
    let (seen, connections) = std::sync::mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                for line in lines.map_while(Result::ok).filter(String::is_empty) {
                    let _ = seen.send(stream.peer_addr().unwrap());
                    let _ = stream.write_all(HELLO);
                    drop(line);
                }
            });
        }
    });
    let rendezvous = free_port();
    let agent = |rank: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args([
            "load", "http", &url, "--rate", "300", "-d", "50s", "-c", "3",
        ]);
        command.args(["--agents", "3", "--rank", rank, "--rendezvous", &rendezvous]);
        command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let [first, second, mut third] = ["0", "1", "2"].map(agent);
    // Each has a third of the connections: when requests came over three, all of them are at work.
    let mut at_work = std::collections::BTreeSet::new();
    while at_work.len() < 3 {
        at_work.insert(connections.recv().unwrap());
    }
    third.kill().unwrap();
    third.wait().unwrap();
    for other in [first, second] {
        let output = other.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("agent 2 on 127.0.0.1 died"), "{said}");
    }
}

#[test]
fn outcomes_of_files_are_merged() {
    let url = format!("http://{}/", server(HELLO));
    let place = tempfile::tempdir().unwrap();
    let files =
        ["a.json", "b.json"].map(|name| place.path().join(name).to_str().unwrap().to_owned());
    for file in &files {
        let output = load(&["http", &url, "--rate", "100", "-d", "300ms", "--json", file]);
        assert!(output.status.success(), "{output:?}");
    }
    let replies = |value: &serde_json::Value| value["replies"].as_u64().unwrap();
    let parts = files.each_ref().map(|file| {
        replies(&serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    });
    let merged = json(&load(&["merge", &files[0], &files[1], "--json", "-"]));
    assert_eq!(replies(&merged), parts[0] + parts[1]);
}

#[test]
fn a_sweep_writes_a_line_per_rate_and_a_screen_needs_a_terminal() {
    let url = format!("http://{}/", server(HELLO));
    let words = [
        "http", &url, "--sweep", "50,100", "-d", "200ms", "--pause", "0s", "--csv", "-",
    ];
    let output = load(&words);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 3);
    let output = load(&["http", &url, "--tui"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("--tui needs a terminal")
    );
}

#[test]
fn sets_and_logs_are_made_and_played() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let output = load(&["fileset", &path("set"), "--scale", "0.002"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("100 %"));
    let output = load(&[
        "traces",
        &path("set"),
        &path("logs"),
        "--logs",
        "2",
        "--requests",
        "50",
    ]);
    assert!(output.status.success(), "{output:?}");
    let url = format!("http://{}/", server(HELLO));
    let log = path("logs/session-01.log");
    let output = load(&[
        "http",
        &url,
        "--sessions",
        &log,
        "--rate",
        "50",
        "-d",
        "300ms",
        "--json",
        "-",
    ]);
    assert!(json(&output)["replies"].as_u64().unwrap() > 0);
}
