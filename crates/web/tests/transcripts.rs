//! Plays every transcript against a session: whole, byte by byte, and at random cuts.

extern crate weftwork_web as web;

mod transcript;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use session::replay::{Cutting, Script, replay, run};
use transcript::{Ending, Transcript, parse_file};
use web::{Handle, Peer, ServiceConfig, Session};

/// A site in a temporary directory of its own.
struct World {
    handle: Arc<Handle>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        transcript::make_site(dir.path()).unwrap();
        let handle = transcript::open(dir.path(), ServiceConfig::default()).unwrap();
        let world = World { handle, _dir: dir };
        let exchange = |request: &[u8]| run(world.session(), request, Cutting::Whole).replied;
        let is_made = |_: &u32| {
            thread::sleep(Duration::from_millis(2));
            transcript::has_variants(exchange)
        };
        assert!((0..10_000).find(is_made).is_some(), "made.css never comes compressed");
        world
    }

    fn session(&self) -> Session {
        Session::new(self.handle.clone(), Peer::Unix)
    }

    fn etag(&self, path: &str, coding: Option<&str>) -> String {
        let request = transcript::etag_request(path, coding);
        let outcome = run(self.session(), &request, Cutting::Whole);
        transcript::etag_in(&outcome.replied).unwrap_or_else(|| panic!("{path} has no ETag"))
    }

    fn play(&self, transcript: &Transcript) -> Result<(), String> {
        // Printed if the replay panics.
        eprintln!("{}", transcript.name);
        let sent = transcript.sent(|path, coding| self.etag(path, coding));
        let script = Script::new().send(&sent);
        let outcome = replay(
            || self.session(),
            &if transcript.ending == Ending::Waits { script } else { script.closed() },
        );
        transcript.check(&outcome.replied)
    }
}

#[test]
fn transcripts_at_any_cut() {
    let world = World::new();
    let transcripts = transcript::all();
    assert!(transcripts.len() > 100, "only {} transcripts", transcripts.len());
    let failures: Vec<_> = transcripts.iter().filter_map(|t| world.play(t).err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        transcripts.len(),
        failures.join("\n")
    );
}

/// A file of one transcript.
const TEXT: &str = "# of nothing\n\n== one\n# why\nGET /{ab*3} {etag:/x br}\nraw\\0\\x41\\\n---\n\
                    HTTP/1.1 200 OK\nDate: {date}\nContent-Length: 5\n...\n\nab\\n\\r\\\nc\\\n\
                    HTTP/1.1 304 Not Modified\n\n--- closed\n";

#[test]
fn a_transcript_is_read() {
    let [one] = &parse_file("file", TEXT)[..] else { panic!("not one") };
    assert_eq!((one.name.as_str(), one.ending), ("file: one", Ending::Closed));
    let sent = one.sent(|path, coding| format!("<{path} {coding:?}>"));
    assert_eq!(sent, b"GET /ababab </x Some(\"br\")>\r\nraw\0A");
}

#[test]
fn reply_compares_line_by_line() {
    let [one] = &parse_file("file", TEXT)[..] else { panic!("not one") };
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let reply = |head: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}HTTP/1.1 304 Not Modified\r\n\r\n")
    };
    let good = format!("X: y\r\nContent-Length: 5\r\nDate: {date}\r\n");
    assert_eq!(one.check(reply(&good, "ab\n\rc").as_bytes()), Ok(()));
    let undated = "Date: soon\r\nContent-Length: 5\r\n";
    assert!(one.check(reply(undated, "ab\n\rc").as_bytes()).is_err());
    assert!(one.check(reply(&good, "ab\n\rd").as_bytes()).is_err());
    assert!(one.check(reply(&good, "ab\n\rcX").as_bytes()).is_err());
}
