//! Small servers on threads with known behaviour, and plans against them.

#![allow(dead_code)] // Each test file uses a part.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use load::plan::{Arrivals, Cache, CacheProtocol, Choice, Http, Io, Page, Stage, Workload};
use load::{Outcome, Plan, Tally};
use rustix::net::sockopt::set_tcp_cork;

/// A listening server; its threads end with their connections.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicU64>,
    pub(crate) requests: Arc<AtomicU64>,
}

/// Fate of the connection after a handler.
#[derive(PartialEq)]
pub(crate) enum Then {
    Keep,
    Close,
}

/// Serves HTTP: `handler` gets a request's first line and its number on the connection, and writes
/// the reply.
pub(crate) fn http_server(
    handler: impl Fn(&str, u64, &mut TcpStream) -> Then + Send + Sync + 'static,
) -> Server {
    server(move |mut stream, requests| {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        for number in 0.. {
            let Some(first) = head(&mut lines) else {
                return;
            };
            requests.fetch_add(1, Ordering::SeqCst);
            if handler(&first, number, &mut stream) == Then::Close {
                return;
            }
        }
    })
}

/// Reads a request's head and body; returns the first line.
fn head(lines: &mut impl BufRead) -> Option<String> {
    let (mut first, mut line, mut body_bytes) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            body_bytes = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            let mut body = vec![0; body_bytes];
            lines.read_exact(&mut body).ok()?;
            return Some(first);
        }
        if first.is_empty() {
            first = line.trim_end().to_owned();
        }
    }
}

/// Serves anything.
pub(crate) fn server(serve: impl Fn(TcpStream, &AtomicU64) + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicU64::new(0));
    let requests = Arc::new(AtomicU64::new(0));
    let connections_too = connections.clone();
    let requests_too = requests.clone();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            connections.fetch_add(1, Ordering::SeqCst);
            stream.set_nodelay(true).unwrap();
            let serve = serve.clone();
            let requests = requests.clone();
            thread::spawn(move || serve(stream, &requests));
        }
    });
    Server { address, connections: connections_too, requests: requests_too }
}

/// A whole reply with this body.
pub(crate) fn reply(stream: &mut TcpStream, body: &[u8]) -> Then {
    let mut bytes =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    send(stream, &bytes)
}

/// Sends a reply, and the end of the connection in the same segment, so no thread must run between.
pub(crate) fn reply_and_end(stream: &mut TcpStream, body: &[u8]) -> Then {
    set_tcp_cork(&*stream, true).unwrap();
    reply(stream, body);
    let _ = stream.shutdown(Shutdown::Write);
    Then::Close
}

pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) -> Then {
    match stream.write_all(bytes) {
        Ok(()) => Then::Keep,
        Err(_) => Then::Close,
    }
}

/// A plan of GET requests for these paths, in turn; short, over both back ends where it matters.
pub(crate) fn http_plan(address: SocketAddr, paths: &[&str]) -> Plan {
    let page = |path: &&str| Page::new(*path);
    Plan {
        targets: vec![address.into()],
        workload: Workload::Http(Http {
            authority: address.to_string(),
            method: "GET".to_owned(),
            pages: paths.iter().map(page).collect(),
            choice: Choice::InTurn,
            headers: Vec::new(),
            body: Arc::new([]),
            requests_per_connection: None,
        }),
        connections: 4,
        duration: Duration::from_millis(300),
        interval: Duration::from_millis(100),
        request_timeout: BOUND,
        connect_timeout: BOUND,
        ..Plan::default()
    }
}

pub(crate) fn http_of(plan: &mut Plan) -> &mut Http {
    match &mut plan.workload {
        Workload::Http(http) => http,
        _ => panic!("not an HTTP plan"),
    }
}

/// Runs the plan over io_uring, if available (the default), and over epoll.
pub(crate) fn over_both(plan: &Plan, check: impl Fn(&Outcome)) {
    for io in [Io::Auto, Io::Epoll] {
        check(&run(&Plan { io, ..plan.clone() }));
    }
}

/// Runs the plan over both back ends until enough was counted, however long that takes.
#[track_caller]
pub(crate) fn over_both_until(
    plan: &Plan,
    is_enough: impl Fn(&Tally) -> bool,
    check: impl Fn(&Outcome),
) {
    for io in [Io::Auto, Io::Epoll] {
        let plan = Plan { io, duration: BOUND, ..plan.clone() };
        check(&run_until(&plan, &is_enough));
    }
}

/// Arrivals at this rate for this time, then none.
pub(crate) fn for_a_time(lasts: Duration, rate_per_s: f64) -> Arrivals {
    let stage = |per_s| Stage { lasts, from_per_s: per_s, to_per_s: per_s };
    Arrivals::Course { stages: vec![stage(rate_per_s), stage(0.0)], poisson: false }
}

/// Longer than anything in these tests takes.
const BOUND: Duration = Duration::from_secs(60);

#[track_caller]
fn run_until(plan: &Plan, is_enough: impl Fn(&Tally) -> bool) -> Outcome {
    let stop = AtomicBool::new(false);
    let mut counted: Option<Tally> = None;
    let outcome = load::run(plan, &stop, &mut |progress| {
        if progress.is_warm_up {
            return;
        }
        let later = &progress.interval.tally;
        match &mut counted {
            Some(counted) => counted.add_later(later),
            None => counted = Some(later.clone()),
        }
        let is_over = counted.as_ref().is_some_and(&is_enough);
        stop.fetch_or(is_over, Ordering::Relaxed);
    });
    let outcome = outcome.expect("the run begins");
    assert!(outcome.stopped_early, "never enough: {:?}", outcome.total.errors);
    outcome
}

#[track_caller]
pub(crate) fn expect_no_error(outcome: &Outcome) {
    let errors = outcome.total.errors;
    assert_eq!(errors.total(), 0, "{errors:?}");
}

pub(crate) fn run(plan: &Plan) -> Outcome {
    load::run(plan, &AtomicBool::new(false), &mut |_| {}).expect("the run begins")
}

/// A memcached with the commands that the generator sends. `spoil` may change stored values.
pub(crate) fn cache_server(spoil: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> Server {
    let items: Mutex<HashMap<String, Vec<u8>>> = Mutex::default();
    server(move |mut stream, requests| {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        loop {
            line.clear();
            if lines.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            requests.fetch_add(1, Ordering::SeqCst);
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut out = Vec::new();
            match words[0] {
                "set" | "ms" => {
                    let length = if words[0] == "set" { words[4] } else { words[2] };
                    let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
                    lines.read_exact(&mut value).unwrap();
                    value.truncate(value.len() - 2);
                    spoil(&mut value);
                    items.lock().unwrap().insert(words[1].to_owned(), value);
                    out.extend_from_slice(if words[0] == "set" {
                        b"STORED\r\n"
                    } else {
                        b"HD\r\n"
                    });
                }
                "get" => {
                    for key in &words[1..] {
                        if let Some(value) = items.lock().unwrap().get(*key) {
                            write!(out, "VALUE {key} 0 {}\r\n", value.len()).unwrap();
                            out.extend_from_slice(value);
                            out.extend_from_slice(b"\r\n");
                        }
                    }
                    out.extend_from_slice(b"END\r\n");
                }
                "mg" => match items.lock().unwrap().get(words[1]) {
                    Some(value) => {
                        write!(out, "VA {} k{}\r\n", value.len(), words[1]).unwrap();
                        out.extend_from_slice(value);
                        out.extend_from_slice(b"\r\n");
                    }
                    None if words.contains(&"q") => {}
                    None => out.extend_from_slice(b"EN\r\n"),
                },
                "mn" => out.extend_from_slice(b"MN\r\n"),
                _ => out.extend_from_slice(b"ERROR\r\n"),
            }
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    })
}

pub(crate) fn cache_plan(address: SocketAddr) -> Plan {
    Plan {
        targets: vec![address.into()],
        workload: Workload::Cache(Cache {
            protocol: CacheProtocol::Text,
            set_percent: 10.0,
            keys: 1000,
            template: None,
            key_prefix: "key-".to_owned(),
            key_bytes: "uniform:20-40".parse().unwrap(),
            value_bytes: "uniform:0-10000".parse().unwrap(),
            popularity: "zipf:0.99".parse().unwrap(),
            keys_per_get: 1,
            exptime_s: 0,
            populate: true,
        }),
        connections: 4,
        duration: Duration::from_millis(300),
        interval: Duration::from_millis(100),
        request_timeout: BOUND,
        connect_timeout: BOUND,
        verify: true,
        ..Plan::default()
    }
}

pub(crate) fn cache_of(plan: &mut Plan) -> &mut Cache {
    match &mut plan.workload {
        Workload::Cache(cache) => cache,
        _ => panic!("not a cache plan"),
    }
}
