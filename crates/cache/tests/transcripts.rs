//! Every transcript, replayed whole, byte by byte, and cut at seeded random places.

use std::sync::Arc;

use cache::{Peer, Session, Settings, transcript};
use session::replay::{replay, test_now};

fn check(file: &str, text: &str) {
    for (name, script) in transcript::parse(file, text) {
        println!("{name}");
        let open = || {
            let settings = Settings {
                version: "TEST".to_owned(),
                ..Settings::default()
            };
            let service = transcript::service(settings).expect("a store");
            Session::new(Arc::clone(&service), Peer::Unix, test_now())
        };
        replay(open, &script);
    }
}

#[test]
fn text() {
    check("text.txt", include_str!("transcripts/text.txt"));
}

#[test]
fn meta() {
    check("meta.txt", include_str!("transcripts/meta.txt"));
}
