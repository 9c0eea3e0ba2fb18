//! HTTP/2: many requests on a connection, and input that is read while output waits.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serve::Engine;

use super::World;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;

/// Requests and a PING during a large reply; then a drain.
pub(super) fn a_large_stream_does_not_hold_up_others(engine: &Engine) {
    let world = World::new(engine);
    let large = world.make_large_file();
    let mut stream = world.connect();
    let window = (1_u32 << 30).to_be_bytes();
    let settings = [&[0, 4][..], &window].concat();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(SETTINGS, 0, 0, &settings));
    sent.extend(frame(WINDOW_UPDATE, 0, 0, &window));
    sent.extend(request(1, "/large.bin"));
    stream.write_all(&sent).unwrap();
    let mut bodies = BTreeMap::<u32, Vec<u8>>::new();
    let mut said = Vec::new();
    let mut large_len = 0;
    while said.len() < 4 {
        let (kind, flags, id, payload) = read_frame(&mut stream);
        if kind == DATA {
            bodies.entry(id).or_default().extend(payload);
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 || kind == PING {
            said.push((kind, id));
        }
        let len = bodies.get(&1).map_or(0, Vec::len);
        if large_len < 1_000_000 && len >= 1_000_000 {
            let more = [request(3, "/hello.txt"), frame(PING, 0, 0, &[7; 8]), request(5, "/dir/")];
            stream.write_all(&more.concat()).unwrap();
        }
        large_len = len;
    }
    assert!(bodies[&1] == large);
    assert_eq!(bodies[&3], b"hello\n");
    // A pipeline reads input only after all output is sent.
    if !matches!(engine, Engine::Pipeline(_)) {
        assert_eq!(said.last(), Some(&(DATA, 1)));
    }
    said.sort_unstable();
    assert_eq!(said, [(DATA, 1), (DATA, 3), (DATA, 5), (PING, 0)]);
    // A connection without streams ends as soon as both ends know of the drain.
    let drain = std::thread::scope(|scope| {
        let drain = scope.spawn(|| world.server.drain());
        let (kind, ..) = read_frame(&mut stream);
        assert_eq!(kind, GOAWAY);
        drain.join().unwrap()
    });
    assert_eq!(drain, 0, "cut");
}

/// Seen: h2spec's PING after its GOAWAY met a closed socket, whose reset may overtake replies.
pub(super) fn a_client_that_leaves_may_still_send(engine: &Engine) {
    let world = World::new(engine);
    let mut stream = world.connect();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(SETTINGS, 0, 0, &[]));
    sent.extend(request(1, "/hello.txt"));
    sent.extend(frame(GOAWAY, 0, 0, &[0; 8]));
    stream.write_all(&sent).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert!(received.windows(6).any(|part| part == b"hello\n"));
    for _ in 0..2 {
        stream.write_all(&frame(PING, 0, 0, &[7; 8])).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// Seen: on a kernel thread a client that closed its sending side after its request got no reply,
/// unless the file was in the site's table.
pub(super) fn half_closed_streams_get_their_replies(engine: &Engine) {
    let world = World::new(engine);
    // None of these files is in the table yet.
    for nth in 0..4 {
        std::fs::write(world.directory.path().join(format!("{nth}.txt")), "half\n").unwrap();
        let mut stream = world.connect();
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frame(SETTINGS, 0, 0, &[]));
        sent.extend(request(1, &format!("/{nth}.txt")));
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received.windows(5).any(|part| part == b"half\n"), "the file {nth}");
    }
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// HEADERS of a GET: two fields of the static table, `:authority` and `:path` as literals.
fn request(id: u32, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x01, 1, b'x', 0x04, path.len() as u8];
    block.extend(path.bytes());
    frame(HEADERS, END_STREAM | 4, id, &block)
}

/// Type, flags, stream and payload of the next frame.
fn read_frame(stream: &mut TcpStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    let [len @ .., kind, flags, a, b, c, d] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, len[0], len[1], len[2]]) as usize];
    stream.read_exact(&mut payload).unwrap();
    (kind, flags, u32::from_be_bytes([a, b, c, d]), payload)
}
