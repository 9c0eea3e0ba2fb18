//! Replies, written straight into the outbox, with their counters and log lines.
//!
//! Cost of the common reply, a small file from memory: five copies into one vector (status line and
//! date, server, the entry's prepared header lines, blank line, body), a fifth of the 155 ns of a
//! short request (`examples/request_cost.rs`).

pub(crate) mod stream;

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use session::{FileRange, HostName, Now, Outbox};

use crate::date;
use crate::error_page::Page;
use crate::handle::{Handle, Service};
use crate::host::VirtualHost;
use crate::log::{LogLine, Peer, print};
use crate::request::target::encoded;
use crate::request::{Fields, Head, Method, Name, Target, Version};
use crate::site::{Body, Entry, Readers, Site};
use crate::status::Status;
use stream::{Segment, StreamReply};

/// Longest body that is copied behind its header, so that one `send` carries both. A longer copy
/// costs more than a second buffer.
const COPIED_LEN_MAX: u64 = 16 * 1024;

/// The same while memory is short: a peer that does not read holds the copy, whereas shared bytes
/// are in memory anyway.
const COPIED_LEN_MAX_LEAN: u64 = 512;

/// The same for each part of a reply whose parts exceed [`COPIED_PARTS_LEN_MAX`] in total, so that
/// 256 parts hold little memory beside the file's own.
const COPIED_PART_LEN_MAX: u64 = 1024;

/// Total length of parts up to which they are copied like a body.
const COPIED_PARTS_LEN_MAX: u64 = 64 * 1024;

/// Usual length of a header; a longer one makes the outbox grow once more.
const HEAD_LEN_USUAL: usize = 512;

/// Reply in plain HTTP to a plain request on a TLS port.
pub const WANTS_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain\r\nContent-Length: 96\r\nConnection: close\r\n\r\n\
    400 Bad Request: a plain HTTP request was sent to an HTTPS port. \
    Write https:// in the address.\n";

/// The context in which a reply is written.
pub(crate) struct Replier<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) service: &'a Service,
    pub(crate) transport: Transport,
    /// Subject of the client's certificate.
    pub(crate) subject: Option<&'a str>,
    /// The host that answers. `None`: the request names no known host, so no host's settings apply.
    pub(crate) host: Option<&'a VirtualHost>,
    /// Origins whose scripts may read the reply.
    pub(crate) readers: Readers,
    /// The client: the peer, or the address that a trusted proxy names.
    pub(crate) client: Peer,
    pub(crate) now: Now,
    pub(crate) out: &'a mut Outbox,
    /// The HTTP/2 stream that gets the reply instead of the outbox.
    pub(crate) stream: Option<Box<StreamReply>>,
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Transport {
    #[default]
    Plain,
    Tls,
    /// Plain; requests are redirected to this TLS port.
    ToHttps(u16),
}

/// The facts about a request that its reply needs.
#[derive(Clone, Copy)]
pub(crate) struct RequestFacts<'a> {
    /// For the log.
    pub(crate) line: &'a [u8],
    /// For the log, if the fields could be parsed.
    pub(crate) fields: Option<&'a Fields<'a>>,
    pub(crate) version: Version,
    /// `HEAD`: the reply ends with its header. RFC 9110 9.3.2
    pub(crate) wants_body: bool,
    /// True if the connection persists after the reply.
    pub(crate) persists: bool,
}

impl<'a> RequestFacts<'a> {
    /// Facts of a request with this head.
    #[inline]
    pub(crate) fn of(head: &'a Head<'a>, persists: bool) -> RequestFacts<'a> {
        RequestFacts {
            line: head.line,
            fields: Some(&head.fields),
            version: head.version,
            wants_body: head.method != Method::Head,
            persists,
        }
    }

    /// Facts of a request that could not be parsed or did not arrive: the connection closes.
    pub(crate) fn unparsed(line: &'a [u8]) -> RequestFacts<'a> {
        let version = Version::Http11;
        // The reply to a HEAD never has a body, however invalid the request is.
        let wants_body = !line.starts_with(b"HEAD ");
        RequestFacts { line, fields: None, version, wants_body, persists: false }
    }
}

impl<'a> Replier<'a> {
    /// Sends a 200 with a whole entry.
    #[inline(always)]
    pub(crate) fn whole(&mut self, facts: RequestFacts<'_>, entry: &Entry) {
        if self.stream.is_some() {
            return self.whole_on_stream(facts, entry);
        }
        let copied: &[u8] = match &entry.body {
            Body::Memory(bytes) if facts.wants_body && entry.len <= self.copied_len_max() => bytes,
            _ => &[],
        };
        self.put_lines(Status::Ok, facts, &entry.head_200, &[], copied);
        if facts.wants_body && copied.is_empty() {
            self.put_body(entry, 0..entry.len);
        }
        self.done(Status::Ok, facts, entry.len, Some(entry), None);
    }

    #[inline(never)]
    fn whole_on_stream(&mut self, facts: RequestFacts<'_>, entry: &Entry) {
        let encode = || stream::encode_lines(&entry.head_200).into();
        let fields = entry.fields_200.get_or_init(encode);
        self.begin_on_stream(Status::Ok, facts);
        if let Some(stream) = &mut self.stream {
            stream.fields.extend_from_slice(fields);
        }
        if facts.wants_body {
            self.put_body(entry, 0..entry.len);
        }
        self.done(Status::Ok, facts, entry.len, Some(entry), None);
    }

    /// Sends a 206 with one part.
    pub(crate) fn part(&mut self, facts: RequestFacts<'_>, entry: &Entry, range: Range<u64>) {
        let mut lines = Vec::with_capacity(160);
        push_content_type(entry, &mut lines);
        push_content_range(entry, &range, &mut lines);
        print(&mut lines, format_args!("Content-Length: {}\r\n", range.end - range.start));
        self.put_head(Status::PartialContent, facts, &entry.head_206, &lines, &[]);
        self.put_body(entry, range.clone());
        self.done(Status::PartialContent, facts, range.end - range.start, Some(entry), None);
    }

    /// Sends a 206 with several parts, as multipart/byteranges. RFC 9110 14.6
    pub(crate) fn parts(&mut self, facts: RequestFacts<'_>, entry: &Entry, ranges: &[Range<u64>]) {
        // Without a validator the boundary differs in each reply.
        let nonce = match &*entry.etag {
            "" => self.handle.nonce(&format!("{:?}", self.now.since_epoch)),
            etag => self.handle.nonce(etag),
        };
        let boundary = format!("{:016x}{:016x}", nonce[0], nonce[1]);
        let heads: Vec<Vec<u8>> =
            ranges.iter().map(|range| part_head(entry, range, &boundary)).collect();
        let end = format!("\r\n--{boundary}--\r\n");
        let parts_len: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let heads_len: usize = heads.iter().map(Vec::len).sum();
        let len = parts_len + (heads_len + end.len()) as u64;

        let mut lines = Vec::with_capacity(160);
        print(
            &mut lines,
            format_args!("Content-Type: multipart/byteranges; boundary={boundary}\r\n"),
        );
        print(&mut lines, format_args!("Content-Length: {len}\r\n"));
        self.put_head(Status::PartialContent, facts, &entry.head_206, &lines, &[]);
        let copied_len_max = if parts_len <= COPIED_PARTS_LEN_MAX {
            self.copied_len_max()
        } else {
            self.copied_len_max().min(COPIED_PART_LEN_MAX)
        };
        for (head, range) in heads.iter().zip(ranges) {
            self.put_bytes(head);
            self.put_piece(entry, range.clone(), copied_len_max);
        }
        self.put_bytes(end.as_bytes());
        self.done(Status::PartialContent, facts, len, Some(entry), None);
    }

    /// Sends a 200 with the reply to an ACME challenge.
    #[cold]
    pub(crate) fn challenge(&mut self, facts: RequestFacts<'_>, reply: &[u8]) {
        let len = reply.len();
        let lines = format!("Content-Type: application/octet-stream\r\nContent-Length: {len}\r\n");
        let body = if facts.wants_body { reply } else { &[] };
        self.put_head(Status::Ok, facts, lines.as_bytes(), &[], body);
        self.done(Status::Ok, facts, len as u64, None, None);
    }

    /// Sends a 304: the client's copy is current.
    pub(crate) fn not_modified(&mut self, facts: RequestFacts<'_>, entry: &Entry) {
        self.put_head(Status::NotModified, facts, &entry.head_304, &[], &[]);
        self.done(Status::NotModified, facts, 0, None, None);
    }

    /// Sends a 204 with the allowed methods and the operator's header lines, which include the
    /// `Access-Control-Allow-…` lines for a browser's preflight request.
    pub(crate) fn options(&mut self, facts: RequestFacts<'_>, rules: &[u8]) {
        self.put_head(Status::NoContent, facts, ALLOW_LINE, rules, &[]);
        self.done(Status::NoContent, facts, 0, None, None);
    }

    /// The site of the host that answers.
    pub(crate) fn site(&self) -> &'a Site {
        &self.host.expect("a request is answered for a host").site
    }

    /// Refuses a request before its path is examined, for the host that it names.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        status: Status,
        head: &Head<'_>,
        persists: bool,
        lines: &[u8],
        why: Option<&str>,
    ) {
        self.host = self.service.host(head.host()).map(|(host, _)| host);
        self.page_anywhere(status, RequestFacts::of(head, persists), lines, why);
    }

    /// Like [`page`](Replier::page), without a known path.
    pub(crate) fn page_anywhere(
        &mut self,
        status: Status,
        facts: RequestFacts<'_>,
        lines: &[u8],
        why: Option<&str>,
    ) {
        let everywhere = self.host.map(|host| host.site.lines_everywhere());
        let (rules, readers) = everywhere.unwrap_or((&[], Readers::Own));
        self.readers = readers;
        self.page(status, facts, rules, lines, why);
    }

    /// Sends an error or a redirect, with the site's own page or the built-in one. `rules` are the
    /// operator's header lines for the path, `lines` further ones; `why` is logged.
    pub(crate) fn page(
        &mut self,
        status: Status,
        facts: RequestFacts<'_>,
        rules: &[u8],
        lines: &[u8],
        why: Option<&str>,
    ) {
        self.page_or(self.service.page(status), status, facts, rules, lines, why);
    }

    /// Sends a 403 for a directory without an index file and without a listing.
    pub(crate) fn no_index(&mut self, facts: RequestFacts<'_>, rules: &[u8]) {
        let why = Some("the directory has no index file, and is not listed");
        let page = &self.service.no_index;
        self.page_or(page, Status::Forbidden, facts, rules, &[], why);
    }

    fn page_or(
        &mut self,
        page: &Page,
        status: Status,
        facts: RequestFacts<'_>,
        rules: &[u8],
        lines: &[u8],
        why: Option<&str>,
    ) {
        let lines = &[rules, lines].concat();
        let host = self.host.filter(|_| status.is_error());
        let custom = host.and_then(|host| host.site.error_page(status.code(), self.now));
        let page = custom.as_deref().unwrap_or(page);

        let body_len = page.body.len() as u64;
        let is_copied = self.stream.is_none() && body_len <= self.copied_len_max();
        let (copied, shared) = match is_copied {
            true if facts.wants_body => (&page.body[..], None),
            false if facts.wants_body => (&[][..], Some(page.body.clone())),
            _ => (&[][..], None),
        };
        self.put_head(status, facts, &page.head, lines, copied);
        if let Some(body) = shared {
            self.put_shared(body);
        }
        self.done(status, facts, body_len, None, why);
    }

    /// Sends 100 Continue to a client that waits with its body. RFC 9110 15.2.1
    pub(crate) fn go_on(&mut self) {
        self.out.put(b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// Begins an HTTP/2 reply with the fields that depend on the request.
    fn begin_on_stream(&mut self, status: Status, facts: RequestFacts<'_>) {
        let hsts = self.hsts();
        let origin = match self.readers {
            Readers::Named(_) => self.named_origin(facts),
            Readers::Own | Readers::All => None,
        };
        let Some(stream) = &mut self.stream else {
            return;
        };
        stream.begin(status);
        if let Some(hsts) = hsts {
            stream.put_field(b"strict-transport-security", hsts.as_bytes());
        }
        if let Some(origin) = origin {
            stream.put_field(b"access-control-allow-origin", origin);
        }
    }

    #[inline]
    fn hsts(&self) -> Option<&'a str> {
        let host = self.host.filter(|_| self.transport == Transport::Tls);
        host.and_then(|host| host.hsts.as_deref())
    }

    /// Writes a whole header, and a body that is short enough to be copied.
    fn put_head(
        &mut self,
        status: Status,
        facts: RequestFacts<'_>,
        lines: &[u8],
        more: &[u8],
        body: &[u8],
    ) {
        if self.stream.is_some() {
            self.begin_on_stream(status, facts);
            if let Some(stream) = &mut self.stream {
                stream.put_lines(lines);
                stream.put_lines(more);
                stream.put_bytes(body);
            }
            return;
        }
        self.put_lines(status, facts, lines, more, body);
    }

    /// The same for HTTP/1.1.
    #[inline]
    fn put_lines(
        &mut self,
        status: Status,
        facts: RequestFacts<'_>,
        lines: &[u8],
        more: &[u8],
        body: &[u8],
    ) {
        let line = status.line();
        let server = &self.service.server_line[..];
        let hsts = self.hsts();
        let connection = connection_line(facts);
        let origin = match self.readers {
            Readers::Named(_) => self.named_origin(facts),
            Readers::Own | Readers::All => None,
        };
        date::with(self.now.since_epoch, |dates| {
            self.out.put_with(|bytes| {
                bytes.reserve(HEAD_LEN_USUAL + body.len());
                match status {
                    Status::Ok => bytes.extend_from_slice(&dates.ok_and_http_line),
                    _ => {
                        bytes.extend_from_slice(line);
                        bytes.extend_from_slice(&dates.http_line);
                    }
                }
                bytes.extend_from_slice(server);
                if let Some(hsts) = hsts {
                    bytes.extend_from_slice(b"Strict-Transport-Security: ");
                    bytes.extend_from_slice(hsts.as_bytes());
                    bytes.extend_from_slice(b"\r\n");
                }
                if let Some(origin) = origin {
                    bytes.extend_from_slice(b"Access-Control-Allow-Origin: ");
                    bytes.extend_from_slice(origin);
                    bytes.extend_from_slice(b"\r\n");
                }
                if !connection.is_empty() {
                    bytes.extend_from_slice(connection);
                }
                bytes.extend_from_slice(lines);
                if !more.is_empty() {
                    bytes.extend_from_slice(more);
                }
                bytes.extend_from_slice(b"\r\n");
                bytes.extend_from_slice(body);
            });
        });
    }

    /// The `Origin` of a request, if its scripts may read the reply. The entry's prepared lines
    /// then include `Vary: Origin`.
    #[cold]
    fn named_origin<'r>(&self, facts: RequestFacts<'r>) -> Option<&'r [u8]> {
        let mut values = facts.fields?.search("origin");
        let origin = values.next().filter(|_| values.next().is_none())?;
        let is_admitted = self.host?.site.admits(self.readers, origin);
        is_admitted.then_some(origin)
    }

    /// Length in bytes up to which a body in memory is copied behind its head.
    #[inline]
    fn copied_len_max(&self) -> u64 {
        if self.out.is_lean() { COPIED_LEN_MAX_LEAN } else { COPIED_LEN_MAX }
    }

    fn put_body(&mut self, entry: &Entry, range: Range<u64>) {
        self.put_piece(entry, range, self.copied_len_max());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        match &mut self.stream {
            Some(stream) => stream.put_bytes(bytes),
            None => self.out.put(bytes),
        }
    }

    fn put_shared(&mut self, bytes: Bytes) {
        match &mut self.stream {
            Some(stream) => stream.put_segment(Segment::Memory(bytes)),
            None => self.out.put_shared(bytes),
        }
    }

    fn put_piece(&mut self, entry: &Entry, range: Range<u64>, copied_len_max: u64) {
        match &entry.body {
            Body::Memory(bytes) => {
                let part = range.start as usize..range.end as usize;
                // A stream waits for its windows, and its bytes are copied frame by frame.
                if range.end - range.start <= copied_len_max && self.stream.is_none() {
                    self.out.put(&bytes[part]);
                } else if let (Some(page), None) = (&entry.page, &self.stream) {
                    self.out.put_page(page, part);
                } else {
                    self.put_shared(bytes.slice(part));
                }
            }
            Body::File { file, keep, settled } => {
                let range = FileRange { file: file.clone(), range, keep: *keep, settled: *settled };
                match &mut self.stream {
                    Some(stream) => stream.put_segment(Segment::File(range)),
                    None => self.out.put_file(range),
                }
            }
        }
    }

    /// Counts the reply, and writes its log line if there is a log. `body_len` is the length for a
    /// `GET`.
    #[inline]
    fn done(
        &mut self,
        status: Status,
        facts: RequestFacts<'_>,
        body_len: u64,
        entry: Option<&Entry>,
        why: Option<&str>,
    ) {
        let body_len = if facts.wants_body { body_len } else { 0 };
        let number = self.handle.counts().replied(status, body_len);
        if self.stream.is_none() {
            self.out.end_reply();
        }
        if let (Some(popular), Some(host)) = (self.handle.popular(), self.host)
            && facts.fields.is_some()
        {
            let weight = popular.weight(number);
            if weight > 0 {
                let host = host.names.first().map_or("", HostName::as_str);
                let second = self.now.since_epoch.as_secs();
                popular.add(weight, second, host, facts.line, body_len);
            }
        }
        let Some(log) = self.out.log() else { return };
        let field = |name| facts.fields.and_then(|fields| fields.get(name));
        // A parsed request has bytes above ASCII in its target only.
        let request = match facts.fields {
            Some(_) => encoded(facts.line),
            None => Cow::Borrowed(facts.line),
        };
        let site = self.host.map(|host| &host.site).filter(|site| site.has_areas());
        let user =
            site.zip(facts.fields).and_then(|(site, fields)| site.user(credentials(fields)?));
        let line = LogLine {
            peer: &self.client,
            user: user.as_deref(),
            request: &request,
            status: status.code(),
            body_len,
            host: host_of(facts),
            referer: field(Name::Referer),
            user_agent: field(Name::UserAgent),
            encoding: entry.and_then(|entry| content_encoding(&entry.head_200)),
            subject: self.subject,
            error: why,
        };
        let format = self.service.config.log_format;
        date::with(self.now.since_epoch, |dates| line.write(format, dates, log));
    }
}

/// The host that a parsed request names, for the log: in an absolute target, or in the field.
/// RFC 9112 3.2.2
fn host_of(facts: RequestFacts<'_>) -> Option<&[u8]> {
    let RequestFacts { line, fields, .. } = facts;
    let field = fields?.get(Name::Host);
    let target = memchr::memchr(b' ', line).map_or(&b""[..], |at| &line[at + 1..]);
    if target.starts_with(b"/") {
        return field;
    }
    let len = memchr::memchr(b' ', target).unwrap_or(target.len());
    match Target::parse(&target[..len]) {
        Ok(Target::Path(raw)) => Some(raw.authority),
        _ => field,
    }
}

/// The value of `Authorization`; a repeated one is ignored. RFC 9110 5.3
pub(crate) fn credentials<'a>(fields: &Fields<'a>) -> Option<&'a [u8]> {
    let mut values = fields.search("authorization");
    values.next().filter(|_| values.next().is_none())
}

/// Grants to scripts of allowed origins: any header field, and credentials that they set
/// themselves.
pub(crate) const PREFLIGHT_LINES: &[u8] = b"Access-Control-Allow-Methods: GET, HEAD\r\n\
    Access-Control-Allow-Headers: *, Authorization\r\nAccess-Control-Max-Age: 3600\r\n";

/// RFC 9110 10.2.1
pub(crate) const ALLOW_LINE: &[u8] = b"Allow: GET, HEAD, OPTIONS\r\n";

/// RFC 9112 9.3: 1.1 persists unless either side refuses; 1.0 must be told that it persists.
#[inline]
fn connection_line(facts: RequestFacts<'_>) -> &'static [u8] {
    if !facts.persists {
        b"Connection: close\r\n"
    } else if facts.version == Version::Http10 {
        b"Connection: keep-alive\r\n"
    } else {
        b""
    }
}

fn part_head(entry: &Entry, range: &Range<u64>, boundary: &str) -> Vec<u8> {
    let mut head = Vec::with_capacity(160);
    print(&mut head, format_args!("\r\n--{boundary}\r\n"));
    push_content_type(entry, &mut head);
    push_content_range(entry, range, &mut head);
    head.extend_from_slice(b"\r\n");
    head
}

fn push_content_type(entry: &Entry, to: &mut Vec<u8>) {
    print(to, format_args!("Content-Type: {}\r\n", entry.content_type));
}

/// Appends `Content-Range`; its last position is inclusive. RFC 9110 14.4
fn push_content_range(entry: &Entry, range: &Range<u64>, to: &mut Vec<u8>) {
    let last = range.end - 1;
    print(to, format_args!("Content-Range: bytes {}-{last}/{}\r\n", range.start, entry.len));
}

/// The coding in an entry's header lines, for the log.
fn content_encoding(head: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"\r\nContent-Encoding: ";
    let start = memchr::memmem::find(head, NAME)? + NAME.len();
    let len = memchr::memchr(b'\r', &head[start..])?;
    Some(&head[start..start + len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wants_https_has_its_length() {
        let text = std::str::from_utf8(WANTS_HTTPS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = format!("\r\nContent-Length: {}\r\n", body.len());
        assert!(head.contains(&length), "{} bytes: {head}", body.len());
    }
}
