//! Lists of requests: file sets, paths and logs of sessions.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::{HELLO, hello, json, load, load_says, load_to, serve};

/// Starts a server that reports each request with its body. Its URL has no path.
fn asking_server() -> (String, Receiver<String>) {
    let (seen, asked) = channel();
    let address = serve(move |stream| answer_by_method(stream, &seen));
    (format!("http://{address}"), asked)
}

/// Answers a HEAD with a length but no body. RFC 9110 9.3.2
fn answer_by_method(mut stream: TcpStream, seen: &Sender<String>) {
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
        lines.read_exact(&mut body).unwrap();
        let asked = first.trim_end().trim_end_matches("HTTP/1.1");
        seen.send(format!("{asked}{}", String::from_utf8(body).unwrap())).unwrap();
        let reply =
            if first.starts_with("HEAD") { HELLO.strip_suffix(b"hello").unwrap() } else { HELLO };
        if stream.write_all(reply).is_err() {
            return;
        }
    }
}

/// Issue 10 B. Seen: `http://host/base/ --fileset DIR` silently requested /dir00/…: the URL's path
/// was dropped. Siblings: --paths and --sessions dropped it too, and any further URLs with it.
#[test]
fn list_is_below_the_urls_folder() {
    let (host, asked) = asking_server();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let set = folder.path().join("set").display().to_string();
    load_to(0, &format!("fileset {set} --scale 0.002"));
    let made = std::fs::read_to_string(format!("{set}/fileset.tsv")).unwrap();
    let recipe = made.lines().next().unwrap();
    let manifest = format!("{recipe}\n/x\t5\t{:08x}\t1e0\n", 0x3610_a686);
    let lists = [
        format!("--fileset {}", file("list.tsv", &manifest)),
        format!("--paths {}", file("paths", "/x\n")),
        format!("--sessions {} --rate 20", file("log", "/x\n")),
    ];
    for list in &lists {
        for (url, path) in [("/", "/x"), ("", "/x"), ("/base/", "/base/x"), ("/a/b/", "/a/b/x")] {
            load_to(0, &format!("http {host}{url} -d 100ms -c 1 --verify {list}"));
            let asked: Vec<String> = asked.try_iter().collect();
            assert!(!asked.is_empty());
            let wanted = format!("GET {path} ");
            assert!(asked.iter().all(|one| *one == wanted), "{list} {url}: {asked:?}");
        }
        for urls in ["/x", "/base/?q=/", "/ URL/"] {
            let urls = urls.replace("URL", &host);
            let words = format!("http {host}{urls} -d 100ms {list}");
            load_says(2, &words, "the URL of the folder");
        }
    }
}

#[test]
fn sessions_send_methods_and_bodies() {
    let (host, asked) = asking_server();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let text = "/form method=POST contents='name=a b&n=1\\nend'\n/new method=PUT contents=data think=0\n\
                \x20   /size method=HEAD\n    /page\n/gone method=DELETE\n";
    std::fs::write(&log, text).unwrap();
    let common = format!("http {host}/ --sessions {} --rate 1", log.display());
    // A session without think times is not cut, however long it takes.
    let report = json(&load_to(0, &format!("{common} -d 200ms --json -")));
    assert_eq!((&report["sessions"], &report["errors"]["total"]), (&1.into(), &0.into()));
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
    load_to(2, &format!("{common} --method POST"));
}

#[test]
fn session_logs_are_played() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    std::fs::write(&log, "/a think=0.01\n    /b\n/c\n\n/d\n").unwrap();
    let sessions = format!("--sessions {} --rate 20", log.display());
    let output = load_to(0, &format!("http {} {sessions} -d 300ms --json -", hello()));
    let report = json(&output);
    assert_eq!(report["errors"]["short_reply"], 0);
    // The two sessions alternate; a busy machine may cut the last ones off.
    assert_eq!(report["intended"], 6);
    assert!(report["sessions"].as_u64() > Some(0));
}

#[test]
fn sets_and_logs_are_made_and_played() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().display();
    load_says(0, &format!("fileset {below}/set --scale 0.002"), "100 %");
    load_to(0, &format!("traces {below}/set {below}/logs --logs 2 --requests 50"));
    let sessions = format!("--sessions {below}/logs/session-01.log --rate 50");
    let output = load(&format!("http {} {sessions} -d 300ms --json -", hello()));
    assert!(json(&output)["replies"].as_u64().unwrap() > 0);
}
