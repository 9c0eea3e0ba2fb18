//! Earlier requests to a server, to be sent again: lists of URLs and access logs.
//!
//! A line is a path (`/index.html`), a URL, or an entry of an access log in the common or the
//! combined format, as nginx, Apache, lighttpd and `weft serve` write it:
//!
//! ```text
//! 192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326 "-" "Mozilla/4.08"
//! ```
//!
//! Logs hold rubbish that clients sent and requests with bodies that are not in the log. Those
//! lines are left out and counted, in [`Replay::skipped`]. Times are whole seconds in such logs;
//! what fell into the same second is spread evenly over it.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use crate::sessions::{Call, path_of};

/// Longer lines are no entries.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The requests of a list or log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// In the order of the file.
    pub calls: Vec<Call>,
    /// When each came, counted from the first; empty if the file has no times.
    pub offsets: Vec<Duration>,
    /// How many lines were left out, and the number of the first of them.
    pub skipped: Option<(u64, usize)>,
}

impl Replay {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, or holds no request at all: with its name.
    pub fn read(path: &Path) -> io::Result<Replay> {
        let name = |error: &dyn Display| format!("{}: {error}", path.display());
        let file = std::fs::File::open(path).map_err(|e| io::Error::new(e.kind(), name(&e)))?;
        Replay::parse(BufReader::new(file)).map_err(|e| io::Error::new(e.kind(), name(&e)))
    }

    /// Reads lines.
    ///
    /// # Errors
    /// Those of `lines`, and when there is no request in it.
    pub fn parse(mut lines: impl BufRead) -> io::Result<Replay> {
        let mut replay = Replay::default();
        let mut seconds = Vec::new();
        let (mut line, mut number) = (Vec::new(), 0);
        while read_line(&mut lines, &mut line)? {
            number += 1;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            match entry(text) {
                Some((call, second)) => {
                    replay.calls.push(call);
                    seconds.extend(second);
                }
                None => {
                    let (count, first) = replay.skipped.unwrap_or((0, number));
                    replay.skipped = Some((count + 1, first));
                }
            }
        }
        if replay.calls.is_empty() {
            let what = "no request in it; a line is a path, a URL, or an entry of an access log in combined format";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if seconds.len() == replay.calls.len() {
            replay.offsets = spread(&seconds);
        }
        Ok(replay)
    }
}

/// Reads a line of any bytes; the part beyond the longest sensible length is skipped.
fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    lines
        .by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', line)?;
    if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
        lines.skip_until(b'\n')?;
    }
    Ok(!line.is_empty())
}

/// The request of a line, with its second since 1970 if it has one.
fn entry(line: &str) -> Option<(Call, Option<i64>)> {
    if line.starts_with("http") || line.starts_with('/') {
        return Some((Call::get(path_of(line)?), None));
    }
    let (before, rest) = line.split_once('"')?;
    let (request, _) = rest.split_once('"')?;
    let mut words = request.split(' ');
    let (method, uri) = (words.next()?, path_of(words.next()?)?);
    // The bodies of other methods are not in the log.
    let method = Some(method).filter(|method| ["GET", "HEAD"].contains(method))?;
    let (_, stamp) = before.split_once('[')?;
    let second = second_of(stamp.split(']').next()?)?;
    let call = Call {
        method: method.to_owned(),
        uri,
        contents: Vec::new(),
    };
    Some((call, Some(second)))
}

/// `10/Oct/2000:13:55:36 -0700` in seconds since 1970.
fn second_of(stamp: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (clock, zone) = stamp.split_once(' ')?;
    let parts: [&str; 6] = clock
        .split(['/', ':'])
        .collect::<Vec<_>>()
        .try_into()
        .ok()?;
    let number = |at: usize, max: i64| parts[at].parse().ok().filter(|n| (0..=max).contains(n));
    let month = MONTHS.iter().position(|month| *month == parts[1])? as i64 + 1;
    let (day, year) = (number(0, 31)?, number(2, 9999)?);
    let (hour, minute, second) = (number(3, 23)?, number(4, 59)?, number(5, 60)?);
    let (sign, zone) = match zone.split_at_checked(1)? {
        ("+", zone) => (1, zone),
        ("-", zone) => (-1, zone),
        _ => return None,
    };
    let zone: i64 = zone.parse().ok().filter(|zone| (0..=9999).contains(zone))?;
    let east_s = sign * (zone / 100 * 3600 + zone % 100 * 60);
    Some(days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - east_s)
}

/// Days of the Gregorian calendar, counted in years that begin in March, so that the leap day is
/// last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // The months from March on begin at days 0, 31, 61, 92, 122, …
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// Offsets from the first second, with those of one second spread over it. Logs are written when
/// replies end, so that seconds may go back by a little: such entries stay where they stand.
fn spread(seconds: &[i64]) -> Vec<Duration> {
    let mut offsets = Vec::with_capacity(seconds.len());
    let first = seconds.first().copied().unwrap_or(0);
    let mut latest = first;
    let mut at = 0;
    while at < seconds.len() {
        latest = latest.max(seconds[at]);
        let same = seconds[at..]
            .iter()
            .take_while(|&&second| second <= latest)
            .count();
        for within in 0..same {
            let offset_s = (latest - first) as f64 + within as f64 / same as f64;
            offsets.push(Duration::from_secs_f64(offset_s));
        }
        at += same;
    }
    offsets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Replay {
        Replay::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn lists_of_paths_and_urls_are_read() {
        let replay = parsed("/a\n# comment\n\nhttp://example.org/b?c=d\nhttps://example.org\n");
        assert_eq!(replay.calls, ["/a", "/b?c=d", "/"].map(Call::get));
        assert_eq!(replay.offsets, []);
        assert_eq!(replay.skipped, None);
    }

    #[test]
    fn entries_of_the_combined_format_are_read_with_their_times() {
        let replay = parsed(concat!(
            "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET /a.gif HTTP/1.0\" 200 2326 \"-\" \"M\"\n",
            "::1 - joe [10/Oct/2000:20:55:36 +0000] \"HEAD /b HTTP/1.1\" 200 0\n",
            "::1 - - [10/Oct/2000:22:55:38 +0200] \"GET /c HTTP/1.1\" 404 0\n",
        ));
        assert_eq!(replay.calls[0], Call::get("/a.gif"));
        assert_eq!(replay.calls[1].method, "HEAD");
        let ms: Vec<_> = replay.offsets.iter().map(Duration::as_millis).collect();
        assert_eq!(
            ms,
            [0, 500, 2000],
            "two in the first second, one two seconds later"
        );
    }

    #[test]
    fn rubbish_and_requests_with_bodies_are_left_out_and_counted() {
        let replay = parsed(concat!(
            "/a\n",
            "x - - [10/Oct/2000:13:55:36 -0700] \"\\x16\\x03\\x01\" 400 0\n",
            "x - - [10/Oct/2000:13:55:36 -0700] \"POST /a HTTP/1.1\" 200 0\n",
        ));
        assert_eq!(replay.calls.len(), 1);
        assert_eq!(replay.skipped, Some((2, 2)));
    }

    #[test]
    fn nothing_to_ask_for_is_an_error() {
        let error = Replay::parse(&b"hello\nworld\n"[..])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("a line is a path, a URL, or an entry"),
            "{error}"
        );
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX as usize];
        text.extend_from_slice(b"\n/a\n");
        let replay = Replay::parse(&text[..]).unwrap();
        assert_eq!(replay.calls, [Call::get("/a")]);
        assert_eq!(replay.skipped, Some((1, 1)));
    }

    #[test]
    fn seconds_that_go_back_stay_in_order() {
        let offsets = spread(&[5, 6, 5, 6, 8]);
        assert!(offsets.is_sorted());
        assert_eq!(offsets.last(), Some(&Duration::from_secs(3)));
    }

    #[test]
    fn the_calendar_agrees_with_known_days() {
        // date -u -d '…' +%s
        assert_eq!(second_of("01/Jan/1970:00:00:00 +0000"), Some(0));
        assert_eq!(second_of("29/Feb/2024:12:00:00 +0000"), Some(1_709_208_000));
        assert_eq!(second_of("31/Dec/1999:23:59:59 +0100"), Some(946_681_199));
        assert_eq!(second_of("31/Foo/1999:23:59:59 +0100"), None);
        assert_eq!(second_of("31/Dec/1999:24:59:59 +0100"), None);
    }

    proptest! {
        #[test]
        fn any_lines_are_read_or_refused(text in "(\\PC{0,60}\n){0,5}") {
            let _ = Replay::parse(text.as_bytes());
        }

        #[test]
        fn lines_of_the_formats_own_pieces_are_read_or_refused(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just("x - - "), Just("[10/Oct/2000:13:55:36 -0700]"), Just(" \""), Just("GET /a HTTP/1.1"),
                    Just("\" 200 5"), Just("["), Just("]"), Just("\n"), Just("-é"), Just("/"), Just("http:"),
                    Just("99999999999999999999"), Just("["),
                ],
                0..30,
            ),
        ) {
            if let Ok(replay) = Replay::parse(pieces.concat().as_bytes()) {
                prop_assert!(replay.offsets.is_empty() || replay.offsets.len() == replay.calls.len());
                prop_assert!(replay.offsets.is_sorted());
            }
        }
    }
}
