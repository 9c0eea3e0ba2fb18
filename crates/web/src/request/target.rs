//! The request target, and the path in it: decoded, and without dot segments.

use std::borrow::Cow;
use std::io::Write;

use super::Refusal;
use super::head::{is_host, is_path_byte, is_target_byte};

/// Request target. RFC 9112 3.2
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// A path and a query, from origin form or absolute form.
    Path(RawPath<'a>),
    /// `*`: the server as a whole.
    Server,
}

/// A percent-encoded path as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawPath<'a> {
    /// Begins with `/`.
    pub(crate) path: &'a [u8],
    /// The part after `?`; empty if there is none.
    pub(crate) query: &'a [u8],
    /// Host and port of absolute form; empty in origin form.
    pub(crate) authority: &'a [u8],
    /// The path needs no decoding, merging of slashes or removal of dot segments.
    pub(crate) is_plain: bool,
}

/// Reason why a path cannot name a file. The request itself was understood, so the connection
/// persists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// A `%` without two hexadecimal digits, or `%00`.
    Encoding,
    /// More `..` than segments.
    AboveRoot,
    /// Well-formed, but no possible file: not UTF-8 once decoded, or with a slash inside a segment
    /// (`%2F`, which is data, not a separator: RFC 3986 2.2).
    NoFile,
}

impl<'a> Target<'a> {
    #[inline(always)] // As `Fields::push_line`.
    pub(crate) fn parse(target: &'a [u8]) -> Result<Target<'a>, Refusal> {
        match target {
            [b'/', ..] => RawPath::parse(target).map(Target::Path),
            b"*" => Ok(Target::Server),
            _ => parse_absolute(target),
        }
    }
}

/// Parses absolute form, which servers must accept (RFC 9112 3.2.2). Authority form (for `CONNECT`)
/// and everything else is refused.
#[cold]
fn parse_absolute(target: &[u8]) -> Result<Target<'_>, Refusal> {
    let rest = strip_scheme(target, b"http://").or_else(|| strip_scheme(target, b"https://"));
    let rest = rest.ok_or(Refusal::Target)?;
    let authority_len = rest.iter().position(|&b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_len);
    // RFC 9110: an empty host (4.2.1) and userinfo before the host (4.2.4) are invalid.
    if !is_host(authority) {
        return Err(Refusal::Target);
    }
    let raw = match path {
        [] => RawPath::parse(b"/")?,
        [b'?', query @ ..] => {
            check_query(query)?;
            let root = RawPath::parse(b"/")?;
            RawPath { query, ..root }
        }
        _ => RawPath::parse(path)?,
    };
    Ok(Target::Path(RawPath { authority, ..raw }))
}

fn strip_scheme<'a>(target: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = target.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

impl<'a> RawPath<'a> {
    /// Finds the query, and whether the path is plain, in one step per byte.
    #[inline]
    pub(crate) fn parse(target: &'a [u8]) -> Result<RawPath<'a>, Refusal> {
        let mut is_plain = true;
        for (at, &byte) in target.iter().enumerate() {
            match byte {
                _ if is_path_byte(byte) => {}
                b'?' => {
                    let query = &target[at + 1..];
                    check_query(query)?;
                    return Ok(RawPath { path: &target[..at], query, authority: b"", is_plain });
                }
                // A dot segment begins with `/.`, as hidden files do; both take the slow path.
                b'.' | b'/' => is_plain &= at == 0 || target[at - 1] != b'/',
                b'%' => is_plain = false,
                _ => return Err(Refusal::Target),
            }
        }
        Ok(RawPath { path: target, query: b"", authority: b"", is_plain })
    }

    /// Percent-decodes the path, merges slashes, and removes dot segments (RFC 3986 5.2.4; after
    /// decoding, so that `%2e%2e` counts). Uses `buffer` only if something changes.
    #[inline]
    pub(crate) fn normalize<'s>(&self, buffer: &'s mut Vec<u8>) -> Result<&'s str, PathError>
    where
        'a: 's,
    {
        let bytes = if self.is_plain { self.path } else { rewrite(self.path, buffer)? };
        std::str::from_utf8(bytes).map_err(|_| PathError::NoFile)
    }
}

/// A target or request line with bytes above ASCII percent-encoded, for `Location` and the log.
pub(crate) fn encoded(target: &[u8]) -> Cow<'_, [u8]> {
    if target.is_ascii() {
        return Cow::Borrowed(target);
    }
    let mut encoded = Vec::with_capacity(target.len() + 64);
    for &byte in target {
        if byte.is_ascii() {
            encoded.push(byte);
        } else {
            write!(encoded, "%{byte:02X}").expect("a vector takes everything");
        }
    }
    Cow::Owned(encoded)
}

fn check_query(query: &[u8]) -> Result<(), Refusal> {
    if query.iter().all(|&byte| is_target_byte(byte)) { Ok(()) } else { Err(Refusal::Target) }
}

/// Writes the normalized path into `buffer`, segment by segment:
///
/// ```text
///   /a/./b//%2e%2e/c%20d     raw
///   /a        b              buffer grows by a segment, shrinks by one at `..`
///   /a/c d                   normalized
/// ```
#[cold]
fn rewrite<'s>(path: &[u8], buffer: &'s mut Vec<u8>) -> Result<&'s [u8], PathError> {
    buffer.clear();
    let mut names_directory = true;
    for segment in path[1..].split(|&byte| byte == b'/') {
        let start = buffer.len();
        buffer.push(b'/');
        decode(segment, buffer)?;
        names_directory = matches!(&buffer[start + 1..], b"" | b"." | b"..");
        match &buffer[start + 1..] {
            b"" | b"." => buffer.truncate(start),
            b".." => {
                let parent = buffer[..start].iter().rposition(|&byte| byte == b'/');
                buffer.truncate(parent.ok_or(PathError::AboveRoot)?);
            }
            _ => {}
        }
    }
    if names_directory {
        buffer.push(b'/');
    }
    Ok(buffer)
}

/// A byte that never occurs in UTF-8. It stands for a slash that is data, because no file name
/// contains either.
const NO_TEXT: u8 = 0xff;

fn decode(segment: &[u8], buffer: &mut Vec<u8>) -> Result<(), PathError> {
    let mut rest = segment;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            buffer.push(*byte);
            continue;
        }
        let [high, low, after @ ..] = rest else {
            return Err(PathError::Encoding);
        };
        let byte = hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low);
        match byte {
            Some(0) | None => return Err(PathError::Encoding),
            Some(b'/') => buffer.push(NO_TEXT),
            Some(byte) => buffer.push(byte),
        }
        rest = after;
    }
    Ok(())
}

/// The value of a hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normalized(target: &str) -> Result<String, PathError> {
        match Target::parse(target.as_bytes()).unwrap() {
            Target::Path(raw) => raw.normalize(&mut Vec::new()).map(str::to_owned),
            Target::Server => panic!("{target:?} names no path"),
        }
    }

    #[track_caller]
    fn check(target: &str, path: &str) {
        assert_eq!(normalized(target).as_deref(), Ok(path), "{target}");
    }

    #[test]
    fn paths_are_normalised() {
        check("/", "/");
        check("/a/b.txt", "/a/b.txt");
        check("/a/b.txt?c=/../d", "/a/b.txt");
        check("/%61%2e%74", "/a.t");
        check("/a%20b/%C3%A9", "/a b/é");
        check("/a/./b/../c", "/a/c");
        check("/a/b/..", "/a/");
        check("/a/b/../", "/a/");
        check("/a/.", "/a/");
        check("/a/%2e%2E/b", "/b");
        check("//evil//x/", "/evil/x/");
        check("/...", "/...");
        check("/.hidden", "/.hidden");
        check("/a%5cb", "/a\\b");
    }

    #[test]
    fn a_plain_path_is_not_copied() {
        let mut buffer = Vec::new();
        let target = Target::parse(b"/a/b.txt?c=/../d");
        let Ok(Target::Path(raw)) = target else {
            panic!("{target:?}");
        };
        assert_eq!(raw.normalize(&mut buffer), Ok("/a/b.txt"));
        assert_eq!(buffer.capacity(), 0);
    }

    #[test]
    fn paths_above_the_root_are_errors() {
        for target in ["/..", "/../a", "/a/../../b", "/%2e%2e/etc/passwd", "/a/%2e./../x"] {
            assert_eq!(normalized(target), Err(PathError::AboveRoot), "{target}");
        }
        for target in ["/%00", "/%", "/%4", "/%zz", "/%+1", "/a%2Fb%00"] {
            assert_eq!(normalized(target), Err(PathError::Encoding), "{target}");
        }
    }

    #[test]
    fn nul_and_slash_codes_are_well_formed() {
        for target in ["/%ff", "/a%2fb", "/a%2Fb/c", "/..%2f..%2fetc", "/%2f/../%2f"] {
            assert_eq!(normalized(target), Err(PathError::NoFile), "{target}");
        }
        // The segment with the slash is removed.
        check("/a%2Fb/../c", "/c");
    }

    #[test]
    fn non_ascii_is_as_if_encoded() {
        check("/straße.txt", "/straße.txt");
        check("/a/../’.txt?utm=’", "/’.txt");
        check("http://x/é", "/é");
        let raw = Target::parse(b"/\xff");
        let Ok(Target::Path(raw)) = raw else { panic!("{raw:?}") };
        assert_eq!(raw.normalize(&mut Vec::new()), Err(PathError::NoFile));
        assert_eq!(&*encoded("a=é&b".as_bytes()), b"a=%C3%A9&b");
        assert!(matches!(encoded(b"a=%C3%A9"), Cow::Borrowed(_)));
    }

    #[test]
    fn absolute_form_is_accepted() {
        check("http://example.org/a/../b?c", "/b");
        check("HTTPS://example.org", "/");
        check("http://example.org?query", "/");
        assert_eq!(Target::parse(b"*"), Ok(Target::Server));
        let refused =
            ["", "example.org:443", "a", "ftp://x/", "http://", "http:///a", "http://u@x/"];
        for target in refused.into_iter().chain([
            "/a#b",
            "/a\tb",
            "/a b",
            "/a?b c",
            "/\x7f",
            "*a",
            "/a?b#c",
            "http://é/",
        ]) {
            assert_eq!(Target::parse(target.as_bytes()), Err(Refusal::Target), "{target}");
        }
    }

    proptest! {
        /// For any target, the looked-up path lies below the root and has one spelling.
        #[test]
        fn a_path_never_escapes_the_root(target in "(/|/[.]|/[.][.]|%2e|%2E|%5c|%20|%2f|é|[a-z.%]|[\\x21-\\x7e]){0,24}") {
            let target = format!("/{target}").replace('#', "");
            if let Ok(path) = normalized(&target) {
                prop_assert!(path.starts_with('/'));
                prop_assert!(!path.contains("//") && !path.contains('\0'));
                prop_assert!(path.split('/').all(|segment| segment != "." && segment != ".."));
            }
        }

        #[test]
        fn normalising_is_idempotent(path in "(/[a-z0-9_-]{1,8}){1,5}/?") {
            prop_assert_eq!(normalized(&path), Ok(path));
        }
    }
}
