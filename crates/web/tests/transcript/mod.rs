//! Conversations as text, and the small site that they use: for tests and examples of several
//! crates, here against a session, in crate `weft` against live servers.
//!
//! ```text
//! == a_head_request_gets_no_body                  its name
//! # RFC 9110 9.3.2                                 why
//! HEAD /hello.txt HTTP/1.1                         what the client sends
//! Host: example.org
//!
//! ---                                              what it must get
//! HTTP/1.1 200 OK
//! Date: {date}
//! Content-Length: 6
//! ...                                              further header lines are fine
//!
//! --- open                                         how it ends: open, closed or waits
//! ```
//!
//! Every line ends with CRLF, unless its last character is a `\`. Escapes: `\r`, `\n`, `\t`, `\0`,
//! `\\`, `\{`, `\xHH`. In requests, `{ab*100}` repeats, and `{etag:/path}` or `{etag:/path br}` is
//! the ETag that the server gives a file. In replies, `{date}`, `{etag}`, `{number}` and
//! `{boundary}` stand for any such text (the same boundary each time), and `{page}` for a whole
//! body. Header lines may come in any order.

// Each user needs a part of it.
#![allow(dead_code)]

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use session::replay::show;
use web::{CacheRule, CorsRule, Encoding, Handle, ServiceConfig, Site, SiteConfig};

/// One conversation.
#[derive(Clone, Debug)]
pub(crate) struct Transcript {
    /// File and name: `range: a_suffix_selects_the_end`.
    pub(crate) name: String,
    /// End of the conversation.
    pub(crate) ending: Ending,
    sent: Vec<Piece>,
    expected: Vec<Reply>,
}

/// End of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All requests are answered, and the connection persists until [`PROBE`] ends it.
    Open,
    /// The server closes.
    Closed,
    /// The server waits for the rest of a request.
    Waits,
}

/// A request that tests for [`Ending::Open`]: it is answered, then the connection closes.
pub(crate) const PROBE: &[u8] = b"OPTIONS * HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n";

/// Start of the reply to [`PROBE`].
const PROBE_REPLY: &[u8] = b"HTTP/1.1 204 No Content\r\n";

/// Modification time of every file of the site: Sun, 02 Feb 2020 02:02:02 GMT.
pub(crate) const MODIFIED_S: u64 = 1_580_608_922;

/// An expected reply: its header line by line, and its body.
#[derive(Clone, Debug, Default)]
struct Reply {
    head: Vec<Vec<Piece>>,
    /// There was a `...` line.
    is_open: bool,
    /// Empty if no body may follow, whatever the header says.
    body: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Etag { path: String, coding: Option<String> },
    AnyDate,
    AnyEtag,
    AnyNumber,
    Boundary,
    WholeBody,
}

/// All transcripts, in the order of their files.
pub(crate) fn all() -> Vec<Transcript> {
    FILES.iter().flat_map(|(file, text)| parse_file(file, text)).collect()
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../transcripts/", $name, ".txt")))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "basics",
    "bodies",
    "conditional",
    "compress",
    "connection",
    "cors",
    "encoding",
    "hygiene",
    "limits",
    "methods",
    "path",
    "range",
    "site",
];

/// Users of the transcripts' site: `ada` has the password `lovelace`, and `bob` `builder`.
const PASSWORDS: &[u8] = b"ada:$2b$04$pp32LjLD0leoZw86AMsMpeRuhkev3ggLS6Bt2/3s5X9cpL8IuMz.q\nbob:$6$rounds=1000$PeBCVjeEeVr/YYXe$DpZoIhPIWKD/hYyNf2bBd7Ea0upJRVeVlIY/gu3gK6riTcSUI57XL/fC4eKJr.aUFilnjAbNnqCFOciPyvnfM/\n";

/// Makes the site of the transcripts in an empty directory.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn make_site(root: &Path) -> io::Result<()> {
    for dir in ["dir", "bare", "sp ace", "private", "cross/dir"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let pattern = |len: u32| (0..len).map(|at| (at % 251) as u8).collect::<Vec<u8>>();
    let files: &[(&str, &[u8])] = &[
        ("hello.txt", b"hello\n"),
        ("empty.txt", b""),
        ("ten.txt", b"0123456789"),
        ("index.html", b"<!DOCTYPE html><title>home</title>\n"),
        ("dir/index.html", b"<!DOCTYPE html><title>dir</title>\n"),
        ("about.html", b"about\n"),
        ("about.html.gz", b"[about.gz]\n"),
        ("bare/file.txt", b"not listed\n"),
        ("sp ace/index.html", b"<!DOCTYPE html><title>space</title>\n"),
        ("\u{e9}.txt", b"accent\n"),
        ("style.css", b"body { color: black }\n"),
        ("style.css.br", b"[br]\n"),
        ("style.css.zst", b"[zstd]\n"),
        ("style.css.gz", b"[gzip]\n"),
        (".hidden", b"secret\n"),
        (".passwords", PASSWORDS),
        ("private/index.html", b"private\n"),
        ("private/data.txt", b"0123456789"),
        ("cross/font.woff2", b"font\n"),
        ("cross/data.json", b"0123456789"),
        ("cross/private.json", b"private\n"),
        ("dump.sql", b"secret\n"),
        ("dump.sql.gz", b"secret\n"),
        ("404.html", b"<!DOCTYPE html><title>no such thread</title>\n"),
        ("made.css", &b"a { color: red }\n".repeat(100)),
        ("medium.bin", &pattern(20_000)),
        ("big.bin", &pattern(300_000)),
    ];
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_S);
    for (path, content) in files {
        fs::write(root.join(path), content)?;
        fs::File::open(root.join(path))?.set_modified(modified)?;
    }
    symlink("/etc/passwd", root.join("link-out.txt"))
}

/// Configuration of the site that the transcripts expect.
pub(crate) fn site_config(root: &Path) -> SiteConfig {
    SiteConfig {
        root: root.to_owned(),
        clean_urls: true,
        deny: vec!["*.sql".into()],
        basic_auth: ["/private/**", "/cross/private.json"]
            .map(|glob| (glob.into(), root.join(".passwords")))
            .into(),
        cors: [("/cross/**", "https://app.example.org"), ("*.woff2", "*")]
            .map(|(glob, origin)| CorsRule { glob: glob.into(), origin: origin.into() })
            .into(),
        cache_rules: vec![CacheRule {
            glob: "/private/data.txt".into(),
            value: "public, max-age=9".into(),
        }],
        error_pages: vec![(404, "404.html".into())],
        compress: Encoding::ALL.to_vec(),
        ..SiteConfig::default()
    }
}

/// Serves the site that [`make_site`] made.
///
/// # Errors
/// If the site cannot be opened.
pub(crate) fn open(root: &Path, config: ServiceConfig) -> Result<Arc<Handle>, Box<dyn Error>> {
    let site = Arc::new(Site::open(site_config(root))?);
    Site::start_compressing([&site].into_iter())?;
    Ok(Arc::new(Handle::new(site, config)?))
}

/// True if `made.css` is available in each coding, as the transcripts expect: a request queues the
/// variant, and making it takes a moment. `exchange` sends a request and returns the reply.
pub(crate) fn has_variants(mut exchange: impl FnMut(&[u8]) -> Vec<u8>) -> bool {
    let is_made = |coding: &str| {
        let reply = exchange(&etag_request("/made.css", Some(coding)));
        let line = format!("\r\nContent-Encoding: {coding}\r\n");
        find(&reply, line.as_bytes()).is_some()
    };
    let made = Encoding::ALL.map(Encoding::token).map(is_made);
    made == [true; 3]
}

impl Transcript {
    /// Bytes that the client sends, with [`PROBE`] at the end of a transcript that ends
    /// [`Ending::Open`]. `etag_of(path, coding)` finds a file's ETag; see [`etag_request`].
    pub(crate) fn sent(&self, mut etag_of: impl FnMut(&str, Option<&str>) -> String) -> Vec<u8> {
        let mut sent = Vec::new();
        for piece in &self.sent {
            match piece {
                Piece::Text(text) => sent.extend_from_slice(text),
                Piece::Etag { path, coding } => {
                    sent.extend_from_slice(etag_of(path, coding.as_deref()).as_bytes());
                }
                other => panic!("{}: {other:?} cannot be sent", self.name),
            }
        }
        if self.ending == Ending::Open {
            sent.extend_from_slice(PROBE);
        }
        sent
    }

    /// Compares the server's output: the expected replies, the reply to [`PROBE`] if the transcript
    /// ends [`Ending::Open`], and not a byte more.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check(&self, replied: &[u8]) -> Result<(), String> {
        let rest = self.check_replies(replied)?;
        let is_end = match self.ending {
            Ending::Open => rest.starts_with(PROBE_REPLY) && rest.ends_with(b"\r\n\r\n"),
            Ending::Closed | Ending::Waits => rest.is_empty(),
        };
        if is_end { Ok(()) } else { Err(format!("{}: another end:\n{}", self.name, show(rest))) }
    }

    fn check_replies<'r>(&self, replied: &'r [u8]) -> Result<&'r [u8], String> {
        let mut rest = replied;
        let mut boundary = None;
        for (at, reply) in self.expected.iter().enumerate() {
            rest = reply.check(rest, &mut boundary).map_err(|why| {
                format!("{}, reply {}: {why}\n{}", self.name, at + 1, show(replied))
            })?;
        }
        Ok(rest)
    }
}

/// A request that shows a file's ETag and ends the connection.
pub(crate) fn etag_request(path: &str, coding: Option<&str>) -> Vec<u8> {
    let accept = coding.map(|coding| format!("Accept-Encoding: {coding}\r\n")).unwrap_or_default();
    format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n").into_bytes()
}

/// The ETag in a reply to [`etag_request`].
pub(crate) fn etag_in(reply: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(reply);
    text.lines().find_map(|line| line.strip_prefix("ETag: ")).map(str::to_owned)
}

impl Reply {
    /// Checks one reply; returns the bytes after it.
    fn check<'r>(
        &self,
        replied: &'r [u8],
        boundary: &mut Option<Vec<u8>>,
    ) -> Result<&'r [u8], String> {
        let head_len = find(replied, b"\r\n\r\n").ok_or("no whole header")?;
        let head = &replied[..head_len];
        let rest = &replied[head_len + 4..];
        let mut lines: Vec<&[u8]> =
            head.split(|&b| b == b'\n').map(|l| l.trim_ascii_end()).collect();
        for (at, pattern) in self.head.iter().enumerate() {
            let found = lines.iter().position(|line| matches(pattern, line, boundary));
            match found {
                // The status line must come first.
                Some(found) if at > 0 || found == 0 => drop(lines.remove(found)),
                _ => return Err(format!("no header line like {pattern:?}")),
            }
        }
        if let (Some(line), false) = (lines.first(), self.is_open) {
            return Err(format!("unexpected header line {}", line.escape_ascii()));
        }
        if self.body.is_empty() {
            return Ok(rest);
        }
        let len = content_length(head).ok_or("no Content-Length")?;
        let (body, rest) = rest.split_at_checked(len).ok_or("the body is too short")?;
        if matches(&self.body, body, boundary) {
            Ok(rest)
        } else {
            Err(format!("the body is not {:?}", self.body))
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|part| part == wanted)
}

fn content_length(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse().ok()
}

/// True if `pattern` matches all of `text`.
fn matches(pattern: &[Piece], mut text: &[u8], boundary: &mut Option<Vec<u8>>) -> bool {
    let mut bound = boundary.clone();
    for piece in pattern {
        let len = match piece {
            Piece::Text(literal) if text.starts_with(literal) => literal.len(),
            Piece::AnyDate => 29,
            Piece::AnyEtag if text.starts_with(b"\"") => {
                text[1..].iter().position(|&b| b == b'"').map_or(0, |len| len + 2)
            }
            Piece::AnyNumber => text.iter().take_while(|b| b.is_ascii_digit()).count(),
            Piece::Boundary => {
                let len = text.iter().take_while(|b| b.is_ascii_alphanumeric()).count();
                match &bound {
                    Some(bound) if text.starts_with(bound) => bound.len(),
                    Some(_) => return false,
                    None => {
                        bound = Some(text[..len].to_vec());
                        len
                    }
                }
            }
            Piece::WholeBody => text.len(),
            _ => return false,
        };
        let Some((taken, rest)) = text.split_at_checked(len) else {
            return false;
        };
        let is_date = || {
            let text = std::str::from_utf8(taken).unwrap_or_default();
            httpdate::parse_http_date(text).is_ok()
        };
        if (*piece != Piece::WholeBody && taken.is_empty())
            || (*piece == Piece::AnyDate && !is_date())
        {
            return false;
        }
        text = rest;
    }
    if text.is_empty() {
        *boundary = bound;
    }
    text.is_empty()
}

/// Reads a file of transcripts.
///
/// If it is malformed: it is a part of this crate.
/// If it is not one: it is a part of this crate.
pub(crate) fn parse_file(file: &str, text: &str) -> Vec<Transcript> {
    let mut transcripts = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("== ") else {
            assert!(
                line.is_empty() || line.starts_with('#'),
                "{file}: {line:?} between transcripts"
            );
            continue;
        };
        let name = format!("{file}: {name}");
        while lines.next_if(|line| line.starts_with("# ")).is_some() {}
        let mut sent = Vec::new();
        for line in lines.by_ref().take_while(|line| *line != "---") {
            push_line(line, &mut sent);
        }
        let mut expected: Vec<Reply> = Vec::new();
        let mut in_head = false;
        let ending = loop {
            let line = lines.next().unwrap_or_else(|| panic!("{name} has no end"));
            match (line, expected.last_mut()) {
                ("--- open", _) => break Ending::Open,
                ("--- closed", _) => break Ending::Closed,
                ("--- waits", _) => break Ending::Waits,
                _ if line.starts_with("HTTP/1.") && !in_head => {
                    in_head = true;
                    expected.push(Reply { head: vec![parse_line(line)], ..Reply::default() });
                }
                (_, None) => panic!("{name}: {line:?} belongs to no reply"),
                ("", Some(_)) if in_head => in_head = false,
                ("...", Some(reply)) if in_head => reply.is_open = true,
                (_, Some(reply)) if in_head => reply.head.push(parse_line(line)),
                (_, Some(reply)) => push_line(line, &mut reply.body),
            }
        };
        transcripts.push(Transcript { name, ending, sent, expected });
    }
    transcripts
}

fn push_line(line: &str, to: &mut Vec<Piece>) {
    let backslashes = line.chars().rev().take_while(|&c| c == '\\').count();
    match backslashes % 2 {
        1 => to.extend(parse_line(&line[..line.len() - 1])),
        _ => {
            to.extend(parse_line(line));
            to.push(Piece::Text(b"\r\n".to_vec()));
        }
    }
}

fn parse_line(line: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = push_escape(rest, &mut text),
            '{' => {
                let (inside, after) = rest.split_once('}').expect("{ without }");
                rest = after;
                match inside.rsplit_once('*') {
                    Some((repeated, times)) => {
                        let times = times.parse().unwrap_or_else(|_| panic!("{line:?}"));
                        text.extend(unescape(repeated).repeat(times));
                    }
                    None => {
                        pieces.push(Piece::Text(std::mem::take(&mut text)));
                        pieces.push(placeholder(inside));
                    }
                }
            }
            c => text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    pieces.push(Piece::Text(text));
    pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
    pieces
}

fn placeholder(inside: &str) -> Piece {
    match inside {
        "date" => Piece::AnyDate,
        "etag" => Piece::AnyEtag,
        "number" => Piece::AnyNumber,
        "boundary" => Piece::Boundary,
        "page" => Piece::WholeBody,
        _ => {
            let file = inside.strip_prefix("etag:").unwrap_or_else(|| panic!("{{{inside}}}"));
            match file.split_once(' ') {
                Some((path, coding)) => {
                    Piece::Etag { path: path.to_owned(), coding: Some(coding.to_owned()) }
                }
                None => Piece::Etag { path: file.to_owned(), coding: None },
            }
        }
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = push_escape(rest, &mut bytes),
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Parses an escape after its backslash; returns the text after it.
fn push_escape<'t>(rest: &'t str, to: &mut Vec<u8>) -> &'t str {
    let byte = match rest.as_bytes().first() {
        Some(b'r') => b'\r',
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'0') => 0,
        Some(&c @ (b'\\' | b'{' | b'#' | b'=')) => c,
        Some(b'x') => {
            to.push(u8::from_str_radix(&rest[1..3], 16).expect("\\xHH"));
            return &rest[3..];
        }
        other => panic!("unknown escape {other:?} before {rest:?}"),
    };
    to.push(byte);
    &rest[1..]
}
