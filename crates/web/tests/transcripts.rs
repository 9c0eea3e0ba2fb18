//! Plays every transcript against a session: whole, byte by byte, and at random cuts.

extern crate weftwork_web as web;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use session::replay::{Cutting, Script, replay, run};
use web::transcript::{self, Ending, Transcript};
use web::{Handle, Peer, ServiceConfig, Session};

/// A site in a directory of its own, which goes when this does.
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
        // Shown if the replay panics.
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
