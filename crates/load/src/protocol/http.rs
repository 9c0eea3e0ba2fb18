//! HTTP/1.1 client: requests are rendered once, replies are parsed as they arrive.

use std::sync::Arc;

use memchr::{memchr, memchr_iter, memchr2, memmem};

use super::{Read, Reply};
use crate::plan::{Choice, Expected, Http, Page};
use crate::random::Random;
use crate::workload::distribution::{Chooser, Weighted};

/// Longest head, and longest sum of interim replies and trailer; more is a bad reply.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Memory for partial heads that a connection keeps.
const CARRY_BYTES_KEPT: usize = 8 * 1024;

/// Request as bytes.
pub(crate) struct RenderedRequest {
    head: Box<[u8]>,
    /// Shared with the plan, so that long bodies are not copied.
    body: Arc<[u8]>,
}

/// Order of a plan's requests, and what is known of their replies.
pub(crate) struct Requests {
    /// Expected body of each page: given by the plan, or taken from its first reply.
    pub(crate) expected: Vec<Option<Expected>>,
    /// HEAD requests; empty if there is none.
    heads: Box<[bool]>,
    pub(crate) last_head: LastHead,
    picker: Picker,
}

/// Last head and its parsed fields. A server repeats the same head until its clock ticks.
#[derive(Default)]
pub(crate) struct LastHead {
    bytes: Vec<u8>,
    fields: HeadFields,
}

enum Picker {
    InTurn(usize),
    Weighted(Weighted),
    ByRank(Chooser),
}

impl Requests {
    /// `first` is the page of the first request.
    pub(crate) fn new(http: &Http, first: usize) -> Requests {
        let count = http.pages.len();
        let picker = match &http.choice {
            _ if count == 1 => Picker::InTurn(0),
            Choice::InTurn => Picker::InTurn(first % count),
            Choice::Weighted => {
                let weights: Vec<f64> = http.pages.iter().map(|page| page.weight).collect();
                Picker::Weighted(Weighted::new(&weights))
            }
            Choice::ByRank(popularity) => Picker::ByRank(popularity.chooser(count as u64)),
        };
        let is_head = |page: &Page| method_of(http, page) == "HEAD";
        let heads = if http.pages.iter().any(is_head) {
            http.pages.iter().map(is_head).collect()
        } else {
            Box::default()
        };
        Requests {
            expected: http.pages.iter().map(|page| page.expected).collect(),
            heads,
            last_head: LastHead::default(),
            picker,
        }
    }

    pub(crate) fn is_head(&self, page: u32) -> bool {
        !self.heads.is_empty() && self.heads[page as usize]
    }

    pub(crate) fn pick(&mut self, random: &mut Random) -> u32 {
        let page = match &mut self.picker {
            Picker::InTurn(next) => {
                let page = *next;
                *next = (page + 1) % self.expected.len();
                page
            }
            Picker::Weighted(weighted) => weighted.draw(random),
            Picker::ByRank(chooser) => chooser.choose(random) as usize,
        };
        page as u32
    }

    /// Compares a body with the expected one. The first body of a page becomes the expected one of
    /// the others.
    pub(crate) fn matches_expected(&mut self, page: u32, found: Expected) -> bool {
        *self.expected[page as usize].get_or_insert(found) == found
    }
}

fn method_of<'a>(http: &'a Http, page: &'a Page) -> &'a str {
    page.method.as_ref().unwrap_or(&http.method)
}

pub(crate) fn render(http: &Http, page: &Page) -> RenderedRequest {
    let method = method_of(http, page);
    let body = page.body.as_ref().unwrap_or(&http.body);
    let mut head = format!("{method} {} HTTP/1.1\r\n", page.path);
    let has = |name: &str| http.headers.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
    if !has("host") {
        head += &format!("Host: {}\r\n", http.authority);
    }
    for (name, value) in &http.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let takes_body = matches!(method, "POST" | "PUT" | "PATCH");
    // A length is forbidden beside a transfer coding (RFC 9112 6.2).
    let is_framed = has("content-length") || has("transfer-encoding");
    if (takes_body || !body.is_empty()) && !is_framed {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    if http.requests_per_connection == Some(1) && !has("connection") {
        head += "Connection: close\r\n";
    }
    head += "\r\n";
    RenderedRequest { head: head.into_bytes().into(), body: Arc::clone(body) }
}

impl RenderedRequest {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(&self.body);
    }

    /// The byte at a place of the request that repeats itself.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        let at = at % (self.head.len() + self.body.len());
        self.head.get(at).copied().unwrap_or_else(|| self.body[at - self.head.len()])
    }
}

/// Parser of the replies of one connection.
#[derive(Default)]
pub(crate) struct Reader {
    state: ReadState,
    /// Start of an incomplete head or chunk line.
    carry: Vec<u8>,
    status: u16,
    closes: bool,
    body_bytes: u64,
    hash: Option<crc32fast::Hasher>,
    /// Bytes of interim replies and of the trailer.
    beside_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ReadState {
    #[default]
    Head,
    /// Rest of a body of known length.
    Body(u64),
    /// Body that ends with the connection.
    UntilClose,
    ChunkSize,
    /// Rest of a chunk and its CRLF.
    Chunk(u64),
    Trailer,
}

impl Reader {
    /// Reads from `input` and advances it past the used bytes. `hashes`: compute the checksum of
    /// the body. `is_head`: the reply to a HEAD request has no body (RFC 9112 6.3).
    pub(crate) fn read(
        &mut self,
        input: &mut &[u8],
        last: &mut LastHead,
        hashes: bool,
        is_head: bool,
    ) -> Read {
        loop {
            match self.state {
                ReadState::Head if self.carry.is_empty() && last.begins(input) => {
                    *input = &input[last.bytes.len()..];
                    self.begin(last, hashes, is_head);
                    if self.beside_bytes > HEAD_BYTES_MAX {
                        return Read::Broken;
                    }
                }
                ReadState::Head => match self.line_end(input, b"\r\n\r\n") {
                    None if self.carry.len() > HEAD_BYTES_MAX => return Read::Broken,
                    // Otherwise it would be awaited until the time-out, as if the server were
                    // silent.
                    None if !may_become_head(&self.carry) => return Read::Broken,
                    None => return Read::More,
                    Some(held) => {
                        let is_read = match held {
                            Held::Whole(head) => last.read(head),
                            Held::Carried => last.read(&self.carry),
                        };
                        self.carry.clear();
                        if is_read.is_none() {
                            return Read::Broken;
                        }
                        self.begin(last, hashes, is_head);
                        if self.beside_bytes > HEAD_BYTES_MAX {
                            return Read::Broken;
                        }
                    }
                },
                ReadState::Body(0) => return Read::Reply(self.finish()),
                ReadState::Body(left) => match self.take(input, left, true) {
                    0 => return Read::More,
                    used => self.state = ReadState::Body(left - used),
                },
                ReadState::UntilClose => {
                    self.take(input, u64::MAX, true);
                    return Read::More;
                }
                ReadState::Chunk(left) => {
                    // The last two bytes are the CRLF.
                    let content = left.saturating_sub(2);
                    let before = *input;
                    let used = match content {
                        0 => self.take(input, left, false),
                        _ => self.take(input, content, true),
                    };
                    let end = &b"\r\n"[2 - left.min(2) as usize..];
                    if content == 0 && before[..used as usize] != end[..used as usize] {
                        return Read::Broken; // It is longer than its size.
                    }
                    match (used, left - used) {
                        (0, _) => return Read::More,
                        (_, 0) => self.state = ReadState::ChunkSize,
                        (_, left) => self.state = ReadState::Chunk(left),
                    }
                }
                ReadState::ChunkSize | ReadState::Trailer => {
                    let Some(held) = self.line_end(input, b"\n") else {
                        return if self.carry.len() > HEAD_BYTES_MAX {
                            Read::Broken
                        } else {
                            Read::More
                        };
                    };
                    let (next, bytes) = match held {
                        Held::Whole(line) => (after_line(self.state, line), line.len()),
                        Held::Carried => {
                            let next = after_line(self.state, &self.carry);
                            let bytes = self.carry.len();
                            self.carry.clear();
                            (next, bytes)
                        }
                    };
                    if self.state == ReadState::Trailer {
                        self.beside_bytes += bytes;
                    }
                    match next {
                        _ if self.beside_bytes > HEAD_BYTES_MAX => return Read::Broken,
                        None => return Read::Broken,
                        Some(next) => self.state = next,
                    }
                }
            }
        }
    }

    /// Number of next bytes that are body and need no checksum.
    pub(crate) fn skippable(&self) -> u64 {
        match (&self.hash, self.state) {
            (None, ReadState::Body(left)) => left,
            (None, ReadState::Chunk(left)) => left.saturating_sub(2),
            (None, ReadState::UntilClose) => u64::MAX,
            _ => 0,
        }
    }

    /// Notes that `bytes` bytes were discarded; returns the reply if it ends there.
    pub(crate) fn skipped(&mut self, bytes: u64) -> Option<Reply> {
        self.body_bytes += bytes;
        match &mut self.state {
            ReadState::Body(left) | ReadState::Chunk(left) => *left -= bytes,
            _ => {}
        }
        (self.state == ReadState::Body(0)).then(|| self.finish())
    }

    /// Handles a close by the peer; returns the reply that the close completes, if any.
    pub(crate) fn closed(&mut self) -> Option<Reply> {
        (self.state == ReadState::UntilClose).then(|| self.finish())
    }

    /// Resets the parser for a new connection.
    pub(crate) fn reset(&mut self) {
        self.carry.clear();
        self.carry.shrink_to(CARRY_BYTES_KEPT);
        *self = Reader { carry: std::mem::take(&mut self.carry), ..Reader::default() };
    }

    fn finish(&mut self) -> Reply {
        self.state = ReadState::Head;
        self.beside_bytes = 0;
        let crc32 = self.hash.take().map_or(0, crc32fast::Hasher::finalize);
        let body = Expected { bytes: self.body_bytes, crc32 };
        Reply::of_http(self.status, self.closes, body)
    }

    fn take(&mut self, input: &mut &[u8], most: u64, is_content: bool) -> u64 {
        let length = (input.len() as u64).min(most);
        let (taken, rest) = input.split_at(length as usize);
        if is_content {
            self.body_bytes += length;
            if let Some(hash) = &mut self.hash {
                hash.update(taken);
            }
        }
        *input = rest;
        length
    }

    /// Searches for the end of a line or a head. An incomplete one is kept for the next call.
    fn line_end<'a>(&mut self, input: &mut &'a [u8], end: &[u8]) -> Option<Held<'a>> {
        if self.carry.is_empty()
            && let Some(at) = memmem::find(input, end)
        {
            let (line, rest) = input.split_at(at + end.len());
            *input = rest;
            return Some(Held::Whole(line));
        }
        // The end may lie across the border: search again from a little before it.
        let from = self.carry.len().saturating_sub(end.len() - 1);
        let before = self.carry.len();
        self.carry.extend_from_slice(input);
        match memmem::find(&self.carry[from..], end) {
            None => {
                *input = &[];
                None
            }
            Some(at) => {
                let whole = from + at + end.len();
                self.carry.truncate(whole);
                *input = &input[whole - before..];
                Some(Held::Carried)
            }
        }
    }

    /// Starts the body that follows a head.
    fn begin(&mut self, last: &LastHead, hashes: bool, is_head: bool) {
        let fields = last.fields;
        if (100..200).contains(&fields.status) && fields.status != 101 {
            // An interim reply; the final one follows (RFC 9110 15.2).
            self.beside_bytes += last.bytes.len();
            return;
        }
        self.status = fields.status;
        self.closes = fields.closes;
        self.body_bytes = 0;
        self.hash = hashes.then(crc32fast::Hasher::new);
        // RFC 9112 6.3, in its order.
        self.state = match (fields.coding, fields.length) {
            _ if is_head || matches!(fields.status, 204 | 304) => ReadState::Body(0),
            // The following bytes are no longer HTTP.
            _ if fields.status == 101 => {
                self.closes = true;
                ReadState::Body(0)
            }
            (Coding::Chunked, _) => ReadState::ChunkSize,
            (Coding::None, Some(length)) => ReadState::Body(length),
            _ => {
                self.closes = true;
                ReadState::UntilClose
            }
        };
    }
}

impl LastHead {
    /// True if the input begins with exactly this head.
    fn begins(&self, input: &[u8]) -> bool {
        !self.bytes.is_empty() && input.starts_with(&self.bytes)
    }

    /// Parses another head; `None` if it is none.
    fn read(&mut self, head: &[u8]) -> Option<()> {
        self.fields = HeadFields::of(head)?;
        self.bytes.clear();
        self.bytes.extend_from_slice(head);
        Some(())
    }
}

enum Held<'a> {
    Whole(&'a [u8]),
    /// In `Reader::carry`.
    Carried,
}

/// Framing described by a head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct HeadFields {
    status: u16,
    length: Option<u64>,
    coding: Coding,
    closes: bool,
    says_close: bool,
}

/// Last of the transfer codings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Coding {
    #[default]
    None,
    Chunked,
    /// Body that ends with the connection.
    Other,
}

impl HeadFields {
    fn of(head: &[u8]) -> Option<HeadFields> {
        let minor = match head.get(..9)? {
            b"HTTP/1.1 " => 1,
            b"HTTP/1.0 " => 0,
            _ => return None,
        };
        let status = number(head.get(9..12)?)? as u16;
        // Three digits (RFC 9112 4).
        if !matches!(head.get(12)?, b' ' | b'\r') {
            return None;
        }
        let mut fields = HeadFields { status, closes: minor == 0, ..HeadFields::default() };
        let mut rest = head;
        while let Some(end) = memchr(b'\n', rest) {
            rest = &rest[end + 1..];
            if let Some(b'C' | b'c' | b'T' | b't') = rest.first() {
                fields.field(rest)?;
            }
        }
        fields.closes |= fields.says_close;
        (status >= 100).then_some(fields)
    }

    fn field(&mut self, line: &[u8]) -> Option<()> {
        // A name must not end with a space (RFC 9112 5.1).
        let colon = memchr2(b':', b'\n', line)?;
        if line[colon] == b':' && matches!(line[..colon].last(), Some(b' ' | b'\t')) {
            return None;
        }
        if let Some(value) = value_of(line, b"content-length:") {
            // Two different lengths are no framing; a list of equal ones is one (RFC 9112 6.3).
            for value in value.split(|&byte| byte == b',') {
                let length = number(value.trim_ascii())?;
                if *self.length.get_or_insert(length) != length {
                    return None;
                }
            }
        } else if let Some(value) = value_of(line, b"connection:") {
            // A list (RFC 9110 7.6.1); close overrides the rest (RFC 9112 9.3).
            for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                self.says_close |= option.eq_ignore_ascii_case(b"close");
                self.closes &= !option.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if let Some(value) = value_of(line, b"transfer-encoding:") {
            let last = value.rsplit(|&byte| byte == b',').next();
            let last = last.unwrap_or_default().trim_ascii();
            self.coding =
                if last.eq_ignore_ascii_case(b"chunked") { Coding::Chunked } else { Coding::Other };
        }
        Some(())
    }
}

/// Value of the field at the start of `head`, if it has this name. Lines that begin with a space
/// continue it (RFC 9112 5.2).
fn value_of<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if head.len() <= name.len() || !head[..name.len()].eq_ignore_ascii_case(name) {
        return None;
    }
    let is_end = |&at: &usize| !matches!(head.get(at + 1), Some(b' ' | b'\t'));
    let end = memchr_iter(b'\n', head).find(is_end);
    Some(head[name.len()..end.unwrap_or(head.len())].trim_ascii())
}

/// True if this may be the start of a head. Lines must end with CRLF: RFC 9112 2.2 allows a reader
/// to accept LF alone, but not every reader does.
fn may_become_head(bytes: &[u8]) -> bool {
    const BEGINS: &[u8] = b"HTTP/1.";
    let len = bytes.len().min(BEGINS.len());
    let has_crlf = |at: usize| at > 0 && bytes[at - 1] == b'\r';
    bytes[..len] == BEGINS[..len] && memchr_iter(b'\n', bytes).all(has_crlf)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// State after a chunk's size line or a line of the trailer (RFC 9112 7.1).
fn after_line(state: ReadState, line: &[u8]) -> Option<ReadState> {
    let line = line.trim_ascii();
    if state == ReadState::Trailer {
        return Some(if line.is_empty() { ReadState::Body(0) } else { ReadState::Trailer });
    }
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    match u64::from_str_radix(text, 16).ok()? {
        0 => Some(ReadState::Trailer),
        size => Some(ReadState::Chunk(size.checked_add(2)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: 500 MB of bodies took 9 GB with 16 threads. Cause: each thread's requests had copies.
    #[test]
    fn a_rendered_request_shares_its_body() {
        let body: Arc<[u8]> = Arc::from(&b"body"[..]);
        let page = Page { body: Some(Arc::clone(&body)), ..Page::new("/p") };
        let http = Http {
            authority: "h".to_owned(),
            method: "POST".to_owned(),
            pages: [page].into(),
            choice: Choice::InTurn,
            headers: Vec::new(),
            body: Arc::new([]),
            requests_per_connection: None,
        };
        let request = render(&http, &http.pages[0]);
        assert!(Arc::ptr_eq(&request.body, &body));
        let mut out = Vec::new();
        request.write(&mut out);
        let said = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
        assert_eq!(out, said);
        let again: Vec<u8> = (0..2 * said.len()).map(|at| request.byte(at)).collect();
        assert_eq!(again, [&said[..], said].concat());
    }

    /// Reads a conversation cut into two at every byte; each cut must come to the same replies.
    fn replies(conversation: &[u8], is_head: bool) -> Vec<(u16, u64, bool)> {
        let read_all = |cut: usize| {
            let mut reader = Reader::default();
            let mut last = LastHead::default();
            let mut found = Vec::new();
            for mut piece in [&conversation[..cut], &conversation[cut..]] {
                loop {
                    match reader.read(&mut piece, &mut last, true, is_head) {
                        Read::More => break,
                        Read::Broken => {
                            found.push((0, 0, true));
                            return found;
                        }
                        Read::Reply(reply) => {
                            found.push((reply.status, reply.body.bytes, reply.closes));
                        }
                    }
                }
            }
            found.extend(
                reader.closed().map(|reply| (reply.status, reply.body.bytes, reply.closes)),
            );
            found
        };
        let whole = read_all(0);
        for cut in 1..conversation.len() {
            assert_eq!(read_all(cut), whole, "cut at {cut}");
        }
        whole
    }

    #[test]
    fn pipelined_replies_are_told_apart() {
        let two = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 404 No\r\nContent-Length:0\r\n\r\n";
        assert_eq!(replies(two, false), [(200, 3, false), (404, 0, false)]);
    }

    #[test]
    fn chunks_end_with_trailer() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                        a;q=1\r\n0123456789\r\n3\r\nabc\r\n0\r\nDigest: x\r\n\r\nHTTP/1.1 204 N\r\n\r\n";
        assert_eq!(replies(chunked, false), [(200, 13, false), (204, 0, false)]);
    }

    #[test]
    fn bodiless_replies() {
        let said = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\nHTTP/1.1 204 No\r\n\r\n";
        assert_eq!(replies(said, false), [(304, 0, false), (204, 0, false)]);
        assert_eq!(
            replies(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true),
            [(200, 0, false)]
        );
    }

    #[test]
    fn interim_replies_are_passed_over() {
        let early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n\
                      HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(replies(early, false), [(200, 1, false)]);
    }

    #[test]
    fn who_closes_is_understood() {
        let close = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(replies(close, false), [(200, 1, true)]);
        let old = b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(replies(old, false), [(200, 1, true)]);
        let kept = b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(replies(kept, false), [(200, 1, false)]);
        assert_eq!(replies(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", false), [(200, 13, true)]);
    }

    /// Seen: a server that said `Connection: close, TE` was blamed for the close that it had
    /// announced. Cause: the field was read as one word, and it is a list.
    #[test]
    fn a_close_in_a_list_is_a_close() {
        for list in
            ["close, TE", "TE,Close", "keep-alive, close", "close\r\nConnection: keep-alive"]
        {
            let said =
                format!("HTTP/1.1 200 OK\r\nConnection: {list}\r\nContent-Length: 1\r\n\r\nx");
            assert_eq!(replies(said.as_bytes(), false), [(200, 1, true)], "{list}");
        }
        let kept = b"HTTP/1.0 200 OK\r\nConnection: TE, Keep-Alive\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(replies(kept, false), [(200, 1, false)]);
    }

    /// RFC 9112 6.3: only a last coding of chunked frames a reply; beside another one a length
    /// means nothing.
    #[test]
    fn unknown_coding_ends_with_connection() {
        for coding in ["gzip", "xchunked", "chunked, gzip", "chunked\r\nTransfer-Encoding: gzip"] {
            let said = format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\nContent-Length: 2\r\n\r\nabcd"
            );
            assert_eq!(replies(said.as_bytes(), false), [(200, 4, true)], "{coding}");
        }
        let gzip =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        assert_eq!(replies(gzip, false), [(200, 1, false)]);
    }

    #[test]
    fn another_protocol_begins_behind_101() {
        let switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n";
        assert_eq!(replies(switching, false), [(101, 0, true)]);
    }

    /// Seen: a server that sent interim replies or trailer lines for ever was taken for a silent
    /// one. Cause: only each of them had a limit. Cure: one limit for their sum.
    #[test]
    fn what_never_comes_to_an_end_is_broken() {
        for (begins, again) in [
            ("", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5", ";x=yyyyyyyyy"),
        ] {
            let mut reader = Reader::default();
            let mut last = LastHead::default();
            let mut says = |said: &[u8]| reader.read(&mut &said[..], &mut last, false, false);
            assert_eq!(says(begins.as_bytes()), Read::More);
            let many = again.repeat(1000);
            let broken = (0..100).any(|_| says(many.as_bytes()) == Read::Broken);
            assert!(broken, "{again}");
            assert!(reader.carry.capacity() < 4 * HEAD_BYTES_MAX);
            reader.reset();
            assert!(reader.carry.capacity() <= CARRY_BYTES_KEPT);
        }
    }

    #[test]
    fn nonsense_is_broken() {
        for nonsense in [
            &b"HTTP/2 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/1.1 099 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
            // Longer than its size: the next line would have been a size.
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc5\r\nhello\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\rb",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5,\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        ] {
            assert_eq!(replies(nonsense, false), [(0, 0, true)], "{}", nonsense.escape_ascii());
        }
    }

    /// Seen: servers that answered at once, but in another protocol or with LF alone, were called
    /// silent after the time-out. Cause: the end of a head was awaited, whatever arrived. Cure:
    /// bytes that cannot begin a head fail at once.
    #[test]
    fn broken_head_is_found_at_once() {
        for said in [
            &b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"[..],
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\n",
            b"HTTP/2",
            b"\n",
            &[200; 5000],
        ] {
            let shown = said.escape_ascii();
            assert_eq!(replies(said, false), [(0, 0, true)], "{shown}");
        }
        for said in [&b"H"[..], b"HTTP/1.1 200 OK\r\nX", b"HTTP/1.0 200 OK\r"] {
            assert_eq!(replies(said, false), [], "{}", said.escape_ascii());
        }
    }

    /// RFC 9112 5.2 and 6.3.
    #[test]
    fn folded_fields_and_equal_lengths() {
        for fields in [
            "Content-Length:\r\n 5",
            "Content-Length: 5, 5",
            "Content-Length: 5,\r\n\t5",
            "X: y\r\n content-length: 9\r\nContent-Length: 5",
        ] {
            let said = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nhello");
            assert_eq!(replies(said.as_bytes(), false), [(200, 5, false)], "{fields}");
        }
        let folded =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip,\r\n chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        assert_eq!(replies(folded, false), [(200, 1, false)]);
    }

    #[test]
    fn an_endless_head_is_broken() {
        let mut reader = Reader::default();
        let mut last = LastHead::default();
        let line = b"X: y\r\n".repeat(1000);
        let broken =
            (0..100).any(|_| reader.read(&mut &line[..], &mut last, false, false) == Read::Broken);
        assert!(broken);
    }

    #[test]
    fn cached_head_matches_every_byte() {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        let longer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi!";
        let missing = b"HTTP/1.1 404 OK\r\nContent-Length: 2\r\n\r\nno";
        let closing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
        let said = [&ok[..], ok, longer, ok, missing, missing, closing, ok].concat();
        let known = (200, 2, false);
        assert_eq!(
            replies(&said, false),
            [
                known,
                known,
                (200, 3, false),
                known,
                (404, 2, false),
                (404, 2, false),
                (200, 2, true),
                known
            ]
        );
    }
}
