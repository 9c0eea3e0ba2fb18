//! Each fault of RFC 9113, in each state of a stream.

use super::world::fields;
use super::*;

/// Streams in each state:
///
/// ```text
///  1 closed, both ended   3 half-closed (remote)   5 open            7 closed, reset here
///  9 closed, by the peer  11, 13 skipped           15 half-closed (local)   from 17 on: idle
/// ```
fn world(cut: usize) -> World {
    let mut world = World::new();
    world.cut = cut;
    let one = world.open(get(1));
    world.reply(one, 1);
    world.open(get(3));
    world.open(post(5));
    let seven = world.open(post(7));
    world.endpoint.reset(seven, ErrorCode::CANCEL, &mut world.out);
    world.open(post(9));
    world.send(&frame(kind::RST_STREAM, 0, 9, &8_u32.to_be_bytes()));
    let last = world.open(post(15));
    world.reply(last, 1);
    world.said();
    world
}

/// Checks the answer to some frames, whole and byte by byte.
fn check(section: &str, frames: &[u8], expected: &str) {
    let mut whole = None;
    for cut in [0, 1, 2, 7] {
        let mut world = world(cut);
        let events = world.send(frames);
        let said = world.said().join(", ");
        assert_eq!(said, expected, "{section}, {cut} bytes at a time");
        let is_over = events.iter().any(|event| matches!(event, StreamEvent::Failed { .. }));
        assert_eq!(is_over, expected.contains("GOAWAY"), "{section}: {events:?}");
        let counters = world.endpoint.take_counters();
        let all = (events, counters);
        assert_eq!(&all, whole.get_or_insert(all.clone()), "{section}");
    }
}

const ALL_HEADERS: u8 = flag::END_HEADERS | flag::END_STREAM;

fn priority(id: u32) -> Vec<u8> {
    frame(kind::PRIORITY, 0, id, &[0, 0, 0, 0, 16])
}

fn reset(id: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, id, &8_u32.to_be_bytes())
}

#[test]
fn preface() {
    for (bytes, is_fault) in [
        (&b"PRI * HTTP/2.0\r\n"[..], false),
        (b"GET / HTTP/1.1\r\n\r\n", true),
        (b"PRI * HTTP/2.1", true),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rx", true),
    ] {
        let mut out = Vec::new();
        let now = Instant::now();
        let limits = Arc::new(EndpointLimits::default());
        let mut endpoint = Endpoint::new(limits, now, &mut out);
        let taken = endpoint.receive(bytes, now, &mut RequestHead::new(9, 9), &mut out);
        let failed = matches!(taken.event, Some(StreamEvent::Failed { .. }));
        assert_eq!(failed, is_fault, "{}", bytes.escape_ascii());
    }
    // RFC 9113 3.4: SETTINGS is the first frame.
    for first in [frame(kind::PING, 0, 0, &[0; 8]), frame(kind::SETTINGS, flag::ACK, 0, b"")] {
        let mut out = Vec::new();
        let now = Instant::now();
        let limits = Arc::new(EndpointLimits::default());
        let mut endpoint = Endpoint::new(limits, now, &mut out);
        let bytes = [PREFACE, &first].concat();
        let taken = endpoint.receive(&bytes, now, &mut RequestHead::new(9, 9), &mut out);
        assert!(matches!(taken.event, Some(StreamEvent::Failed { .. })));
    }
}

/// RFC 9113 5.1, table by table.
#[test]
fn states_and_frames() {
    let protocol = "GOAWAY 15 PROTOCOL_ERROR";
    let closed = "GOAWAY 15 STREAM_CLOSED";
    let trailers = |id| frame(kind::HEADERS, ALL_HEADERS, id, b"");
    check("5.1 idle, DATA", &data(17, 1, false), protocol);
    check("5.1 idle, RST_STREAM", &reset(17), protocol);
    check("5.1 idle, WINDOW_UPDATE", &window(17, 1), protocol);
    check("5.1 idle, PRIORITY", &priority(17), "");
    check("5.1 idle, HEADERS", &get(17), "");
    check("5.1 open, DATA", &data(5, 1, true), "");
    check("5.1 open, trailers", &trailers(5), "");
    check("5.1 open, PRIORITY", &priority(5), "");
    check("5.1 open, WINDOW_UPDATE", &window(5, 1), "");
    check("5.1 open, RST_STREAM", &reset(5), "");
    let late = "RST_STREAM 3 STREAM_CLOSED";
    check("5.1 half-closed (remote), DATA", &data(3, 1, false), late);
    check("5.1 half-closed (remote), HEADERS", &get(3), late);
    check("5.1 half-closed (remote), WINDOW_UPDATE", &window(3, 1), "");
    check("5.1 half-closed (remote), PRIORITY", &priority(3), "");
    check("5.1 half-closed (remote), RST_STREAM", &reset(3), "");
    check("5.1 half-closed (local), DATA", &data(15, 1, true), "");
    check("5.1 half-closed (local), trailers", &trailers(15), "");
    check("5.1 half-closed (local), RST_STREAM", &reset(15), "");
    check("5.1 half-closed (local), WINDOW_UPDATE", &window(15, 1), "");
    check("5.1 closed, DATA", &data(1, 1, false), closed);
    check("5.1 closed, HEADERS", &get(1), closed);
    check("5.1 closed, WINDOW_UPDATE", &window(1, 1), "");
    check("5.1 closed, PRIORITY", &priority(1), "");
    check("5.1 closed, RST_STREAM", &reset(1), "");
    check("5.1 closed by us, DATA", &data(7, 1, true), "");
    check("5.1 closed by us, HEADERS", &get(7), "");
    check("5.1 closed by us, WINDOW_UPDATE", &window(7, 1), "");
    check("5.1 closed by us, RST_STREAM", &reset(7), "");
    check("5.1 closed by the peer, DATA", &data(9, 1, true), closed);
    check("5.1 closed by the peer, HEADERS", &get(9), closed);
    check("5.1.1 skipped, HEADERS", &get(11), protocol);
    check("5.1.1 skipped, DATA", &data(13, 1, true), closed);
    check("5.1.1 even, HEADERS", &get(18), protocol);
    check("5.1.1 even, DATA", &data(2, 1, true), protocol);
    check("5.1.1 the last identifier", &get(U31_MAX), "");
}

#[test]
fn frame_sizes() {
    let size = "GOAWAY 15 FRAME_SIZE_ERROR";
    let protocol = "GOAWAY 15 PROTOCOL_ERROR";
    check("4.2 DATA", &frame(kind::DATA, 0, 5, &[0; 16_385]), size);
    check("4.2 unknown", &frame(99, 0, 5, &[0; 16_385]), size);
    check("4.2 the longest", &frame(99, 0, 5, &[0; 16_384]), "");
    check("6.1 padding", &frame(kind::DATA, flag::PADDED, 5, b""), size);
    check("6.1 padding", &frame(kind::DATA, flag::PADDED, 5, b"\x02x"), protocol);
    check("6.1 padding", &frame(kind::DATA, flag::PADDED, 5, b"\x01\x00"), "");
    check("6.2 padding", &frame(kind::HEADERS, flag::PADDED, 17, b""), size);
    check("6.2 padding", &frame(kind::HEADERS, flag::PADDED, 17, b"\x01"), protocol);
    check("6.2 priority", &frame(kind::HEADERS, flag::PRIORITY, 17, b"four"), size);
    let four = frame(kind::PRIORITY, 0, 5, b"four");
    check("6.3 PRIORITY", &four, "RST_STREAM 5 FRAME_SIZE_ERROR");
    check("6.3 PRIORITY, idle", &frame(kind::PRIORITY, 0, 17, b"four"), size);
    check("6.4 RST_STREAM", &frame(kind::RST_STREAM, 0, 5, b"123"), size);
    check("6.5 SETTINGS", &frame(kind::SETTINGS, 0, 0, b"12345"), size);
    check("6.5 SETTINGS, ACK", &frame(kind::SETTINGS, flag::ACK, 0, b"123456"), size);
    check("6.7 PING", &frame(kind::PING, 0, 0, b"1234567"), size);
    check("6.8 GOAWAY", &frame(kind::GOAWAY, 0, 0, b"1234567"), size);
    check("6.9 WINDOW_UPDATE", &frame(kind::WINDOW_UPDATE, 0, 5, b"12345"), size);
    check("9218 7.1", &frame(kind::PRIORITY_UPDATE, 0, 0, b"123"), size);
}

#[test]
fn frames_on_the_wrong_stream() {
    let protocol = "GOAWAY 15 PROTOCOL_ERROR";
    check("6.1", &frame(kind::DATA, 0, 0, b""), protocol);
    check("6.2", &frame(kind::HEADERS, ALL_HEADERS, 0, b""), protocol);
    check("6.3", &frame(kind::PRIORITY, 0, 0, &[0; 5]), protocol);
    check("6.4", &frame(kind::RST_STREAM, 0, 0, &[0; 4]), protocol);
    check("6.5", &frame(kind::SETTINGS, 0, 5, b""), protocol);
    check("6.6", &frame(kind::PUSH_PROMISE, flag::END_HEADERS, 5, &[0; 4]), protocol);
    check("6.7", &frame(kind::PING, 0, 5, &[0; 8]), protocol);
    check("6.8", &frame(kind::GOAWAY, 0, 5, &[0; 8]), protocol);
    check("6.10", &frame(kind::CONTINUATION, 0, 0, b""), protocol);
    check("9218 7.1", &frame(kind::PRIORITY_UPDATE, 0, 5, b"\0\0\0\x05u=1"), protocol);
    check("9218 7.1, 0", &frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\0u=1"), protocol);
    check("9218 7.1, even", &frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x02u=1"), protocol);
    check("9218 7.1, closed", &frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"), "");
}

#[test]
fn values_of_settings() {
    let one = |id, value| settings(&[(id, value)]);
    let protocol = "GOAWAY 15 PROTOCOL_ERROR";
    let window = "GOAWAY 15 FLOW_CONTROL_ERROR";
    let known = "SETTINGS ACK";
    check("6.5.2 push", &one(setting::ENABLE_PUSH, 2), protocol);
    check("6.5.2 push", &one(setting::ENABLE_PUSH, 1), known);
    check("6.5.2 window", &one(setting::INITIAL_WINDOW_SIZE, 1 << 31), window);
    check("6.5.2 window", &one(setting::INITIAL_WINDOW_SIZE, U31_MAX), known);
    check("6.5.2 frame", &one(setting::MAX_FRAME_SIZE, 16_383), protocol);
    check("6.5.2 frame", &one(setting::MAX_FRAME_SIZE, 1 << 24), protocol);
    check("6.5.2 frame", &one(setting::MAX_FRAME_SIZE, (1 << 24) - 1), known);
    check("6.5.2 unknown", &one(0xaaaa, 7), known);
    check("9218 2.1", &one(setting::NO_RFC7540_PRIORITIES, 2), protocol);
    // RFC 9113 6.9.2: the change makes a window too large.
    let both = [super::window(5, 1), one(setting::INITIAL_WINDOW_SIZE, U31_MAX)].concat();
    check("6.9.2", &both, window);
}

#[test]
fn windows() {
    let protocol = "GOAWAY 15 PROTOCOL_ERROR";
    check("6.9 by 0", &window(0, 0), protocol);
    check("6.9 by 0", &window(5, 0), "RST_STREAM 5 PROTOCOL_ERROR");
    check("6.9.1", &window(0, U31_MAX), "GOAWAY 15 FLOW_CONTROL_ERROR");
    check("6.9.1", &window(5, U31_MAX), "RST_STREAM 5 FLOW_CONTROL_ERROR");
    check("6.9.1", &window(5, U31_MAX - 65_535), "");
    check("6.9 the reserved bit", &window(5, 1 << 31 | 1), "");
}

/// RFC 9113 6.9.1: a peer that ignores windows.
#[test]
fn data_beyond_a_window() {
    let mut limits = World::with(|limits| limits.body_len_max = 1);
    limits.open(post(1));
    // The stream gets no further window: 65,535 bytes are all.
    for _ in 0..3 {
        limits.send(&data(1, 16_384, false));
    }
    limits.send(&data(1, 16_383, false));
    limits.said();
    limits.send(&data(1, 1, false));
    assert_eq!(limits.said(), ["RST_STREAM 1 FLOW_CONTROL_ERROR"]);
}

/// RFC 9113 4.3, 6.10.
#[test]
fn header_blocks_are_contiguous() {
    let protocol = "GOAWAY 15 PROTOCOL_ERROR";
    let open = frame(kind::HEADERS, flag::END_STREAM, 17, b"");
    let then = |next: Vec<u8>| [open.clone(), next].concat();
    let continuation = |id| frame(kind::CONTINUATION, flag::END_HEADERS, id, b"");
    check("6.10 alone", &continuation(5), protocol);
    check("6.10 another stream", &then(continuation(5)), protocol);
    check("4.3 another frame", &then(priority(17)), protocol);
    check("4.3 an unknown frame", &then(frame(99, 0, 17, b"")), protocol);
    check("4.3 HEADERS again", &then(open.clone()), protocol);
    let after = [get(17), continuation(17)].concat();
    check("6.10 after its end", &after, "GOAWAY 17 PROTOCOL_ERROR");
    let broken = frame(kind::HEADERS, ALL_HEADERS, 17, &[0x80]);
    check("4.3 compression", &broken, "GOAWAY 15 COMPRESSION_ERROR");
    // The block is decoded for its table although the stream is over.
    let broken = frame(kind::HEADERS, ALL_HEADERS, 7, &[0x80]);
    check("4.3 compression", &broken, "GOAWAY 15 COMPRESSION_ERROR");
}

/// RFC 9113 8.1.1.
#[test]
fn malformed_requests_are_reset() {
    let reset = "RST_STREAM 17 PROTOCOL_ERROR";
    check("8.2.1", &headers(17, true, &[("Upper", "x")]), reset);
    check("8.2.1", &headers(17, true, &[("x", "a\nb")]), reset);
    check("8.2.2", &headers(17, true, &[("connection", "close")]), reset);
    check("8.2.2", &headers(17, true, &[("te", "gzip")]), reset);
    check("8.3", &headers(17, true, &[(":path", "/")]), reset);
    check("8.3", &headers(17, true, &[(":x", "/")]), reset);
    check("8.3.1", &fields(17, true, &[(":method", "GET"), (":path", "/")]), reset);
    check("8.1.1", &headers(17, true, &[("content-length", "1")]), reset);
    check("8.1.1", &headers(17, true, &[("content-length", "x")]), reset);
    let reset = "RST_STREAM 5 PROTOCOL_ERROR";
    check("8.1 trailers", &fields(5, true, &[(":path", "/")]), reset);
    check("8.1 trailers", &fields(5, true, &[("X", "/")]), reset);
    check("8.1 trailers", &fields(5, true, &[("connection", "x")]), reset);
    check("8.1 trailers without an end", &fields(5, false, &[("x", "y")]), reset);
    check("8.1 trailers", &fields(5, true, &[("x", "y")]), "");
    let own = frame(kind::PRIORITY, 0, 5, &[0, 0, 0, 5, 0]);
    check("RFC 7540 5.3.1", &own, reset);
    let payload = [&[0, 0, 0, 17, 0][..], &get(17)[9..]].concat();
    let own = frame(kind::HEADERS, ALL_HEADERS | flag::PRIORITY, 17, &payload);
    check("RFC 7540 5.3.1", &own, "RST_STREAM 17 PROTOCOL_ERROR");
}

#[test]
fn forgotten_streams() {
    let mut world = World::new();
    let first = world.open(post(1));
    for at in 1..130 {
        let key = world.open(get(2 * at + 1));
        world.reply(key, 0);
    }
    let code = ErrorCode::NO_ERROR;
    world.endpoint.reset(first, code, &mut world.out);
    world.said();
    assert_eq!(world.send(&data(1, 1, true)), [], "it may not know yet");
    assert_eq!(world.said(), [""; 0]);
    world.send(&get(1));
    assert_eq!(world.said(), ["GOAWAY 259 PROTOCOL_ERROR"]);
    let mut history = History::default();
    history.open(1);
    history.open(1001);
    assert_eq!((history.of(1), history.of(999)), (Past::Forgotten, Past::Skipped));
}
