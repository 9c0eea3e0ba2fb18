//! `weft load` as a user types it, against small servers on threads.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::mpsc::Receiver;
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

/// A server that says hello to each request, and tells where it came from.
fn telling_server() -> (String, Receiver<SocketAddr>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (seen, heard) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                for _ in lines.map_while(Result::ok).filter(String::is_empty) {
                    let _ = stream.write_all(HELLO);
                    let _ = seen.send(stream.peer_addr().unwrap());
                }
            });
        }
    });
    (url, heard)
}

/// Starts it and returns once the server has seen so many requests.
fn load_until(words: &[&str], requests: usize) -> (std::process::Child, String) {
    let (url, heard) = telling_server();
    let child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["load", "http", &url])
        .args(words)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..requests {
        heard.recv().unwrap();
    }
    (child, url)
}

fn signalled(child: std::process::Child, signal: i32) -> Output {
    // SAFETY: a signal to a child of ours that was not waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    child.wait_with_output().unwrap()
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
fn a_run_without_a_single_reply_has_failed_and_says_why() {
    for (reply, words, why) in [
        (&b""[..], &["--timeout", "150ms"][..], "client timeout"),
        (b"", &[], "no reply came within 0.3 s"),
        (
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            &[],
            "does not speak this protocol",
        ),
        (
            b"",
            &["--rate", "0.01", "--arrivals", "poisson"],
            "no request was due",
        ),
    ] {
        let url = format!("http://{}/", server(reply));
        let common = ["http", &url, "-d", "300ms", "-c", "2", "--json", "-"];
        let output = load(&[&common[..], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(said.contains(why), "{words:?}: {said}");
        let why_not = json(&output)["without_replies"].clone();
        assert!(why_not.as_str().unwrap().contains(why), "{why_not}");
    }
    // In a sweep, in any of its runs.
    let url = format!("http://{}/", server(b""));
    let output = load(&[
        "http",
        &url,
        "-d",
        "100ms",
        "--timeout",
        "50ms",
        "--sweep",
        "50,100",
        "--pause",
        "0s",
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("at 50/s: no good reply came"), "{said}");
    assert!(said.contains("at 100/s: no good reply came"), "{said}");
}

/// The words, without a space in any of them, and then some more.
fn words(common: &[&str], text: &str) -> Output {
    let more: Vec<&str> = text.split_whitespace().collect();
    load(&[common, &more].concat())
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

const MISSING: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";

/// Issue 10 B. Seen: nothing but 404, "errors none", "the server was the limit", exit 0; the same
/// with --verify. Cause: a whole reply was a good reply. Cure: --expect, an error of its own class,
/// and exit 1.
#[test]
fn a_run_of_nothing_but_404_has_failed() {
    let url = format!("http://{}/none", server(MISSING));
    let common = ["http", &url, "-d", "200ms", "-c", "2"];
    for more in ["", "--rate 50", "--verify", "--close"] {
        let output = words(&common, more);
        assert_eq!(output.status.code(), Some(1), "{more}: {output:?}");
        let said = said(&output);
        assert!(said.contains("is this the right path?"), "{more}: {said}");
        assert!(
            said.contains("unexpected status") && said.contains("4xx"),
            "{more}: {said}"
        );
        assert!(!said.contains("was the limit"), "{more}: {said}");
    }
    let seen = json(&words(&common, "--json -"));
    assert_eq!(
        (&seen["replies"], &seen["verdict"]["row"]),
        (&0.into(), &"nothing_came".into())
    );
    assert_eq!(
        seen["errors"]["unexpected_status"],
        seen["replies_by_status"]["4xx"]
    );
    assert!(
        seen["faults"][0].as_str().unwrap().contains("--expect"),
        "{seen}"
    );
    for more in [
        "--expect 404",
        "--expect 2xx,4xx --verify",
        "--expect 400-404 --rate 50",
    ] {
        let is_compared = more.contains("--verify");
        let output = words(&common, more);
        assert_eq!(
            output.status.code(),
            Some(i32::from(is_compared)),
            "{more}: {output:?}"
        );
        assert_eq!(
            said(&output).contains("--verify compared nothing"),
            is_compared,
            "{more}"
        );
    }
    let refused = words(&common, "--expect 20x");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(said(&refused).contains("such as 200,206"), "{refused:?}");
}

#[test]
fn a_condition_on_errors_takes_the_place_of_our_own() {
    let half: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    // One path answers well, the other does not.
    let (well, missing) = (server(half), server(MISSING));
    let common = ["-d", "200ms", "-c", "1"];
    for (address, condition, code) in [
        (well, "", 0),
        (missing, "--fail-if errors>100%", 1),
        (missing, "--expect 404", 0),
    ] {
        let url = format!("http://{address}/");
        let output = words(&[&["http", url.as_str()], &common[..]].concat(), condition);
        assert_eq!(output.status.code(), Some(code), "{condition}: {output:?}");
    }
    let mixed = mixed_server();
    let url = format!("http://{mixed}/");
    let run = |condition: &str| words(&[&["http", url.as_str()], &common[..]].concat(), condition);
    for (condition, code) in [
        ("", 1),
        ("--fail-if p99>1m", 1),
        ("--fail-if errors>70%", 0),
        ("--fail-if errors.unexpected_status>30%", 1),
        ("--sweep 50 --pause 0s", 1),
        ("--sweep 50 --fail-if errors>70%", 0),
    ] {
        let output = run(condition);
        assert_eq!(output.status.code(), Some(code), "{condition}: {output:?}");
        let is_ours = said(&output).contains("were not what was asked for");
        assert!(
            code == 0 || condition.contains("errors") || is_ours,
            "{condition}: {output:?}"
        );
    }
}

/// Answers every second request of a connection with 404.
fn mixed_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                let heads = lines.map_while(Result::ok).filter(String::is_empty);
                for (at, _) in heads.enumerate() {
                    let reply = if at % 2 == 0 { HELLO } else { MISSING };
                    let _ = stream.write_all(reply);
                }
            });
        }
    });
    address
}

/// Issue 10 B. Seen: `http://host/base/ --fileset DIR` asked for /dir00/… in silence: the URL's
/// path was dropped. Siblings: --paths and --sessions dropped it as well, and further URLs with it.
#[test]
fn a_list_lies_below_the_folder_of_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("http://{}", listener.local_addr().unwrap());
    let (seen, asked) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            thread::spawn(move || answer_by_method(stream, &seen));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let set = folder.path().join("set").to_str().unwrap().to_owned();
    assert!(
        load(&["fileset", &set, "--scale", "0.002"])
            .status
            .success()
    );
    let made = std::fs::read_to_string(format!("{set}/fileset.tsv")).unwrap();
    let recipe = made.lines().next().unwrap();
    let manifest = format!("{recipe}\n/x\t5\t{:08x}\t1e0\n", 0x3610_a686);
    let lists = [
        format!("--fileset {}", file("list.tsv", &manifest)),
        format!("--paths {}", file("paths", "/x\n")),
        format!("--sessions {} --rate 20", file("log", "/x\n")),
    ];
    for list in &lists {
        for (url, path) in [
            ("/", "/x"),
            ("", "/x"),
            ("/base/", "/base/x"),
            ("/a/b/", "/a/b/x"),
        ] {
            let url = format!("{host}{url}");
            let output = words(&["http", &url, "-d", "100ms", "-c", "1", "--verify"], list);
            assert!(output.status.success(), "{list}: {output:?}");
            let asked: Vec<String> = asked.try_iter().collect();
            assert!(!asked.is_empty());
            let wanted = format!("GET {path} ");
            assert!(
                asked.iter().all(|one| *one == wanted),
                "{list} {url}: {asked:?}"
            );
        }
        for urls in ["/x", "/base/?q=/", "/ URL/"] {
            let urls = format!("{host}{}", urls.replace("URL", &host));
            let urls: Vec<&str> = urls.split(' ').collect();
            let output = words(&[&["http"], &urls[..], &["-d", "100ms"]].concat(), list);
            assert_eq!(output.status.code(), Some(2), "{list} {urls:?}: {output:?}");
            assert!(said(&output).contains("says what to request"), "{output:?}");
        }
    }
}

/// Issue 10 B. Seen: `-c 100000` beyond the limit of descriptors tried each of them a hundred times
/// a second and called what was left the server's limit. Cure: refused before the first, with what
/// to do.
#[test]
fn more_connections_than_descriptors_are_refused_at_once() {
    let address = server(HELLO);
    let limited = |words: &str| {
        let program = env!("CARGO_BIN_EXE_weft");
        let line = format!("ulimit -n 200; exec {program} load {words} --json /dev/null");
        Command::new("sh").args(["-c", &line]).output().unwrap()
    };
    for words in [
        format!("http http://{address}/ -d 60s -c 100000"),
        format!("http http://{address}/ -d 60s --rate 5 --close -c 300"),
        format!("http http://{address}/ -d 60s -c 10 --idle 4000000000"),
        format!("cache {address} -d 60s -c 300"),
        format!("idle {address} -d 60s -c 300"),
    ] {
        let output = limited(&words);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        let said = said(&output);
        for part in [
            "connections need",
            "the limit is 200",
            "ulimit -n",
            "--connections",
        ] {
            assert!(said.contains(part), "{words}: {part}: {said}");
        }
    }
    let output = limited(&format!("http http://{address}/ -d 100ms -c 100"));
    assert!(output.status.success(), "{output:?}");
}

/// Issue 10 B. Seen: a table of zeros, no replies per second, and a verdict about replies.
#[test]
fn idle_connections_are_reported_as_what_they_are() {
    let address = server(HELLO).to_string();
    let output = words(&["idle", &address], "-c 5 -d 100ms");
    assert!(output.status.success(), "{output:?}");
    let text = said(&output);
    for part in [
        "5 of 5 connections open",
        "the server held 5 idle connections to the end",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["p99.9", "achieved", "replies", "reply"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let seen = json(&words(&["idle", &address], "-c 5 -d 100ms --json -"));
    assert_eq!(seen["verdict"]["row"], "idle_held");
}

#[test]
fn a_closed_loop_has_one_latency_and_an_open_one_has_both() {
    let url = format!("http://{}/", server(HELLO));
    for (more, has_both) in [("", false), ("--rate 100", true)] {
        let text = said(&words(&["http", &url, "-d", "200ms"], more));
        assert_eq!(text.contains("intended"), has_both, "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
}

/// Beyond each limit a sentence, at once: seen were a run of a rate of 10^12 that never ended, a
/// depth that took all memory, 100 million intervals, and a sum of durations that panicked.
#[test]
fn numbers_that_nobody_means_are_refused() {
    let common = ["http", "http://127.0.0.1:9/"];
    for more in [
        "--rate 1000000M",
        "--rate 30M",
        "--course 0..1000000M:1s",
        "--sweep 1k,1000000M",
        "--depth 3M",
        "--depth 12884901885",
        "-c 12884901885",
        "--idle 12884901885",
        "-t 3072",
        "--interval 1ms -d 3h",
        "--timeout 3000d",
        "--connect-timeout 3000d",
        "-d 1000d",
        "--warm-up 1000d",
        "--connect-rate 0.0000001",
        "--idle-byte-every 3000d",
        "--sweep 1k --repeat 30k",
        "-n 3000000000M",
        "--expect 1800",
        "--backlog 12884901885",
        "--course 5:3000d",
    ] {
        let output = words(&common, more);
        assert_eq!(output.status.code(), Some(2), "{more}: {output:?}");
        assert!(!said(&output).contains("panicked"), "{more}: {output:?}");
    }
    let cache = ["cache", "127.0.0.1:9"];
    for more in [
        "--multi-get 30k",
        "--keys 12884901885",
        "--key-size 750",
        "--value-size 402653184",
        "--exptime 12884901885",
        "--sets 300",
    ] {
        let output = words(&cache, more);
        assert_eq!(output.status.code(), Some(2), "{more}: {output:?}");
    }
}

#[test]
fn a_number_of_requests_above_32_bits_is_a_number() {
    let url = format!("http://{}/", server(HELLO));
    let output = words(&["http", &url], "-n 5000M -d 100ms");
    assert!(output.status.success(), "{output:?}");
    let text = said(&output);
    assert!(
        text.contains("of 5,000,000,000 requests were made when the time was over"),
        "{text}"
    );
}

#[test]
fn what_a_signal_ends_shows_what_was_seen_and_has_the_signals_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen.json");
    let words = [
        "--rate",
        "100",
        "-d",
        "60s",
        "--json",
        file.to_str().unwrap(),
    ];
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let (child, _) = load_until(&words, 5);
        let output = signalled(child, signal);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("stopped before its time"), "{text}");
        let seen: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert!(seen["replies"].as_u64().unwrap() > 0, "{seen}");
        assert_eq!(seen["stopped_early"], true);
    }
}

#[test]
fn a_sweep_that_is_stopped_keeps_the_runs_that_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sweep.csv");
    let csv = file.to_str().unwrap();
    let words = [
        "--sweep", "100,1,2", "-d", "1s", "--pause", "0s", "--csv", csv,
    ];
    // The first run's hundred, and one of the second.
    let (child, _) = load_until(&words, 101);
    let output = signalled(child, libc::SIGINT);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let rows = std::fs::read_to_string(&file).unwrap();
    assert!(rows.contains("sweep,1,100.0"), "{rows}");
    assert!(rows.lines().count() < 4, "not all three were run: {rows}");
}

#[test]
fn conditions_and_files_of_a_sweep_are_about_every_run() {
    let url = format!("http://{}/", server(HELLO));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (hgrm, hlog) = (path("out.hgrm"), path("log"));
    let words = [
        "http",
        &url,
        "--sweep",
        "200,20",
        "-d",
        "200ms",
        "--pause",
        "0s",
        "--fail-if",
        "status.2xx>20",
        "--hgrm",
        &hgrm,
        "--interval-log",
        &hlog,
    ];
    let output = load(&words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("at 200/s: status.2xx>20"),
        "the first run, not the last: {said}"
    );
    assert!(!said.contains("at 20/s"), "{said}");
    for name in [
        "out-01-200.hgrm",
        "out-02-20.hgrm",
        "log-01-200",
        "log-02-20",
    ] {
        let text = std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains('#'), "{name}: {text}");
    }
    let output = load(&["http", &url, "--sweep", "20", "--hgrm", "-"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_file_that_cannot_be_written_costs_no_measurement() {
    let url = format!("http://{}/", server(HELLO));
    // Known beforehand: nothing is sent.
    let output = load(&["http", &url, "-d", "60s", "--json", "/nowhere/out.json"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/nowhere/out.json"), "{said}");
    // A disk that is full at the end: the other files are written.
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("out.csv");
    let words = [
        "-d",
        "100ms",
        "--json",
        "/dev/full",
        "--csv",
        csv.to_str().unwrap(),
    ];
    let output = load(&[&["http", &url], &words[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot write /dev/full"), "{said}");
    assert!(std::fs::read_to_string(csv).unwrap().lines().count() > 1);
}

#[test]
fn sessions_send_the_methods_and_bodies_of_their_log() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (seen, asked) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            thread::spawn(move || answer_by_method(stream, &seen));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let text = "/form method=POST contents='name=a b&n=1\\nend'\n/new method=PUT contents=data think=0.01\n\
                \x20   /size method=HEAD\n    /page\n/gone method=DELETE\n";
    std::fs::write(&log, text).unwrap();
    let log = log.to_str().unwrap();
    let output = load(&[
        "http",
        &url,
        "--sessions",
        log,
        "--rate",
        "1",
        "-d",
        "1s",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{output:?}");
    let report = json(&output);
    assert_eq!(
        (&report["sessions"], &report["errors"]["total"]),
        (&1.into(), &0.into())
    );
    assert_eq!(report["replies"], 5);
    let asked: Vec<String> = asked.try_iter().collect();
    let wanted = [
        "POST /form name=a b&n=1\nend",
        "PUT /new data",
        "HEAD /size ",
        "GET /page ",
        "DELETE /gone ",
    ];
    assert_eq!(asked, wanted);
    let refused = load(&[
        "http",
        &url,
        "--sessions",
        log,
        "--rate",
        "1",
        "--method",
        "POST",
    ]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// Tells what was asked, with its body. The reply to a HEAD has a length and no body (RFC 9110
/// 9.3.2).
fn answer_by_method(mut stream: std::net::TcpStream, seen: &std::sync::mpsc::Sender<String>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if lines.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if first.is_empty() {
                first = line.clone();
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        std::io::Read::read_exact(&mut lines, &mut body).unwrap();
        let asked = first.trim_end().trim_end_matches("HTTP/1.1");
        seen.send(format!("{asked}{}", String::from_utf8(body).unwrap()))
            .unwrap();
        let reply = match first.starts_with("HEAD") {
            true => HELLO.strip_suffix(b"hello").unwrap(),
            false => HELLO,
        };
        if stream.write_all(reply).is_err() {
            return;
        }
    }
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
fn what_a_netstack_does_not_have_is_a_usage_error() {
    let own = "--network netstack --device tap:weft0 --address 10.9.0.2/24";
    for (words, hint) in [
        ("--device tap:weft0", "add --network netstack"),
        ("--network netstack", "needs a --device"),
        (&format!("{own} --gateway there"), "not an IP address"),
        (&format!("{own} --io epoll"), "--io does not go with"),
        (&format!("{own} --source 10.9.0.2"), "--source does not go"),
        (
            &format!("{own} --agents 2 --rank 0 --rendezvous x:1"),
            "agents",
        ),
        (&format!("{own} --threads 2"), "one thread"),
    ] {
        let url = ["http", "http://10.9.0.1/"].into_iter();
        let output = load(&url.chain(words.split(' ')).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{words}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(hint), "{words}: {said}");
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
    // The two by turns; a busy machine may not let the last ones end in time.
    assert_eq!(json(&output)["intended"], 6);
    assert!(json(&output)["sessions"].as_u64() > Some(0));
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
    let (url, connections) = telling_server();
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

/// Seen: `load idle http://…` and `load http http://127.0.0.1:99999/` were "failed to lookup
/// address information"; `-d 0s` was "a run needs a thread, a duration and an interval". Cause:
/// what is no address went to the resolver as a name; one sentence stood for three flags.
#[test]
fn what_is_no_address_or_no_time_is_said_with_its_cure() {
    let (url, page) = ("http://127.0.0.1:9/", "http://127.0.0.1:99999/");
    for (words, said) in [
        (&["idle", url][..], "write HOST:PORT, without http://"),
        (
            &["cache", "http://127.0.0.1:9"],
            "write HOST:PORT, without http://",
        ),
        (
            &["cache", "127.0.0.1:9/"],
            "write HOST:PORT, without http://",
        ),
        (&["http", page], "'99999' is not a port; write HOST:PORT"),
        (&["cache", "[::1]:0"], "'0' is not a port"),
        (&["idle", "127.0.0.1:http"], "'http' is not a port"),
        (&["http", url, "-d", "0s"], "--duration must be above 0"),
        (
            &["http", url, "--interval", "0"],
            "--interval must be above 0",
        ),
        (
            &["http", url, "--threads", "0"],
            "--threads must be above 0",
        ),
        (&["http", url, "-n", "0"], "--requests must be above 0"),
        (
            &["http", url, "--timeout", "0"],
            "--timeout and --connect-timeout must",
        ),
    ] {
        let ran = load(words);
        let err = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(2), "{words:?}: {err}");
        assert!(err.contains(said), "{words:?}: {err}");
    }
}

/// Seen: `-n 10` began with "3600s", the longest that such a run may take.
#[test]
fn a_run_of_so_many_requests_is_called_so() {
    let url = format!("http://{}/", server(HELLO));
    for (more, said) in [
        (&[][..], "thread, 10 requests\n"),
        (&["-d", "30s"], "10 requests, 30s at most"),
    ] {
        let words = [&["http", &url, "-n", "10", "--connections", "1"], more].concat();
        let out = String::from_utf8(load(&words).stdout).unwrap();
        assert!(out.contains(said) && !out.contains("3600"), "{out}");
    }
}
