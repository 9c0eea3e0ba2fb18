//! The head of a request, parsed where it lies: nothing is copied, nothing is allocated.
//!
//! ```text
//!   GET /style.css?v=3 HTTP/1.1 CRLF        line    ends at the first LF
//!   Host: example.org CRLF                  field   one per LF; name up to the colon
//!   Accept-Encoding: gzip, br CRLF
//!   CRLF                                    the head ends here
//! ```
//!
//! Cost of a browser's head of 400 bytes in 9 fields: a `memchr` for each line, one step per byte of
//! a name, and one pass of vector code that counts control bytes. `examples/request_cost.rs` measures it.
//!
//! Whatever is not exactly RFC 9112 is refused: two parsers which disagree about one byte are what
//! request smuggling is made of.

use memchr::memchr;

use super::target::Target;
use super::{Fields, Framing, Name, Refusal};
use crate::Limits;

/// A request's head. Borrows from the bytes it was parsed from.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    /// The request line as it came, without its CRLF; for the log.
    pub(crate) line: &'a [u8],
    pub(crate) method: Method,
    pub(crate) target: Target<'a>,
    pub(crate) version: Version,
    pub(crate) fields: Fields<'a>,
    /// How the body is delimited.
    pub(crate) framing: Framing,
    /// Bytes from the request line to the blank line.
    pub(crate) len: usize,
}

/// What a request asks to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Options,
    /// A method that is known, and that no static file allows: 405.
    Forbidden,
    /// A method that nobody here has heard of: 501. RFC 9110 9.1
    Unknown,
}

/// The two versions that differ to us. A higher minor version is answered as 1.1: RFC 9110 2.5
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
}

/// What came of parsing.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "lives for the length of one call"
)]
pub(crate) enum Parsed<'a> {
    Head(Head<'a>),
    /// Good so far; the blank line is yet to come.
    NeedMore,
    Refused(Refusal),
}

impl<'a> Head<'a> {
    /// Whether the client wants the connection to go on. RFC 9112 9.3
    pub(crate) fn is_persistent(&self) -> bool {
        match self.version {
            Version::Http11 => !self.fields.has_token(Name::Connection, b"close"),
            Version::Http10 => {
                self.fields.has_token(Name::Connection, b"keep-alive")
                    && !self.fields.has_token(Name::Connection, b"close")
            }
        }
    }
}

/// Parses a head that begins at the start of `input`.
///
/// The verdict on a piece of a head is `NeedMore` or the verdict on the whole: limits and mistakes are
/// judged line by line, so that it does not matter how the bytes were cut.
#[inline]
pub(crate) fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    match parse_head(input, limits) {
        Ok(Some(head)) => Parsed::Head(head),
        Ok(None) => Parsed::NeedMore,
        Err(refusal) => Parsed::Refused(refusal),
    }
}

#[inline]
fn parse_head<'a>(input: &'a [u8], limits: &Limits) -> Result<Option<Head<'a>>, Refusal> {
    let Some(line_feed) = memchr(b'\n', input) else {
        // One byte more than the limit may be the CR.
        let is_too_long = input.len() > limits.request_line_len_max + 1;
        return if is_too_long {
            Err(Refusal::RequestLineTooLong)
        } else {
            Ok(None)
        };
    };
    if line_feed > limits.request_line_len_max + 1 {
        return Err(Refusal::RequestLineTooLong);
    }
    let line = without_cr(&input[..line_feed])?;
    let (method, target, version) = parse_request_line(line)?;

    let block_start = line_feed + 1;
    let mut fields = Fields::new();
    let mut at = block_start;
    let mut line_count = 1;
    loop {
        let rest = &input[at..];
        let Some(len) = memchr(b'\n', rest) else {
            let is_too_long = input.len() > limits.head_len_max;
            return if is_too_long {
                Err(Refusal::HeadTooLong)
            } else {
                Ok(None)
            };
        };
        at += len + 1;
        line_count += 1;
        if at > limits.head_len_max {
            return Err(Refusal::HeadTooLong);
        }
        let field = without_cr(&rest[..len])?;
        if field.is_empty() {
            break;
        }
        if line_count - 1 > limits.field_count_max {
            return Err(Refusal::FieldCount);
        }
        fields.push_line(field)?;
    }
    // Each line brought its CR and LF; any other control byte is a bare CR, a NUL, or worse.
    if control_count(&input[..at]) != 2 * line_count {
        return Err(Refusal::ControlByte);
    }
    fields.set_block(&input[block_start..at]);
    check_host(&fields, version)?;
    let framing = Framing::of(&fields, version)?;
    Ok(Some(Head {
        line,
        method,
        target,
        version,
        fields,
        framing,
        len: at,
    }))
}

/// RFC 9112 2.2 lets a recipient take a bare LF as the end of a line. We do not: a proxy before us may
/// not, and would see other fields than we do.
#[inline]
pub(super) fn without_cr(line: &[u8]) -> Result<&[u8], Refusal> {
    line.strip_suffix(b"\r").ok_or(Refusal::BareLineFeed)
}

/// How many bytes are control characters other than HTAB. Written so that the compiler makes vector
/// code of it: 8-bit sums over pieces that cannot overflow them.
#[inline]
fn control_count(bytes: &[u8]) -> usize {
    let is_control = |byte: u8| u8::from(((byte < 0x20) & (byte != b'\t')) | (byte == 0x7f));
    let mut count = 0;
    let mut pieces = bytes.chunks_exact(128);
    for piece in &mut pieces {
        count += usize::from(piece.iter().fold(0_u8, |sum, &byte| sum + is_control(byte)));
    }
    count
        + pieces
            .remainder()
            .iter()
            .fold(0_u8, |sum, &byte| sum + is_control(byte)) as usize
}

/// RFC 9112 3: method SP request-target SP HTTP-version, with exactly one space each.
#[inline]
fn parse_request_line(line: &[u8]) -> Result<(Method, Target<'_>, Version), Refusal> {
    let method_len = memchr(b' ', line).ok_or(Refusal::RequestLine)?;
    let method = Method::of(&line[..method_len])?;
    let rest = &line[method_len + 1..];
    // The version has a fixed length, so the target's end needs no search.
    let Some((target_and_space, version)) = rest.split_at_checked(rest.len().wrapping_sub(8))
    else {
        return Err(Refusal::RequestLine);
    };
    let version = Version::of(version)?;
    let target = target_and_space
        .strip_suffix(b" ")
        .ok_or(Refusal::RequestLine)?;
    Ok((method, Target::parse(target)?, version))
}

impl Method {
    #[inline]
    fn of(token: &[u8]) -> Result<Method, Refusal> {
        match token {
            b"GET" => Ok(Method::Get),
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
#[inline]
fn check_host(fields: &Fields<'_>, version: Version) -> Result<(), Refusal> {
    if fields.is_repeated(Name::Host) {
        return Err(Refusal::HostRepeated);
    }
    match fields.get(Name::Host) {
        Some(host) if host.iter().all(|&byte| is_host_byte(byte)) => Ok(()),
        Some(_) => Err(Refusal::HostInvalid),
        None if version == Version::Http11 => Err(Refusal::HostMissing),
        None => Ok(()),
    }
}

const TOKEN: u8 = 1;
const HOST: u8 = 2;

/// What each byte may be part of.
static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if (byte as u8).is_ascii_alphanumeric() {
            table[byte] = TOKEN | HOST;
        }
        byte += 1;
    }
    // RFC 9110 5.6.2
    mark(&mut table, b"!#$%&'*+-.^_`|~", TOKEN);
    // RFC 3986 3.2.2 and 3.2.3: unreserved, sub-delims, percent-encoded, IP literals, and the port's colon.
    mark(&mut table, b"-._~!$&'()*+,;=%[]:", HOST);
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

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parsed(input: &str) -> Head<'_> {
        match parse(input.as_bytes(), &Limits::default()) {
            Parsed::Head(head) => head,
            other => panic!("{other:?} for {input:?}"),
        }
    }

    #[track_caller]
    fn refused(input: impl AsRef<[u8]>) -> Refusal {
        match parse(input.as_ref(), &Limits::default()) {
            Parsed::Refused(refusal) => refusal,
            other => panic!("{other:?} for {}", input.as_ref().escape_ascii()),
        }
    }

    #[test]
    fn a_head_ends_at_its_blank_line() {
        let head = parsed("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b");
        assert_eq!(
            (head.len, head.method, head.version),
            (28, Method::Get, Version::Http11)
        );
        assert_eq!(head.line, b"GET /a HTTP/1.1");
        assert_eq!(head.fields.get(Name::Host), Some(&b"x"[..]));
    }

    #[test]
    fn a_piece_of_a_head_needs_more_at_every_byte() {
        let whole = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";
        for cut in 0..whole.len() {
            let verdict = parse(&whole[..cut], &Limits::default());
            assert!(matches!(verdict, Parsed::NeedMore), "{verdict:?} at {cut}");
        }
    }

    #[test]
    fn a_higher_minor_version_is_taken_as_1_1_and_another_major_is_not() {
        assert_eq!(
            parsed("GET / HTTP/1.7\r\nHost: x\r\n\r\n").version,
            Version::Http11
        );
        assert_eq!(
            refused("PRI * HTTP/2.0\r\n\r\n"),
            Refusal::VersionUnsupported
        );
        assert_eq!(
            refused("GET / HTTP/0.9\r\n\r\n"),
            Refusal::VersionUnsupported
        );
        for garbage in [
            "GET / HTTP/11\r\n",
            "GET / http/1.1\r\n",
            "GET / HTTP/1.1 \r\n",
        ] {
            assert_eq!(refused(garbage), Refusal::Version, "{garbage:?}");
        }
    }

    #[test]
    fn a_request_line_has_three_parts_and_single_spaces() {
        let bad = [
            "\r\n",
            "GET\r\n",
            "GET /\r\n",
            "GET  / HTTP/1.1\r\n",
            "GET /  HTTP/1.1\r\n",
        ];
        for line in
            bad.into_iter()
                .chain(["G\x01T / HTTP/1.1\r\n", " / HTTP/1.1\r\n", " HTTP/1.1\r\n"])
        {
            let refusal = refused(line);
            let expected = [Refusal::RequestLine, Refusal::Target, Refusal::Version];
            assert!(expected.contains(&refusal), "{refusal:?} for {line:?}");
        }
    }

    #[test]
    fn control_bytes_are_refused_wherever_they_are() {
        for byte in (0..0x20_u8)
            .chain([0x7f])
            .filter(|byte| !b"\t\n".contains(byte))
        {
            for at in 28..=44 {
                let mut head = b"GET / HTTP/1.1\r\nHost: x\r\nA: 0123456789abcdef\r\n\r\n".to_vec();
                head.insert(at, byte);
                assert_eq!(refused(&head), Refusal::ControlByte, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn a_bare_line_feed_ends_nothing() {
        assert_eq!(
            refused("GET / HTTP/1.1\nHost: x\r\n\r\n"),
            Refusal::BareLineFeed
        );
        assert_eq!(
            refused("GET / HTTP/1.1\r\nHost: x\n\r\n"),
            Refusal::BareLineFeed
        );
        assert_eq!(
            refused("GET / HTTP/1.1\r\nHost: x\r\n\n"),
            Refusal::BareLineFeed
        );
    }

    #[test]
    fn limits_hold_to_the_byte_however_the_head_is_cut() {
        let limits = Limits {
            request_line_len_max: 64,
            head_len_max: 200,
            field_count_max: 3,
            ..Limits::default()
        };
        let fate = |input: &str| match parse(input.as_bytes(), &limits) {
            Parsed::Head(_) => None,
            Parsed::Refused(refusal) => Some(refusal),
            Parsed::NeedMore => panic!("{input:?} is whole"),
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
        // A piece that is already too long is refused without waiting for its end.
        assert!(matches!(parse(&[b'x'; 65], &limits), Parsed::NeedMore));
        assert!(matches!(
            parse(&[b'x'; 66], &limits),
            Parsed::Refused(Refusal::RequestLineTooLong)
        ));
    }

    #[test]
    fn each_1_1_request_names_one_host() {
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), Refusal::HostMissing);
        assert_eq!(
            refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
            Refusal::HostRepeated
        );
        assert_eq!(
            refused("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"),
            Refusal::HostRepeated
        );
        for host in ["a b", "a/b", "user@a", "a#", "a?b", "\"a\"", "é"] {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(refused(&head), Refusal::HostInvalid, "{host}");
        }
        for host in [
            "",
            "example.org:8080",
            "[::1]:80",
            "127.0.0.1",
            "xn--a-ecp.ru",
        ] {
            parsed(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        }
        parsed("GET / HTTP/1.0\r\n\r\n");
    }

    #[test]
    fn persistence_follows_the_version_and_the_connection_field() {
        let persists = |rest: &str| parsed(&format!("GET / HTTP/{rest}\r\n\r\n")).is_persistent();
        assert!(persists("1.1\r\nHost: x"));
        assert!(!persists("1.1\r\nHost: x\r\nConnection: Close"));
        assert!(!persists(
            "1.1\r\nHost: x\r\nConnection: x\r\nConnection: upgrade , close"
        ));
        assert!(!persists("1.0"));
        assert!(persists("1.0\r\nConnection: Keep-Alive"));
        assert!(!persists("1.0\r\nConnection: keep-alive, close"));
    }
}
