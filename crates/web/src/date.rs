//! Dates as text, made once per second and kernel thread.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http2::RepeatedField;

/// One second, in the three formats of replies and log lines.
#[derive(Debug)]
pub(crate) struct Dates {
    second: u64,
    /// `Date: Fri, 20 Nov 2026 12:00:00 GMT` and CRLF. RFC 9110 5.6.7
    pub(crate) http_line: [u8; 37],
    /// The status line of a 200 and the date: the start of most replies.
    pub(crate) ok_and_http_line: [u8; 54],
    /// `date` of HTTP/2; `None` until a reply needs it.
    http2_field: Option<RepeatedField>,
    /// `20/Nov/2026:12:00:00 +0000`, for the combined log format.
    pub(crate) clf: [u8; 26],
    /// `2026-11-20T12:00:00Z`. RFC 3339
    pub(crate) rfc3339: [u8; 20],
}

thread_local! {
    // Borrowed only within one call that cannot suspend, so a fiber never holds it while it moves
    // to another kernel thread.
    static DATES: RefCell<Dates> = const { RefCell::new(Dates::UNSET) };
}

/// Passes the texts of a second to `read`.
pub(crate) fn with<R>(since_epoch: Duration, read: impl FnOnce(&Dates) -> R) -> R {
    DATES.with_borrow_mut(|dates| {
        if dates.second != since_epoch.as_secs() {
            *dates = Dates::of(since_epoch.as_secs());
        }
        read(dates)
    })
}

/// Passes the HTTP/2 `date` field of that second to `read`.
pub(crate) fn with_field<R>(since_epoch: Duration, read: impl FnOnce(&RepeatedField) -> R) -> R {
    with(since_epoch, |_| ());
    DATES.with_borrow_mut(|dates| {
        let line = &dates.http_line;
        let field = || RepeatedField::new(b"date", &line[b"Date: ".len()..line.len() - 2]);
        read(dates.http2_field.get_or_insert_with(field))
    })
}

/// Seconds since 1970 of an HTTP-date in any of the three formats (RFC 9110 5.6.7). `None` if it is
/// invalid: the field is ignored.
pub(crate) fn parse(value: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// The last second that four digits of a year can write: 9999-12-31 23:59:59.
const SECOND_MAX: u64 = 253_402_300_799;

impl Dates {
    /// A second before any real one, so that the first use writes the texts.
    const UNSET: Dates = Dates {
        second: u64::MAX,
        http_line: [0; 37],
        http2_field: None,
        ok_and_http_line: [0; 54],
        clf: [0; 26],
        rfc3339: [0; 20],
    };

    fn of(second: u64) -> Dates {
        let shown = second.min(SECOND_MAX);
        let http = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(shown));
        // Fri, 20 Nov 2026 12:00:00 GMT: the other formats reuse its parts.
        let (day, month, year, clock) = (&http[5..7], &http[8..11], &http[12..16], &http[17..25]);
        Dates {
            second,
            http_line: exactly(&format!("Date: {http}\r\n")),
            http2_field: None,
            ok_and_http_line: exactly(&format!("HTTP/1.1 200 OK\r\nDate: {http}\r\n")),
            clf: exactly(&format!("{day}/{month}/{year}:{clock} +0000")),
            rfc3339: exactly(&format!("{year}-{:02}-{day}T{clock}Z", month_number(month))),
        }
    }
}

fn month_number(name: &str) -> usize {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    MONTHS.find(name).map_or(0, |at| at / 3 + 1)
}

fn exactly<const N: usize>(text: &str) -> [u8; N] {
    text.as_bytes().try_into().unwrap_or_else(|_| panic!("{text:?} is not {N} bytes long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(second: u64) -> (String, String, String) {
        with(Duration::from_secs(second), |dates| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            (text(&dates.http_line), text(&dates.clf), text(&dates.rfc3339))
        })
    }

    #[test]
    fn second_has_three_forms() {
        let (http, clf, rfc3339) = shown(1_795_176_000);
        assert_eq!(http, "Date: Fri, 20 Nov 2026 12:00:00 GMT\r\n");
        assert_eq!(clf, "20/Nov/2026:12:00:00 +0000");
        assert_eq!(rfc3339, "2026-11-20T12:00:00Z");
        assert_eq!(shown(0).2, "1970-01-01T00:00:00Z");
        assert_eq!(shown(u64::MAX - 1).2, "9999-12-31T23:59:59Z");
    }

    #[test]
    fn http_date_formats_agree() {
        let formats = [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ];
        assert_eq!(formats.map(|text| parse(text.as_bytes())), [Some(784_111_777); 3]);
        assert_eq!(parse(b"yesterday"), None);
        assert_eq!(parse(b"\xff"), None);
    }
}
