//! Range requests. RFC 9110 14

use std::ops::Range;

use crate::request::fields::members;

/// The outcome of a `Range` field for a representation of a known length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Send everything: the field is malformed or in another unit, or the file is empty.
    Whole,
    /// Send everything: the field is well-formed, but serving it would cost too much.
    Ignored(Ignored),
    /// Send this part.
    Part(Range<u64>),
    /// Send these parts, two or more: in the order of the request, not overlapping, none empty.
    Parts(Vec<Range<u64>>),
    /// 416: no requested byte exists.
    Unsatisfiable,
}

/// Reason for which a well-formed set of ranges is ignored. RFC 9110 14.2
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ignored {
    /// More than [`RANGES_MAX`].
    TooMany,
    /// Two of them share a byte.
    Overlap,
}

impl Ignored {
    /// Every reason, in the order of its number.
    pub(crate) const ALL: [Ignored; 2] = [Ignored::TooMany, Ignored::Overlap];

    /// The label of its counter, as Prometheus text.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Ignored::TooMany => "reason=\"too_many\"",
            Ignored::Overlap => "reason=\"overlap\"",
        }
    }
}

/// Maximum number of ranges in one request. zsync asks for up to 50, zchunk for up to 255.
pub(crate) const RANGES_MAX: usize = 256;

/// Reads the value of `Range` for a representation of `len` bytes.
///
/// More than [`RANGES_MAX`] ranges, or any two that overlap, select the whole: they are an attack
/// (CVE-2011-3192). A reply is thus never longer than the file and its part headers.
pub(crate) fn select(value: &[u8], len: u64) -> Selection {
    let Some((unit, set)) = split_once(value, b'=') else {
        return Selection::Whole;
    };
    if !unit.eq_ignore_ascii_case(b"bytes") {
        return Selection::Whole;
    }
    let mut named = 0;
    let mut first = None;
    let mut parts = Vec::new();
    for spec in members(set) {
        named += 1;
        let Some(range) = resolve(spec, len) else {
            return Selection::Whole;
        };
        if named > RANGES_MAX {
            return Selection::Ignored(Ignored::TooMany);
        }
        match (&first, range.is_empty()) {
            (_, true) => {}
            (None, false) => first = Some(range),
            (Some(one), false) => {
                if parts.is_empty() {
                    parts.push(Range::clone(one));
                }
                parts.push(range);
            }
        }
    }
    match first {
        // Some clients request a range of every file. Content-Range cannot express an empty one.
        None if named == 0 || len == 0 => Selection::Whole,
        None => Selection::Unsatisfiable,
        Some(range) if parts.is_empty() => Selection::Part(range),
        Some(_) if overlap(&parts) => Selection::Ignored(Ignored::Overlap),
        Some(_) => Selection::Parts(parts),
    }
}

/// True if any two of `parts` share a byte.
fn overlap(parts: &[Range<u64>]) -> bool {
    let mut sorted = parts.to_vec();
    sorted.sort_unstable_by_key(|part| part.start);
    sorted.windows(2).any(|pair| pair[1].start < pair[0].end)
}

/// The bytes that one range selects: empty if it selects none, `None` if it is malformed.
/// RFC 9110 14.1.1 and 14.1.2
fn resolve(spec: &[u8], len: u64) -> Option<Range<u64>> {
    let (first, last) = split_once(spec, b'-')?;
    match (first, last) {
        (b"", suffix) => Some(len - number(suffix)?.min(len)..len),
        (first, b"") => Some(number(first)?.min(len)..len),
        (first, last) => {
            let first = number(first)?;
            let last = number(last)?;
            (first <= last).then(|| first.min(len)..last.saturating_add(1).min(len))
        }
    }
}

/// Parses digits; a number over 64 bits is saturated, which is beyond the end of every file.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let push =
        |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, push))
}

fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what this is about")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(value: &str, len: u64) -> Option<Vec<Range<u64>>> {
        match select(value.as_bytes(), len) {
            Selection::Whole | Selection::Ignored(_) => None,
            Selection::Part(part) => Some(vec![part]),
            Selection::Parts(parts) => Some(parts),
            Selection::Unsatisfiable => Some(Vec::new()),
        }
    }

    #[track_caller]
    fn check<const N: usize>(value: &str, ranges: [Range<u64>; N]) {
        assert_eq!(parts(value, 10).as_deref(), Some(&ranges[..]), "{value}");
    }

    #[test]
    fn range_is_closed_open_or_suffix() {
        check("bytes=0-0", [0..1]);
        check("bytes=2-4", [2..5]);
        check("bytes=2-99", [2..10]);
        check("bytes=2-", [2..10]);
        check("bytes=-3", [7..10]);
        check("bytes=-99", [0..10]);
        check("Bytes= 2-4 , ,-1", [2..5, 9..10]);
        check("bytes=8-9,0-1", [8..10, 0..2]);
        check("bytes=2-3,0-1", [2..4, 0..2]);
        check("bytes=0-1,2-3", [0..2, 2..4]);
        check("bytes=0-99999999999999999999999", [0..10]);
    }

    #[test]
    fn range_behind_the_end_is_416() {
        check("bytes=10-", []);
        check("bytes=10-20", []);
        check("bytes=-0", []);
        check("bytes=99999999999999999999999-", []);
        check("bytes=10-,0-1", [0..2]);
    }

    #[test]
    fn range_of_an_empty_file() {
        for value in ["bytes=0-", "bytes=0-9", "bytes=5-", "bytes=-0", "bytes=-5", "bytes=0-,-1"] {
            assert_eq!(select(value.as_bytes(), 0), Selection::Whole, "{value}");
        }
    }

    #[test]
    fn malformed_range_selects_all() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=5",
            "bytes=a-b",
            "bytes=4-2",
            "bytes=--5",
            "bytes=-",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=0-1,x",
            "lines=0-1",
            "bytes =0-1",
            "bytes=1 -2",
        ] {
            assert_eq!(parts(value, 10), None, "{value}");
        }
    }

    fn list(count: u64) -> String {
        let specs: Vec<_> = (0..count).map(|at| format!("{}-{}", 2 * at, 2 * at)).collect();
        format!("bytes={}", specs.join(","))
    }

    #[test]
    fn zchunk_ranges_are_parts() {
        assert_eq!(parts(&list(256), 600).unwrap().len(), 256);
        let backwards = "bytes=".to_owned()
            + &(0..256).rev().map(|at| format!("{at}-{at},")).collect::<String>();
        let parts = parts(&backwards, 600).unwrap();
        assert_eq!((parts.len(), &parts[0]), (256, &(255..256)));
    }

    #[test]
    fn floods_and_overlaps_select_all() {
        let ignored = |value: &str, len| match select(value.as_bytes(), len) {
            Selection::Ignored(why) => Some(why),
            _ => None,
        };
        assert_eq!(ignored(&list(257), 600), Some(Ignored::TooMany));
        // Unsatisfiable ranges count as well.
        assert_eq!(ignored(&list(257), 2), Some(Ignored::TooMany));
        assert_eq!(ignored("bytes=0-5,5-9", 10), Some(Ignored::Overlap));
        assert_eq!(ignored("bytes=0-,-1", 10), Some(Ignored::Overlap));
        assert_eq!(ignored("bytes=8-9,0-1,1-2", 10), Some(Ignored::Overlap));
        assert_eq!(ignored("bytes=0-9,2-3,5-6", 10), Some(Ignored::Overlap));
        assert_eq!(parts("bytes=0-4,5-9", 10), Some(vec![0..5, 5..10]));
    }

    proptest! {
        #[test]
        fn parts_are_inside_disjoint_nonempty(
            value in "(bytes=)?([0-9]{0,3}-[0-9]{0,3},? ?){0,20}", len in 0_u64..300,
        ) {
            if let Some(parts) = parts(&value, len) {
                prop_assert!(parts.len() <= RANGES_MAX);
                prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= len));
                let mut seen = vec![false; len as usize];
                for at in parts.iter().cloned().flatten() {
                    prop_assert!(!std::mem::replace(&mut seen[at as usize], true));
                }
                prop_assert!(parts.iter().map(|part| part.end - part.start).sum::<u64>() <= len);
            }
        }

        #[test]
        fn closed_range_is_clipped(first in 0_u64..50, more in 0_u64..50, len in 1_u64..60) {
            let last = first + more;
            let selected: Vec<u64> =
                parts(&format!("bytes={first}-{last}"), len).unwrap().into_iter().flatten().collect();
            let expected: Vec<u64> = (0..len).filter(|at| (first..=last).contains(at)).collect();
            prop_assert_eq!(selected, expected);
        }
    }
}
