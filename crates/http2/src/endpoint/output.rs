//! Replies: heads at once, bodies in pieces by priority and windows.

use super::{Endpoint, Reading};
use crate::abuse::Abuse;
use crate::error::ErrorCode;
use crate::frame::{self, PAYLOAD_LEN_MAX, flag, kind};
use crate::hpack::{Indexing, RepeatedField};
use crate::streams::StreamKey;

/// Head of a reply. The fields follow the status in this order.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyHead<'a> {
    /// Status code of three digits.
    pub status: u16,
    /// Fields that most replies have.
    pub repeated: &'a [&'a RepeatedField],
    /// Fields that were encoded before, by [`encode_literals`](crate::encode_literals).
    pub encoded: &'a [u8],
    /// Other fields; names in lower case.
    pub fields: &'a [(&'a [u8], &'a [u8])],
}

/// Body bytes that pay for one WINDOW_UPDATE, beside four for each frame: half of the step in which
/// Go's client opens its two windows.
const WINDOW_STEP: u32 = 2048;

/// Part of a reply's body that may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyPiece {
    /// The reply's stream.
    pub stream: StreamKey,
    /// Position in the body.
    pub start: u64,
    /// Number of bytes; DATA frames may be shorter.
    pub len: u64,
    /// True if the body ends with it.
    pub is_last: bool,
}

impl Endpoint {
    /// Replies to a request. The body is asked for in pieces ([`next_piece`](Self::next_piece)).
    /// Returns `false` if the stream has ended meanwhile; nothing is written then.
    ///
    /// # Panics
    /// If the stream was replied to before.
    pub fn reply(
        &mut self,
        stream: StreamKey,
        head: &ReplyHead<'_>,
        body_len: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(open) = self.streams.get(stream) else {
            return false;
        };
        assert!(!open.is_replied, "stream {} has a reply already", stream.id());
        open.is_replied = true;
        open.body_len = body_len;
        let flags = if body_len == 0 { flag::END_STREAM } else { 0 };
        self.put_headers(stream.id(), head, flags, out);
        if body_len == 0 {
            self.end_local(stream);
        } else {
            self.streams.refresh(stream);
        }
        true
    }

    /// Writes a head before the final one, such as 100 (Continue). RFC 9110 15.2
    pub fn inform(&mut self, stream: StreamKey, status: u16, out: &mut Vec<u8>) {
        if self.streams.get(stream).is_some() {
            let head = ReplyHead { status, ..ReplyHead::default() };
            self.put_headers(stream.id(), &head, 0, out);
        }
    }

    /// Ends a stream early: a reply that cannot be finished (`INTERNAL_ERROR`), or a request whose
    /// body is not wanted any more (`NO_ERROR`, RFC 9113 8.1). Does nothing if it has ended.
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode, out: &mut Vec<u8>) {
        if self.streams.get(stream).is_some() {
            frame::put_reset(stream.id(), code, out);
            self.history.note_reset(stream.id());
            self.streams.remove(stream);
        }
    }

    /// True if the connection's window is open, whatever those of its streams are.
    #[inline]
    pub fn has_window(&self) -> bool {
        self.send_window > 0 && self.reading != Reading::Failed
    }

    /// The next piece of a body to send, of at most `len_max` bytes; `None` if there is none or the
    /// peer's windows are closed. Asking changes nothing.
    ///
    /// A piece may be as long as is convenient to read at once; [`write_frame`](Self::write_frame)
    /// cuts it into frames.
    #[inline]
    pub fn next_piece(&self, len_max: u64) -> Option<BodyPiece> {
        if !self.has_window() {
            return None;
        }
        let (key, stream) = self.streams.front()?;
        let window = stream.send_window.min(self.send_window);
        let left = stream.body_len - stream.sent;
        let len = left.min(window as u64).min(len_max);
        Some(BodyPiece { stream: key, start: stream.sent, len, is_last: len == left })
    }

    /// Writes the head of a DATA frame for the front of `piece`, and takes it off. Returns the
    /// number of bytes of the body that belong behind it; `None` once the piece is done, or if its
    /// stream has ended or its window has shrunk meanwhile.
    #[inline]
    pub fn write_frame(&mut self, piece: &mut BodyPiece, out: &mut Vec<u8>) -> Option<u32> {
        let connection_window = self.send_window;
        let stream = self.streams.get(piece.stream)?;
        let window = stream.send_window.min(connection_window).max(0) as u64;
        let len = piece.len.min(window).min(PAYLOAD_LEN_MAX.into());
        if len == 0 || piece.start != stream.sent || self.reading == Reading::Failed {
            return None;
        }
        let ends = piece.is_last && len == piece.len;
        piece.start += len;
        piece.len -= len;
        stream.sent += len;
        let len = len as u32;
        stream.send_window -= len as i32;
        self.send_window -= len as i32;
        let is_exhausted = !ends && (stream.send_window <= 0 || self.send_window <= 0);
        self.counters.windows_exhausted += u32::from(is_exhausted);
        let flags = if ends { flag::END_STREAM } else { 0 };
        frame::put_head(len, kind::DATA, flags, piece.stream.id(), out);
        self.abuse.give_back(Abuse::Windows, 4 + len / WINDOW_STEP);
        if ends {
            self.end_local(piece.stream);
        } else {
            self.streams.sent(piece.stream, len);
        }
        Some(len)
    }

    /// Excludes a stream from [`next_piece`](Self::next_piece) until its bytes are available.
    pub fn pause(&mut self, stream: StreamKey) {
        self.streams.set_paused(stream, true);
    }

    /// Undoes [`pause`](Self::pause).
    pub fn resume(&mut self, stream: StreamKey) {
        self.streams.set_paused(stream, false);
    }

    /// Ends this side of a stream.
    fn end_local(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get(key) {
            stream.is_local_ended = true;
            if stream.is_remote_ended {
                self.streams.remove(key);
            } else {
                self.streams.refresh(key);
            }
        }
    }

    fn put_headers(&mut self, id: u32, head: &ReplyHead<'_>, flags: u8, out: &mut Vec<u8>) {
        let start = out.len();
        // The length is filled in below.
        frame::put_head(0, kind::HEADERS, flags | flag::END_HEADERS, id, out);
        self.encoder.begin(out);
        self.encoder.status(head.status, out);
        for field in head.repeated {
            self.encoder.repeated(field, out);
        }
        out.extend_from_slice(head.encoded);
        for (name, value) in head.fields {
            self.encoder.literal(name, value, Indexing::Allowed, out);
        }
        let len = (out.len() - start - frame::HEAD_LEN) as u32;
        if len > PAYLOAD_LEN_MAX {
            return split(start, flags, id, out);
        }
        let [_, len @ ..] = len.to_be_bytes();
        out[start..start + 3].copy_from_slice(&len);
    }
}

/// Cuts a header block behind `start` into HEADERS and CONTINUATION. RFC 9113 6.10
#[cold]
fn split(start: usize, flags: u8, id: u32, out: &mut Vec<u8>) {
    let block = out.split_off(start + frame::HEAD_LEN);
    out.truncate(start);
    let mut kind = kind::HEADERS;
    let mut flags = flags;
    let mut fragments = block.chunks(PAYLOAD_LEN_MAX as usize).peekable();
    while let Some(fragment) = fragments.next() {
        if fragments.peek().is_none() {
            flags |= flag::END_HEADERS;
        }
        frame::put_head(fragment.len() as u32, kind, flags, id, out);
        out.extend_from_slice(fragment);
        kind = kind::CONTINUATION;
        flags = 0;
    }
}
