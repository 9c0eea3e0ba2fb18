//! Parsers of values: durations, sizes, addresses, rules. Flags, environment variables and the
//! configuration file share them.
//!
//! An error describes the mistake and shows a correct text. The caller prefixes the place.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use session::{HostName, PrefixLen};
use web::{CacheRule, CorsRule, Encoding, HeaderRule, RedirectRule};

pub(crate) use ::load::report::{count_of as show_count, counted as show_counted, fold};

/// Reads `500ms`, `10s`, `1.5m`, `1h`, `1d`, down to a nanosecond.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| {
        format!(
            "'{text}' is not a duration; write a number and its unit, such as 500ms, 10s or 1.5m"
        )
    })
}

fn parse_duration(text: &str) -> Option<Duration> {
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, unit) = text.split_at(text.bytes().take_while(is_of_number).count());
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let number: u64 = format!("{whole}{fraction}").parse().ok()?;
    let unit_ns: u128 = match unit.trim_start() {
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" if number == 0 => 0,
        _ => return None,
    };
    // A number of 64 bits times the nanoseconds of a day, 47 bits, fits into 128.
    let scaled_ns = u128::from(number) * unit_ns;
    let parts = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let ns = Some(scaled_ns / parts).filter(|ns| ns * parts == scaled_ns)?;
    // Limited to 64 bits of milliseconds, so that adding a time to it cannot overflow.
    let whole_ms = Duration::from_millis(u64::try_from(ns / 1_000_000).ok()?);
    Some(whole_ms + Duration::from_nanos((ns % 1_000_000) as u64))
}

/// A [`duration`] above zero: a time-out of zero would refuse every client.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a time-out must be above 0; write one such as 10s".to_owned()),
        some => Ok(some),
    }
}

/// Writes a duration the way [`duration`] reads it.
pub(crate) fn show_duration(duration: Duration) -> String {
    match duration.as_millis() {
        _ if !duration.subsec_nanos().is_multiple_of(1_000_000) => {
            format!("{} ms", duration.as_nanos() as f64 / 1e6)
        }
        ms if ms % 1_000 != 0 => format!("{ms} ms"),
        ms if ms % 60_000 != 0 || ms == 0 => format!("{} s", ms / 1_000),
        ms if ms % 3_600_000 != 0 => format!("{} min", ms / 60_000),
        ms => format!("{} h", ms / 3_600_000),
    }
}

/// Reads `4096`, `64K`, `64M`, `1GiB` (powers of 1024) and `64kB`, `1GB` (powers of 1000).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is not a size; write bytes or a unit, such as 4096, 64M or 1GiB");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit_bytes: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit_bytes).ok_or_else(wrong)
}

/// Reads `off`, or content codings: `zstd,br,gzip`.
pub(crate) fn codings(text: &str) -> Result<Vec<Encoding>, String> {
    let coding = |word: &str| {
        let named = |encoding: &Encoding| encoding.token() == word.trim();
        Encoding::ALL.into_iter().find(named)
    };
    match text {
        "off" => Ok(Vec::new()),
        _ => text.split(',').map(coding).collect::<Option<_>>().ok_or_else(|| {
            format!("'{text}' is not off or a list of br, zstd and gzip, such as zstd,br,gzip")
        }),
    }
}

/// Writes a size in the largest unit that leaves at most one decimal: `256 MiB`, `1.5 GiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut amount = bytes as f64;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(amount.fract() >= 0.05 && amount < 100.0);
    format!("{amount:.decimals$} {}", UNITS[unit])
}

/// Writes a name and, from `column` on, the text about it, in lines of `width` letters.
pub(crate) fn write_row(
    out: &mut impl Write,
    name: &str,
    column: usize,
    width: usize,
    text: &str,
) -> io::Result<()> {
    let mut lines = fold(text, width - column).into_iter();
    let first = if name.len() < column { lines.next().unwrap_or_default() } else { String::new() };
    writeln!(out, "{}", format!("{name:column$}{first}").trim_end())?;
    for line in lines {
        writeln!(out, "{:column$}{line}", "")?;
    }
    Ok(())
}

/// Reads a whole number in `range`.
pub(crate) fn count(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let plain = text.replace(['_', ','], "");
    let number = plain.parse::<usize>().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let (low, high) = (range.start(), show_count(*range.end() as u64));
        let tip = if text == "auto" { "; leave it out for the default" } else { "" };
        format!("'{text}' is not a whole number from {low} to {high}{tip}")
    })
}

/// Reads a whole number from 1 to `MAX`.
pub(crate) fn up_to<const MAX: usize, T: TryFrom<usize>>(text: &str) -> Result<T, String> {
    let number = count(text, 1..=MAX)?;
    T::try_from(number).map_err(|_| format!("'{text}' is too large"))
}

/// A rate of events, and the largest burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u32,
    pub(crate) per: Duration,
    pub(crate) burst: u32,
}

// Up to a million a second; down to one an hour.
const RATE_MAX: usize = 1_000_000;

/// Reads `10/s`, `600/m` or `100/h`, and an optional `burst 20`, by default the same number.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("'{text}' is no rate; write 10/s, 600/m, 100/h or 10/s burst 20");
    let (rate, burst) = match text.split_once(" burst ") {
        Some((rate, burst)) => (rate, Some(burst.trim())),
        None => (text, None),
    };
    let (number, unit) = rate.trim().split_once('/').ok_or_else(wrong)?;
    let per = Duration::from_secs(match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    });
    let count = up_to::<RATE_MAX, u32>(number)?;
    let burst = burst.map_or(Ok(count), up_to::<RATE_MAX, u32>)?;
    Ok(Rate { count, per, burst })
}

/// Reads the lengths of an IPv4 and an IPv6 prefix: `32,64`.
pub(crate) fn prefix_len(text: &str) -> Result<PrefixLen, String> {
    let lens = text.split_once(',').and_then(|(v4, v6)| {
        let len = |text: &str, max: u8| text.trim().parse().ok().filter(|&len: &u8| len <= max);
        Some((len(v4, 32)?, len(v6, 128)?))
    });
    let (v4, v6) = lens.ok_or_else(|| {
        format!("'{text}' is no pair of prefixes; write bits of IPv4 and IPv6: 32,64")
    })?;
    Ok(PrefixLen { v4, v6 })
}

/// Reads `true`, `false` and the usual words for them.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("'{text}' is neither true nor false")),
    }
}

/// Reads `Name: value` or `GLOB=Name: value`.
///
/// The forms are unambiguous: a name has no `=`, so an `=` before the first `:` ends a glob. A glob
/// that contains `=` writes it `[=]`.
pub(crate) fn header(text: &str) -> Result<HeaderRule, String> {
    let wrong = || {
        format!(
            "'{text}' is not a header rule; write 'Name: value' for every path or \
             '*.woff2=Name: value' for some"
        )
    };
    let name_end = text.find(':').ok_or_else(wrong)?;
    let (glob, rest) = match find_rule_sign(&text[..name_end]) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => ("**", text),
    };
    let (name, value) = rest.split_once(':').ok_or_else(wrong)?;
    header_rule(glob, name, value.trim())
}

/// Checks the parts of a header rule, so that a pasted line break cannot split a reply.
pub(crate) fn header_rule(glob: &str, name: &str, value: &str) -> Result<HeaderRule, String> {
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(format!("'{name}' is not a header name; write letters, digits and '-'"));
    }
    check_field_value(value)?;
    check_file_glob(glob)?;
    Ok(HeaderRule { glob: glob.to_owned(), name: name.to_owned(), value: value.to_owned() })
}

/// A rule, or a file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RedirectSource {
    Rule(RedirectRule),
    File(PathBuf),
}

/// Reads a rule for redirects, `FROM=TO [STATUS]`, or the name of a file of them.
///
/// # Errors
/// A sentence that describes the mistake.
pub(crate) fn redirect(text: &str) -> Result<RedirectSource, String> {
    let Some(at) = find_rule_sign(text) else {
        return match text {
            "" => Err("the name is empty; write FROM=TO, or a file of rules".to_owned()),
            _ => Ok(RedirectSource::File(text.into())),
        };
    };
    // Tables of the file also write `=` as `[=]`.
    let from = text[..at].trim().replace("[=]", "=");
    let to = text[at + 1..].trim();
    let (to, status) = match to.split_once(char::is_whitespace) {
        Some((to, status)) => (to, Some(status.trim())),
        None => (to, None),
    };
    RedirectRule::new(&from, to, status).map(RedirectSource::Rule)
}

/// Reads a value of `Strict-Transport-Security`. RFC 6797 6.1
///
/// # Errors
/// A sentence that describes the mistake.
pub(crate) fn hsts(text: &str) -> Result<String, String> {
    let mut has_age = false;
    for directive in text.split(';').map(str::trim) {
        let age = directive.strip_prefix("max-age=");
        has_age |= age.is_some_and(|age| age.parse::<u32>().is_ok());
        if age.is_none() && !["includeSubDomains", "preload"].contains(&directive) {
            return Err(format!(
                "'{directive}' is not max-age=SECONDS, includeSubDomains or preload"
            ));
        }
    }
    if has_age {
        Ok(text.trim().to_owned())
    } else {
        Err(format!("'{text}' has no max-age in seconds; a year is max-age=31536000"))
    }
}

/// Reads the name of a host.
///
/// # Errors
/// A sentence that describes a valid name.
pub(crate) fn host_name(text: &str) -> Result<HostName, String> {
    text.parse().map_err(|why| format!("'{text}': {why}"))
}

/// Reads the mail address of an ACME account, or `off`.
pub(crate) fn acme(text: &str) -> Result<Option<String>, String> {
    let is_plain = |char: char| char.is_ascii_graphic() && !"?&,:<>".contains(char);
    let parts = text.split_once('@');
    if text == "off" {
        Ok(None)
    } else if parts.is_some_and(|(user, host)| !user.is_empty() && host.contains('.'))
        && text.chars().all(is_plain)
    {
        Ok(Some(text.to_owned()))
    } else {
        Err(format!("'{text}' is not a mail address, such as mail@example.org; or write off"))
    }
}

/// Reads the address of a certificate authority, or its name.
pub(crate) fn acme_directory(text: &str) -> Result<String, String> {
    match text {
        "letsencrypt" => Ok("https://acme-v02.api.letsencrypt.org/directory".to_owned()),
        "staging" => Ok("https://acme-staging-v02.api.letsencrypt.org/directory".to_owned()),
        _ if text.starts_with("https://") => Ok(text.to_owned()),
        _ => Err(format!(
            "'{text}' is not letsencrypt, staging or the address of an authority (https://…)"
        )),
    }
}

/// Reads `GLOB=FILE` with a password file.
pub(crate) fn basic_auth(text: &str) -> Result<(String, PathBuf), String> {
    let parts = find_rule_sign(text).map(|at| (&text[..at], &text[at + 1..]));
    match parts {
        Some((glob, file)) if !file.is_empty() => {
            check_glob(glob)?;
            Ok((glob.to_owned(), file.into()))
        }
        _ => Err(format!(
            "'{text}' names no password file; write GLOB=FILE, such as \
             '/private/**=/etc/weft/passwords'"
        )),
    }
}

/// Reads a glob of paths to hide. nginx's `deny` takes addresses instead.
pub(crate) fn deny(text: &str) -> Result<String, String> {
    check_glob(text)?;
    let address = text.split('/').next().unwrap_or_default();
    if address.parse::<IpAddr>().is_ok() {
        return Err(format!(
            "'{text}' is an address; `deny` has paths, and a firewall refuses addresses"
        ));
    }
    Ok(text.to_owned())
}

/// Reads `[GLOB=]ORIGIN`.
pub(crate) fn cors(text: &str) -> Result<CorsRule, String> {
    let parts = find_rule_sign(text).map(|at| (&text[..at], &text[at + 1..]));
    let (glob, origin) = parts.unwrap_or(("**", text));
    check_file_glob(glob)?;
    Ok(CorsRule { glob: glob.to_owned(), origin: origin.to_owned() })
}

/// Reads `GLOB=VALUE`.
pub(crate) fn cache(text: &str) -> Result<CacheRule, String> {
    let Some(at) = find_rule_sign(text) else {
        return Err(format!(
            "'{text}' is not a cache rule; write GLOB=VALUE, such as \
             '*.woff2=max-age=31536000, immutable'"
        ));
    };
    let glob = &text[..at];
    let value = text[at + 1..].trim();
    check_file_glob(glob)?;
    check_field_value(value)?;
    if has_directive(glob) {
        return Err(format!(
            "'{glob}' is no glob but part of the value; write GLOB=VALUE, such as '**={text}' for \
             every file (and /{glob} for a file of this name)"
        ));
    }
    if !has_directive(value) {
        return Err(format!(
            "'{value}' says nothing about caching; write GLOB=VALUE, such as '{glob}=max-age=3600' or \
             '{glob}=no-cache'"
        ));
    }
    check_seconds(value)?;
    Ok(CacheRule { glob: glob.to_owned(), value: value.to_owned() })
}

// RFC 9111 5.2.2, RFC 8246, RFC 5861, and directives that reverse proxies and CDNs read.
const DIRECTIVES: [&str; 16] = [
    "immutable",
    "max-age",
    "must-revalidate",
    "must-understand",
    "no-cache",
    "no-store",
    "no-transform",
    "post-check",
    "pre-check",
    "private",
    "proxy-revalidate",
    "public",
    "s-maxage",
    "stale-if-error",
    "stale-while-revalidate",
    "surrogate-control",
];

/// The directives of a `Cache-Control`: names in lower case, and values.
fn directives(text: &str) -> impl Iterator<Item = (String, Option<&str>)> {
    text.split(',').map(|directive| {
        let (name, value) = match directive.split_once('=') {
            Some((name, value)) => (name, Some(value.trim())),
            None => (directive, None),
        };
        (name.trim().to_ascii_lowercase(), value)
    })
}

fn has_directive(text: &str) -> bool {
    directives(text).any(|(name, _)| DIRECTIVES.contains(&name.as_str()))
}

// No cache accepts `max-age=1d`.
fn check_seconds(value: &str) -> Result<(), String> {
    const OF_SECONDS: [&str; 4] =
        ["max-age", "s-maxage", "stale-if-error", "stale-while-revalidate"];
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut wrong = directives(value).filter(|(name, seconds)| {
        let seconds = seconds.map(|text| text.trim_matches('"'));
        OF_SECONDS.contains(&name.as_str()) && !seconds.is_some_and(is_number)
    });
    match wrong.next() {
        Some((name, said)) => {
            let said = said.unwrap_or_default();
            Err(format!("{name} takes seconds, and '{said}' is no number; write {name}=3600"))
        }
        None => Ok(()),
    }
}

// The first `=` outside a class of the glob.
fn find_rule_sign(text: &str) -> Option<usize> {
    let mut in_class = false;
    text.bytes().position(|byte| {
        in_class = (in_class || byte == b'[') && byte != b']';
        byte == b'=' && !in_class
    })
}

fn check_glob(glob: &str) -> Result<(), String> {
    match glob {
        "" => Err("the glob is empty; write ** for every path".to_owned()),
        _ => Ok(()),
    }
}

/// Checks the glob of a rule for files: a glob of a directory matches none of its files.
fn check_file_glob(glob: &str) -> Result<(), String> {
    check_glob(glob)?;
    match glob.strip_suffix('/') {
        Some(directory) => Err(format!(
            "the glob '{glob}' is a directory's; write '{directory}/**' for the files in it"
        )),
        None => Ok(()),
    }
}

fn check_field_value(value: &str) -> Result<(), String> {
    // RFC 9110 5.5: CR, LF and NUL in a field value are invalid and dangerous.
    match value.bytes().find(|byte| byte.is_ascii_control() && *byte != b'\t') {
        Some(byte) => Err(format!("a header's value cannot contain the control byte 0x{byte:02x}")),
        None => Ok(()),
    }
}

// RFC 9110 5.6.2, tchar.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Reads `STATUS=FILE`.
pub(crate) fn error_page(text: &str) -> Result<(u16, PathBuf), String> {
    let parts = text.split_once('=').and_then(|(status, file)| {
        let status = status.trim().parse().ok().filter(|status| (400..=599).contains(status))?;
        (!file.is_empty()).then(|| (status, PathBuf::from(file)))
    });
    parts.ok_or_else(|| {
        format!(
            "'{text}' is not an error page; write a status from 400 to 599 and a file, as 404=404.html"
        )
    })
}

/// Reads `EXT=TYPE`, `NAME=TYPE` or `GLOB=TYPE`.
pub(crate) fn mime_type(text: &str) -> Result<(String, String), String> {
    let wrong = || {
        format!(
            "'{text}' is not a MIME rule; write an extension, a file's name or a glob, and a type, as \
             wasm=application/wasm"
        )
    };
    let at = find_rule_sign(text).ok_or_else(wrong)?;
    let (files, mime) = (text[..at].trim(), text[at + 1..].trim());
    check_field_value(mime)?;
    // `.webc` means the extension webc, not a file of that name.
    let files = if files.contains(['/', '*', '?', '[', '{']) {
        files
    } else {
        files.trim_start_matches('.')
    };
    if files.is_empty() || !mime.contains('/') {
        return Err(wrong());
    }
    Ok((files.to_owned(), mime.to_owned()))
}

/// The name of an index file: a name within a directory, never a path.
pub(crate) fn file_name(text: &str) -> Result<String, String> {
    let names: Vec<_> = text.split_whitespace().collect();
    // One name may contain a blank; several names contain a dot each.
    if text.contains(char::is_whitespace) && names.iter().all(|name| name.contains('.')) {
        return Err(format!("'{text}' is one name; several are a list: {names:?}"));
    }
    match Path::new(text).components().count() {
        1 if !text.contains('/') && text != ".." && text != "." => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is not a file name; write one without '/', such as index.html")),
    }
}

/// User and group to change to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user: String,
    /// If `None`, the user's own group.
    pub(crate) group: Option<String>,
}

/// Reads `NAME` or `NAME:GROUP`.
pub(crate) fn account(text: &str) -> Result<Account, String> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    if user.is_empty() || group == Some("") {
        return Err(format!("'{text}' is not a user; write NAME or NAME:GROUP"));
    }
    Ok(Account { user: user.to_owned(), group: group.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codings_are_a_list_or_off() {
        assert_eq!(codings("off"), Ok(vec![]));
        assert_eq!(codings("zstd, br"), Ok(vec![Encoding::Zstd, Encoding::Br]));
        for wrong in ["", "on", "gzip,", "gzip,off", "deflate", "br zstd"] {
            assert!(codings(wrong).unwrap_err().contains("such as zstd,br,gzip"), "{wrong}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["10", "s", "", "-1s", "1.5", "10 parsecs", "99999999999999999999s"] {
            assert!(duration(wrong).unwrap_err().contains("10s"), "{wrong}");
        }
        assert!(timeout("0s").is_err());
    }

    /// Seen: `weft load -d 0.2s` was "not a duration", although 200ms was accepted.
    #[test]
    fn a_rate_has_a_unit_and_a_burst() {
        let check = |text, count, per_s, burst| {
            let per = Duration::from_secs(per_s);
            assert_eq!(rate(text), Ok(Rate { count, per, burst }), "{text}");
        };
        check("10/s", 10, 1, 10);
        check("600/m burst 5", 600, 60, 5);
        check("1/h", 1, 3600, 1);
        check("1_000_000/s burst 1,000,000", 1_000_000, 1, 1_000_000);
        for wrong in [
            "",
            "10",
            "10/",
            "/s",
            "10/d",
            "10/s burst",
            "10/s burst 0",
            "0/s",
            "-1/s",
            "1.5/s",
            "1000001/s",
            "10/s burst 1 2",
            "10/sburst 1",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(prefix_len("24, 56"), Ok(PrefixLen { v4: 24, v6: 56 }));
        assert_eq!(prefix_len("0,128"), Ok(PrefixLen { v4: 0, v6: 128 }));
        for wrong in ["", "32", "33,64", "32,129", "32,64,1", "-1,64", "a,b"] {
            assert!(prefix_len(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_may_have_a_fraction() {
        for (text, same) in [
            ("0.2s", "200ms"),
            (".2s", "200ms"),
            ("1.5m", "90s"),
            ("1.5 min", "90s"),
            ("0.25h", "15m"),
            ("0.5d", "12h"),
            ("2.0s", "2s"),
            ("0.0", "0"),
        ] {
            assert_eq!(duration(text), duration(same), "{text}");
            assert!(duration(text).is_ok(), "{text}");
        }
        assert_eq!(duration("0.25ms"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("0.000000001s"), Ok(Duration::from_nanos(1)));
        let longest = Duration::from_millis(u64::MAX);
        assert_eq!(duration("18446744073709551615ms"), Ok(longest));
        for wrong in [
            ".",
            ".s",
            "1.s",
            "1..5s",
            "1.5.5s",
            "1,5s",
            "1.-5s",
            "1e3s",
            "0.0000000001s",
            "0.00000000000000000000000000000000000000001s",
            "18446744073709551615s",
            "18446744073709551615d",
        ] {
            assert!(duration(wrong).unwrap_err().contains("10s"), "{wrong}");
        }
    }

    #[test]
    fn a_duration_is_shown_in_its_largest_whole_unit() {
        for (text, shown) in [
            ("0", "0 s"),
            ("0.25ms", "0.25 ms"),
            ("0.2s", "200 ms"),
            ("1.5s", "1500 ms"),
            ("1.5m", "90 s"),
            ("2m", "2 min"),
            ("1h", "1 h"),
        ] {
            assert_eq!(show_duration(duration(text).unwrap()), shown);
        }
    }

    #[test]
    fn sizes_are_powers_of_1024_but_for_kb_and_mb() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("1 MB"), Ok(1_000_000));
        assert!(size("1.5G").is_err());
        assert!(size("99999999999T").is_err());
    }

    #[test]
    fn sizes_and_counts_read_well() {
        assert_eq!(show_size(256 << 20), "256 MiB");
        assert_eq!(show_size(3 << 29), "1.5 GiB");
        assert_eq!(show_size(12), "12 bytes");
        assert_eq!(show_counted(0, "item"), "0 items");
        assert_eq!(show_counted(1, "item"), "1 item");
        assert_eq!(show_counted(1_000, "item"), "1,000 items");
    }

    #[test]
    fn a_header_rule_may_name_its_paths() {
        let rule = |text| header(text).map(|rule| (rule.glob, rule.name, rule.value)).unwrap();
        let all = |name: &str, value: &str| ("**".to_owned(), name.to_owned(), value.to_owned());
        assert_eq!(rule("X-A: b"), all("X-A", "b"));
        // An `=` after the colon belongs to the value.
        assert_eq!(rule("X-A: max-age=1"), all("X-A", "max-age=1"));
        assert_eq!(rule("*.js=X-A: b: c").0, "*.js");
        assert_eq!(rule("*.js=X-A: b: c").2, "b: c");
        assert_eq!(rule("a[=]b=X: y").0, "a[=]b");
        for wrong in ["X-A", "=X: y", "*.js=: y", "a b: c", "X: a\r\nEvil: b"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }

    /// Seen: `--cache 'max-age=10'` was accepted as a rule for files named `max-age`.
    #[test]
    fn a_cache_rule_without_glob_or_directive() {
        for (text, tip) in [
            ("max-age=10", "such as '**=max-age=10'"),
            ("public, max-age=10", "such as '**=public, max-age=10'"),
            ("S-MaxAge=10", "part of the value"),
            ("no-cache", "write GLOB=VALUE"),
            ("*.js=10", "such as '*.js=max-age=3600'"),
            ("*.js=maxage=10", "says nothing about caching"),
            ("*.js=", "says nothing about caching"),
            ("*.js=max-age=1d", "max-age takes seconds, and '1d' is no number"),
            ("*.js=public, max-age", "max-age takes seconds"),
        ] {
            let said = cache(text).unwrap_err();
            assert!(said.contains(tip), "{text}: {said}");
        }
        for right in [
            "*.js=no-store",
            "/max-age=max-age=10",
            "*=Public , Max-Age=10, made-up",
            "**=s-maxage=\"60\"",
        ] {
            assert!(cache(right).is_ok(), "{right}");
        }
    }

    #[test]
    fn rules_split_at_their_first_sign() {
        let CacheRule { glob, value } = cache("*.css=public, max-age=60").unwrap();
        assert_eq!((glob.as_str(), value.as_str()), ("*.css", "public, max-age=60"));
        assert_eq!(error_page("404=404.html"), Ok((404, "404.html".into())));
        assert!(error_page("200=x").is_err());
        assert_eq!(mime_type(".WASM=application/wasm").unwrap().0, "WASM");
        let glob = "/.well-known/matrix/*";
        assert_eq!(mime_type(&format!("{glob}=application/json")).unwrap().0, glob);
        assert!(mime_type("=application/json").is_err());
        assert!(mime_type("wasm=wasm").is_err());
        assert!(file_name("../index.html").is_err());
        let two = file_name("index.html index.htm").unwrap_err();
        assert!(two.ends_with("a list: [\"index.html\", \"index.htm\"]"), "{two}");
        for name in ["my index.html", "read me"] {
            assert_eq!(file_name(name).as_deref(), Ok(name));
        }
        assert_eq!(account("www:web").unwrap().group.as_deref(), Some("web"));
        assert!(account(":web").is_err());
    }
}
