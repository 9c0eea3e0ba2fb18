//! Requests of HTTP/2: field blocks rendered before the run, bodies sent as windows allow.

use std::sync::Arc;

use super::hpack::{self, NEWEST, TABLE_SIZE_MAX};
use super::{Http2Connection, Http2Stream, STREAM_MAX, WINDOW_INITIAL, WINDOW_MAX, frame};
use crate::plan::{Http, Page};

/// Requests of a plan. Only the fields that all have in common go to the dynamic table; they are
/// added by the first request of a connection.
pub(crate) struct Blocks {
    pages: Vec<PageBlocks>,
    adding: Vec<u8>,
    added: Vec<u8>,
    literal: Vec<u8>,
}

struct PageBlocks {
    /// Fields before and behind the common ones.
    before: Box<[u8]>,
    behind: Box<[u8]>,
    body: Arc<[u8]>,
    is_head: bool,
}

/// The server's dynamic table, as this side knows it.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum PeerTable {
    #[default]
    Empty,
    /// Contains the common fields.
    Filled,
    /// Unused, because the server's limit is smaller; not yet announced (RFC 7541 4.2).
    Refused,
    Unused,
}

impl PeerTable {
    /// Handles SETTINGS_HEADER_TABLE_SIZE.
    pub(super) fn limit(&mut self, size_max: usize) {
        if size_max < TABLE_SIZE_MAX && *self != PeerTable::Unused {
            *self = PeerTable::Refused;
        }
    }
}

impl Blocks {
    pub(crate) fn new(http: &Http, is_tls: bool) -> Blocks {
        let header = |name: &str| {
            let mut fields = http.headers.iter();
            fields.find(|(field, _)| field.eq_ignore_ascii_case(name))
        };
        let authority = header("host").map_or(&http.authority, |(_, value)| value);
        let mut common = vec![(":authority".to_owned(), authority)];
        for (name, value) in &http.headers {
            if !name.eq_ignore_ascii_case("host") {
                common.push((name.to_ascii_lowercase(), value));
            }
        }
        let [mut adding, mut added, mut literal] = [const { Vec::new() }; 3];
        let mut sizes = Vec::new();
        for (name, value) in &common {
            let [name, value] = [name.as_bytes(), value.as_bytes()];
            sizes.push(hpack::write_field(&mut adding, name, value, true));
            hpack::write_field(&mut literal, name, value, false);
        }
        let mut index = NEWEST + sizes.iter().filter(|size| **size > 0).count();
        for ((name, value), size) in common.iter().zip(&sizes) {
            if *size > 0 {
                index -= 1;
                hpack::write_indexed(&mut added, index);
            } else {
                hpack::write_field(&mut added, name.as_bytes(), value.as_bytes(), false);
            }
        }
        if sizes.iter().sum::<usize>() > TABLE_SIZE_MAX {
            adding.clone_from(&literal);
            added.clone_from(&literal);
        }
        let is_framed = header("content-length").is_some();
        let pages = http.pages.iter();
        Blocks {
            pages: pages.map(|page| PageBlocks::new(http, page, is_tls, is_framed)).collect(),
            adding,
            added,
            literal,
        }
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn body(&self, page: u32) -> &[u8] {
        &self.pages[page as usize].body
    }
}

impl PageBlocks {
    fn new(http: &Http, page: &Page, is_tls: bool, is_framed: bool) -> PageBlocks {
        let method = page.method.as_ref().unwrap_or(&http.method);
        let body = page.body.as_ref().unwrap_or(&http.body);
        let scheme: &[u8] = if is_tls { b"https" } else { b"http" };
        let mut before = Vec::new();
        for (name, value) in [
            (&b":method"[..], method.as_bytes()),
            (b":scheme", scheme),
            (b":path", page.path.as_bytes()),
        ] {
            hpack::write_field(&mut before, name, value, false);
        }
        let mut behind = Vec::new();
        let takes_body = matches!(&**method, "POST" | "PUT" | "PATCH");
        if (takes_body || !body.is_empty()) && !is_framed {
            let length = body.len().to_string();
            hpack::write_field(&mut behind, b"content-length", length.as_bytes(), false);
        }
        PageBlocks {
            before: before.into(),
            behind: behind.into(),
            body: Arc::clone(body),
            is_head: method == "HEAD",
        }
    }
}

impl Http2Connection {
    /// Appends the client's preface: its settings, and the largest window.
    pub(crate) fn open(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(frame::PREFACE);
        let mut settings = Vec::new();
        for (name, value) in
            [(frame::ENABLE_PUSH, 0), (frame::INITIAL_WINDOW_SIZE, WINDOW_MAX as u32)]
        {
            settings.extend_from_slice(&name.to_be_bytes());
            settings.extend_from_slice(&u32::to_be_bytes(value));
        }
        frame::write(out, frame::SETTINGS, 0, 0, &settings);
        let more = (WINDOW_MAX - WINDOW_INITIAL) as u32;
        frame::write_number(out, frame::WINDOW_UPDATE, 0, more);
    }

    /// Appends a request; returns its stream.
    pub(crate) fn request(&mut self, blocks: &Blocks, page: u32, out: &mut Vec<u8>) -> u32 {
        let request = &blocks.pages[page as usize];
        let id = self.next_stream;
        self.next_stream += 2;
        // The next connection begins again at the first.
        self.is_leaving |= self.next_stream > STREAM_MAX;
        let flags = if request.body.is_empty() { frame::END_STREAM } else { 0 };
        let start = out.len();
        frame::write(out, frame::HEADERS, flags | frame::END_HEADERS, id, &[]);
        let size_update: &[u8] = if self.table == PeerTable::Refused { &[0x20] } else { &[] };
        let (common, table) = match self.table {
            PeerTable::Empty => (&blocks.adding, PeerTable::Filled),
            PeerTable::Filled => (&blocks.added, PeerTable::Filled),
            PeerTable::Refused | PeerTable::Unused => (&blocks.literal, PeerTable::Unused),
        };
        self.table = table;
        for part in [size_update, &request.before, common, &request.behind] {
            out.extend_from_slice(part);
        }
        end_block(out, start, flags, id);
        self.streams.push_back(Http2Stream {
            id,
            page,
            is_head: request.is_head,
            unsent: request.body.len(),
            window: self.stream_window,
            ..Http2Stream::default()
        });
        if !request.body.is_empty() {
            self.waiting += 1;
            self.send_body(self.streams.len() - 1, &request.body, out);
            let is_waiting = self.is_waiting(id);
            self.limits.window_waits += u64::from(is_waiting);
        }
        id
    }

    /// Sends as much of all waiting bodies as the windows allow.
    pub(super) fn send_waiting(&mut self, blocks: &Blocks) {
        if self.waiting == 0 {
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        for at in 0..self.streams.len() {
            self.send_body(at, blocks.body(self.streams[at].page), &mut out);
        }
        self.out = out;
    }

    fn send_body(&mut self, at: usize, body: &[u8], out: &mut Vec<u8>) {
        let stream = &mut self.streams[at];
        while stream.unsent > 0 {
            let window = self.window.min(stream.window).max(0) as usize;
            let length = window.min(stream.unsent).min(frame::PAYLOAD_BYTES_MAX);
            if length == 0 {
                return;
            }
            let part = &body[body.len() - stream.unsent..][..length];
            stream.unsent -= length;
            stream.window -= length as i64;
            self.window -= length as i64;
            self.uploaded += length;
            let is_end = stream.unsent == 0;
            self.waiting -= u32::from(is_end);
            let flags = if is_end { frame::END_STREAM } else { 0 };
            frame::write(out, frame::DATA, flags, stream.id, part);
        }
    }

    /// Bytes of a client that sends without end and asks nothing: its preface, then PING.
    pub(crate) fn trickle(sent: usize) -> u8 {
        let mut opening = frame::PREFACE.to_vec();
        frame::write(&mut opening, frame::SETTINGS, 0, 0, &[]);
        let mut ping = Vec::new();
        frame::write(&mut ping, frame::PING, 0, 0, &[0; 8]);
        match sent.checked_sub(opening.len()) {
            None => opening[sent],
            Some(behind) => ping[behind % ping.len()],
        }
    }
}

/// Completes the HEADERS frame at `start`. What does not fit follows as CONTINUATION.
fn end_block(out: &mut Vec<u8>, start: usize, flags: u8, stream: u32) {
    let block_start = start + frame::HEAD_BYTES;
    let length = out.len() - block_start;
    if length <= frame::PAYLOAD_BYTES_MAX {
        out[start + 1..start + 3].copy_from_slice(&(length as u16).to_be_bytes());
        return;
    }
    let block = out.split_off(block_start);
    out.truncate(start);
    let parts = block.chunks(frame::PAYLOAD_BYTES_MAX);
    let last = parts.len() - 1;
    for (at, part) in parts.enumerate() {
        let kind = if at == 0 { frame::HEADERS } else { frame::CONTINUATION };
        let mut part_flags = if at == 0 { flags } else { 0 };
        if at == last {
            part_flags |= frame::END_HEADERS;
        }
        frame::write(out, kind, part_flags, stream, part);
    }
}
