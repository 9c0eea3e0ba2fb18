//! An HTTP/2 client over a session, without sockets.

use std::collections::BTreeMap;

use http2::{Decoder, ErrorCode, FieldList, encode_literals};
use session::replay::{queued, test_now};
use session::{GiveUp, Next, Now, Outbox, Session as _, Work as _};
use web::{Session, Work};

pub(crate) use http2::PREFACE;

/// The client's end, and the session.
pub(crate) struct Client {
    session: Session,
    pub(crate) out: Outbox,
    pub(crate) now: Now,
    held: Vec<u8>,
    replies: Replies,
    /// Windows are opened as bytes arrive.
    pub(crate) opens_windows: bool,
    pub(crate) runs_work: bool,
    pub(crate) works: Vec<Work>,
    pub(crate) is_closed: bool,
}

/// Events received on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) informed: Vec<u16>,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) has_ended: bool,
}

/// Frames of a server, parsed.
struct Replies {
    decoder: Decoder,
    list: FieldList,
    bytes: Vec<u8>,
    streams: BTreeMap<u32, Reply>,
    /// Frames of the connection, and resets.
    said: Vec<String>,
    /// Bytes of DATA since windows were opened: stream and length.
    unopened: Vec<(u32, u32)>,
}

impl Client {
    pub(crate) fn new(session: Session) -> Client {
        Client {
            session,
            out: Outbox::new(),
            now: test_now(),
            held: Vec::new(),
            replies: Replies::new(),
            opens_windows: true,
            runs_work: true,
            works: Vec::new(),
            is_closed: false,
        }
    }

    /// Sends a request; returns its result so far.
    pub(crate) fn request(
        &mut self,
        id: u32,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Reply {
        self.send_headers(id, method, path, fields, true);
        self.stream(id)
    }

    pub(crate) fn send_headers(
        &mut self,
        id: u32,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        ends: bool,
    ) {
        self.send(&headers(id, method, path, fields, ends));
    }

    pub(crate) fn stream(&self, id: u32) -> Reply {
        self.replies.streams.get(&id).cloned().unwrap_or_default()
    }

    pub(crate) fn said(&self, frame: &str) -> bool {
        self.replies.said.iter().any(|said| said == frame)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let next = self.show();
        self.go_on(next);
        while self.opens_windows && !self.replies.unopened.is_empty() && !self.is_closed {
            let unopened = std::mem::take(&mut self.replies.unopened);
            for (id, len) in unopened {
                self.held.extend(window(0, len));
                self.held.extend(window(id, len));
            }
            let next = self.show();
            self.go_on(next);
        }
    }

    /// Log lines of ended replies.
    pub(crate) fn logged(&mut self) -> Vec<String> {
        let mut text = String::new();
        let read = |lines: &[u8]| text.push_str(str::from_utf8(lines).unwrap());
        self.out.take_sent(self.now.monotonic, false, |_| (), read);
        text.lines().map(str::to_owned).collect()
    }

    /// Bytes held by the session.
    pub(crate) fn held_len(&self) -> usize {
        self.session.held_len()
    }

    pub(crate) fn give_up(&mut self, reason: GiveUp) {
        self.session.give_up(reason, self.now, &mut self.out);
        self.take();
    }

    pub(crate) fn close(&mut self) {
        self.session.closed(self.now, &mut self.out);
    }

    pub(crate) fn drain(&mut self) {
        self.session.drain(self.now, &mut self.out);
        self.take();
    }

    /// Returns finished work to the session.
    pub(crate) fn bring_back(&mut self, at: usize) {
        let mut work = self.works.remove(at);
        work.run(self.now);
        let next = (self.session).handle_worked(work, self.now, &mut self.out);
        self.go_on(next);
    }

    pub(crate) fn refuse_work(&mut self, at: usize) {
        let work = self.works.remove(at);
        let next = (self.session).handle_refused(work, self.now, &mut self.out);
        self.go_on(next);
    }

    fn show(&mut self) -> Next {
        let received = (self.session).receive(&self.held, self.now, &mut self.out);
        self.held.drain(..received.used);
        received.next
    }

    fn go_on(&mut self, mut next: Next) {
        loop {
            self.take();
            match next {
                Next::Receive(_) => return,
                Next::Duplex { has_more, .. } => {
                    while let Some(work) = self.session.take_work() {
                        self.works.push(work);
                    }
                    next = if self.runs_work && !self.works.is_empty() {
                        let mut work = self.works.remove(0);
                        work.run(self.now);
                        (self.session).handle_worked(work, self.now, &mut self.out)
                    } else if has_more {
                        self.show()
                    } else {
                        return;
                    };
                }
                Next::Close | Next::Linger => {
                    self.is_closed = true;
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn take(&mut self) {
        self.replies.bytes.extend(queued(&self.out));
        self.out.consume(self.out.queued_len());
        self.replies.take();
    }
}

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        let status = self.fields.iter().find(|(name, _)| name == ":status");
        status.map_or(0, |(_, value)| value.parse().unwrap())
    }
}

impl Replies {
    fn new() -> Replies {
        Replies {
            decoder: Decoder::new(4096),
            list: FieldList::new(1 << 20, 1000),
            bytes: Vec::new(),
            streams: BTreeMap::new(),
            said: Vec::new(),
            unopened: Vec::new(),
        }
    }

    fn take(&mut self) {
        while self.bytes.len() >= 9 {
            let len = u32::from_be_bytes([0, self.bytes[0], self.bytes[1], self.bytes[2]]);
            let end = 9 + len as usize;
            if self.bytes.len() < end {
                return;
            }
            let frame: Vec<u8> = self.bytes.drain(..end).collect();
            self.take_frame(frame[3], frame[4], u32_at(&frame, 5), &frame[9..]);
        }
    }

    fn take_frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        let error = |at| ErrorCode(u32_at(payload, at)).to_string();
        match kind {
            0 => {
                let stream = self.streams.get_mut(&id).expect("DATA follows HEADERS");
                assert!(!stream.has_ended, "DATA behind the end of {id}");
                stream.body.extend_from_slice(payload);
                stream.has_ended = flags & 1 != 0;
                self.unopened.push((id, payload.len() as u32));
            }
            1 => {
                assert_eq!(flags & 4, 4, "the reply is too long");
                self.list.clear();
                self.decoder.decode(payload, &mut self.list).unwrap();
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let fields = self.list.iter();
                let fields: Vec<_> =
                    fields.map(|(name, value)| (text(name), text(value))).collect();
                let stream = self.streams.entry(id).or_default();
                assert!(stream.fields.is_empty(), "{id} is answered twice");
                if fields[0].1.starts_with('1') {
                    stream.informed.push(fields[0].1.parse().unwrap());
                } else {
                    stream.fields = fields;
                    stream.has_ended = flags & 1 != 0;
                }
            }
            3 => self.said.push(format!("RST_STREAM {id} {}", error(0))),
            6 => self
                .said
                .push(format!("PING {:x}", u64::from_be_bytes(payload.try_into().unwrap()))),
            7 => {
                let last = u32_at(payload, 0);
                self.said.push(format!("GOAWAY {last} {}", error(4)));
            }
            4 | 8 => {}
            other => panic!("frame of type {other}"),
        }
    }
}

/// Parses the bytes of a server into streams.
pub(crate) fn parsed(bytes: &[u8]) -> BTreeMap<u32, Reply> {
    let mut replies = Replies::new();
    replies.bytes.extend_from_slice(bytes);
    replies.take();
    assert!(replies.bytes.is_empty(), "half a frame is left");
    for stream in replies.streams.values_mut() {
        // The boundary differs in each reply without a validator.
        stream.fields.retain(|(_, value)| !value.contains("boundary"));
    }
    replies.streams
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u32;
    let mut frame = len.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// HEADERS, followed by CONTINUATION as needed.
pub(crate) fn headers(
    id: u32,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    ends: bool,
) -> Vec<u8> {
    let pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "x")];
    let all = pseudo.iter().chain(fields);
    let block = encode_literals(all.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    let mut frames = Vec::new();
    let mut rest = &block[..];
    let mut kind = 1;
    while kind == 1 || !rest.is_empty() {
        let (fragment, after) = rest.split_at(rest.len().min(16_384));
        rest = after;
        let end = if rest.is_empty() { 4 } else { 0 };
        let flags = end | u8::from(ends && kind == 1);
        frames.extend(frame(kind, flags, id, fragment));
        kind = 9;
    }
    frames
}

/// SETTINGS.
pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(4, 0, 0, &payload)
}

/// WINDOW_UPDATE.
pub(crate) fn window(id: u32, increment: u32) -> Vec<u8> {
    frame(8, 0, id, &increment.to_be_bytes())
}
