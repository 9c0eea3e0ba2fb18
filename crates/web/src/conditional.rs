//! Conditional requests, in the order of RFC 9110 13.2.2.

use crate::date;
use crate::request::{Fields, Name, fields::trim};

/// Validators of the current file, for comparison with a request's conditions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validators<'a> {
    /// With its quotes; empty if there is none. A weak one (`W/"…"`) identifies one reply only, so
    /// no request can name it.
    pub(crate) etag: &'a str,
    /// Seconds since 1970.
    pub(crate) modified_s: u64,
    /// True if the date distinguishes states of the file, so that `If-Modified-Since` can be
    /// answered.
    pub(crate) modified_is_told: bool,
    /// True if the date may replace the ETag in `If-Range`. RFC 9110 8.8.2.2
    pub(crate) modified_is_strong: bool,
}

/// The outcome of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Process the request.
    Perform,
    /// 304: the client's copy is current.
    NotModified,
    /// 412: the file is not in the state that the client requires.
    Failed,
}

/// Judges the conditions of a `GET` or `HEAD` whose answer would otherwise be a 200.
#[inline]
pub(crate) fn judge(request: &Fields<'_>, current: Validators<'_>) -> Verdict {
    if request.has(Name::IfMatch) {
        if !list_names(request, Name::IfMatch, current.etag, Comparison::Strong) {
            return Verdict::Failed;
        }
    } else if date_of(request, Name::IfUnmodifiedSince).is_some_and(|s| current.modified_s > s) {
        return Verdict::Failed;
    }
    if request.has(Name::IfNoneMatch) {
        if list_names(request, Name::IfNoneMatch, current.etag, Comparison::Weak) {
            return Verdict::NotModified;
        }
    } else if current.modified_is_told
        && date_of(request, Name::IfModifiedSince).is_some_and(|s| current.modified_s <= s)
    {
        return Verdict::NotModified;
    }
    Verdict::Perform
}

/// True if `Range` applies: there is no `If-Range`, or it matches. RFC 9110 13.1.5
pub(crate) fn range_applies(request: &Fields<'_>, current: Validators<'_>) -> bool {
    if !request.has(Name::IfRange) {
        return true;
    }
    match request.single(Name::IfRange) {
        // Strong comparison: a weak tag never matches.
        Some(tag @ [b'"', ..]) => tag == current.etag.as_bytes(),
        // The date must be exactly the file's, and a strong validator.
        Some(date) => current.modified_is_strong && date::parse(date) == Some(current.modified_s),
        None => false,
    }
}

/// Reads a date; anything but one valid date is ignored. RFC 9110 13.1.3 and 13.1.4
fn date_of(request: &Fields<'_>, name: Name) -> Option<u64> {
    date::parse(request.single(name)?)
}

/// Comparison of two entity tags. RFC 9110 8.8.3.2
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// True if a list of entity tags contains `etag` or is `*`.
fn list_names(request: &Fields<'_>, name: Name, etag: &str, comparison: Comparison) -> bool {
    request.all(name).any(|value| {
        let value = trim(value);
        value == b"*" || (!etag.is_empty() && Tags(value).any(|tag| tag.is(etag, comparison)))
    })
}

/// A tag of a list, without its quotes.
struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

impl Tag<'_> {
    fn is(&self, etag: &str, comparison: Comparison) -> bool {
        let ours = etag.trim_matches('"').as_bytes();
        self.opaque == ours && (comparison == Comparison::Weak || !self.is_weak)
    }
}

/// Tags of one value. A comma may stand inside the quotes, so the usual list parser does not fit;
/// parsing ends at the first element that is no tag. RFC 9110 8.8.3
struct Tags<'a>(&'a [u8]);

impl<'a> Iterator for Tags<'a> {
    type Item = Tag<'a>;

    fn next(&mut self) -> Option<Tag<'a>> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.0 {
            self.0 = rest;
        }
        let (is_weak, quoted) = match self.0.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, self.0),
        };
        let inside = quoted.strip_prefix(b"\"")?;
        let len = memchr::memchr(b'"', inside)?;
        self.0 = &inside[len + 1..];
        Some(Tag { is_weak, opaque: &inside[..len] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::with_fields;

    const CURRENT: Validators<'_> = Validators {
        etag: "\"abc\"",
        modified_s: 784_111_777,
        modified_is_told: true,
        modified_is_strong: true,
    };
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    #[track_caller]
    fn check(fields: &str, verdict: Verdict) {
        assert_eq!(with_fields(fields, |fields| judge(fields, CURRENT)), verdict, "{fields}");
    }

    #[test]
    fn if_none_match_is_weak_and_takes_lists() {
        for value in
            ["\"abc\"", "W/\"abc\"", "*", "\"x\", \"abc\"", "\"a,b\" , W/\"abc\"", ",\"abc\","]
        {
            check(&format!("If-None-Match: {value}"), Verdict::NotModified);
        }
        for value in ["\"ABC\"", "abc", "\"abc", "w/\"abc\"", "", "\"x\"", "\"a\"b\"abc\"", "\"*\""]
        {
            check(&format!("If-None-Match: {value}"), Verdict::Perform);
        }
        check("If-None-Match: \"x\"\r\nIf-None-Match: \"abc\"", Verdict::NotModified);
    }

    #[test]
    fn if_match_compares_strongly() {
        for value in ["\"abc\"", "*", "\"x\",\"abc\""] {
            check(&format!("If-Match: {value}"), Verdict::Perform);
        }
        for value in ["W/\"abc\"", "\"x\"", "", "abc"] {
            check(&format!("If-Match: {value}"), Verdict::Failed);
        }
    }

    #[test]
    fn own_weak_etag_never_matches() {
        let current = Validators { etag: "W/\"abc\"", modified_is_strong: false, ..CURRENT };
        let judged = |fields: &str| with_fields(fields, |fields| judge(fields, current));
        assert_eq!(judged("If-Match: W/\"abc\""), Verdict::Failed);
        assert_eq!(judged("If-Match: \"abc\""), Verdict::Failed);
        assert_eq!(judged("If-None-Match: \"abc\""), Verdict::Perform);
        for value in ["W/\"abc\"", "\"abc\"", SAME] {
            let fields = format!("If-Range: {value}");
            assert!(!with_fields(&fields, |f| range_applies(f, current)), "{value}");
        }
    }

    #[test]
    fn dates_compare_by_second() {
        check(&format!("If-Modified-Since: {BEFORE}"), Verdict::Perform);
        check(&format!("If-Modified-Since: {SAME}"), Verdict::NotModified);
        check(&format!("If-Modified-Since: {AFTER}"), Verdict::NotModified);
        check("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT", Verdict::NotModified);
        check("If-Modified-Since: Sun Nov  6 08:49:37 1994", Verdict::NotModified);
        check("If-Modified-Since: soon", Verdict::Perform);
        check(&format!("If-Modified-Since: {SAME}\r\nIf-Modified-Since: {SAME}"), Verdict::Perform);
        check(&format!("If-Unmodified-Since: {BEFORE}"), Verdict::Failed);
        check(&format!("If-Unmodified-Since: {SAME}"), Verdict::Perform);
        check("If-Unmodified-Since: soon", Verdict::Perform);
    }

    #[test]
    fn etags_before_dates_match_before_none() {
        check(&format!("If-Match: \"abc\"\r\nIf-Unmodified-Since: {BEFORE}"), Verdict::Perform);
        check(&format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {AFTER}"), Verdict::Perform);
        check("If-Match: \"x\"\r\nIf-None-Match: \"abc\"", Verdict::Failed);
        check("If-Match: \"abc\"\r\nIf-None-Match: \"abc\"", Verdict::NotModified);
        check(&format!("If-Unmodified-Since: {BEFORE}\r\nIf-None-Match: \"abc\""), Verdict::Failed);
    }

    #[test]
    fn no_validator_no_304() {
        let current =
            Validators { etag: "", modified_is_told: false, modified_is_strong: false, ..CURRENT };
        let judged = |fields: &str| with_fields(fields, |fields| judge(fields, current));
        for value in ["\"\"", "W/\"\"", "\"abc\"", ""] {
            let verdict = judged(&format!("If-None-Match: {value}"));
            assert_eq!(verdict, Verdict::Perform, "{value}");
            assert_eq!(judged(&format!("If-Match: {value}")), Verdict::Failed);
            let range = format!("If-Range: {value}");
            assert!(!with_fields(&range, |f| range_applies(f, current)));
        }
        assert_eq!(judged("If-None-Match: *"), Verdict::NotModified);
        assert_eq!(judged("If-Match: *"), Verdict::Perform);
        assert_eq!(judged(&format!("If-Modified-Since: {AFTER}")), Verdict::Perform);
        let verdict = judged(&format!("If-Unmodified-Since: {BEFORE}"));
        assert_eq!(verdict, Verdict::Failed);
        let range = format!("If-Range: {SAME}");
        assert!(!with_fields(&range, |f| range_applies(f, current)));
    }

    #[test]
    fn if_range_needs_an_exact_match() {
        let applies = |fields: &str, current| with_fields(fields, |f| range_applies(f, current));
        assert!(applies("Range: bytes=0-", CURRENT));
        assert!(applies("If-Range: \"abc\"", CURRENT));
        assert!(applies(&format!("If-Range: {SAME}"), CURRENT));
        for value in ["\"x\"", "W/\"abc\"", BEFORE, AFTER, "*", "abc", "\"abc\", \"x\""] {
            assert!(!applies(&format!("If-Range: {value}"), CURRENT), "{value}");
        }
        let young = Validators { modified_is_strong: false, ..CURRENT };
        assert!(!applies(&format!("If-Range: {SAME}"), young));
        assert!(!applies("If-Range: \"abc\"\r\nIf-Range: \"abc\"", CURRENT));
    }
}
