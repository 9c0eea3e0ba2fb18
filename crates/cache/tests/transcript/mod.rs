//! Conversations as text, and a service to run them against: for tests and examples of several
//! crates.
//!
//! A file contains any number of transcripts:
//!
//! ```text
//! == name_of_the_promise
//! # why, for the reader
//! set a 0 0 1
//! x
//! ---
//! STORED
//! --- open
//! ```
//!
//! Above `---` is the client's input, below the expected reply; each line ends with CR LF, unless a
//! backslash is its last character. `\r`, `\n`, `\t`, `\0`, `\\`, `\{` and `\xHH` are as in Rust,
//! and `{x*5}` is `xxxxx`. `--- closed` at the end: the server closes. Lines that begin with `#`,
//! before the first transcript or below a name, are comments.

// Each user needs a part of it.
#![allow(dead_code)]

use std::io;
use std::sync::Arc;

use cache::store::{Config, Store};
use cache::{NoHost, Peer, Service, Settings};
use session::replay::{Script, test_now};
use session::{GiveUp, Next, Now, Outbox, Received, Session, Work};

/// Files of this crate, with their names.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("text", include_str!("../transcripts/text.txt")),
    ("meta", include_str!("../transcripts/meta.txt")),
];

/// A service over a small empty store, at the time of all replays.
///
/// # Errors
/// If the kernel refuses the store's memory.
pub(crate) fn service(settings: Settings) -> io::Result<Arc<Service>> {
    // A replay creates a service for each cut. A table of 65,536 slots would cost more than the
    // conversation.
    let store = Store::new(Config { hash_power: 4, ..Config::default() })?;
    Ok(Arc::new(Service::new(store, settings, NoHost, test_now())))
}

/// A conversation as the transcripts of [`FILES`] expect it: with its own cache, at a fixed time,
/// whatever the driver passes.
///
/// # Errors
/// If the kernel refuses the store's memory.
pub(crate) fn conversation() -> io::Result<impl Session> {
    let settings = Settings { version: "TEST".to_owned(), ..Settings::default() };
    let session = cache::Session::new(service(settings)?, Peer::Unix, test_now());
    Ok(AtTestTime(session))
}

/// A session that always sees [`test_now`].
struct AtTestTime(cache::Session);

impl Session for AtTestTime {
    type Work = WorkAtTestTime;

    fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
        self.0.receive(input, test_now(), out)
    }

    fn take_work(&mut self) -> Option<Self::Work> {
        self.0.take_work().map(WorkAtTestTime)
    }

    fn handle_worked(&mut self, work: Self::Work, _: Now, out: &mut Outbox) -> Next {
        self.0.handle_worked(work.0, test_now(), out)
    }

    fn handle_refused(&mut self, work: Self::Work, _: Now, out: &mut Outbox) -> Next {
        self.0.handle_refused(work.0, test_now(), out)
    }

    fn body_buffer(&mut self) -> &mut [u8] {
        self.0.body_buffer()
    }

    fn body_filled(&mut self, len: usize, _: Now, out: &mut Outbox) -> Next {
        self.0.body_filled(len, test_now(), out)
    }

    fn give_up(&mut self, reason: GiveUp, _: Now, out: &mut Outbox) {
        self.0.give_up(reason, test_now(), out);
    }

    fn drain(&mut self, _: Now, out: &mut Outbox) {
        self.0.drain(test_now(), out);
    }

    fn closed(&mut self, _: Now, out: &mut Outbox) {
        self.0.closed(test_now(), out);
    }
}

/// Work that always sees [`test_now`].
struct WorkAtTestTime(cache::Work);

impl Work for WorkAtTestTime {
    fn run(&mut self, _: Now) {
        self.0.run(test_now());
    }

    fn waits(&self) -> bool {
        self.0.waits()
    }

    fn begin(self, _: Now, done: Box<dyn FnOnce(Self) + Send>) {
        self.0.begin(test_now(), Box::new(|work| done(WorkAtTestTime(work))));
    }
}

/// The transcripts of a file, with their names.
///
/// # Panics
/// If the file is malformed.
pub(crate) fn parse(file: &str, text: &str) -> Vec<(String, Script)> {
    let mut transcripts = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("== ") else {
            assert!(
                line.is_empty() || line.starts_with('#'),
                "{file}: {line:?} between transcripts"
            );
            continue;
        };
        while lines.next_if(|line| line.starts_with("# ")).is_some() {}
        let mut script = Script::new();
        for line in lines.by_ref().take_while(|line| *line != "---") {
            script = script.send(bytes(line));
        }
        script = script.expect("");
        let end = loop {
            match lines.next() {
                None => panic!("{file}: {name} has no end"),
                Some(end @ ("--- open" | "--- closed")) => break end,
                Some(line) => script = script.expect(bytes(line)),
            }
        };
        if end == "--- closed" {
            script = script.closed();
        }
        transcripts.push((format!("{file}: {name}"), script));
    }
    transcripts
}

/// The bytes that a line represents.
fn bytes(line: &str) -> Vec<u8> {
    let mut bytes = unescape(line);
    let backslashes = line.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if backslashes % 2 == 0 {
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn unescape(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '{' => {
                let (inside, after) = rest.split_once('}').expect("{ without }");
                let (repeated, times) = inside.rsplit_once('*').expect("{text*times}");
                bytes.extend(unescape(repeated).repeat(times.parse().expect("a number")));
                rest = after;
            }
            '\\' if rest.is_empty() => {}
            '\\' => {
                let (byte, len) = escape(rest);
                bytes.push(byte);
                rest = &rest[len..];
            }
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// The byte that an escape represents, and its length without the backslash.
fn escape(rest: &str) -> (u8, usize) {
    match rest.as_bytes()[0] {
        b'r' => (b'\r', 1),
        b'n' => (b'\n', 1),
        b't' => (b'\t', 1),
        b'0' => (0, 1),
        c @ (b'\\' | b'{' | b'#' | b'=') => (c, 1),
        b'x' => (u8::from_str_radix(&rest[1..3], 16).expect("\\xHH"), 3),
        _ => panic!("unknown escape before {rest:?}"),
    }
}
