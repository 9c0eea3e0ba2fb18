//! `weft load` as users run it, against small servers on threads.

mod agents;
mod sessions;
mod stops;
mod sweeps;
mod verdicts;
mod words;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const MISSING: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";

/// Starts a server with a thread for each connection.
fn serve(connection: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connection = Arc::new(connection);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = Arc::clone(&connection);
            thread::spawn(move || connection(stream));
        }
    });
    address
}

/// Starts a server that answers the requests of each connection, which are counted from 0.
fn answer(
    reply: impl Fn(usize, &mut &TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    serve(move |stream| {
        let lines = BufReader::new(&stream).lines();
        let heads = lines.map_while(Result::ok).filter(String::is_empty);
        for (at, _) in heads.enumerate() {
            if reply(at, &mut &stream).is_err() {
                return;
            }
        }
    })
}

/// Starts a server that answers every request with this reply.
fn server(reply: &'static [u8]) -> SocketAddr {
    answer(move |_, stream| stream.write_all(reply))
}

/// Starts a server that answers every request with hello. Returns its URL.
fn hello() -> String {
    format!("http://{}/", server(HELLO))
}

/// The same; the receiver gets the address of each client.
fn telling_server() -> (String, Receiver<SocketAddr>) {
    let (seen, heard) = channel();
    let address = answer(move |_, stream| {
        stream.write_all(HELLO)?;
        let _ = seen.send(stream.peer_addr()?);
        Ok(())
    });
    (format!("http://{address}/"), heard)
}

/// A command with these arguments, none of which contains a space.
fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("load").args(words.split_whitespace());
    command
}

/// Runs `weft load` to its end.
fn load(words: &str) -> Output {
    command(words).output().unwrap()
}

/// The same, with an expected exit code.
fn load_to(code: i32, words: &str) -> Output {
    let output = load(words);
    assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
    output
}

/// The same, with an expected message.
fn load_says(code: i32, words: &str, hint: &str) {
    let said = said(&load_to(code, words));
    assert!(said.contains(hint), "{words}: {said}");
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_closed_loop_prints_one_screen() {
    let text = said(&load_to(0, &format!("http {} --duration 200ms --connections 4", hello())));
    for word in ["GET http://", "closed loop, 4 connections", "p99"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn one_of_each_is_told_as_one() {
    let text = said(&load_to(0, &format!("http {} -n 1 -c 1", hello())));
    assert!(text.contains("closed loop, 1 connection, 1 thread, 1 request\n"), "{text}");
}

#[test]
fn the_json_has_what_scripts_ask_for() {
    let url = hello();
    for close in ["", "--close --arrivals poisson"] {
        let output = load_to(0, &format!("http {url} --rate 200 -d 500ms --json - {close}"));
        let seen = json(&output);
        assert_eq!(seen["offered_rate_per_s"], 200.0);
        assert!(seen["achieved_rate_per_s"].as_f64().unwrap() > 0.0, "{seen}");
        assert!(seen["generator_limited"].is_boolean(), "{seen}");
        assert_eq!(seen["errors"]["refused"], 0, "{seen}");
    }
}

/// Issue 10 B. Seen: a table of zeros, zero replies per second, and a verdict about replies.
#[test]
fn report_of_idle_connections() {
    let common = format!("idle {} -c 5 -d 100ms", server(HELLO));
    let text = said(&load_to(0, &common));
    for part in ["5 of 5 connections open", "the server kept 5 idle connections open to the end"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["p99.9", "achieved", "replies", "reply"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let seen = json(&load(&format!("{common} --json -")));
    assert_eq!(seen["verdict"]["row"], "idle_held");
}

#[test]
fn latency_columns_of_each_loop() {
    let url = hello();
    for (more, has_both) in [("", false), ("--rate 100", true)] {
        let text = said(&load(&format!("http {url} -d 200ms {more}")));
        assert_eq!(text.contains("intended"), has_both, "{text}");
        let is_narrow = text.lines().all(|line| line.chars().count() <= 100);
        assert!(is_narrow, "{text}");
    }
}

#[test]
fn request_count_above_32_bits() {
    let said_of_it = "of 5,000,000,000 requests were sent before the time was over";
    load_says(0, &format!("http {} -n 5000M -d 100ms", hello()), said_of_it);
}

/// Seen: `-n 10` began with "3600s", the limit on the length of such a run.
#[test]
fn heading_names_request_count() {
    let url = hello();
    for (more, said) in [("", "thread, 10 requests\n"), ("-d 30s", "10 requests, 30s at most")] {
        let output = load(&format!("http {url} -n 10 --connections 1 {more}"));
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.contains(said) && !out.contains("3600"), "{out}");
    }
}
