//! HTTP/2 client (RFC 9113): field blocks are rendered once, replies are parsed as they arrive.
//!
//! It has its own frames and HPACK, and none of the server's. Receive windows are as large as the
//! protocol allows, and opened again at half, so they are never a limit. The limits that a server
//! sets, its windows and its number of streams, are [counted](ServerLimits).

mod frame;
mod hpack;
mod huffman;
mod request;

use std::collections::VecDeque;

use super::Reply;
use crate::plan::Expected;
use frame::FrameHead;
use hpack::Decoder;
pub(crate) use request::Blocks;

/// Most bytes of a field block with its frames, and of other frames without a reply, decoded; more
/// is a bad reply.
const BESIDE_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of unsent acknowledgements; with more, the server does not read.
const ACKS_BYTES_MAX: usize = 1 << 20;
/// Largest window (RFC 9113 6.9.1). This is also ours.
const WINDOW_MAX: i64 = (1 << 31) - 1;
/// Initial windows (RFC 9113 6.9.2).
const WINDOW_INITIAL: i64 = 65_535;
/// Received bytes after which a window is opened again.
const WINDOW_STEP: u32 = 1 << 30;
/// Streams before the server has sent its limit, which may be small: more would be refused.
const STREAMS_AT_FIRST: u32 = 1;
/// Last identifier of a stream.
const STREAM_MAX: u32 = (1 << 31) - 1;

/// One connection.
#[derive(Default)]
pub(crate) struct Http2Connection {
    /// True if bodies are hashed.
    verify: bool,
    /// Streams in flight that the plan asks for.
    streams_wanted: u32,
    decoder: Decoder,
    /// Start of an incomplete frame.
    carry: Vec<u8>,
    data: Option<Data>,
    block: Option<PartialBlock>,
    /// Streams without a complete reply, in the order of their identifiers.
    streams: VecDeque<Http2Stream>,
    next_stream: u32,
    table: request::PeerTable,
    /// Server's SETTINGS_MAX_CONCURRENT_STREAMS.
    streams_max: u32,
    has_settings: bool,
    is_leaving: bool,
    /// True if streams were reset by this side, whose frames may still arrive.
    has_reset: bool,
    /// Bytes that may be sent: on the connection, and at first on each stream.
    window: i64,
    stream_window: i64,
    /// Streams whose request waits for a window.
    waiting: u32,
    /// Received bytes since the connection's window was opened.
    received: u32,
    beside_bytes: usize,
    /// Sent bytes of request bodies, less those of the WINDOW_UPDATE frames since: the server has
    /// reason to send as many.
    uploaded: usize,
    /// Acknowledgements that wait to be sent, at most.
    acks_bytes: usize,
    /// Frames to send.
    out: Vec<u8>,
    limits: ServerLimits,
}

/// Limits that the server has set, as counts.
#[derive(Default)]
pub(crate) struct ServerLimits {
    /// Request bodies that waited for a window.
    pub(crate) window_waits: u64,
    /// Connections with fewer streams than the plan asks for.
    pub(crate) stream_limits: u64,
}

/// Request and its reply.
#[derive(Default)]
struct Http2Stream {
    id: u32,
    page: u32,
    is_head: bool,
    /// 0 before the reply's head.
    status: u16,
    length: Option<u64>,
    body_bytes: u64,
    hash: Option<crc32fast::Hasher>,
    /// Rest of the request's body, and the window for it.
    unsent: usize,
    window: i64,
    /// Received bytes since the stream's window was opened.
    received: u32,
}

/// Rest of a DATA frame.
#[derive(Clone, Copy)]
struct Data {
    stream: u32,
    content: usize,
    padding: usize,
    is_end: bool,
}

/// Field block that is not complete.
struct PartialBlock {
    stream: u32,
    is_end: bool,
    bytes: Vec<u8>,
}

/// Result of reading.
pub(crate) enum Event {
    /// All input was used.
    More,
    /// Error of the connection (RFC 9113 5.4.1).
    Broken,
    Reply {
        stream: u32,
        reply: Reply,
    },
    /// Stream reset by the server.
    Reset {
        stream: u32,
        is_refused: bool,
    },
    /// The server accepts no more requests; those above `last` are not processed.
    Goaway {
        last: u32,
        is_error: bool,
    },
}

struct ProtocolError;

type Parsed<T> = Result<T, ProtocolError>;

fn expect(is_so: bool) -> Parsed<()> {
    is_so.then_some(()).ok_or(ProtocolError)
}

impl Http2Connection {
    pub(crate) fn new(verify: bool, streams_wanted: u32) -> Http2Connection {
        Http2Connection {
            verify,
            streams_wanted,
            next_stream: 1,
            streams_max: STREAMS_AT_FIRST,
            window: WINDOW_INITIAL,
            stream_window: WINDOW_INITIAL,
            ..Http2Connection::default()
        }
    }

    /// Resets it for a new connection.
    pub(crate) fn reset(&mut self) {
        *self = Http2Connection::new(self.verify, self.streams_wanted);
    }

    /// Number of streams that may be in flight.
    pub(crate) fn streams_max(&self) -> u32 {
        if self.is_leaving { 0 } else { self.streams_max }
    }

    /// True if the connection takes no more requests.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// True if a request's body waits for a window of the server.
    pub(crate) fn is_waiting(&self, stream: u32) -> bool {
        self.waiting_bytes(stream) > 0
    }

    /// Rest of a request's body, which waits for a window of the server.
    pub(crate) fn waiting_bytes(&self, stream: u32) -> usize {
        self.position(stream).map_or(0, |at| self.streams[at].unsent)
    }

    pub(crate) fn take_limits(&mut self) -> ServerLimits {
        std::mem::take(&mut self.limits)
    }

    /// Appends the frames that answer the input to an output with `unsent` bytes. Returns false if
    /// too many unsent bytes are acknowledgements.
    pub(crate) fn take_output(&mut self, unsent: usize, out: &mut Vec<u8>) -> bool {
        self.acks_bytes = self.acks_bytes.min(unsent + self.out.len());
        out.append(&mut self.out);
        self.acks_bytes <= ACKS_BYTES_MAX
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Reads from `input` and advances it past the used bytes.
    pub(crate) fn read(&mut self, input: &mut &[u8], blocks: &Blocks) -> Event {
        self.next_event(input, blocks).unwrap_or(Event::Broken)
    }

    fn next_event(&mut self, input: &mut &[u8], blocks: &Blocks) -> Parsed<Event> {
        loop {
            if let Some(data) = self.data.take() {
                match self.data(data, input)? {
                    Some(event) => return Ok(event),
                    None if self.data.is_some() => return Ok(Event::More),
                    None => continue,
                }
            }
            let event = if self.carry.is_empty()
                && let Some(length) = whole_frame(input)?
                && let Some((frame, rest)) = input.split_at_checked(length)
            {
                *input = rest;
                self.frame(frame, blocks)?
            } else {
                let Some(frame) = self.carried_frame(input)? else {
                    return Ok(Event::More);
                };
                let event = self.frame(&frame, blocks)?;
                self.carry = frame;
                self.carry.clear();
                event
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    /// Completes the frame that begins in the carry; keeps the input if it is not whole.
    fn carried_frame(&mut self, input: &mut &[u8]) -> Parsed<Option<Vec<u8>>> {
        loop {
            let length = whole_frame(&self.carry)?.unwrap_or(frame::HEAD_BYTES);
            let missing = length - self.carry.len();
            if missing == 0 {
                return Ok(Some(std::mem::take(&mut self.carry)));
            }
            if input.is_empty() {
                return Ok(None);
            }
            let (part, rest) = input.split_at(missing.min(input.len()));
            self.carry.extend_from_slice(part);
            *input = rest;
        }
    }

    /// Handles a frame; of DATA only the head.
    fn frame(&mut self, frame: &[u8], blocks: &Blocks) -> Parsed<Option<Event>> {
        let head = FrameHead::of(frame).ok_or(ProtocolError)?;
        let payload = &frame[frame::HEAD_BYTES..];
        // The server's preface (RFC 9113 3.4).
        let is_settings = head.kind == frame::SETTINGS && !head.has(frame::ACK);
        expect(self.has_settings || is_settings)?;
        // Nothing comes between the frames of a block (RFC 9113 6.10).
        expect(self.block.is_some() == (head.kind == frame::CONTINUATION))?;
        let is_about_stream = match head.kind {
            frame::SETTINGS | frame::PING | frame::GOAWAY => Some(false),
            frame::WINDOW_UPDATE | 10.. => None,
            _ => Some(true),
        };
        expect(is_about_stream.is_none_or(|is_about| is_about == (head.stream != 0)))?;
        match head.kind {
            frame::DATA => self.begin_data(head, payload).map(|()| None),
            frame::HEADERS => self.begin_block(head, payload),
            frame::CONTINUATION => self.continue_block(head, payload),
            frame::RST_STREAM => self.reset_by_server(head.stream, payload),
            frame::SETTINGS => self.settings(head, payload, blocks).map(|()| None),
            frame::PING => self.ping(head, payload).map(|()| None),
            frame::GOAWAY => self.goaway(payload).map(Some),
            frame::WINDOW_UPDATE => self.window_update(head.stream, payload, blocks).map(|()| None),
            // It was not allowed (RFC 9113 8.4).
            frame::PUSH_PROMISE => Err(ProtocolError),
            frame::PRIORITY => {
                expect(payload.len() == 5)?;
                self.take_beside(frame.len()).map(|()| None)
            }
            _ => self.take_beside(frame.len()).map(|()| None),
        }
    }

    fn begin_data(&mut self, head: FrameHead, payload: &[u8]) -> Parsed<()> {
        self.position_of_reply(head.stream)?;
        let padding = payload.first().map_or(0, |&length| usize::from(length));
        let behind = head.length - payload.len();
        self.data = Some(Data {
            stream: head.stream,
            content: behind.checked_sub(padding).ok_or(ProtocolError)?,
            padding,
            is_end: head.has(frame::END_STREAM),
        });
        if behind == padding && !head.has(frame::END_STREAM) {
            self.take_beside(frame::HEAD_BYTES + head.length)?;
        }
        // Padding counts as well (RFC 9113 6.9.1).
        self.received += head.length as u32;
        if self.received >= WINDOW_STEP {
            let step = std::mem::take(&mut self.received);
            frame::write_number(&mut self.out, frame::WINDOW_UPDATE, 0, step);
        }
        Ok(())
    }

    /// Reads the rest of a DATA frame, and keeps it if it is not whole.
    fn data(&mut self, mut data: Data, input: &mut &[u8]) -> Parsed<Option<Event>> {
        let (content, rest) = input.split_at(data.content.min(input.len()));
        let (padding, rest) = rest.split_at(data.padding.min(rest.len()));
        *input = rest;
        data.content -= content.len();
        data.padding -= padding.len();
        let position = self.position(data.stream);
        if let Some(at) = position {
            let stream = &mut self.streams[at];
            expect(stream.status != 0)?;
            stream.body_bytes += content.len() as u64;
            expect(stream.length.is_none_or(|length| stream.body_bytes <= length))?;
            if let Some(hash) = &mut stream.hash {
                hash.update(content);
            }
            stream.received += (content.len() + padding.len()) as u32;
            if stream.received >= WINDOW_STEP {
                let step = std::mem::take(&mut stream.received);
                frame::write_number(&mut self.out, frame::WINDOW_UPDATE, data.stream, step);
            }
        }
        if data.content + data.padding > 0 {
            self.data = Some(data);
            return Ok(None);
        }
        match position {
            Some(at) if data.is_end => self.finish(at).map(Some),
            _ => Ok(None),
        }
    }

    fn begin_block(&mut self, head: FrameHead, payload: &[u8]) -> Parsed<Option<Event>> {
        let content = head.content(payload).ok_or(ProtocolError)?;
        let is_end = head.has(frame::END_STREAM);
        self.position_of_reply(head.stream)?;
        if head.has(frame::END_HEADERS) {
            return self.fields(head.stream, is_end, content);
        }
        self.block = Some(PartialBlock { stream: head.stream, is_end, bytes: content.to_vec() });
        Ok(None)
    }

    fn continue_block(&mut self, head: FrameHead, payload: &[u8]) -> Parsed<Option<Event>> {
        // Count the head as well, so that endless empty frames reach the limit.
        self.take_beside(frame::HEAD_BYTES + payload.len())?;
        let mut block = self.block.take().ok_or(ProtocolError)?;
        expect(block.stream == head.stream)?;
        block.bytes.extend_from_slice(payload);
        if head.has(frame::END_HEADERS) {
            return self.fields(block.stream, block.is_end, &block.bytes);
        }
        self.block = Some(block);
        Ok(None)
    }

    /// Handles a whole field block: the head of a reply, an interim one, or the trailer.
    fn fields(&mut self, stream: u32, is_end: bool, block: &[u8]) -> Parsed<Option<Event>> {
        let mut status = 0;
        let mut length = None;
        let mut is_wrong = false;
        let decoded = self.decoder.decode(block, |name, value| match name {
            b":status" => {
                is_wrong |= status != 0 || value.len() != 3;
                status = number(value).unwrap_or(0) as u16;
            }
            b"content-length" => {
                let said = number(value);
                is_wrong |= said.is_none() || length.is_some_and(|length| said != Some(length));
                length = said;
            }
            _ => is_wrong |= name.starts_with(b":"),
        });
        let decoded = decoded.map_err(|_| ProtocolError)?;
        expect(!is_wrong)?;
        // The stream was reset; its fields have updated the table.
        let Some(at) = self.position(stream) else {
            return Ok(None);
        };
        let verify = self.verify;
        let entry = &mut self.streams[at];
        match (entry.status, status) {
            // An interim reply does not end the stream, and 101 is not of HTTP/2 (RFC 9113 8.6).
            (0, 100..200) => {
                expect(status != 101 && !is_end)?;
                self.take_beside(decoded + frame::HEAD_BYTES)?;
            }
            (0, 200..1000) => {
                entry.status = status;
                // Its field, if there is one, is the length of another reply (RFC 9110 8.6).
                let has_no_content = entry.is_head || matches!(status, 204 | 304);
                entry.length = if has_no_content { Some(0) } else { length };
                entry.hash = verify.then(crc32fast::Hasher::new);
            }
            (1.., 0) => expect(is_end)?,
            _ => return Err(ProtocolError),
        }
        if is_end { self.finish(at).map(Some) } else { Ok(None) }
    }

    /// Takes a stream with a whole reply.
    fn finish(&mut self, at: usize) -> Parsed<Event> {
        let stream = self.streams.remove(at).ok_or(ProtocolError)?;
        let is_whole = stream.length.is_none_or(|length| length == stream.body_bytes);
        expect(is_whole)?;
        self.beside_bytes = 0;
        if stream.unsent > 0 {
            // The reply came before the body was sent (RFC 9113 8.1).
            self.waiting -= 1;
            self.has_reset = true;
            frame::write_number(&mut self.out, frame::RST_STREAM, stream.id, frame::CANCEL);
        }
        let body = Expected {
            bytes: stream.body_bytes,
            crc32: stream.hash.map_or(0, crc32fast::Hasher::finalize),
        };
        Ok(Event::Reply { stream: stream.id, reply: Reply::of_http(stream.status, false, body) })
    }

    fn reset_by_server(&mut self, stream: u32, payload: &[u8]) -> Parsed<Option<Event>> {
        expect(payload.len() == 4 && self.was_opened(stream))?;
        let code = frame::number_at(payload, 0);
        if !self.remove(stream) {
            return self.take_beside(frame::HEAD_BYTES + payload.len()).map(|()| None);
        }
        Ok(Some(Event::Reset { stream, is_refused: code == Some(frame::REFUSED_STREAM) }))
    }

    /// Gives up a stream.
    pub(crate) fn cancel(&mut self, stream: u32) {
        if self.remove(stream) {
            self.has_reset = true;
            frame::write_number(&mut self.out, frame::RST_STREAM, stream, frame::CANCEL);
        }
    }

    /// Removes a stream; false if it had ended.
    fn remove(&mut self, stream: u32) -> bool {
        let position = self.position(stream);
        let removed = position.and_then(|at| self.streams.remove(at));
        let was_waiting = removed.as_ref().is_some_and(|it| it.unsent > 0);
        self.waiting -= u32::from(was_waiting);
        removed.is_some()
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8], blocks: &Blocks) -> Parsed<()> {
        self.take_beside(frame::HEAD_BYTES + payload.len())?;
        if head.has(frame::ACK) {
            return expect(payload.is_empty());
        }
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(ProtocolError);
        };
        let is_first = !std::mem::replace(&mut self.has_settings, true);
        if is_first {
            self.streams_max = u32::MAX;
        }
        for &[a, b, ref value @ ..] in settings {
            let value = frame::number_at(value, 0).ok_or(ProtocolError)?;
            match u16::from_be_bytes([a, b]) {
                frame::HEADER_TABLE_SIZE => self.table.limit(value as usize),
                frame::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                frame::INITIAL_WINDOW_SIZE => {
                    expect(i64::from(value) <= WINDOW_MAX)?;
                    let more = i64::from(value) - self.stream_window;
                    self.stream_window += more;
                    for stream in &mut self.streams {
                        stream.window += more;
                        expect(stream.window <= WINDOW_MAX)?;
                    }
                }
                _ => {}
            }
        }
        self.limits.stream_limits += u64::from(is_first && self.streams_max < self.streams_wanted);
        self.acknowledge(frame::SETTINGS, &[]);
        self.send_waiting(blocks);
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Parsed<()> {
        self.take_beside(frame::HEAD_BYTES + payload.len())?;
        expect(payload.len() == 8)?;
        if !head.has(frame::ACK) {
            self.acknowledge(frame::PING, payload);
        }
        Ok(())
    }

    fn acknowledge(&mut self, kind: u8, payload: &[u8]) {
        self.acks_bytes += frame::HEAD_BYTES + payload.len();
        frame::write(&mut self.out, kind, frame::ACK, 0, payload);
    }

    fn goaway(&mut self, payload: &[u8]) -> Parsed<Event> {
        let last = frame::number_at(payload, 0).ok_or(ProtocolError)? & STREAM_MAX;
        let code = frame::number_at(payload, 4).ok_or(ProtocolError)?;
        self.is_leaving = true;
        while let Some(stream) = self.streams.back().filter(|stream| stream.id > last) {
            self.remove(stream.id);
        }
        Ok(Event::Goaway { last, is_error: code != frame::NO_ERROR })
    }

    fn window_update(&mut self, stream: u32, payload: &[u8], blocks: &Blocks) -> Parsed<()> {
        expect(payload.len() == 4)?;
        match self.uploaded.checked_sub(frame::HEAD_BYTES + payload.len()) {
            Some(left) => self.uploaded = left,
            None => self.take_beside(frame::HEAD_BYTES + payload.len())?,
        }
        let more = frame::number_at(payload, 0).ok_or(ProtocolError)? & STREAM_MAX;
        expect(more > 0 && (stream == 0 || self.was_opened(stream)))?;
        let window = match self.position(stream) {
            Some(at) => &mut self.streams[at].window,
            None if stream == 0 => &mut self.window,
            None => return Ok(()),
        };
        *window += i64::from(more);
        expect(*window <= WINDOW_MAX)?;
        self.send_waiting(blocks);
        Ok(())
    }

    /// Counts bytes beside replies, so that a server cannot send them without end.
    fn take_beside(&mut self, bytes: usize) -> Parsed<()> {
        self.beside_bytes += bytes;
        expect(self.beside_bytes <= BESIDE_BYTES_MAX)
    }

    fn was_opened(&self, stream: u32) -> bool {
        stream % 2 == 1 && stream < self.next_stream
    }

    /// Checks that a frame of a reply may be of this stream.
    fn position_of_reply(&self, stream: u32) -> Parsed<()> {
        let is_late = self.has_reset && self.was_opened(stream);
        expect(is_late || self.position(stream).is_some())
    }

    fn position(&self, stream: u32) -> Option<usize> {
        // Most servers reply in the order of the requests.
        if self.streams.front()?.id == stream {
            return Some(0);
        }
        self.streams.binary_search_by_key(&stream, |it| it.id).ok()
    }
}

/// Length of the frame at the start of `bytes`, if its head is whole. Of DATA only the head and the
/// length of the padding count.
fn whole_frame(bytes: &[u8]) -> Parsed<Option<usize>> {
    let Some(head) = FrameHead::of(bytes) else {
        return Ok(None);
    };
    expect(head.length <= frame::PAYLOAD_BYTES_MAX)?;
    let payload = match head.kind {
        frame::DATA if head.has(frame::PADDED) => {
            expect(head.length > 0)?;
            1
        }
        frame::DATA => 0,
        _ => head.length,
    };
    Ok(Some(frame::HEAD_BYTES + payload))
}

fn number(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests;
