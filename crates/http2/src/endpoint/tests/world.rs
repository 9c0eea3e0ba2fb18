//! A scripted client in virtual time.

use std::collections::BTreeMap;

use super::*;
use crate::hpack::encode_literals;

pub(super) struct World {
    pub(super) endpoint: Endpoint,
    pub(super) head: RequestHead,
    pub(super) out: Vec<u8>,
    pub(super) now: Instant,
    held: Vec<u8>,
    /// Bytes delivered at a time; 0 delivers all at once.
    pub(super) cut: usize,
    taken: BTreeMap<u32, usize>,
}

impl World {
    /// A connection after the preface and SETTINGS of both sides.
    pub(super) fn new() -> World {
        World::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut EndpointLimits)) -> World {
        let mut limits = EndpointLimits::default();
        change(&mut limits);
        let mut out = Vec::new();
        let now = Instant::now();
        let head = RequestHead::new(limits.head_len_max as usize, limits.fields_max);
        let mut world = World {
            endpoint: Endpoint::new(Arc::new(limits), now, &mut out),
            head,
            out,
            now,
            held: Vec::new(),
            cut: 0,
            taken: BTreeMap::new(),
        };
        world.send(&[PREFACE, &settings(&[])].concat());
        assert_eq!(world.said(), ["SETTINGS", "SETTINGS ACK"]);
        world
    }

    /// Delivers bytes, and returns the events.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Vec<StreamEvent> {
        let len = if self.cut == 0 { bytes.len() } else { self.cut };
        let mut events = Vec::new();
        for part in bytes.chunks(len.max(1)) {
            self.held.extend_from_slice(part);
            let mut used = 0;
            loop {
                let input = &self.held[used..];
                let out = &mut self.out;
                let taken = self.endpoint.receive(input, self.now, &mut self.head, out);
                used += taken.used;
                match taken.event {
                    Some(event) => events.push(event),
                    None => break,
                }
            }
            self.held.drain(..used);
        }
        events
    }

    /// Delivers a request, which must be accepted.
    pub(super) fn open(&mut self, bytes: Vec<u8>) -> StreamKey {
        match self.send(&bytes)[..] {
            [StreamEvent::Request { stream, .. }] => stream,
            ref other => panic!("{other:?}"),
        }
    }

    /// Replies with a head.
    pub(super) fn answer(&mut self, stream: StreamKey, body_len: u64) -> bool {
        let head = ReplyHead { status: 200, ..ReplyHead::default() };
        self.endpoint.reply(stream, &head, body_len, &mut self.out)
    }

    /// Replies, and sends as much as the windows allow.
    pub(super) fn reply(&mut self, stream: StreamKey, body_len: u64) -> bool {
        let was_open = self.answer(stream, body_len);
        self.pump();
        was_open
    }

    pub(super) fn pump(&mut self) {
        while let Some(mut piece) = self.endpoint.next_piece(64 * 1024) {
            while let Some(len) = self.endpoint.write_frame(&mut piece, &mut self.out) {
                self.out.extend(vec![b'x'; len as usize]);
            }
        }
    }

    /// Takes the output as lines: frame type, stream, and the fields that tests compare.
    pub(super) fn said(&mut self) -> Vec<String> {
        let out = std::mem::take(&mut self.out);
        let mut rest = &out[..];
        let mut lines = Vec::new();
        while let Some(head) = FrameHead::read(rest) {
            let (frame, behind) = rest.split_at(9 + head.len as usize);
            rest = behind;
            if head.kind == kind::DATA {
                *self.taken.entry(head.stream).or_default() += head.len as usize;
            }
            lines.push(line(head, &frame[9..]));
        }
        assert_eq!(rest, b"", "whole frames");
        lines
    }

    /// Bytes of a stream's body so far.
    pub(super) fn taken(&mut self, id: u32) -> usize {
        self.said();
        self.taken.get(&id).copied().unwrap_or_default()
    }
}

fn line(head: FrameHead, payload: &[u8]) -> String {
    let id = head.stream;
    let ack = if head.has(flag::ACK) { " ACK" } else { "" };
    let end = if head.has(flag::END_STREAM) { " END_STREAM" } else { "" };
    let open = if head.has(flag::END_HEADERS) { "" } else { " open" };
    let code = |at: usize| ErrorCode(frame::u32_at(&payload[at..]));
    match head.kind {
        kind::DATA => format!("DATA {id} {}{end}", head.len),
        kind::HEADERS => format!("HEADERS {id}{end}{open}"),
        kind::CONTINUATION => format!("CONTINUATION {id}{open}"),
        kind::RST_STREAM => format!("RST_STREAM {id} {}", code(0)),
        kind::SETTINGS => format!("SETTINGS{ack}"),
        kind::PING => format!("PING{ack}"),
        kind::GOAWAY => format!("GOAWAY {} {}", frame::u31(payload), code(4)),
        kind::WINDOW_UPDATE => format!("WINDOW_UPDATE {id} {}", frame::u31(payload)),
        other => panic!("a frame of type {other}"),
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_head(payload.len() as u32, kind, flags, stream, &mut out);
    out.extend_from_slice(payload);
    out
}

/// A request with further fields.
pub(super) fn headers(id: u32, ends: bool, more: &[(&str, &str)]) -> Vec<u8> {
    let usual = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    fields(id, ends, &[&usual[..], more].concat())
}

pub(super) fn fields(id: u32, ends: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    let bytes = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let ends = if ends { flag::END_STREAM } else { 0 };
    frame(kind::HEADERS, flag::END_HEADERS | ends, id, &encode_literals(bytes))
}

pub(super) fn get(id: u32) -> Vec<u8> {
    headers(id, true, &[])
}

/// A request with a body.
pub(super) fn post(id: u32) -> Vec<u8> {
    headers(id, false, &[])
}

pub(super) fn data(id: u32, len: usize, ends: bool) -> Vec<u8> {
    let flags = if ends { flag::END_STREAM } else { 0 };
    frame(kind::DATA, flags, id, &vec![b'x'; len])
}

pub(super) fn window(id: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, id, &increment.to_be_bytes())
}

pub(super) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_settings(values, &mut out);
    out
}
