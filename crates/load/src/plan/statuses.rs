//! Expected statuses of replies.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// Set of HTTP statuses: `2xx,404`, `200-299`, `200`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(Vec<RangeInclusive<u16>>);

impl Statuses {
    /// 2xx: the reply has the requested content.
    pub fn content() -> Statuses {
        Statuses(vec![200..=299])
    }

    /// True if the set contains this status.
    #[inline]
    pub fn has(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl Default for Statuses {
    /// 2xx and 3xx: no error.
    fn default() -> Statuses {
        Statuses(vec![200..=399])
    }
}

impl FromStr for Statuses {
    type Err = String;

    fn from_str(text: &str) -> Result<Statuses, String> {
        let ranges = text.split(',').map(|part| range(part.trim()));
        let ranges: Option<Vec<_>> = ranges.collect();
        ranges.map(Statuses).ok_or_else(|| {
            format!(
                "'{text}' is not a list of statuses; write some from 100 to 599, such as 200,206 or 2xx,404"
            )
        })
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| {
        let is_status = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_status)
    };
    let (first, last) = match text.as_bytes() {
        [digit @ b'1'..=b'5', b'x', b'x'] => {
            let first = u16::from(digit - b'0') * 100;
            (first, first + 99)
        }
        _ => match text.split_once('-') {
            Some((first, last)) => (status(first)?, status(last)?),
            None => (status(text)?, status(text)?),
        },
    };
    (100 <= first && first <= last && last <= 599).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Statuses {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn single_statuses_ranges_and_hundreds() {
        let has = |text: &str, status| of(text).has(status);
        assert!(has("200,206", 206) && !has("200,206", 204));
        assert!(has("2xx,404", 299) && has("2xx, 404", 404) && !has("2xx,404", 300));
        assert!(has("200-204", 204) && !has("200-204", 205) && !has("200-204", 199));
        assert!(has("100-599", 100) && has("5xx", 599));
        assert_eq!(of("2xx"), Statuses::content());
        assert!(Statuses::default().has(200) && Statuses::default().has(399));
        assert!(!Statuses::default().has(199) && !Statuses::default().has(400));
    }

    #[test]
    fn mistakes_are_named() {
        for wrong in [
            "", "2", "20", "2000", "099", "600", "6xx", "0xx", "200-", "300-200", "+20", "200;404",
            "599-600", "ok", "2xx-3xx",
        ] {
            let error = wrong.parse::<Statuses>().expect_err(wrong);
            assert!(error.contains("such as 200,206"), "{error}");
        }
    }
}
