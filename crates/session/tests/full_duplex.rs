//! Replays of the full-duplex session.

extern crate weftwork_session as session;

mod mux;

use std::collections::BTreeMap;

use mux::{FRAME_LEN_MAX, HEADER_LEN, Mux, SLOW_LEN};
use session::replay::{Script, replay_sorted};

/// The replies, grouped by stream.
fn by_stream(mut replies: &[u8]) -> Vec<u8> {
    let mut streams = BTreeMap::<u32, Vec<u8>>::new();
    while let Some((stream, bytes)) = Mux::parse(replies) {
        replies = &replies[HEADER_LEN + bytes.len()..];
        streams.entry(stream).or_default().extend_from_slice(bytes);
    }
    assert!(replies.is_empty(), "{} bytes after the last frame", replies.len());
    let frames = streams.iter();
    frames.flat_map(|(stream, bytes)| Mux::frame(*stream, bytes)).collect()
}

/// Each stream gets its replies at any cut, whatever the others do and whichever work ends first.
#[test]
fn streams_are_answered_at_any_cut() {
    let mut script = Script::new().send(Mux::frame(0, b"slow 3"));
    let mut expected = Mux::frame(0, &[b'x'; 3 * SLOW_LEN]);
    for stream in 1..=12 {
        let (sent, reply) = match stream % 3 {
            0 => ("work", "worked".to_owned()),
            1 => ("ping", "ping".to_owned()),
            _ => ("slow 1", "x".repeat(SLOW_LEN)),
        };
        script = script.send(Mux::frame(stream, sent.as_bytes()));
        expected.extend(Mux::frame(stream, reply.as_bytes()));
    }
    replay_sorted(Mux::default, &script.clone().expect(&expected), by_stream);
    let ends = script.send(Mux::frame(0, b"bye")).expect(expected).closed();
    replay_sorted(Mux::default, &ends, by_stream);
}

#[test]
fn frame_without_end_is_refused() {
    let script = Script::new().send([0xff; 3 * FRAME_LEN_MAX]).closed();
    replay_sorted(Mux::default, &script, by_stream);
}
