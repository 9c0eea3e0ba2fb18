//! The examples compile, and do what their comments say.

extern crate weftwork_fiber as fiber;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fiber::net::{TcpListener, TcpStream};

mod closed_port;

#[path = "../examples/chat.rs"]
#[expect(dead_code, reason = "main is for those who run it")]
mod chat;
#[path = "../examples/echo.rs"]
#[expect(dead_code, reason = "main is for those who run it")]
mod echo;
#[path = "../examples/port_scanner.rs"]
#[expect(dead_code, reason = "main is for those who run it")]
mod port_scanner;
#[path = "../examples/producer_consumer.rs"]
#[expect(dead_code, reason = "main is for those who run it")]
mod producer_consumer;
#[path = "../examples/proxy.rs"]
#[expect(dead_code, reason = "main is for those who run it")]
mod proxy;
#[path = "../examples/static_files.rs"]
#[expect(dead_code, reason = "main is for those who run it")]
mod static_files;

/// A listener, and its address.
fn listen() -> (Arc<TcpListener>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Arc::new(listener), address)
}

/// Starts an echo server.
fn start_echo() -> SocketAddr {
    let (listener, address) = listen();
    fiber::spawn(move || echo::serve(&listener));
    address
}

/// Sends the words, ends the sending, and reads the rest.
fn talk(address: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(words).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    heard
}

#[test]
fn an_echo_comes_back() {
    fiber::run(|| assert_eq!(talk(start_echo(), b"hello"), b"hello"));
}

#[test]
fn a_proxy_passes_both_directions_on() {
    fiber::run(|| {
        let (listener, address) = listen();
        let upstream = start_echo();
        fiber::spawn(move || proxy::serve(&listener, upstream));
        let words = vec![b'x'; 300_000];
        assert_eq!(talk(address, b"hello"), b"hello");
        assert_eq!(talk(address, &words).len(), words.len());
    });
}

#[test]
fn a_chat_tells_the_others() {
    fiber::run(|| {
        let (listener, address) = listen();
        fiber::spawn(move || chat::serve(&listener));
        let first = TcpStream::connect(address).unwrap();
        let mut heard = BufReader::new(&first).lines().map(Result::unwrap);
        // Again and again: the first may enter the room after the second.
        let is_heard = Arc::new(AtomicBool::new(false));
        let enough = Arc::clone(&is_heard);
        let second = fiber::spawn(move || {
            let mut second = TcpStream::connect(address).unwrap();
            while !enough.load(Ordering::Relaxed) {
                second.write_all(b"hello\n").unwrap();
                fiber::sleep(Duration::from_millis(1));
            }
        });
        assert!(heard.any(|line| line.ends_with(": hello")));
        is_heard.store(true, Ordering::Relaxed);
        second.join().unwrap();
        assert!(heard.any(|line| line.ends_with(": left")));
    });
}

#[test]
fn files_are_served_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let content = "words ".repeat(100_000);
    std::fs::write(root.path().join("a.txt"), &content).unwrap();
    let path = root.path().to_path_buf();
    fiber::run(move || {
        let (listener, address) = listen();
        fiber::spawn(move || static_files::serve(&listener, path));
        let get = |request: &str| String::from_utf8(talk(address, request.as_bytes())).unwrap();
        let (head, body) = (get("GET /a.txt HTTP/1.0\r\n\r\n"), content);
        let (head, got) = head.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200 ") && got == body);
        assert!(get("GET /b.txt HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 404 "));
        assert!(get("GET /../a.txt HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 400 "));
        assert!(get("GET //etc/passwd HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 400 "));
    });
}

#[test]
fn scanner_finds_open_port() {
    fiber::run(|| {
        let (_open, address) = listen();
        let closed = closed_port::closed_port();
        let ports = [address.port(), closed.address.port()];
        assert_eq!(port_scanner::scan(ports), [address.port()]);
    });
}

#[test]
fn what_is_produced_is_consumed_once() {
    let counts = fiber::run(|| producer_consumer::count_steps(1000));
    assert_eq!(counts.values().sum::<u32>(), 999);
    assert_eq!((counts[&0], counts[&1]), (1, 1), "1 is there already, and 2 is a step away");
}
