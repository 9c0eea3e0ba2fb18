//! Stores every key once, before a run. Nothing is measured here, so it is plain blocking code.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use crate::protocol::memcached::Commands;

/// Commands per round trip: small enough for the socket buffers to take all their replies.
const KEYS_PER_ROUND: usize = 256;
/// A round ends early when it is this long.
const ROUND_BYTES: usize = 256 * 1024;
/// So much of a round the server takes within the time-out, or it is no server.
const PIECE_BYTES: usize = 16 * 1024;

/// A longer line is no answer to a set.
const LINE_BYTES_MAX: usize = 1024;
/// How much of one is shown.
const SHOWN_BYTES_MAX: usize = 100;

/// How long a read or a write of the stream may take before it is looked whether to stop.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Sets `keys` over a connection, and waits until each is stored, or `is_stopped`. Each reply may
/// take as long as `timeout`.
pub(crate) fn set_all(
    commands: &Commands,
    keys: impl Iterator<Item = u64>,
    stream: impl Read + Write,
    timeout: Duration,
    is_stopped: impl Fn() -> bool,
) -> io::Result<()> {
    let mut line = Line {
        stream: BufReader::new(stream),
        line: Vec::new(),
        timeout,
        is_stopped,
    };
    let (mut round, mut count) = (Vec::new(), 0);
    for key in keys {
        commands.set_key(key, &mut round);
        count += 1;
        if count == KEYS_PER_ROUND || round.len() >= ROUND_BYTES {
            if line.exchange(&round, count)? == Went::Stopped {
                return Ok(());
            }
            round.clear();
            count = 0;
        }
    }
    line.exchange(&round, count).map(|_| ())
}

/// A connection, of which no call takes long.
struct Line<S, F> {
    stream: BufReader<S>,
    /// The reply under way.
    line: Vec<u8>,
    timeout: Duration,
    is_stopped: F,
}

#[derive(Clone, Copy, PartialEq)]
enum Went {
    Whole,
    Stopped,
}

impl<S: Read + Write, F: Fn() -> bool> Line<S, F> {
    fn exchange(&mut self, round: &[u8], count: usize) -> io::Result<Went> {
        if self.send(round)? == Went::Stopped {
            return Ok(Went::Stopped);
        }
        for _ in 0..count {
            if self.receive()? == Went::Stopped {
                return Ok(Went::Stopped);
            }
        }
        Ok(Went::Whole)
    }

    fn send(&mut self, mut rest: &[u8]) -> io::Result<Went> {
        let (mut late, mut taken_bytes) = (Late::default(), 0);
        while !rest.is_empty() {
            match self.stream.get_mut().write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent_bytes) => {
                    rest = &rest[sent_bytes..];
                    taken_bytes += sent_bytes;
                }
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(error),
            }
            if (self.is_stopped)() {
                return Ok(Went::Stopped);
            }
            if taken_bytes >= PIECE_BYTES {
                (late, taken_bytes) = (Late::default(), 0);
            } else if !rest.is_empty() {
                late.check(self.timeout, "take")?;
            }
        }
        Ok(Went::Whole)
    }

    /// Reads one reply.
    fn receive(&mut self) -> io::Result<Went> {
        let mut late = Late::default();
        let line = &mut self.line;
        line.clear();
        while line.last() != Some(&b'\n') && line.len() < LINE_BYTES_MAX {
            let most = (LINE_BYTES_MAX - line.len()) as u64;
            match self.stream.by_ref().take(most).read_until(b'\n', line) {
                Ok(0) => {
                    let what = "the server closed the connection instead of answering a set";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(_) => {}
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(error),
            }
            if (self.is_stopped)() {
                return Ok(Went::Stopped);
            }
            if line.last() != Some(&b'\n') {
                late.check(self.timeout, "answer")?;
            }
        }
        match line.trim_ascii_end() {
            b"STORED" | b"HD" => Ok(Went::Whole),
            other => {
                // Its bytes are the server's: a terminal would obey some of them.
                let shown = other[..other.len().min(SHOWN_BYTES_MAX)].escape_ascii();
                let what = format!("the server answered '{shown}' to a set");
                Err(io::Error::other(what))
            }
        }
    }
}

fn is_to_be_repeated(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// When a server is too late. The time counts from the first wait, so that a server that keeps up
/// costs no look at the clock.
#[derive(Default)]
struct Late {
    deadline: Option<Instant>,
}

impl Late {
    fn check(&mut self, timeout: Duration, did_not: &str) -> io::Result<()> {
        let now = Instant::now();
        if now < *self.deadline.get_or_insert(now + timeout) {
            return Ok(());
        }
        let what = format!("the server did not {did_not} a set within {timeout:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::plan::{Cache, CacheProtocol};
    use crate::workload::distribution::Popularity;

    /// A server that takes every byte, and whose answers come one byte for each read, with a pause
    /// in between.
    struct Slow<'a> {
        said: &'a [u8],
        is_pausing: bool,
        reads: &'a Cell<usize>,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.reads.set(self.reads.get() + 1);
            self.is_pausing = !self.is_pausing;
            match self.said.split_first() {
                _ if self.is_pausing => Err(io::ErrorKind::WouldBlock.into()),
                None => Ok(0),
                Some((first, rest)) => {
                    (room[0], self.said) = (*first, rest);
                    Ok(1)
                }
            }
        }
    }

    impl Write for Slow<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    /// Sets two keys; `is_stopped` is told how often was read.
    fn set_two(
        said: &[u8],
        timeout: Duration,
        is_stopped: impl Fn(usize) -> bool,
    ) -> io::Result<()> {
        let plan = Cache {
            protocol: CacheProtocol::Text,
            set_percent: 0.0,
            keys: 2,
            key_prefix: "k-".to_owned(),
            key_bytes: "20".parse().unwrap(),
            value_bytes: "10".parse().unwrap(),
            popularity: Popularity::Sequential,
            keys_per_get: 1,
            exptime_s: 0,
            populate: true,
        };
        let reads = Cell::new(0);
        let server = Slow {
            said,
            is_pausing: false,
            reads: &reads,
        };
        let commands = Commands::new(&plan, 1, 0);
        set_all(&commands, 0..2, server, timeout, || is_stopped(reads.get()))
    }

    fn error(said: &[u8], timeout: Duration) -> String {
        set_two(said, timeout, |_| false).unwrap_err().to_string()
    }

    #[test]
    fn a_server_that_answers_byte_by_byte_is_waited_for() {
        set_two(b"STORED\r\nSTORED\r\n", LONG, |_| false).unwrap();
    }

    /// Seen: `--populate` on a server that answered one byte per second could not be stopped by
    /// Ctrl-C. Cause: whether to stop was looked at once per 256 keys, and the time-out was that of
    /// a single read. Cure: it is looked at ten times per second, and the time-out is a reply's.
    #[test]
    fn a_stop_is_noticed_in_the_middle_of_an_answer() {
        set_two(b"STO", LONG, |reads| reads >= 3).unwrap();
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(error(b"STORED\r\n", LONG).contains("closed the connection"));
        assert!(
            error(b"STORED\r\nSTO", Duration::ZERO).contains("did not answer a set within 0ns")
        );
        let refused = error(b"SERVER_ERROR out of \x1b[31mmemory \xff\r\n", LONG);
        assert_eq!(
            refused,
            "the server answered 'SERVER_ERROR out of \\x1b[31mmemory \\xff' to a set"
        );
        let endless = error(&b"x".repeat(5000), LONG);
        assert!(endless.len() < 200, "{endless}");
    }
}
