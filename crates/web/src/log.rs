//! Access-log lines: one per reply, in one of the formats. No client can forge a second line.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;

use session::Log;

use crate::date::Dates;

/// Format of access-log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Apache's and nginx's combined format:
    /// `peer - user [time] "request line" status body_bytes "referer" "user agent" seconds`. The
    /// last field is nginx's `$request_time`, which is not in the original format.
    #[default]
    Combined,
    /// One JSON object per line; `duration_s` is in seconds.
    Json,
    /// For reading: `12:00:00 peer "request line" status body_bytes seconds`, in UTC.
    Short,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client of a Unix socket, which has no address.
    Unix,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer::Tcp(address)
    }
}

/// The client as logged: its IP address (IPv4 also if mapped into IPv6), or `unix:`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.ip().to_canonical().fmt(f),
            Peer::Unix => f.write_str("unix:"),
        }
    }
}

/// Facts of a log line. Values from the client may be any bytes.
#[derive(Debug)]
pub(crate) struct LogLine<'a> {
    pub(crate) peer: &'a Peer,
    /// Name whose password was verified.
    pub(crate) user: Option<&'a [u8]>,
    /// The request line, as far as it was understood; empty if there was none.
    pub(crate) request: &'a [u8],
    pub(crate) status: u16,
    pub(crate) body_len: u64,
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
    /// Content coding of the reply.
    pub(crate) encoding: Option<&'a [u8]>,
    /// Subject of the client's certificate. Only the JSON format has a field for it.
    pub(crate) subject: Option<&'a str>,
    /// The server's own description of an error. Only the JSON format has a field for it.
    pub(crate) error: Option<&'a str>,
}

impl LogLine<'_> {
    /// Appends the line with its end, and a gap for the response time.
    pub(crate) fn write(&self, format: LogFormat, dates: &Dates, to: &mut Log) {
        match format {
            LogFormat::Combined => self.write_combined(dates, to),
            LogFormat::Json => self.write_json(dates, to),
            LogFormat::Short => self.write_short(dates, to),
        }
    }

    fn write_combined(&self, dates: &Dates, log: &mut Log) {
        let to = log.text();
        let request = Some(self.request).filter(|line| !line.is_empty());
        print(to, format_args!("{} - ", self.peer));
        push_word(self.user.unwrap_or(b"-"), to);
        to.extend_from_slice(b" [");
        to.extend_from_slice(&dates.clf);
        to.extend_from_slice(b"] ");
        push_quoted(request, to);
        print(to, format_args!(" {} ", self.status));
        log.put_body_len(self.body_len);
        let to = log.text();
        to.push(b' ');
        push_quoted(self.referer, to);
        to.push(b' ');
        push_quoted(self.user_agent, to);
        to.push(b' ');
        log.put_gap();
        log.text().push(b'\n');
    }

    fn write_short(&self, dates: &Dates, log: &mut Log) {
        let to = log.text();
        let request = Some(self.request).filter(|line| !line.is_empty());
        // The clock of `2026-11-20T12:00:00Z`.
        to.extend_from_slice(&dates.rfc3339[11..19]);
        print(to, format_args!(" {} ", self.peer));
        push_quoted(request, to);
        print(to, format_args!(" {} ", self.status));
        log.put_body_len(self.body_len);
        log.text().push(b' ');
        log.put_gap();
        log.text().push(b'\n');
    }

    fn write_json(&self, dates: &Dates, log: &mut Log) {
        let to = log.text();
        to.extend_from_slice(b"{\"time\":\"");
        to.extend_from_slice(&dates.rfc3339);
        print(to, format_args!("\",\"peer\":\"{}\"", self.peer));
        push_member("user", self.user, to);
        push_member("request", Some(self.request), to);
        print(to, format_args!(",\"status\":{},\"bytes\":", self.status));
        log.put_body_len(self.body_len);
        let to = log.text();
        push_member("host", self.host, to);
        push_member("referer", self.referer, to);
        push_member("user_agent", self.user_agent, to);
        push_member("encoding", self.encoding, to);
        push_member("tls_client", self.subject.map(str::as_bytes), to);
        push_member("error", self.error.map(str::as_bytes), to);
        to.extend_from_slice(b",\"duration_s\":");
        log.put_gap();
        log.text().extend_from_slice(b"}\n");
    }
}

/// Longest value in a line, in unescaped bytes: lines stay in memory until their replies are sent.
const VALUE_LEN_MAX: usize = 1024;

/// Cuts a value that is too long, between two characters. Returns the start, and `...` if cut.
fn cut(value: &[u8]) -> (&[u8], &'static [u8]) {
    if value.len() <= VALUE_LEN_MAX {
        return (value, b"");
    }
    let is_inside = |at: &usize| value[*at] & 0b1100_0000 == 0b1000_0000;
    let end = (VALUE_LEN_MAX - 3..=VALUE_LEN_MAX).rev().find(|at| !is_inside(at));
    (&value[..end.unwrap_or(VALUE_LEN_MAX)], b"...")
}

pub(crate) fn print(to: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    to.write_fmt(text).expect("a vector takes everything");
}

/// Appends `"value"`, with quotes, backslashes and unprintable bytes escaped as Apache does; `"-"`
/// if there is none.
fn push_quoted(value: Option<&[u8]>, to: &mut Vec<u8>) {
    let (value, rest) = cut(value.unwrap_or(b"-"));
    to.push(b'"');
    for &byte in value {
        match byte {
            b'"' | b'\\' => to.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => to.push(byte),
            _ => print(to, format_args!("\\x{byte:02x}")),
        }
    }
    to.extend_from_slice(rest);
    to.push(b'"');
}

/// Appends a word without quotes: bytes that would end it or begin another field are escaped.
fn push_word(word: &[u8], to: &mut Vec<u8>) {
    let (word, rest) = cut(word);
    for &byte in word {
        match byte {
            b'!'..=b'~' if !b"\"\\[]".contains(&byte) => to.push(byte),
            _ => print(to, format_args!("\\x{byte:02x}")),
        }
    }
    to.extend_from_slice(rest);
}

/// Appends `,"name":"value"`, or nothing if there is no value.
fn push_member(name: &str, value: Option<&[u8]>, to: &mut Vec<u8>) {
    let Some(value) = value else { return };
    let (value, rest) = cut(value);
    print(to, format_args!(",\"{name}\":\""));
    for piece in value.utf8_chunks() {
        piece.valid().chars().for_each(|c| push_json_char(c, to));
        if !piece.invalid().is_empty() {
            push_json_char(char::REPLACEMENT_CHARACTER, to);
        }
    }
    to.extend_from_slice(rest);
    to.push(b'"');
}

/// Appends a character as in RFC 8259 7; also escapes everything that may be read as a line end.
fn push_json_char(c: char, to: &mut Vec<u8>) {
    match c {
        '"' => to.extend_from_slice(b"\\\""),
        '\\' => to.extend_from_slice(b"\\\\"),
        '\u{2028}' | '\u{2029}' => print(to, format_args!("\\u{:04x}", c as u32)),
        c if c.is_control() => print(to, format_args!("\\u{:04x}", c as u32)),
        c => to.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::date;
    use session::Outbox;
    use std::time::Duration;

    fn written(line: &LogLine<'_>, format: LogFormat) -> String {
        let mut out = Outbox::new();
        out.set_logged(true);
        date::with(Duration::from_secs(1_795_176_000), |dates| {
            line.write(format, dates, out.log().unwrap())
        });
        let mut text = String::new();
        out.take_log(
            |_| Duration::from_micros(1500),
            |lines| text.push_str(str::from_utf8(lines).unwrap()),
        );
        text
    }

    const PEER: Peer = Peer::Tcp(SocketAddr::new(
        std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
        5000,
    ));

    fn line<'a>(request: &'a [u8], user_agent: Option<&'a [u8]>) -> LogLine<'a> {
        LogLine {
            peer: &PEER,
            user: None,
            request,
            status: 200,
            body_len: 5,
            host: None,
            referer: None,
            user_agent,
            encoding: None,
            subject: None,
            error: None,
        }
    }

    #[test]
    fn line_has_client_request_and_status() {
        let line = LogLine {
            host: Some(b"example.org"),
            referer: Some(b"http://a/"),
            encoding: Some(b"br"),
            subject: Some("O=\"a\", CN=b"),
            ..line(b"GET / HTTP/1.1", Some(b"curl/8"))
        };
        assert_eq!(
            written(&line, LogFormat::Combined),
            "192.0.2.7 - - [20/Nov/2026:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"http://a/\" \"curl/8\" 0.001500\n"
        );
        assert_eq!(
            written(&line, LogFormat::Short),
            "12:00:00 192.0.2.7 \"GET / HTTP/1.1\" 200 5 0.001500\n"
        );
        assert_eq!(
            written(&line, LogFormat::Json),
            "{\"time\":\"2026-11-20T12:00:00Z\",\"peer\":\"192.0.2.7\",\"request\":\"GET / HTTP/1.1\",\
             \"status\":200,\"bytes\":5,\"host\":\"example.org\",\"referer\":\"http://a/\",\
             \"user_agent\":\"curl/8\",\"encoding\":\"br\",\"tls_client\":\"O=\\\"a\\\", CN=b\",\"duration_s\":0.001500}\n"
        );
    }

    #[test]
    fn verified_user_is_the_third_field() {
        let of =
            |user: &'static [u8]| LogLine { user: Some(user), ..line(b"GET / HTTP/1.1", None) };
        let text = written(&of(b"ada"), LogFormat::Combined);
        assert!(text.starts_with("192.0.2.7 - ada [20/Nov/2026:"), "{text}");
        let text = written(&of(b"a b\"[\\]"), LogFormat::Combined);
        let escaped = "192.0.2.7 - a\\x20b\\x22\\x5b\\x5c\\x5d [20/";
        assert!(text.starts_with(escaped), "{text}");
        let text = written(&of(b"ada"), LogFormat::Json);
        assert!(text.contains("\"peer\":\"192.0.2.7\",\"user\":\"ada\",\"request\""), "{text}");
    }

    #[test]
    fn client_cannot_forge_a_line() {
        let nasty: Vec<u8> = (0..=255).chain("\u{2028}\u{85}é".bytes()).collect();
        let line = LogLine { user: Some(&nasty), ..line(&nasty, Some(&nasty)) };
        for format in [LogFormat::Combined, LogFormat::Json, LogFormat::Short] {
            let text = written(&line, format);
            assert_eq!(text.lines().count(), 1);
            assert!(!text.trim_end_matches('\n').contains(|c: char| c.is_control()), "{text:?}");
        }
        let json = written(&line, LogFormat::Json);
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(parsed["user_agent"].as_str().unwrap().ends_with("\u{2028}\u{85}é"));
        assert_eq!(parsed["status"], 200);
    }

    #[test]
    fn long_field_is_cut() {
        let fits = "x".repeat(VALUE_LEN_MAX);
        let long = fits.clone() + "y";
        let wide = "x".repeat(VALUE_LEN_MAX - 1) + "é";
        let line = |value: &str| {
            let line = LogLine { user: Some(value.as_bytes()), ..line(value.as_bytes(), None) };
            [LogFormat::Combined, LogFormat::Json].map(|format| written(&line, format))
        };
        for text in line(&fits) {
            assert!(text.contains(&format!("\"{fits}\"")), "{text}");
        }
        for text in line(&long) {
            assert!(text.contains(&format!("\"{fits}...\"")), "{text}");
        }
        let [combined, json] = line(&wide);
        for text in [&combined, &json] {
            assert!(text.contains(&format!("\"{}...\"", &fits[1..])), "{text}");
        }
        assert!(combined.contains(&format!(" - {}... [", &fits[1..])), "{combined}");
    }

    #[test]
    fn missing_fields_are_dashes() {
        let line = LogLine { peer: &Peer::Unix, ..line(b"", None) };
        assert!(written(&line, LogFormat::Combined).starts_with("unix: - - ["));
        assert!(
            written(&line, LogFormat::Combined).ends_with("] \"-\" 200 5 \"-\" \"-\" 0.001500\n")
        );
        assert!(
            written(&line, LogFormat::Json).ends_with(
                "\"request\":\"\",\"status\":200,\"bytes\":5,\"duration_s\":0.001500}\n"
            )
        );
    }

    #[test]
    fn ipv4_client_on_a_dual_stack_socket() {
        let mapped = Peer::Tcp("[::ffff:192.0.2.7]:80".parse().unwrap());
        assert_eq!(mapped.to_string(), "192.0.2.7");
        assert_eq!(Peer::Tcp("[2001:db8::1]:80".parse().unwrap()).to_string(), "2001:db8::1");
    }
}
