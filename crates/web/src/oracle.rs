//! Properties of any input bytes, for property tests here and for the fuzz targets.

use crate::config::RequestLimits;
use crate::range::{RANGES_MAX, Selection, select};
use crate::request::body::BodyProgress;
use crate::request::{BodyReader, Framing, Head, Name, Refusal, Target, parse};
use crate::{conditional, negotiate};

/// Small limits, so that a few bytes reach them.
const LIMITS: RequestLimits = RequestLimits {
    request_line_len_max: 80,
    head_len_max: 300,
    field_count_max: 8,
    body_len_max: 64,
    chunk_extensions_len_max: 16,
    trailers_len_max: 32,
    blank_lines_max: 2,
};

/// Reads `input` as a request's head. Each prefix must give "not yet" or the result of the whole,
/// and the parsed values must be consistent.
///
/// # Panics
/// If a property is violated.
pub fn check_head(input: &[u8]) {
    for limits in [LIMITS, RequestLimits::default()] {
        let whole = parsed(parse(input, &limits));
        for cut in cuts(input.len()) {
            let piece = parsed(parse(&input[..cut], &limits));
            let agrees = piece == whole || piece == Parsed::NeedMore;
            assert!(agrees, "{piece:?} at {cut}, {whole:?} at the end of {}", input.escape_ascii());
        }
        if let Ok(Some(head)) = parse(input, &limits) {
            check_promises(&head, input, &limits);
        }
    }
}

/// Discards `input` as a chunked body, whole and byte by byte: both results must be equal.
///
/// # Panics
/// If the results differ.
pub fn check_chunks(input: &[u8]) {
    let whole = discard(input, input.len().max(1));
    let bytewise = discard(input, 1);
    assert_eq!(whole, bytewise, "{}", input.escape_ascii());
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    NeedMore,
    Head { len: usize },
    Refused(Refusal),
}

fn parsed(parsed: Result<Option<Head<'_>>, Refusal>) -> Parsed {
    match parsed {
        Ok(None) => Parsed::NeedMore,
        Ok(Some(head)) => Parsed::Head { len: head.len },
        Err(refusal) => Parsed::Refused(refusal),
    }
}

/// Every cut of a short input, and the last cuts of a long one.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    const CUTS_MAX: usize = 400;
    len.saturating_sub(CUTS_MAX)..len
}

fn check_promises(head: &Head<'_>, input: &[u8], limits: &RequestLimits) {
    let bytes = &input[..head.len];
    assert!(head.len <= limits.head_len_max && bytes.ends_with(b"\r\n\r\n"));
    assert!(head.line.len() <= limits.request_line_len_max);
    let line_count = bytes.iter().filter(|&&byte| byte == b'\n').count();
    let control_count = bytes.iter().filter(|b| b.is_ascii_control() && **b != b'\t').count();
    assert_eq!(control_count, 2 * line_count, "only CRLF at the end of each line");
    if let Target::Path(raw) = head.target {
        if let Ok(path) = raw.normalize(&mut Vec::new()) {
            assert!(
                path.starts_with('/') && !path.contains("//") && !path.contains('\0'),
                "{path}"
            );
            assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{path}");
        }
        negotiate::listing_format(raw.query, &head.fields);
        negotiate::listing_sort(raw.query);
    }
    negotiate::encodings(&head.fields);
    let validators = conditional::Validators {
        etag: "\"abc\"",
        modified_s: 784_111_777,
        modified_is_told: true,
        modified_is_strong: true,
    };
    conditional::judge(&head.fields, validators);
    conditional::range_applies(&head.fields, validators);
    check_range(head.fields.get(Name::Range).unwrap_or(b""), head.len as u64);
}

fn check_range(value: &[u8], len: u64) {
    let parts = match select(value, len) {
        Selection::Part(part) => vec![part],
        Selection::Parts(parts) => {
            assert!((2..=RANGES_MAX).contains(&parts.len()));
            parts
        }
        Selection::Whole | Selection::Ignored(_) | Selection::Unsatisfiable => return,
    };
    assert!(parts.iter().all(|part| part.start < part.end && part.end <= len));
    assert!(parts.iter().map(|part| part.end - part.start).sum::<u64>() <= len);
}

/// Discards a body that arrives in pieces of `step` bytes; returns the bytes used, or the refusal.
fn discard(input: &[u8], step: usize) -> Result<(usize, BodyProgress), Refusal> {
    let mut body = BodyReader::new(Framing::Chunked).expect("chunked is a body");
    let mut used = 0;
    for piece in input.chunks(step) {
        let (len, progress) = body.discard(piece, &LIMITS)?;
        used += len;
        if progress == BodyProgress::Whole {
            return Ok((used, BodyProgress::Whole));
        }
        assert_eq!(len, piece.len(), "an unfinished body consumes all input");
    }
    Ok((used, BodyProgress::More))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_keep_their_promises(
            pieces in prop::collection::vec(prop::sample::select(&[
                "GET ", "HEAD ", "BREW ", "/", "/..", "/%2e", "%", "*", "http://x", "?a=b", " HTTP/1.1",
                " HTTP/1.0", " HTTP/2.0", "\r\n", "\r\n", "\r\n", "\n", "\r", "Host: x", "Host:", "A: b",
                " ", "\t", ":", "Range: bytes=0-1,-2", "If-None-Match: \"a\", W/\"abc\"", "Connection: ",
                "close", "Content-Length: 5", "Transfer-Encoding: chunked", "\0", "\u{7f}", "\u{e9}",
                "Accept-Encoding: gzip;q=0.5, br", "Expect: 100-continue", "If-Range: ", "x",
            ][..]), 0..24),
        ) {
            check_head(pieces.concat().as_bytes());
        }

        #[test]
        fn chunks_end_alike_at_any_cut(
            pieces in prop::collection::vec(prop::sample::select(&[
                "0", "1", "5", "a", "f", "\r\n", "\r\n", "\r\n", "\r", "\n", ";", "x=y", " ", "\t", "hello",
                "A: b", ":", "\0",
            ][..]), 0..24),
        ) {
            check_chunks(pieces.concat().as_bytes());
        }
    }
}
