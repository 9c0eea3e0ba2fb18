//! Budget of a connection in one turn of a loop.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::{Duration, Instant};

/// Steps, and bytes sent, after which a connection gives way to others: neither a peer that takes a
/// file as fast as it is sent, nor one that sends without end, keeps a thread to itself.
pub(crate) const STEPS_MAX: usize = 16;
const SENT_LEN_MAX: u64 = 512 * 1024;

/// Time for long work in one turn of a loop, and time for new connections. What is left comes in
/// the next turn, after what was reported meanwhile: a burst of either keeps no connection waiting
/// that asks for little.
pub(crate) const SHARE_OF_TURN: Duration = Duration::from_millis(2);

/// Output of more bytes than this is long work. So are handshakes of TLS.
pub(crate) const LONG_LEN: u64 = 64 * 1024;

/// End of long work in a turn; `None` for a connection that has waited for its turn.
pub(crate) type LongUntil = Option<Instant>;

/// True if long work is put off until the connection has a turn.
#[inline]
pub(crate) fn is_put_off(now: Instant, until: LongUntil) -> bool {
    until.is_some_and(|until| until <= now)
}

/// Takes steps, each of which returns the bytes it sent, until one returns a wait. `None` if the
/// connection gives way to others first.
#[inline]
pub(crate) fn take_steps<W>(mut step: impl FnMut() -> ControlFlow<W, u64>) -> Option<W> {
    let mut sent_len = 0;
    for _ in 0..STEPS_MAX {
        match step() {
            Break(waits) => return Some(waits),
            Continue(len) => sent_len += len,
        }
        if sent_len >= SENT_LEN_MAX {
            break;
        }
    }
    None
}
