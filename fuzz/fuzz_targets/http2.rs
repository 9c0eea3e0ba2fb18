//! Any bytes as an HTTP/2 connection. After an even first byte, the rest is the peer's output;
//! after an odd one, it selects the peer's frames and the owner's calls between them.

#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use http2::{
    Endpoint, EndpointLimits, ErrorCode, PREFACE, ReplyHead, RequestHead, StreamEvent, StreamKey,
    encode_literals,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else {
        return;
    };
    if rest.len() > 4096 {
        return;
    }
    if mode.is_multiple_of(2) {
        same_at_any_cut(rest);
    } else {
        play(rest);
    }
});

struct World {
    endpoint: Endpoint,
    head: RequestHead,
    out: Vec<u8>,
    held: Vec<u8>,
    now: Instant,
    events: Vec<StreamEvent>,
    streams: Vec<StreamKey>,
    /// Send windows of the connection and of each stream.
    windows: BTreeMap<u32, i64>,
}

impl World {
    fn new(now: Instant) -> World {
        let limits = Arc::new(EndpointLimits {
            streams_max: 8,
            body_len_max: 1000,
            head_len_max: 1000,
            ..EndpointLimits::default()
        });
        let mut out = Vec::new();
        let mut world = World {
            endpoint: Endpoint::new(limits, now, &mut out),
            head: RequestHead::new(1000, 20),
            out,
            held: Vec::new(),
            now,
            events: Vec::new(),
            streams: Vec::new(),
            windows: BTreeMap::from([(0, 65_535)]),
        };
        world.deliver(PREFACE);
        world.deliver(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        world
    }

    fn deliver(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let mut used = 0;
        loop {
            let input = &self.held[used..];
            let taken = self.endpoint.receive(input, self.now, &mut self.head, &mut self.out);
            used += taken.used;
            let Some(event) = taken.event else {
                break;
            };
            self.events.push(event);
            match event {
                StreamEvent::Request { stream, .. } | StreamEvent::HeadTooLong { stream } => {
                    assert!(stream.slot() < 8);
                    self.streams.push(stream);
                }
                StreamEvent::Reset { stream, .. } => self.streams.retain(|key| *key != stream),
                _ => {}
            }
        }
        self.held.drain(..used);
        assert!(self.held.len() <= 9 + 16_384);
        assert!(self.endpoint.allocated_len() < 64 * 1024);
    }

    fn reply(&mut self, stream: StreamKey, body_len: u64) {
        let head = ReplyHead { status: 200, ..ReplyHead::default() };
        self.endpoint.reply(stream, &head, body_len, &mut self.out);
    }

    /// Reads the output as frames.
    fn check(&mut self) {
        let mut rest = &self.out[..];
        while let [a, b, c, kind, _, id @ ..] = rest {
            let len = u32::from_be_bytes([0, *a, *b, *c]);
            assert!(len <= 16_384);
            let id = u32::from_be_bytes(*id.first_chunk().expect("a whole head"));
            rest = &rest[9..];
            if *kind == 0 {
                for of in [0, id] {
                    let window = self.windows.entry(of).or_insert(65_535);
                    *window -= i64::from(len);
                    assert!(*window >= 0, "beyond the window of {of}");
                }
            }
            rest = rest.get(len as usize..).expect("a whole frame");
        }
        assert!(rest.is_empty());
        self.out.clear();
    }
}

/// Checks that cuts do not matter as long as the owner only replies.
fn same_at_any_cut(input: &[u8]) {
    let now = Instant::now();
    let mut whole = None;
    for len in [4096, 1, 3, 10] {
        let mut world = World::new(now);
        for part in input.chunks(len) {
            world.deliver(part);
        }
        for stream in std::mem::take(&mut world.streams) {
            world.reply(stream, 0);
        }
        let seen = (world.out.clone(), world.events.clone(), world.endpoint.take_counters());
        world.check();
        assert_eq!(&seen, whole.get_or_insert(seen.clone()));
    }
}

/// Plays frames of the peer and calls of the owner, five bytes each.
fn play(input: &[u8]) {
    let mut world = World::new(Instant::now());
    let mut next_id = 1;
    for act in input.chunks_exact(5) {
        let [what, a, b, c, d] = *act else {
            return;
        };
        let stream = world.streams.get(usize::from(a)).copied();
        match (what, stream) {
            (0..64, _) => {
                let path = "/x".repeat(b.into());
                let fields: [(&[u8], &[u8]); 4] = [
                    (b":method", b"GET"),
                    (b":scheme", b"http"),
                    (b":path", path.as_bytes()),
                    (b":authority", b"a"),
                ];
                let block = encode_literals(fields);
                world.deliver(&frame(1, 4 | (c & 1), next_id, &block));
                next_id += 2;
            }
            (64..96, Some(stream)) => {
                world.streams.retain(|key| *key != stream);
                world.reply(stream, u64::from(b) << (c % 20));
            }
            (96..104, Some(stream)) => world.endpoint.pause(stream),
            (104..112, Some(stream)) => world.endpoint.resume(stream),
            (112..116, Some(stream)) => {
                world.streams.retain(|key| *key != stream);
                world.endpoint.reset(stream, ErrorCode(c.into()), &mut world.out);
            }
            (116..118, _) => world.endpoint.drain(&mut world.out),
            (118..150, _) => {
                let len_max = 1 + (u64::from(b) << (c % 16));
                while let Some(mut piece) = world.endpoint.next_piece(len_max) {
                    while let Some(len) = world.endpoint.write_frame(&mut piece, &mut world.out) {
                        let end = world.out.len() + len as usize;
                        world.out.resize(end, 0);
                    }
                }
            }
            (150..180, _) => {
                let id = u32::from(a);
                let increment = u32::from(b) << (c % 24);
                let window = world.windows.entry(id).or_insert(65_535);
                *window += i64::from(increment);
                world.deliver(&frame(8, 0, id, &increment.to_be_bytes()));
            }
            // Any type and flags, on a stream nearby.
            _ => world.deliver(&frame(a % 18, b, u32::from(c % 32), &vec![d; (d % 16).into()])),
        }
        world.check();
    }
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let [_, len @ ..] = (payload.len() as u32).to_be_bytes();
    let head = [&len[..], &[kind, flags], &id.to_be_bytes()].concat();
    [&head, payload].concat()
}
