//! The contract between the laboratory and its programs: one line of JSON, the exit codes, and the
//! replies of a responder.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Output, Stdio};

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-programs"));
    command.args(words).output().unwrap()
}

#[test]
fn one_line_of_json() {
    let output = run(&["yield", "ms=10", "processors=1", "threads=4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{output:?}");
    let read: lab::Output = serde_json::from_str(&text).unwrap();
    assert!(read.ops > 0 && read.seconds > 0.0, "{text}");
}

#[test]
fn absent_program() {
    let absent = i32::from(lab::EXIT_ABSENT);
    assert_eq!(run(&["cycle", "semaphore=1", "mode=stackless"]).status.code(), Some(absent));
    assert_eq!(run(&["nosuch"]).status.code(), Some(2));
    assert_eq!(run(&[]).status.code(), Some(2));
}

/// A program that is killed at the end of a test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_way_sends_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    // More than the capacity of a pipe, a part, or a socket's buffers.
    let body: Vec<u8> = (0..9_000_001_u32).map(|at| (at % 251) as u8).collect();
    fs::write(folder.path().join("big"), &body).unwrap();
    fs::write(folder.path().join("empty"), b"").unwrap();
    for way in ["block", "yield", "poll", "splice", "splice-8", "splice-2", "read"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-programs"));
        command.args(["files", way, "0"]).arg(folder.path()).stdout(Stdio::piped());
        let mut running = Killed(command.spawn().unwrap());
        let mut said = String::new();
        BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let port: u16 = said.trim().strip_prefix("port ").unwrap().parse().unwrap();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        for (target, body) in [("/big", &body[..]), ("/empty", &[]), ("/big", &body[..])] {
            write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let mut reply = vec![0; head.len() + length];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(String::from_utf8_lossy(&reply[..head.len()]), head, "{way}");
            assert!(reply[head.len()..] == *body, "{way}: another body");
        }
        write!(stream, "GET /gone HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.starts_with("HTTP/1.1 404 "), "{way}: {rest}");
    }
}
