//! Session logs in httperf's `--wsesslog` format: parser and writer.
//!
//! ```text
//! # A comment. A line with only blanks ends a session.
//! /foo.html think=2.0
//!     /pict1.gif
//!     /pict2.gif
//! /foo2.html method=POST contents='Post data'
//! ```
//!
//! A session is a sequence of [`CallBurst`]s. The first call of a burst goes alone; after its reply
//! the indented calls below it go together. After the last reply the user thinks before the next
//! burst: `think=` seconds, or the run's default. In `contents`, `\n` is a new line and a backslash
//! at the end of the line continues it (httperf(1)).

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::workload::input_file;

/// Longest URI.
const URI_BYTES_MAX: usize = 8 << 10;
/// Longest think time; more is a typing error.
const THINK_S_MAX: f64 = 86_400.0;

/// Session of one user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserSession {
    /// Bursts in order, with think times between them.
    pub bursts: Vec<CallBurst>,
}

/// One call, then further ones together, then a think time.
#[derive(Clone, Debug, PartialEq)]
pub struct CallBurst {
    /// The first goes alone; the others follow its reply together. Never empty.
    pub calls: Vec<Call>,
    /// Think time afterwards; `None`: the run's default.
    pub think: Option<Duration>,
}

/// Request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// `GET` unless the log names another.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// Body; empty for most.
    pub contents: Vec<u8>,
}

impl Call {
    /// Creates a `GET` of `uri`.
    pub fn get(uri: impl Into<String>) -> Call {
        Call { method: "GET".to_owned(), uri: uri.into(), contents: Vec::new() }
    }
}

impl UserSession {
    /// Number of requests.
    pub fn calls(&self) -> usize {
        self.bursts.iter().map(|burst| burst.calls.len()).sum()
    }
}

/// Reads the session log at `path`.
///
/// # Errors
/// When the file cannot be read or is not a log: with its name and the line.
pub fn read(path: &Path) -> io::Result<Vec<UserSession>> {
    let name = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let bytes = input_file::read(path).map_err(|e| io::Error::new(e.kind(), name(&e)))?;
    let invalid = |e: &dyn fmt::Display| io::Error::new(io::ErrorKind::InvalidData, name(e));
    let text = String::from_utf8(bytes).map_err(|e| invalid(&e.utf8_error()))?;
    parse(&text).map_err(|e| invalid(&e))
}

/// Reads a session log.
///
/// # Errors
/// The first line that cannot be parsed, or a log without sessions.
pub fn parse(text: &str) -> Result<Vec<UserSession>, String> {
    let mut parser = LogParser { rest: text, line: 0 };
    let mut sessions = Vec::new();
    let mut session = UserSession::default();
    while !parser.rest.is_empty() {
        match parser.next_line()? {
            LogLine::Comment => {}
            LogLine::Blank => end_session(&mut session, &mut sessions),
            LogLine::First(call, think) => {
                session.bursts.push(CallBurst { calls: vec![call], think })
            }
            LogLine::Together(call, think) => {
                let burst = session.bursts.last_mut().ok_or_else(|| {
                    parser.wrong("a session cannot begin with an indented line; begin its first URI in the first column")
                })?;
                burst.calls.push(call);
                burst.think = think.or(burst.think);
            }
        }
    }
    end_session(&mut session, &mut sessions);
    if sessions.is_empty() {
        Err(format!("line {}: the log holds no session", parser.line.max(1)))
    } else {
        Ok(sessions)
    }
}

fn end_session(session: &mut UserSession, sessions: &mut Vec<UserSession>) {
    if !session.bursts.is_empty() {
        sessions.push(std::mem::take(session));
    }
}

enum LogLine {
    Comment,
    Blank,
    /// URI in the first column, which begins a burst.
    First(Call, Option<Duration>),
    /// Indented URI, which belongs to the burst before.
    Together(Call, Option<Duration>),
}

/// Rest of the text. A line with `contents` may continue over several lines.
struct LogParser<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> LogParser<'a> {
    fn next_line(&mut self) -> Result<LogLine, String> {
        self.line += 1;
        let line = self.rest.split('\n').next().unwrap_or_default();
        if line.starts_with('#') || line.trim().is_empty() {
            let blank = !line.starts_with('#');
            self.skip_line();
            return Ok(if blank { LogLine::Blank } else { LogLine::Comment });
        }
        let indented = line.starts_with(char::is_whitespace);
        self.skip_blanks();
        let mut call = Call::get(self.uri()?);
        let mut think = None;
        loop {
            self.skip_blanks();
            if self.rest.is_empty() || self.rest.starts_with(['\n', '\r']) {
                break;
            }
            self.option(&mut call, &mut think)?;
        }
        self.skip_line();
        Ok(if indented { LogLine::Together(call, think) } else { LogLine::First(call, think) })
    }

    fn skip_line(&mut self) {
        self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_whitespace() && c != '\n');
    }

    fn word(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let length = self.rest.find(|c: char| c.is_whitespace() || end(c));
        let (word, rest) = self.rest.split_at(length.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn uri(&mut self) -> Result<String, String> {
        let word = self.word(|_| false);
        let uri = path_of(word).filter(|uri| uri.len() <= URI_BYTES_MAX);
        uri.ok_or_else(|| {
            self.wrong(&format!(
                "'{}' is not a URI; write its path, such as /index.html",
                brief(word)
            ))
        })
    }

    fn option(&mut self, call: &mut Call, think: &mut Option<Duration>) -> Result<(), String> {
        let name = self.word(|c| c == '=');
        let Some(rest) = self.rest.strip_prefix('=') else {
            return Err(self.wrong(&format!("'{}' is not understood; after the URI go think=SECONDS, method=NAME and contents='TEXT'", brief(name))));
        };
        self.rest = rest;
        let value = self.value()?;
        match name {
            "think" => *think = Some(self.think(&value)?),
            "method" => call.method = self.method(value)?,
            "contents" => call.contents = value.into_bytes(),
            _ => {
                return Err(self.wrong(&format!(
                    "there is no option '{}'; there are think, method and contents",
                    brief(name)
                )));
            }
        }
        Ok(())
    }

    fn think(&self, value: &str) -> Result<Duration, String> {
        let seconds = value.parse().ok().filter(|s| (0.0..=THINK_S_MAX).contains(s));
        let seconds = seconds.ok_or_else(|| {
            self.wrong(&format!(
                "'{}' is not a think time; write seconds, such as think=2.5",
                brief(value)
            ))
        })?;
        Ok(Duration::from_secs_f64(seconds))
    }

    fn method(&self, value: String) -> Result<String, String> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if !value.is_empty() && value.bytes().all(is_token) {
            Ok(value)
        } else {
            Err(self.wrong(&format!(
                "'{}' is not a method; write one such as method=POST",
                brief(&value)
            )))
        }
    }

    /// Parses a value: a word, or text between quotes.
    fn value(&mut self) -> Result<String, String> {
        let Some(quote) = self.rest.chars().next().filter(|c| ['\'', '"'].contains(c)) else {
            return Ok(self.word(|_| false).to_owned());
        };
        let began = self.line;
        let mut value = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = &self.rest[at + c.len_utf8()..];
                    return Ok(value);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, '\n')) => {
                        self.line += 1;
                        value.push('\n');
                    }
                    Some((_, other)) => value.push(other),
                    None => break,
                },
                '\n' => break,
                _ => value.push(c),
            }
        }
        self.line = began;
        Err(self.wrong(&format!(
            "a quote that does not end; close it with {quote} or end the line with a backslash"
        )))
    }

    /// Mistake in this line, with the correct form.
    fn wrong(&self, what: &str) -> String {
        format!("line {}: {what}", self.line)
    }
}

/// Extracts the path from a path or a URL.
pub(crate) fn path_of(text: &str) -> Option<String> {
    // Visible ASCII only: anything else would have to be percent-encoded (RFC 3986, section 2).
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    if text.starts_with('/') || text == "*" {
        return Some(text.to_owned());
    }
    let after = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    match after.find('/') {
        Some(0) => None,
        Some(slash) => Some(after[slash..].to_owned()),
        None if after.is_empty() => None,
        None => Some("/".to_owned()),
    }
}

/// Start of a text, for messages.
pub(crate) fn brief(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Writes a session log that [`parse`] and httperf read.
///
/// # Errors
/// Those of `out`.
pub fn write(sessions: &[UserSession], out: &mut impl Write) -> io::Result<()> {
    for session in sessions {
        for burst in &session.bursts {
            for (at, call) in burst.calls.iter().enumerate() {
                let indent = if at == 0 { "" } else { "    " };
                write!(out, "{indent}{}", call.uri)?;
                if call.method != "GET" {
                    write!(out, " method={}", call.method)?;
                }
                if !call.contents.is_empty() {
                    write!(out, " contents=\"{}\"", quoted(&call.contents))?;
                }
                if let Some(think) = burst.think.filter(|_| at == 0) {
                    write!(out, " think={:.3}", think.as_secs_f64())?;
                }
                writeln!(out)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn quoted(contents: &[u8]) -> String {
    let text = String::from_utf8_lossy(contents);
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
