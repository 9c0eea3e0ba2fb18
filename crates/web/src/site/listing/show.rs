//! Display of sizes, dates, text and paths on pages.

use std::fmt::{self, Write};

/// Three digits and a unit: `0 B`, `999 B`, `1.2 KB`, `34 MB`. Powers of 1000, as in SI.
pub(super) fn size(len: u64) -> String {
    if len < 1000 {
        return format!("{len} B");
    }
    let mut value = len as f64;
    let mut unit = "B";
    for larger in ["KB", "MB", "GB", "TB", "PB", "EB"] {
        // 999.95 would round to 1000.0.
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = larger;
    }
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// Seconds since 1970 as a date, in UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Date(pub(super) i64);

impl Date {
    /// Year, month and day. Days are counted from 1 March of the year 0, so that a leap day is the
    /// last of its year. H. Hinnant, *chrono-Compatible Low-Level Date Algorithms*
    fn civil(self) -> (i64, i64, i64) {
        let days = self.0.div_euclid(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        (year_of_era + era * 400 + i64::from(month <= 2), month, day)
    }

    pub(super) fn rfc3339(self) -> String {
        let (year, month, day) = self.civil();
        let second = self.0.rem_euclid(86_400);
        let hour = second / 3600;
        let minute = second / 60 % 60;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        let second = self.0.rem_euclid(86_400);
        write!(f, "{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second / 60 % 60)
    }
}

/// Escaped text for elements and quoted attributes. Control characters, which HTML forbids, are
/// shown as their pictures (`␊`), and bidirectional controls as their numbers: `gpj.exe` after
/// U+202E would look like `exe.jpg`.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\0'..='\x1f' => f.write_char(char::from_u32(0x2400 + c as u32).unwrap_or(c))?,
                '\x7f' => f.write_char('\u{2421}')?,
                c if is_bidi_control(c) => write!(f, "[U+{:04X}]", c as u32)?,
                c if c.is_control() || is_noncharacter(c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// True for Unicode noncharacters (23.7): for internal use, never for interchange.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}') || c as u32 & 0xfffe == 0xfffe
}

/// True for characters that embed, override or isolate a direction, and for its marks. UAX #9, 2
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Encodes a path for any part of a URL: everything but unreserved characters and slashes as `%XX`.
/// RFC 3986 2.3
pub(crate) fn percent_encoded(path: &str) -> String {
    encoded_but(path, b"-._~/")
}

/// Encodes a path for the path of a URL: characters allowed there stay, since encoding a reserved
/// one changes the address. RFC 3986 2.2, 3.3
pub(crate) fn path_encoded(path: &str) -> String {
    encoded_but(path, b"-._~/!$&'()*+,;=:@")
}

fn encoded_but(path: &str, kept: &[u8]) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bidi_controls_are_shown_as_numbers() {
        assert_eq!(Text("\u{202e}gpj.exe").to_string(), "[U+202E]gpj.exe");
        assert_eq!(Text("a\u{61c}\u{200f}").to_string(), "a[U+061C][U+200F]");
        assert_eq!(Text(" שלום\n").to_string(), " שלום\u{240a}");
    }

    #[test]
    fn sizes_have_three_digits() {
        for (len, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KB"),
            (9_949, "9.9 KB"),
            (9_951, "10 KB"),
            (999_499, "999 KB"),
            (999_500, "1.0 MB"),
            (34_000_000, "34 MB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(size(len), shown, "{len}");
        }
    }

    #[test]
    fn dates_at_leap_days_and_before_1970() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_178_096, "2026-11-20T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Date(seconds).rfc3339(), date);
        }
        assert_eq!(Date(1_795_178_096).to_string(), "2026-11-20 12:34");
    }

    #[test]
    fn dates_of_eight_centuries() {
        let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days_of = |year, month| match month {
            2 if is_leap(year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        // 1600-01-01, by `date -ud 1600-01-01 +%s`.
        let mut midnight = -11_676_096_000;
        for (year, month) in (1600..2400).flat_map(|year| (1..=12).map(move |month| (year, month)))
        {
            for day in 1..=days_of(year, month) {
                assert_eq!(Date(midnight).civil(), (year, month, day));
                assert_eq!(Date(midnight + 86_399).civil(), (year, month, day));
                midnight += 86_400;
            }
        }
    }
}
