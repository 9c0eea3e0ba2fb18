//! The head of a request, parsed in place: nothing is copied, nothing is allocated.
//!
//! ```text
//!   GET /style.css?v=3 HTTP/1.1 CRLF        line    ends at the first LF
//!   Host: example.org CRLF                  field   one per LF; name up to the colon
//!   Accept-Encoding: gzip, br CRLF
//!   CRLF                                    the head ends here
//! ```
//!
//! Cost of a browser's head of 400 bytes in 10 lines: one pass in steps of eight bytes finds line
//! ends and forbidden bytes, and one step is spent per byte of a name and of the path.
//! `examples/request_cost.rs` measures it.
//!
//! Anything but exact RFC 9112 is refused: request smuggling needs two parsers that disagree about
//! one byte.

use std::net::Ipv6Addr;

use memchr::memchr;

use super::target::Target;
use super::{Fields, Framing, Name, Refusal};
use crate::config::RequestLimits;

/// A request's head. Borrows from the input.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    /// The request line as received, without its CRLF; for the log.
    pub(crate) line: &'a [u8],
    pub(crate) method: Method,
    pub(crate) target: Target<'a>,
    pub(crate) version: Version,
    pub(crate) fields: Fields<'a>,
    /// Delimitation of the body.
    pub(crate) framing: Framing,
    /// Bytes from the request line to the blank line.
    pub(crate) len: usize,
}

/// A request's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Options,
    /// A known method that static files do not allow: 405.
    Forbidden,
    /// An unknown method: 501. RFC 9110 9.1
    Unknown,
}

/// Versions that are answered differently. A higher minor version is treated as 1.1: RFC 9110 2.5
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
    Http2,
}

impl<'a> Head<'a> {
    /// The host that the request names: in an absolute target, or in the field. RFC 9112 3.2.2
    #[inline]
    pub(crate) fn host(&self) -> Option<&'a [u8]> {
        match self.target {
            Target::Path(raw) if !raw.authority.is_empty() => Some(raw.authority),
            _ => self.fields.get(Name::Host),
        }
    }

    /// True if the client wants a persistent connection. RFC 9112 9.3
    #[inline]
    pub(crate) fn is_persistent(&self) -> bool {
        let Some(wish) = self.fields.get(Name::Connection) else {
            return self.version == Version::Http11;
        };
        // The value that browsers send is compared whole.
        let is_plain = wish == b"keep-alive" && !self.fields.is_repeated(Name::Connection);
        is_plain || self.persists_by_list()
    }

    fn persists_by_list(&self) -> bool {
        let says = |token: &[u8]| self.fields.has_token(Name::Connection, token);
        !says(b"close") && (self.version == Version::Http11 || says(b"keep-alive"))
    }
}

/// Parses a head at the start of `input`; `None` if its blank line has not arrived.
///
/// The result for a piece of a head is `None` or the result for the whole: bytes are judged in
/// order, so it does not matter how the input was cut.
///
/// # Errors
/// The first mistake.
pub(crate) fn parse<'a>(
    input: &'a [u8],
    limits: &RequestLimits,
) -> Result<Option<Head<'a>>, Refusal> {
    parse_as::<false>(input, limits)
}

/// Parses the head of an HTTP/2 stream, [written](super::stream::write) as HTTP/1.1, so that both
/// have the same limits, refusals and log lines.
///
/// # Errors
/// The first mistake.
pub(crate) fn parse_stream<'a>(
    input: &'a [u8],
    limits: &RequestLimits,
) -> Result<Option<Head<'a>>, Refusal> {
    parse_as::<true>(input, limits)
}

#[inline(always)]
fn parse_as<'a, const IS_HTTP2: bool>(
    input: &'a [u8],
    limits: &RequestLimits,
) -> Result<Option<Head<'a>>, Refusal> {
    let Some(line) = next_line(input, 0, limits.request_line_len_max, Refusal::RequestLineTooLong)?
    else {
        return Ok(None);
    };
    let (method, target, version) = parse_request_line::<IS_HTTP2>(line)?;
    let block_start = line.len() + 2;
    let mut at = block_start;
    let mut fields = Fields::new(&input[block_start..]);
    let mut field_count = 0;
    loop {
        // The line's own CRLF must be within the limit too.
        let Some(line_len_max) = limits.head_len_max.checked_sub(at + 2) else {
            return if input.len() > limits.head_len_max {
                Err(Refusal::HeadTooLong)
            } else {
                Ok(None)
            };
        };
        let Some(line) = next_line(input, at, line_len_max, Refusal::HeadTooLong)? else {
            return Ok(None);
        };
        if line.is_empty() {
            at += 2;
            break;
        }
        field_count += 1;
        if field_count > limits.field_count_max {
            return Err(Refusal::FieldCount);
        }
        fields.push_line(at - block_start, line.len())?;
        at += line.len() + 2;
    }
    check_host(&fields, version)?;
    let framing = Framing::of(&fields, version)?;
    Ok(Some(Head {
        line: &input[..block_start - 2],
        method,
        target,
        version,
        fields,
        framing,
        len: at,
    }))
}

/// The line that begins at `start`, without its CRLF; `None` if its end has not arrived. A line of
/// more than `len_max` bytes is refused with `too_long`, and any control byte but HTAB with its own
/// refusal.
///
/// RFC 9112 2.2 allows a recipient to accept a bare LF as a line end. This server refuses it: a
/// proxy in front may not accept it, and would then see other fields.
#[inline(always)]
fn next_line(
    input: &[u8],
    start: usize,
    len_max: usize,
    too_long: Refusal,
) -> Result<Option<&[u8]>, Refusal> {
    let rest = &input[start..];
    let mut from = 0;
    loop {
        let Some(len) = find_control(&rest[from..]).map(|at| from + at) else {
            return if rest.len() > len_max { Err(too_long) } else { Ok(None) };
        };
        if len > len_max {
            return Err(too_long);
        }
        match (rest[len], rest.get(len + 1)) {
            (b'\r', Some(b'\n')) => return Ok(Some(&rest[..len])),
            (b'\r', None) => return Ok(None),
            (b'\t', _) => from = len + 1,
            (b'\n', _) => return Err(Refusal::BareLineFeed),
            _ => return Err(Refusal::ControlByte),
        }
    }
}

/// True if a piece of a head contains a byte that can change the result: a line end or a forbidden
/// byte.
pub(crate) fn has_control(piece: &[u8]) -> bool {
    find_control(piece).is_some()
}

/// Offset of the first control byte (RFC 5234 `CTL`): sixteen bytes a step, in two registers.
///
/// Lines of a head are some 30 bytes long. At that length this beats `memchr`, which pays for a
/// call and a choice of vector unit each time; the same pass finds the bytes that are forbidden in
/// a head.
#[inline(always)]
fn find_control(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(both) = bytes[at..].first_chunk::<16>() {
        let both = u128::from_le_bytes(*both);
        let low = controls(both as u64);
        let high = controls((both >> 64) as u64);
        if low | high != 0 {
            let bit = if low != 0 { low.trailing_zeros() } else { 64 + high.trailing_zeros() };
            return Some(at + bit as usize / 8);
        }
        at += 16;
    }
    let tail = bytes[at..].iter().position(|byte| byte.is_ascii_control())?;
    Some(at + tail)
}

/// Sets the high bit of the first control byte. (A borrow may set false ones after it, never
/// before.)
#[inline(always)]
fn controls(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    let below_space = word.wrapping_sub(ONES * 0x20);
    // With its high bit cleared, a byte is increased without a carry; only 0x7f then gets a high
    // bit.
    let is_delete = (word & (ONES * 0x7f)) + ONES;
    (below_space | is_delete) & !word & (ONES * 0x80)
}

/// RFC 9112 3: method SP request-target SP HTTP-version, with exactly one space each.
#[inline]
fn parse_request_line<const IS_HTTP2: bool>(
    line: &[u8],
) -> Result<(Method, Target<'_>, Version), Refusal> {
    let (method, rest) = match line {
        [b'G', b'E', b'T', b' ', rest @ ..] => (Method::Get, rest),
        _ => {
            let method_len = memchr(b' ', line).ok_or(Refusal::RequestLine)?;
            (Method::of(&line[..method_len])?, &line[method_len + 1..])
        }
    };
    // The version has a fixed length, so the target's end needs no search.
    let Some((target_and_space, version)) = rest.split_at_checked(rest.len().wrapping_sub(8))
    else {
        return Err(Refusal::RequestLine);
    };
    let version = if IS_HTTP2 { Version::Http2 } else { Version::of(version)? };
    let target = target_and_space.strip_suffix(b" ").ok_or(Refusal::RequestLine)?;
    Ok((method, Target::parse(target)?, version))
}

impl Method {
    /// Classifies every method but `GET`.
    #[inline]
    fn of(token: &[u8]) -> Result<Method, Refusal> {
        match token {
            b"HEAD" => Ok(Method::Head),
            b"OPTIONS" => Ok(Method::Options),
            b"POST" | b"PUT" | b"DELETE" | b"PATCH" | b"CONNECT" | b"TRACE" => {
                Ok(Method::Forbidden)
            }
            _ if is_token(token) => Ok(Method::Unknown),
            _ => Err(Refusal::RequestLine),
        }
    }
}

impl Version {
    #[inline]
    fn of(text: &[u8]) -> Result<Version, Refusal> {
        match text {
            b"HTTP/1.1" => Ok(Version::Http11),
            b"HTTP/1.0" => Ok(Version::Http10),
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Ok(Version::Http11),
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
                Err(Refusal::VersionUnsupported)
            }
            _ => Err(Refusal::Version),
        }
    }
}

/// RFC 9112 3.2: a request of version 1.1 has exactly one `Host`; an older one has at most one.
#[inline(always)]
fn check_host(fields: &Fields<'_>, version: Version) -> Result<(), Refusal> {
    if fields.is_repeated(Name::Host) {
        return Err(Refusal::HostRepeated);
    }
    match fields.get(Name::Host) {
        Some(host) if host.is_empty() || is_host(host) => Ok(()),
        Some(_) => Err(Refusal::HostInvalid),
        None if version == Version::Http11 => Err(Refusal::HostMissing),
        None => Ok(()),
    }
}

/// True for a host with or without a port: a name, an IPv4 address, or an IPv6 address in brackets
/// (RFC 3986 3.2.2), without userinfo. RFC 9110 4.2.4
#[inline(always)]
pub(crate) fn is_host(authority: &[u8]) -> bool {
    let (name, rest) = match authority {
        [b'[', rest @ ..] => match ipv6_len(rest) {
            Some(len) => authority.split_at(len + 2),
            None => return false,
        },
        _ => {
            let end = authority.iter().position(|&byte| !is_host_byte(byte));
            authority.split_at(end.unwrap_or(authority.len()))
        }
    };
    let is_port = match rest {
        [] | [b':'] => true,
        [b':', digits @ ..] => is_port(digits),
        _ => false,
    };
    is_port && !name.is_empty()
}

/// True for the digits of a 16-bit number. RFC 3986 3.2.3
#[inline(always)]
fn is_port(digits: &[u8]) -> bool {
    let is_small = match <&[u8; 5]>::try_from(digits) {
        Ok(five) => five <= b"65535",
        Err(_) => digits.len() < 5 || is_small_with_zeros(digits),
    };
    is_small && digits.iter().all(u8::is_ascii_digit)
}

#[cold]
fn is_small_with_zeros(digits: &[u8]) -> bool {
    std::str::from_utf8(digits).is_ok_and(|port| port.parse::<u16>().is_ok())
}

/// Length of the address before a bracket.
#[cold]
fn ipv6_len(text: &[u8]) -> Option<usize> {
    let len = text.iter().position(|&byte| byte == b']')?;
    let address = std::str::from_utf8(&text[..len]).ok()?;
    address.parse::<Ipv6Addr>().ok().map(|_| len)
}

const TOKEN: u8 = 1;
const HOST: u8 = 2;
/// Allowed in a path, and never special there.
const PATH: u8 = 4;

/// Character classes of each byte.
static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if (byte as u8).is_ascii_alphanumeric() {
            table[byte] = TOKEN | HOST;
        }
        if is_target_byte(byte as u8) && !matches!(byte as u8, b'%' | b'.' | b'/' | b'?') {
            table[byte] |= PATH;
        }
        byte += 1;
    }
    // RFC 9110 5.6.2
    mark(&mut table, b"!#$%&'*+-.^_`|~", TOKEN);
    // RFC 3986 3.2.2: unreserved, sub-delims, percent-encoded.
    mark(&mut table, b"-._~!$&'()*+,;=%", HOST);
    table
}

const fn mark(table: &mut [u8; 256], bytes: &[u8], class: u8) {
    let mut at = 0;
    while at < bytes.len() {
        table[bytes[at] as usize] |= class;
        at += 1;
    }
}

/// RFC 9110 5.6.2 `tchar`.
#[inline]
pub(super) fn is_token_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TOKEN != 0
}

#[inline]
fn is_host_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & HOST != 0
}

/// True for a byte that is never special in a path.
#[inline]
pub(super) fn is_path_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & PATH != 0
}

/// RFC 3986 allows fewer bytes in a path or query. All other printable ASCII is accepted (browsers
/// send `|` and `^` unencoded) except `#`: a fragment is never sent. Bytes above ASCII are taken as
/// if percent-encoded: some clients send plain UTF-8, and nginx and Caddy accept it too.
pub(super) const fn is_target_byte(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f && byte != b'#'
}

pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parsed(input: &str) -> Head<'_> {
        match parse(input.as_bytes(), &RequestLimits::default()) {
            Ok(Some(head)) => head,
            other => panic!("{other:?} for {input:?}"),
        }
    }

    #[track_caller]
    fn refused(input: impl AsRef<[u8]>) -> Refusal {
        match parse(input.as_ref(), &RequestLimits::default()) {
            Err(refusal) => refusal,
            other => panic!("{other:?} for {}", input.as_ref().escape_ascii()),
        }
    }

    #[test]
    fn first_of_two_control_bytes() {
        for first in 0..40 {
            for second in first..40 {
                let mut bytes = [b'x'; 40];
                (bytes[first], bytes[second]) = (b'\r', b'\r');
                assert_eq!(find_control(&bytes), Some(first));
            }
        }
        assert_eq!(find_control(&[b'x'; 40]), None);
    }

    #[test]
    fn a_head_ends_at_its_blank_line() {
        let head = parsed("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b");
        assert_eq!((head.len, head.method, head.version), (28, Method::Get, Version::Http11));
        assert_eq!(head.line, b"GET /a HTTP/1.1");
        assert_eq!(head.fields.get(Name::Host), Some(&b"x"[..]));
    }

    #[test]
    fn partial_head_needs_more() {
        let whole = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";
        for cut in 0..whole.len() {
            let verdict = parse(&whole[..cut], &RequestLimits::default());
            assert!(matches!(verdict, Ok(None)), "{verdict:?} at {cut}");
        }
    }

    #[test]
    fn version_1_x_is_1_1_others_refused() {
        assert_eq!(parsed("GET / HTTP/1.7\r\nHost: x\r\n\r\n").version, Version::Http11);
        assert_eq!(refused("PRI * HTTP/2.0\r\n\r\n"), Refusal::VersionUnsupported);
        assert_eq!(refused("GET / HTTP/0.9\r\n\r\n"), Refusal::VersionUnsupported);
        for garbage in ["GET / HTTP/11\r\n", "GET / http/1.1\r\n", "GET / HTTP/1.1 \r\n"] {
            assert_eq!(refused(garbage), Refusal::Version, "{garbage:?}");
        }
    }

    #[test]
    fn request_line_has_three_parts() {
        let bad = ["\r\n", "GET\r\n", "GET /\r\n", "GET  / HTTP/1.1\r\n", "GET /  HTTP/1.1\r\n"];
        for line in
            bad.into_iter().chain(["G(T / HTTP/1.1\r\n", " / HTTP/1.1\r\n", " HTTP/1.1\r\n"])
        {
            let refusal = refused(line);
            let expected = [Refusal::RequestLine, Refusal::Target, Refusal::Version];
            assert!(expected.contains(&refusal), "{refusal:?} for {line:?}");
        }
    }

    #[test]
    fn control_bytes_are_refused() {
        for byte in (0..0x20_u8).chain([0x7f]).filter(|byte| !b"\t\n".contains(byte)) {
            for at in 28..=44 {
                let mut head = b"GET / HTTP/1.1\r\nHost: x\r\nA: 0123456789abcdef\r\n\r\n".to_vec();
                head.insert(at, byte);
                assert_eq!(refused(&head), Refusal::ControlByte, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn control_byte_at_every_offset() {
        let is_control = |byte: &u8| byte.is_ascii_control();
        for byte in 0..=255 {
            for other in [b' ', b'~', 0x80, 0xff, b'a'] {
                for at in 0..40 {
                    let mut bytes = [other; 40];
                    bytes[at] = byte;
                    assert_eq!(find_control(&bytes), bytes.iter().position(is_control));
                }
            }
        }
    }

    #[test]
    fn a_bare_line_feed_ends_nothing() {
        assert_eq!(refused("GET / HTTP/1.1\nHost: x\r\n\r\n"), Refusal::BareLineFeed);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: x\n\r\n"), Refusal::BareLineFeed);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: x\r\n\n"), Refusal::BareLineFeed);
    }

    #[test]
    fn limits_hold_at_any_cut() {
        let limits = RequestLimits {
            request_line_len_max: 64,
            head_len_max: 200,
            field_count_max: 3,
            ..RequestLimits::default()
        };
        let fate = |input: &str| match parse(input.as_bytes(), &limits) {
            Ok(Some(_)) => None,
            Err(refusal) => Some(refusal),
            Ok(None) => panic!("{input:?} is whole"),
        };
        let line = |len: usize| format!("GET /{} HTTP/1.0\r\n\r\n", "x".repeat(len - 14));
        assert_eq!(fate(&line(64)), None);
        assert_eq!(fate(&line(65)), Some(Refusal::RequestLineTooLong));
        let head = |len: usize| format!("GET / HTTP/1.0\r\na: {}\r\n\r\n", "x".repeat(len - 23));
        assert_eq!(head(200).len(), 200);
        assert_eq!(fate(&head(200)), None);
        assert_eq!(fate(&head(201)), Some(Refusal::HeadTooLong));
        let fields = |count: usize| format!("GET / HTTP/1.0\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert_eq!(fate(&fields(3)), None);
        assert_eq!(fate(&fields(4)), Some(Refusal::FieldCount));
        // A piece that is already too long is refused without waiting for the rest.
        assert!(matches!(parse(&[b'x'; 64], &limits), Ok(None)));
        assert!(matches!(parse(&[b'x'; 65], &limits), Err(Refusal::RequestLineTooLong)));
    }

    #[test]
    fn http_1_1_needs_one_host() {
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), Refusal::HostMissing);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), Refusal::HostRepeated);
        assert_eq!(refused("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), Refusal::HostRepeated);
        let no_hosts = [
            "a b",
            "a/b",
            "user@a",
            "a#",
            "a?b",
            "\"a\"",
            "é",
            "[::1",
            "::1",
            "[::1]80",
            "[::1]:x",
            "[]",
            "[a]",
            "[::1%25lo]",
            "[v1.a]",
            "]",
            "a]",
            "a:99999",
            "a:65536",
            "a:b",
            "a:+1",
            "a:1+",
            "a:+0080",
            "a:00065536",
            "a:1:2",
            ":80",
            ":",
        ];
        for host in no_hosts {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(refused(&head), Refusal::HostInvalid, "{host}");
            if !host.contains(['/', '?']) {
                let head = format!("GET http://{host}/ HTTP/1.1\r\nHost: a\r\n\r\n");
                let parsed = parse(head.as_bytes(), &RequestLimits::default());
                assert!(parsed.is_err(), "{host}");
            }
        }
        for host in [
            "",
            "example.org:8080",
            "[::1]:80",
            "[::ffff:1.2.3.4]",
            "a:",
            "a:65535",
            "a:00080",
            "a:000065535",
            "a,b",
            "127.0.0.1",
            "xn--a-ecp.ru",
        ] {
            parsed(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        }
        parsed("GET / HTTP/1.0\r\n\r\n");
    }

    #[test]
    fn persistence_by_version_and_field() {
        let persists = |rest: &str| parsed(&format!("GET / HTTP/{rest}\r\n\r\n")).is_persistent();
        assert!(persists("1.1\r\nHost: x"));
        assert!(!persists("1.1\r\nHost: x\r\nConnection: Close"));
        assert!(!persists("1.1\r\nHost: x\r\nConnection: x\r\nConnection: upgrade , close"));
        assert!(persists("1.1\r\nHost: x\r\nConnection: x"));
        assert!(!persists("1.1\r\nHost: x\r\nConnection: keep-alive\r\nConnection: close"));
        assert!(!persists("1.0"));
        assert!(persists("1.0\r\nConnection: Keep-Alive"));
        assert!(!persists("1.0\r\nConnection: keep-alive, close"));
    }
}
