//! `-vv`: commands and replies on standard error, as memcached prints them.
//!
//! A wrapper around the session inspects input and output. Every connection has it, because a
//! client may turn it on at run time (`verbosity 2`). While it is off, it costs one load of an
//! integer per input.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::serve::messages;
use cache::{Peer, Service, Session, Work};
use session::{Chunk, GiveUp, Next, Now, Outbox, Received};

/// Level from which commands are printed.
const COMMANDS: u32 = 2;

/// Longest printed part of a line.
const SHOWN_LEN_MAX: usize = 1024;

static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// A conversation with optional printing.
#[derive(Debug)]
pub(crate) struct VerboseSession {
    session: Session,
    service: Arc<Service>,
    /// Number of the connection, in place of memcached's descriptor.
    id: u64,
    asked: Lines,
}

/// Finds the lines in a text conversation; values between them are not printed.
#[derive(Debug, Default)]
struct Lines {
    /// Remaining bytes of a value.
    value_left: u64,
}

impl VerboseSession {
    pub(crate) fn new(
        service: &Arc<Service>,
        peer: Peer,
        listener: usize,
        now: Now,
    ) -> VerboseSession {
        let new = VerboseSession {
            session: Session::accepted(Arc::clone(service), peer, listener, now),
            service: Arc::clone(service),
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            asked: Lines::default(),
        };
        if new.is_verbose() {
            new.say("<", "new auto-negotiating client connection");
        }
        new
    }

    fn is_verbose(&self) -> bool {
        self.service.verbosity() >= COMMANDS
    }

    fn say(&self, direction: &str, line: &str) {
        // One write, so that lines of several connections do not mix.
        messages::write(&format!("{direction}{} {line}\n", self.id));
    }

    #[cold]
    fn print(&mut self, input: &[u8], out: &Outbox) {
        let mut asked = std::mem::take(&mut self.asked);
        asked.each(input, value_len_of_command, |line| self.say("<", line));
        self.asked = asked;
        let mut answered = Lines::default();
        for chunk in out.chunks() {
            match chunk {
                Chunk::Bytes(bytes) => {
                    answered.each(bytes, value_len_of_reply, |line| self.say(">", line));
                }
                Chunk::Shared(bytes, _) => answered.pass(bytes.len() as u64),
                Chunk::File(_) => unreachable!("a cache sends no files"),
            }
        }
    }
}

impl session::Session for VerboseSession {
    type Work = Work;

    #[inline]
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        let received = self.session.receive(input, now, out);
        if self.is_verbose() {
            self.print(&input[..received.used], out);
        }
        received
    }

    fn take_work(&mut self) -> Option<Work> {
        self.session.take_work()
    }

    fn handle_worked(&mut self, work: Work, now: Now, out: &mut Outbox) -> Next {
        self.session.handle_worked(work, now, out)
    }

    fn handle_refused(&mut self, work: Work, now: Now, out: &mut Outbox) -> Next {
        self.session.handle_refused(work, now, out)
    }

    fn body_buffer(&mut self) -> &mut [u8] {
        self.session.body_buffer()
    }

    fn body_filled(&mut self, len: usize, now: Now, out: &mut Outbox) -> Next {
        let next = self.session.body_filled(len, now, out);
        if self.is_verbose() {
            self.asked.pass(len as u64);
            self.print(&[], out);
        }
        next
    }

    fn give_up(&mut self, reason: GiveUp, now: Now, out: &mut Outbox) {
        self.session.give_up(reason, now, out);
    }

    fn drain(&mut self, now: Now, out: &mut Outbox) {
        self.session.drain(now, out);
    }

    fn held_len(&self) -> usize {
        self.session.held_len()
    }

    fn closed(&mut self, now: Now, out: &mut Outbox) {
        self.session.closed(now, out);
    }
}

impl Drop for VerboseSession {
    fn drop(&mut self) {
        if self.is_verbose() {
            self.say("<", "connection closed.");
        }
    }
}

impl Lines {
    /// Calls `show` with each line of `bytes`. `value_len` returns the length of the value that
    /// follows a line.
    fn each(
        &mut self,
        mut bytes: &[u8],
        value_len: impl Fn(&[u8]) -> Option<u64>,
        show: impl Fn(&str),
    ) {
        while !bytes.is_empty() {
            let skipped = self.value_left.min(bytes.len() as u64);
            self.value_left -= skipped;
            bytes = &bytes[skipped as usize..];
            // Binary messages have no lines. memcached's doc/protocol-binary.txt
            if let [0x80 | 0x81, opcode, ..] = bytes {
                return show(&format!(
                    "binary message, opcode {opcode:#04x}, {} bytes",
                    bytes.len()
                ));
            }
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                return;
            };
            let line = bytes[..end].trim_ascii_end();
            bytes = &bytes[end + 1..];
            if !line.is_empty() {
                let shown = &line[..line.len().min(SHOWN_LEN_MAX)];
                show(&shown.escape_ascii().to_string());
            }
            // Plus the two bytes of the value's line end.
            self.value_left = value_len(line).map_or(0, |len| len + 2);
        }
    }

    /// Notes that bytes of a value were received without passing through here.
    fn pass(&mut self, len: u64) {
        self.value_left = self.value_left.saturating_sub(len);
    }
}

fn number(word: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

/// `set key flags exptime LENGTH`, `ms key LENGTH`
fn value_len_of_command(line: &[u8]) -> Option<u64> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    match words.next()? {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => number(words.nth(3)),
        b"ms" => number(words.nth(1)),
        _ => None,
    }
}

/// `VALUE key flags LENGTH`, `VA LENGTH`
fn value_len_of_reply(line: &[u8]) -> Option<u64> {
    let mut words = line.split(|&byte| byte == b' ');
    match words.next()? {
        b"VALUE" => number(words.nth(2)),
        b"VA" => number(words.next()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn lines(pieces: &[&[u8]], value_len: fn(&[u8]) -> Option<u64>) -> Vec<String> {
        let (mut lines, shown) = (Lines::default(), RefCell::new(Vec::new()));
        for piece in pieces {
            lines.each(piece, value_len, |line| shown.borrow_mut().push(line.to_owned()));
        }
        shown.into_inner()
    }

    #[test]
    fn commands_are_shown_without_their_values() {
        let asked: [&[u8]; 3] =
            [b"set a 0 0 9\r\nget b", b"\r\nxxx\r\nms k 2\r\nhi\r\n", b"mn\r\n"];
        assert_eq!(lines(&asked, value_len_of_command), ["set a 0 0 9", "ms k 2", "mn"]);
    }

    #[test]
    fn replies_are_shown_without_their_values() {
        let answered: [&[u8]; 1] = [b"VALUE a 0 5\r\nEND\r\n\r\nEND\r\nVA 2 f0\r\nhi\r\nHD\r\n"];
        assert_eq!(lines(&answered, value_len_of_reply), ["VALUE a 0 5", "END", "VA 2 f0", "HD"]);
    }

    #[test]
    fn what_is_not_text_is_no_mess() {
        assert_eq!(lines(&[b"get \x1b[31m\r\n"], value_len_of_command), ["get \\x1b[31m"]);
        let message = [0x80, 0x0a, 0, 0];
        assert_eq!(
            lines(&[&message], value_len_of_command),
            ["binary message, opcode 0x0a, 4 bytes"]
        );
    }
}
