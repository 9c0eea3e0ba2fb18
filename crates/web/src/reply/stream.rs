//! A reply on a stream of HTTP/2: encoded fields, and the parts of a body.

use std::collections::VecDeque;

use bytes::Bytes;
use http2::encode_literals;
use session::{FileRange, Now};

use crate::status::Status;

/// A reply until its stream takes it over.
#[derive(Debug, Default)]
pub(crate) struct StreamReply {
    /// `None`: no reply yet.
    pub(crate) status: Option<Status>,
    /// Encoded fields other than those that most replies have.
    pub(crate) fields: Vec<u8>,
    pub(crate) body: Segments,
    pub(crate) body_len: u64,
    /// Arrival of the request, if it was not in this call.
    pub(crate) arrived_at: Option<Now>,
}

/// Part of a body.
#[derive(Debug)]
pub(crate) enum Segment {
    Memory(Bytes),
    File(FileRange),
}

impl Segment {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Segment::Memory(bytes) => bytes.len() as u64,
            Segment::File(range) => range.len(),
        }
    }
}

/// Parts of a body, in order. A single part, the common case, needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// `None`: the body has ended.
    first: Option<Segment>,
    rest: VecDeque<Segment>,
}

impl Segments {
    pub(crate) fn push(&mut self, segment: Segment) {
        match &mut self.first {
            None => self.first = Some(segment),
            Some(_) => self.rest.push_back(segment),
        }
    }

    pub(crate) fn first_mut(&mut self) -> Option<&mut Segment> {
        self.first.as_mut()
    }

    pub(crate) fn drop_first(&mut self) {
        self.first = self.rest.pop_front();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Length of all remaining parts.
    pub(crate) fn len(&self) -> u64 {
        self.iter().map(Segment::len).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.first.iter().chain(&self.rest)
    }

    /// Bytes of memory allocated for parts beyond the first.
    pub(crate) fn allocated_len(&self) -> usize {
        self.rest.capacity() * size_of::<Segment>()
    }
}

/// Most bytes of fields that stay allocated.
const FIELDS_LEN_KEPT: usize = 4096;

impl StreamReply {
    pub(crate) fn begin(&mut self, status: Status) {
        self.status = Some(status);
    }

    pub(crate) fn clear(&mut self) {
        self.status = None;
        self.fields.clear();
        self.fields.shrink_to(FIELDS_LEN_KEPT);
        self.body = Segments::default();
        self.body_len = 0;
        self.arrived_at = None;
    }

    /// Appends a field; its name must be in lower case.
    pub(crate) fn put_field(&mut self, name: &[u8], value: &[u8]) {
        self.fields.extend(encode_literals([(name, value)]));
    }

    /// Appends header lines, each with its CRLF, as fields.
    pub(crate) fn put_lines(&mut self, lines: &[u8]) {
        if !lines.is_empty() {
            self.fields.extend(encode_lines(lines));
        }
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_segment(Segment::Memory(Bytes::copy_from_slice(bytes)));
    }

    pub(crate) fn put_segment(&mut self, segment: Segment) {
        if segment.len() > 0 {
            self.body_len += segment.len();
            self.body.push(segment);
        }
    }
}

/// Encodes header lines as fields with lower-case names. RFC 9113 8.2.1
pub(crate) fn encode_lines(lines: &[u8]) -> Vec<u8> {
    let names = lines.to_ascii_lowercase();
    let mut start = 0;
    let spans = memchr::memmem::find_iter(lines, b"\r\n").map(|end| {
        let span = start..end;
        start = end + 2;
        span
    });
    encode_literals(spans.filter_map(|span| {
        let colon = memchr::memchr(b':', &lines[span.clone()])?;
        let value = lines[span.start + colon + 1..span.end].trim_ascii();
        Some((&names[span.start..span.start + colon], value))
    }))
}
