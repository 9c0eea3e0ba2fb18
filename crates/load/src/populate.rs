//! Stores every key once, before a run. Nothing is measured here, so it is plain blocking code.

use std::io::{self, BufRead, BufReader, Read, Write};

use crate::memcached::Commands;

/// Commands per round trip: small enough for the socket buffers to take all their replies.
const KEYS_PER_ROUND: usize = 256;
/// A round ends early when it is this long.
const ROUND_BYTES: usize = 256 * 1024;

/// A longer line is no answer to a set.
const LINE_BYTES_MAX: u64 = 1024;

/// Sets `keys` over a connection, and waits until each is stored, or `is_stopped`.
pub(crate) fn set_all(
    commands: &Commands,
    keys: impl Iterator<Item = u64>,
    stream: impl Read + Write,
    is_stopped: impl Fn() -> bool,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut round, mut count) = (Vec::new(), 0);
    for key in keys {
        commands.set_key(key, &mut round);
        count += 1;
        if count == KEYS_PER_ROUND || round.len() >= ROUND_BYTES {
            exchange(&mut stream, &mut round, &mut count)?;
            if is_stopped() {
                return Ok(());
            }
        }
    }
    exchange(&mut stream, &mut round, &mut count)
}

fn exchange(
    stream: &mut BufReader<impl Read + Write>,
    round: &mut Vec<u8>,
    count: &mut usize,
) -> io::Result<()> {
    stream.get_mut().write_all(round)?;
    let mut line = String::new();
    for _ in 0..*count {
        line.clear();
        stream.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)?;
        match line.trim_end() {
            "STORED" | "HD" => {}
            "" => return Err(io::ErrorKind::UnexpectedEof.into()),
            other => {
                return Err(io::Error::other(format!(
                    "the server answered '{other}' to a set"
                )));
            }
        }
    }
    round.clear();
    *count = 0;
    Ok(())
}
