//! Request bodies. A static site does not use them, but must find their end: a body is read and
//! discarded.

use super::target::hex;
use super::{Fields, Name, Refusal, Version};
use super::{fields, head};
use crate::config::RequestLimits;

/// Delimitation of a body. RFC 9112 6.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Refuses every framing that two readers could interpret differently. RFC 9112 6.1 and 6.3
    #[inline]
    pub(super) fn of(fields: &Fields<'_>, version: Version) -> Result<Framing, Refusal> {
        match (fields.get(Name::ContentLength), fields.get(Name::TransferEncoding)) {
            (None, None) => Ok(Framing::None),
            (Some(length), None) => Framing::of_length(length, fields),
            (None, Some(_)) => Framing::of_encoding(fields, version),
            (Some(_), Some(_)) => Err(Refusal::LengthAndEncoding),
        }
    }

    /// Reads `Content-Length`. Equal repeats count as one; others are refused. RFC 9110 8.6
    fn of_length(length: &[u8], fields: &Fields<'_>) -> Result<Framing, Refusal> {
        if fields.all(Name::ContentLength).any(|other| other != length) {
            return Err(Refusal::ContentLength);
        }
        // No sign, no list, no whitespace: `str::parse` alone would accept `+5`.
        if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
            return Err(Refusal::ContentLength);
        }
        let digits = str::from_utf8(length).map_err(|_| Refusal::ContentLength)?;
        // A length beyond 64 bits is too long for every limit.
        match digits.parse().unwrap_or(u64::MAX) {
            0 => Ok(Framing::None),
            len => Ok(Framing::Length(len)),
        }
    }

    fn of_encoding(fields: &Fields<'_>, version: Version) -> Result<Framing, Refusal> {
        // RFC 9112 6.1: in a request of version 1.0 the framing is considered faulty.
        if version == Version::Http10 {
            return Err(Refusal::TransferEncoding);
        }
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let chunked_count =
            fields.members(Name::TransferEncoding).filter(|c| is_chunked(c)).count();
        let last = fields.members(Name::TransferEncoding).last();
        // RFC 9112 6.3: if `chunked` is not the last coding, the end of the body is unknown.
        if chunked_count != 1 || !last.is_some_and(is_chunked) {
            return Err(Refusal::TransferEncoding);
        }
        match fields.members(Name::TransferEncoding).count() {
            1 => Ok(Framing::Chunked),
            _ => Err(Refusal::TransferEncodingUnknown),
        }
    }
}

/// A body being received.
#[derive(Debug)]
pub(crate) enum BodyReader {
    Length { left: u64 },
    Chunked(Chunks),
}

/// Progress of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyProgress {
    More,
    Whole,
}

impl BodyReader {
    pub(crate) fn new(framing: Framing) -> Option<BodyReader> {
        match framing {
            Framing::None => None,
            Framing::Length(left) => Some(BodyReader::Length { left }),
            Framing::Chunked => Some(BodyReader::Chunked(Chunks::default())),
        }
    }

    /// Takes the bytes that belong to the body from the start of `input`. Returns their number.
    pub(crate) fn discard(
        &mut self,
        input: &[u8],
        limits: &RequestLimits,
    ) -> Result<(usize, BodyProgress), Refusal> {
        match self {
            BodyReader::Length { left } => {
                let len = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= len as u64;
                Ok((len, if *left == 0 { BodyProgress::Whole } else { BodyProgress::More }))
            }
            BodyReader::Chunked(chunks) => chunks.discard(input, limits),
        }
    }
}

/// A chunked body. RFC 9112 7.1
///
/// ```text
///   5;ext=1 CRLF  hello CRLF  0 CRLF  Name: value CRLF  CRLF
///   └ Size    Ext └ Data      └ Size  └ Trailer…        └ End
/// ```
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    at: At,
    /// Remaining size of the current chunk.
    size: u64,
    size_digits: u32,
    /// Bytes of data in all chunks so far.
    body_len: u64,
    extensions_len: usize,
    trailers_len: usize,
}

/// Position of the next byte in a chunked body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Size,
    /// Whitespace after the size; only a `;` may follow.
    SizeSpace,
    Extension,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// At the start of a trailer line, or of the final empty line.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    EndLineFeed,
}

/// Most size digits, leading zeros included: 64 bits.
const SIZE_DIGITS_MAX: u32 = 16;

impl Chunks {
    fn discard(
        &mut self,
        input: &[u8],
        limits: &RequestLimits,
    ) -> Result<(usize, BodyProgress), Refusal> {
        let mut used = 0;
        while used < input.len() {
            if self.at == At::Data {
                let len =
                    (input.len() - used).min(usize::try_from(self.size).unwrap_or(usize::MAX));
                self.size -= len as u64;
                used += len;
                if self.size == 0 {
                    self.at = At::DataReturn;
                }
                continue;
            }
            let byte = input[used];
            used += 1;
            if self.at == At::EndLineFeed && byte == b'\n' {
                return Ok((used, BodyProgress::Whole));
            }
            self.at = self.step(byte, limits)?;
        }
        Ok((used, BodyProgress::More))
    }

    /// Takes one byte that is not data.
    fn step(&mut self, byte: u8, limits: &RequestLimits) -> Result<At, Refusal> {
        match (self.at, byte) {
            (At::Size, b'\r') if self.size_digits > 0 => self.end_size(limits),
            (At::Size, b';') if self.size_digits > 0 => self.extend(limits),
            (At::Size, b' ' | b'\t') if self.size_digits > 0 => {
                self.extend(limits).map(|_| At::SizeSpace)
            }
            (At::Size, digit) => self.push_size(hex(digit).ok_or(Refusal::Chunk)?),
            (At::SizeSpace, b' ' | b'\t') => self.extend(limits).map(|_| At::SizeSpace),
            (At::SizeSpace, b';') => self.extend(limits),
            (At::Extension, b'\r') => self.end_size(limits),
            (At::Extension, byte) if is_text(byte) => self.extend(limits),
            (At::SizeLineFeed, b'\n') if self.size == 0 => Ok(At::TrailerStart),
            (At::SizeLineFeed, b'\n') => Ok(At::Data),
            (At::DataReturn, b'\r') => Ok(At::DataLineFeed),
            (At::DataLineFeed, b'\n') => Ok(At::Size),
            (At::TrailerStart, b'\r') => Ok(At::EndLineFeed),
            (At::TrailerStart | At::TrailerName, byte) if head::is_token_byte(byte) => {
                self.trail(At::TrailerName, limits)
            }
            (At::TrailerName, b':') => self.trail(At::TrailerValue, limits),
            (At::TrailerValue, b'\r') => self.trail(At::TrailerLineFeed, limits),
            (At::TrailerValue, byte) if is_text(byte) => self.trail(At::TrailerValue, limits),
            (At::TrailerLineFeed, b'\n') => self.trail(At::TrailerStart, limits),
            (
                At::TrailerStart
                | At::TrailerName
                | At::TrailerValue
                | At::TrailerLineFeed
                | At::EndLineFeed,
                _,
            ) => Err(Refusal::Trailer),
            _ => Err(Refusal::Chunk),
        }
    }

    fn push_size(&mut self, digit: u8) -> Result<At, Refusal> {
        if self.size_digits == SIZE_DIGITS_MAX {
            return Err(Refusal::Chunk);
        }
        self.size_digits += 1;
        self.size = self.size << 4 | u64::from(digit);
        Ok(At::Size)
    }

    fn end_size(&mut self, limits: &RequestLimits) -> Result<At, Refusal> {
        self.size_digits = 0;
        self.body_len = self.body_len.saturating_add(self.size);
        if self.body_len > limits.body_len_max {
            return Err(Refusal::BodyTooLong);
        }
        Ok(At::SizeLineFeed)
    }

    fn extend(&mut self, limits: &RequestLimits) -> Result<At, Refusal> {
        self.extensions_len += 1;
        if self.extensions_len > limits.chunk_extensions_len_max {
            return Err(Refusal::ChunkExtensions);
        }
        Ok(At::Extension)
    }

    fn trail(&mut self, next: At, limits: &RequestLimits) -> Result<At, Refusal> {
        self.trailers_len += 1;
        if self.trailers_len > limits.trailers_len_max {
            return Err(Refusal::TrailersTooLong);
        }
        Ok(next)
    }
}

/// True for bytes allowed in a field value or an extension: no control byte but HTAB. RFC 9110 5.5
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// The value of `Expect`. RFC 9110 10.1.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    None,
    /// The client waits for a `100 Continue` before it sends its body.
    Continue,
    /// An unknown expectation.
    Unknown,
}

impl Expectation {
    /// `100-continue` of a 1.0 client is ignored.
    pub(crate) fn of(fields: &Fields<'_>, version: Version) -> Expectation {
        if version == Version::Http10 || !fields.has(Name::Expect) {
            return Expectation::None;
        }
        let is_continue = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
        let mut expected = fields.all(Name::Expect).flat_map(fields::members);
        match expected.next() {
            None => Expectation::None,
            Some(first) if is_continue(first) && expected.all(is_continue) => Expectation::Continue,
            Some(_) => Expectation::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::parse;
    use proptest::prelude::*;

    fn framing(version: &str, fields: &str) -> Result<Framing, Refusal> {
        let head = format!("GET / HTTP/{version}\r\nHost: x\r\n{fields}\r\n");
        match parse(head.as_bytes(), &RequestLimits::default()) {
            Ok(Some(head)) => Ok(head.framing),
            Err(refusal) => Err(refusal),
            Ok(None) => panic!("{head:?} is whole"),
        }
    }

    #[test]
    fn length_is_digits_only() {
        assert_eq!(framing("1.1", ""), Ok(Framing::None));
        assert_eq!(framing("1.1", "Content-Length: 0\r\n"), Ok(Framing::None));
        assert_eq!(framing("1.1", "Content-Length: 007\r\n"), Ok(Framing::Length(7)));
        let twice = "Content-Length: 7\r\nContent-Length: 7\r\n";
        assert_eq!(framing("1.1", twice), Ok(Framing::Length(7)));
        let huge = "Content-Length: 99999999999999999999999\r\n";
        assert_eq!(framing("1.1", huge), Ok(Framing::Length(u64::MAX)));
        for value in ["", "+5", "-5", "5 5", "5,5", "0x5", "5a", "5.0"] {
            let field = format!("Content-Length: {value}\r\n");
            assert_eq!(framing("1.1", &field), Err(Refusal::ContentLength), "{value}");
        }
        let differ = "Content-Length: 7\r\nContent-Length: 8\r\n";
        assert_eq!(framing("1.1", differ), Err(Refusal::ContentLength));
    }

    #[test]
    fn chunked_once_last_alone_in_1_1() {
        let of = |value: &str| framing("1.1", &format!("Transfer-Encoding: {value}\r\n"));
        assert_eq!(of("chunked"), Ok(Framing::Chunked));
        assert_eq!(of(", Chunked ,"), Ok(Framing::Chunked));
        assert_eq!(of("gzip, chunked"), Err(Refusal::TransferEncodingUnknown));
        for value in ["", "identity", "chunked, gzip", "chunked, chunked", "xchunked", "chunked;a"]
        {
            assert_eq!(of(value), Err(Refusal::TransferEncoding), "{value}");
        }
        let old = framing("1.0", "Transfer-Encoding: chunked\r\n");
        assert_eq!(old, Err(Refusal::TransferEncoding));
        let both = framing("1.1", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n");
        assert_eq!(both, Err(Refusal::LengthAndEncoding));
    }

    /// Seen: an empty `Expect` with a body got a 100 (Continue), which a proxy in front does not
    /// wait for; with PUT, it ended the connection. Cause: all of no expectations were known.
    #[test]
    fn an_empty_expect_expects_nothing() {
        let of = |lines: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
            let head = parse(head.as_bytes(), &RequestLimits::default()).unwrap().unwrap();
            Expectation::of(&head.fields, head.version)
        };
        for lines in ["", "Expect:\r\n", "Expect: , ,\r\n", "Expect:\r\nExpect: \r\n"] {
            assert_eq!(of(lines), Expectation::None, "{lines:?}");
        }
        for lines in ["Expect: 100-Continue\r\n", "Expect:\r\nExpect: ,100-continue\r\n"] {
            assert_eq!(of(lines), Expectation::Continue, "{lines:?}");
        }
        for lines in ["Expect: x\r\n", "Expect: 100-continue, x\r\n", "Expect: y 100-continue\r\n"]
        {
            assert_eq!(of(lines), Expectation::Unknown, "{lines:?}");
        }
    }

    /// Discards `input` whole and byte by byte; both must end alike. Returns the rest of it.
    #[track_caller]
    fn discarded(input: &[u8], limits: &RequestLimits) -> Result<Option<usize>, Refusal> {
        let whole = run(input, input.len().max(1), limits);
        assert_eq!(run(input, 1, limits), whole, "{}", input.escape_ascii());
        whole
    }

    fn run(input: &[u8], step: usize, limits: &RequestLimits) -> Result<Option<usize>, Refusal> {
        let mut chunks = Chunks::default();
        let mut used = 0;
        for piece in input.chunks(step) {
            let (len, progress) = chunks.discard(piece, limits)?;
            used += len;
            if progress == BodyProgress::Whole {
                return Ok(Some(input.len() - used));
            }
        }
        Ok(None)
    }

    #[test]
    fn chunks_are_discarded() {
        let limits = RequestLimits::default();
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "5;a=b\r\nhello\r\n000;x\r\n\r\n",
            "5 \t; a=\"b c\"\r\nhello\r\n0\r\n\r\n",
            "A\r\n0123456789\r\n0\r\nExpires: now\r\nX:\r\n\r\n",
        ] {
            assert_eq!(discarded(body.as_bytes(), &limits), Ok(Some(0)), "{body:?}");
            assert_eq!(
                discarded(format!("{body}GET").as_bytes(), &limits),
                Ok(Some(3)),
                "{body:?}"
            );
        }
    }

    #[test]
    fn malformed_chunk_is_refused() {
        let limits = RequestLimits::default();
        for body in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1 \r\n",
            "1\n",
            "1\rx",
            ";a\r\n",
            " ;\r\n",
            "1\r\nab",
            "1\r\na\n",
            "1\r\na\rb",
            "1;\n",
            "1;\0\r\n",
            "00000000000000000\r\n",
        ] {
            assert_eq!(discarded(body.as_bytes(), &limits), Err(Refusal::Chunk), "{body:?}");
        }
        for trailer in
            [" folded\r\n", "name : x\r\n", "noname\r\n", "a: \rb", "a: b\n", ":\r\n", "\rx"]
        {
            let body = format!("0\r\n{trailer}");
            assert_eq!(discarded(body.as_bytes(), &limits), Err(Refusal::Trailer), "{body:?}");
        }
    }

    #[test]
    fn chunked_body_is_bounded() {
        let limits = RequestLimits {
            body_len_max: 10,
            chunk_extensions_len_max: 8,
            trailers_len_max: 8,
            ..RequestLimits::default()
        };
        let fate = |body: &str| discarded(body.as_bytes(), &limits);
        assert_eq!(fate("a\r\n0123456789\r\n0\r\n\r\n"), Ok(Some(0)));
        assert_eq!(fate("b\r\n"), Err(Refusal::BodyTooLong));
        assert_eq!(fate("5\r\n01234\r\n6\r\n"), Err(Refusal::BodyTooLong));
        assert_eq!(fate("ffffffffffffffff\r\n"), Err(Refusal::BodyTooLong));
        let chunks = |second| format!("1;2345\r\na\r\n1;{second}\r\nb\r\n0\r\n\r\n");
        assert_eq!(fate(&chunks("23")), Ok(Some(0)));
        assert_eq!(fate(&chunks("234")), Err(Refusal::ChunkExtensions));
        assert_eq!(fate("0\r\na: bcd\r\n\r\n"), Ok(Some(0)));
        assert_eq!(fate("0\r\na: bcde\r\n\r\n"), Err(Refusal::TrailersTooLong));
    }

    proptest! {
        /// Exactly the encoding of a chunked body is taken, and the bytes after it are left.
        #[test]
        fn any_chunking_ends_at_the_end(
            sizes in prop::collection::vec(1_usize..300, 0..12),
            step in 1_usize..50,
            rest in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut encoded = Vec::new();
            for size in sizes {
                encoded.extend_from_slice(format!("{size:x}\r\n").as_bytes());
                encoded.extend((0..size).map(|at| at as u8));
                encoded.extend_from_slice(b"\r\n");
            }
            encoded.extend_from_slice(b"0\r\n\r\n");
            let len = encoded.len();
            encoded.extend_from_slice(&rest);
            let mut chunks = Chunks::default();
            let mut used = 0;
            for piece in encoded.chunks(step) {
                let (taken, progress) = chunks.discard(piece, &RequestLimits::default()).unwrap();
                used += taken;
                if progress == BodyProgress::Whole {
                    break;
                }
            }
            prop_assert_eq!(used, len);
        }

        /// Any bytes give the same result whole and byte by byte, without a panic.
        #[test]
        fn arbitrary_bytes_at_any_cut(
            body in "[0-9a-f]{1,2}(;[a-z]{0,3})?(\r\n|\n|\r)[a-z]{0,20}(\r\n)?0?\r\n([a-z]{0,3}: ?x\r\n)?(\r\n)?",
        ) {
            let _ = discarded(body.as_bytes(), &RequestLimits::default());
        }
    }
}
