//! Bytes in, bytes out.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

/// Replies of a ceiling, by protocol.
pub(super) enum Replies {
    /// Whole replies by the target of the request.
    Web(HashMap<Vec<u8>, Vec<u8>>),
    /// The value of every key.
    Cache(Vec<u8>),
}

/// Result of answering some input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Bytes of input used.
    pub(super) used: usize,
    /// True if the connection ends with these replies.
    pub(super) closes: bool,
}

const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

impl Replies {
    /// All files below a folder.
    pub(super) fn of_files(root: &Path) -> io::Result<Replies> {
        let mut replies = HashMap::new();
        let mut open = vec![root.to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let body = fs::read(&path)?;
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                let below = path.strip_prefix(root).expect("it lies below it");
                let target = format!("/{}", below.display());
                replies.insert(target.into_bytes(), [head.into_bytes(), body].concat());
            }
        }
        Ok(Replies::Web(replies))
    }

    pub(super) fn of_a_cache() -> Replies {
        Replies::Cache(Vec::new())
    }

    /// Answers the complete requests of the input.
    pub(super) fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) -> Answered {
        match self {
            Replies::Web(replies) => web(replies, input, output),
            Replies::Cache(value) => cache(value, input, output),
        }
    }
}

fn web(replies: &HashMap<Vec<u8>, Vec<u8>>, input: &[u8], output: &mut Vec<u8>) -> Answered {
    let mut used = 0;
    let mut closes = false;
    while let Some(length) = find(&input[used..], b"\r\n\r\n") {
        let head = &input[used..used + length];
        used += length + 4;
        let target = head.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        output.extend_from_slice(replies.get(target).map_or(NOT_FOUND, |reply| reply));
        closes |= find(head, b"Connection: close").is_some();
    }
    Answered { used, closes }
}

fn cache(value: &mut Vec<u8>, input: &[u8], output: &mut Vec<u8>) -> Answered {
    let mut used = 0;
    while let Some(length) = find(&input[used..], b"\r\n") {
        let line = &input[used..used + length];
        let mut words = line.split(|&byte| byte == b' ');
        let mut next = used + length + 2;
        match words.next().unwrap_or_default() {
            b"get" => {
                for key in words {
                    let length = format!(" 0 {}\r\n", value.len());
                    for part in [b"VALUE ", key, length.as_bytes(), value, b"\r\n"] {
                        output.extend_from_slice(part);
                    }
                }
                output.extend_from_slice(b"END\r\n");
            }
            b"mg" => {
                let key = words.next().unwrap_or_default();
                let length = format!("VA {} k", value.len());
                for part in [length.as_bytes(), key, b"\r\n", value, b"\r\n"] {
                    output.extend_from_slice(part);
                }
            }
            b"mn" => output.extend_from_slice(b"MN\r\n"),
            command @ (b"set" | b"ms") => {
                let (at, reply) = match command {
                    b"set" => (3, &b"STORED\r\n"[..]),
                    _ => (1, &b"HD\r\n"[..]),
                };
                let bytes = words.nth(at).and_then(|word| str::from_utf8(word).ok()?.parse().ok());
                let bytes: usize = bytes.unwrap_or(0);
                let Some(data) = input.get(next..next + bytes + 2) else {
                    break;
                };
                value.clear();
                value.extend_from_slice(&data[..bytes]);
                next += bytes + 2;
                output.extend_from_slice(reply);
            }
            _ => output.extend_from_slice(b"VERSION 0\r\n"),
        }
        used = next;
    }
    Answered { used, closes: false }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_requests_wait() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/a"), "body").unwrap();
        let mut replies = Replies::of_files(folder.path()).unwrap();
        let mut output = Vec::new();
        let input = b"GET /deep/a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\n\r\nGET /a";
        let answered = replies.answer(input, &mut output);
        assert_eq!((answered.used, answered.closes), (input.len() - 6, false));
        let text = String::from_utf8(output).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\r\n\r\nbodyHTTP/1.1 404")
        );
        let input = b"GET /deep/a HTTP/1.1\r\nConnection: close\r\n\r\n";
        assert!(replies.answer(input, &mut Vec::new()).closes);
    }

    #[test]
    fn one_cache_value() {
        let mut replies = Replies::of_a_cache();
        let mut ask = |input: &[u8]| {
            let mut output = Vec::new();
            let used = replies.answer(input, &mut output).used;
            (used, String::from_utf8(output).unwrap())
        };
        // A set with incomplete data.
        assert_eq!(ask(b"set a 0 0 3\r\nab"), (0, String::new()));
        let set = b"set a 0 0 3\r\nabc\r\n";
        assert_eq!(ask(set), (set.len(), "STORED\r\n".to_owned()));
        let (_, got) = ask(b"get x y\r\n");
        assert_eq!(got, "VALUE x 0 3\r\nabc\r\nVALUE y 0 3\r\nabc\r\nEND\r\n");
        // The same for meta commands.
        assert_eq!(ask(b"ms a 2\r\nde\r\n").1, "HD\r\n");
        let (_, got) = ask(b"mg x k v q\r\nmn\r\n");
        assert_eq!(got, "VA 2 kx\r\nde\r\nMN\r\n");
    }
}
