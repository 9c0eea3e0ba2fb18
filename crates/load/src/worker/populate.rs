//! Storing of every key before a run. It is not measured, so it is plain blocking code.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use memchr::memchr;

use crate::protocol::memcached::Commands;

/// Commands per round trip; their replies must fit into the socket buffers.
const KEYS_PER_ROUND: usize = 256;
/// Bytes after which a round ends early.
const ROUND_BYTES: usize = 256 * 1024;
/// Bytes that the server must accept within the time-out.
const PIECE_BYTES: usize = 16 * 1024;

/// Longest reply to a set.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of a wrong reply that are shown.
const SHOWN_BYTES_MAX: usize = 100;

/// Maximum time of a read or write of the stream, after which a stop is checked.
pub(crate) const STOP_CHECK_EVERY: Duration = Duration::from_millis(100);

/// Sets `keys` over a connection and waits until each is stored, or `is_stopped`. `timeout` is the
/// limit of each reply.
pub(crate) fn set_all(
    commands: &Commands,
    keys: impl Iterator<Item = u64>,
    stream: impl Read + Write,
    timeout: Duration,
    is_stopped: impl Fn() -> bool,
) -> io::Result<()> {
    let mut populator =
        Populator { stream: BufReader::new(stream), line: Vec::new(), timeout, is_stopped };
    let mut round = Vec::new();
    let mut count = 0;
    for key in keys {
        commands.set_key(key, &mut round);
        count += 1;
        if count == KEYS_PER_ROUND || round.len() >= ROUND_BYTES {
            if populator.exchange(&round, count)? == Exchange::Stopped {
                return Ok(());
            }
            round.clear();
            count = 0;
        }
    }
    populator.exchange(&round, count).map(|_| ())
}

/// Connection on which no call takes long.
struct Populator<S, F> {
    stream: BufReader<S>,
    /// Current reply.
    line: Vec<u8>,
    timeout: Duration,
    is_stopped: F,
}

#[derive(Clone, Copy, PartialEq)]
enum Exchange {
    Done,
    Stopped,
}

impl<S: Read + Write, F: Fn() -> bool> Populator<S, F> {
    fn exchange(&mut self, round: &[u8], count: usize) -> io::Result<Exchange> {
        if self.send(round)? == Exchange::Stopped {
            return Ok(Exchange::Stopped);
        }
        for _ in 0..count {
            if self.receive()? == Exchange::Stopped {
                return Ok(Exchange::Stopped);
            }
        }
        Ok(Exchange::Done)
    }

    fn send(&mut self, mut rest: &[u8]) -> io::Result<Exchange> {
        let mut server = ServerTimeout::default();
        let mut taken_bytes = 0;
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
                return Ok(Exchange::Stopped);
            }
            if taken_bytes >= PIECE_BYTES {
                (server, taken_bytes) = (ServerTimeout::default(), 0);
            } else if !rest.is_empty() {
                server.check(self.timeout, "take")?;
            }
        }
        Ok(Exchange::Done)
    }

    /// Reads one reply.
    fn receive(&mut self) -> io::Result<Exchange> {
        let mut server = ServerTimeout::default();
        let line = &mut self.line;
        line.clear();
        while line.last() != Some(&b'\n') && line.len() < LINE_BYTES_MAX {
            // One read at a time: bytes that come slowly must not keep it from a stop.
            match self.stream.fill_buf() {
                Ok([]) => {
                    let what = "the server closed the connection instead of answering a set";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(arrived) => {
                    let arrived = &arrived[..arrived.len().min(LINE_BYTES_MAX - line.len())];
                    let used = memchr(b'\n', arrived).map_or(arrived.len(), |at| at + 1);
                    line.extend_from_slice(&arrived[..used]);
                    self.stream.consume(used);
                }
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(error),
            }
            if (self.is_stopped)() {
                return Ok(Exchange::Stopped);
            }
            if line.last() != Some(&b'\n') {
                server.check(self.timeout, "answer")?;
            }
        }
        match line.trim_ascii_end() {
            b"STORED" | b"HD" => Ok(Exchange::Done),
            other => {
                // Escaped: these are the server's bytes, and a terminal would obey some of them.
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

/// Time-out of a server, counted from the first wait, so that a fast server costs no clock
/// readings.
#[derive(Default)]
struct ServerTimeout {
    deadline: Option<Instant>,
}

impl ServerTimeout {
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
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads.set(self.reads.get() + 1);
            self.is_pausing = !self.is_pausing;
            match self.said.split_first() {
                _ if self.is_pausing => Err(io::ErrorKind::WouldBlock.into()),
                None => Ok(0),
                Some((first, rest)) => {
                    (buffer[0], self.said) = (*first, rest);
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

    /// A server that takes every byte, and whose answer comes one byte for each read, without a
    /// pause and without an end.
    struct Endless<'a> {
        reads: &'a Cell<usize>,
    }

    impl Read for Endless<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads.set(self.reads.get() + 1);
            buffer[0] = b'x';
            Ok(1)
        }
    }

    impl Write for Endless<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    fn commands() -> Commands {
        let plan = Cache {
            protocol: CacheProtocol::Text,
            set_percent: 0.0,
            keys: 2,
            template: None,
            key_prefix: "k-".to_owned(),
            key_bytes: "20".parse().unwrap(),
            value_bytes: "10".parse().unwrap(),
            popularity: Popularity::Sequential,
            keys_per_get: 1,
            exptime_s: 0,
            populate: true,
        };
        Commands::new(&plan, 1, 0)
    }

    /// Sets two keys; `is_stopped` is told how often was read.
    fn set_two(
        said: &[u8],
        timeout: Duration,
        is_stopped: impl Fn(usize) -> bool,
    ) -> io::Result<()> {
        let reads = Cell::new(0);
        let server = Slow { said, is_pausing: false, reads: &reads };
        set_all(&commands(), 0..2, server, timeout, || is_stopped(reads.get()))
    }

    fn error(said: &[u8], timeout: Duration) -> String {
        set_two(said, timeout, |_| false).unwrap_err().to_string()
    }

    #[test]
    fn slow_answer_is_awaited() {
        set_two(b"STORED\r\nSTORED\r\n", LONG, |_| false).unwrap();
    }

    /// Seen: `--populate` on a server that answered one byte per second could not be stopped by
    /// Ctrl-C. Cause: a stop was checked once per 256 keys, and the time-out was that of a single
    /// read. Cure: it is checked ten times per second, and the time-out is a reply's.
    #[test]
    fn stop_within_an_answer() {
        set_two(b"STO", LONG, |reads| reads >= 3).unwrap();
    }

    /// Seen: the same of a server that sent a byte every 20 ms. Cause: the search for the end of
    /// the line returned only when a read gave up, after 100 ms. Cure: each read is looked at.
    #[test]
    fn stop_within_an_answer_that_never_pauses() {
        let reads = Cell::new(0);
        let server = || Endless { reads: &reads };
        set_all(&commands(), 0..2, server(), LONG, || reads.get() >= 3).unwrap();
        assert!(reads.get() < 10, "{} reads", reads.get());
        reads.set(0);
        let late = set_all(&commands(), 0..2, server(), Duration::ZERO, || false).unwrap_err();
        assert!(late.to_string().contains("did not answer a set within 0ns"), "{late}");
        assert!(reads.get() < 10, "{} reads", reads.get());
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
