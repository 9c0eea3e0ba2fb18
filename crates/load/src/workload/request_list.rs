//! Request lists: URLs, paths and access logs.
//!
//! A line is a path (`/index.html`), a URL, or an entry of an access log in the common or the
//! combined format, as nginx, Apache, lighttpd and `weft serve` write it:
//!
//! ```text
//! 192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326 "-" "Mozilla/4.08"
//! ```
//!
//! Malformed entries, and requests with bodies, which are not in the log, are left out.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::workload::session_log::{Call, path_of};

/// Longest line of an entry.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Reads the requests of the list or log at `path`, in order.
///
/// # Errors
/// When it cannot be read, or holds no request at all: with its name.
pub fn read(path: &Path) -> io::Result<Vec<Call>> {
    let name = |error: &dyn Display| format!("{}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(|e| io::Error::new(e.kind(), name(&e)))?;
    parse(BufReader::new(file)).map_err(|e| io::Error::new(e.kind(), name(&e)))
}

fn parse(mut lines: impl BufRead) -> io::Result<Vec<Call>> {
    let mut calls = Vec::new();
    let mut line = Vec::new();
    while read_line(&mut lines, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if !text.starts_with('#') {
            calls.extend(entry(text));
        }
    }
    if calls.is_empty() {
        let what = "no request in it; a line is a path, a URL, or an entry of an access log in combined format";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(calls)
}

/// Reads a line of any bytes; the part beyond the limit is skipped.
fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line)?;
    if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
        lines.skip_until(b'\n')?;
    }
    Ok(!line.is_empty())
}

/// Parses the request of a line.
fn entry(line: &str) -> Option<Call> {
    if line.starts_with("http") || line.starts_with('/') {
        return Some(Call::get(path_of(line)?));
    }
    let (before, rest) = line.split_once('"')?;
    // Every format has the time in front of the request.
    before.find('[')?;
    let (request, _) = rest.split_once('"')?;
    let mut words = request.split(' ');
    let method = words.next()?;
    let uri = path_of(words.next()?)?;
    // The bodies of other methods are not in the log.
    let method = Some(method).filter(|method| ["GET", "HEAD"].contains(method))?;
    Some(Call { method: method.to_owned(), uri, contents: Vec::new() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<Call> {
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn lists_of_paths_and_urls_are_read() {
        let calls = parsed("/a\n# comment\n\nhttp://example.org/b?c=d\nhttps://example.org\n");
        assert_eq!(calls, ["/a", "/b?c=d", "/"].map(Call::get));
    }

    #[test]
    fn combined_log_format() {
        let calls = parsed(concat!(
            "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET /a.gif HTTP/1.0\" 200 2326 \"-\" \"M\"\n",
            "::1 - joe [10/Oct/2000:20:55:36 +0000] \"HEAD /b HTTP/1.1\" 200 0\n",
            "::1 - - [10/Oct/2000:22:55:38 +0200] \"GET /c HTTP/1.1\" 404 0\n",
        ));
        let head = Call { method: "HEAD".to_owned(), ..Call::get("/b") };
        assert_eq!(calls, [Call::get("/a.gif"), head, Call::get("/c")]);
    }

    #[test]
    fn malformed_entries_are_skipped() {
        let calls = parsed(concat!(
            "/a\n",
            "x - - [10/Oct/2000:13:55:36 -0700] \"\\x16\\x03\\x01\" 400 0\n",
            "x - - [10/Oct/2000:13:55:36 -0700] \"POST /a HTTP/1.1\" 200 0\n",
            "he said \"GET /b out of here\"\n",
        ));
        assert_eq!(calls, [Call::get("/a")]);
    }

    #[test]
    fn nothing_to_ask_for_is_an_error() {
        let error = parse(&b"hello\nworld\n"[..]).unwrap_err().to_string();
        assert!(error.contains("a line is a path, a URL, or an entry"), "{error}");
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX as usize];
        text.extend_from_slice(b"\n/a\n");
        assert_eq!(parse(&text[..]).unwrap(), [Call::get("/a")]);
    }

    proptest! {
        #[test]
        fn any_lines_are_read_or_refused(text in "(\\PC{0,60}\n){0,5}") {
            let _ = parse(text.as_bytes());
        }

        #[test]
        fn lines_of_own_pieces_are_read_or_refused(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just("x - - "), Just("[10/Oct/2000:13:55:36 -0700]"), Just(" \""), Just("GET /a HTTP/1.1"),
                    Just("\" 200 5"), Just("["), Just("]"), Just("\n"), Just("-é"), Just("/"), Just("http:"),
                    Just("99999999999999999999"), Just("["),
                ],
                0..30,
            ),
        ) {
            if let Ok(calls) = parse(pieces.concat().as_bytes()) {
                prop_assert!(calls.iter().all(|call| call.uri.starts_with('/')), "{calls:?}");
            }
        }
    }
}
