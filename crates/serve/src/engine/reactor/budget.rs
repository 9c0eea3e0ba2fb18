//! Budget of a connection in one turn of a loop.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::{Duration, Instant};

/// Steps, and bytes sent, after which a connection yields to others: no peer that takes a file at
/// full speed, or sends without end, occupies a thread.
pub(crate) const STEPS_MAX: usize = 16;
const SENT_LEN_MAX: u64 = 512 * 1024;

/// Time for long operations in one turn of a loop, and time for new connections. The rest is done
/// in the next turn, after new reports: a burst of either does not delay connections with small
/// requests.
pub(crate) const SHARE_OF_TURN: Duration = Duration::from_millis(2);

/// Output above this length is a long operation. So are TLS handshakes.
pub(crate) const LONG_LEN: u64 = 64 * 1024;

/// End of long operations in a turn; `None` for a connection that has waited for its turn.
pub(crate) type LongUntil = Option<Instant>;

/// True if long operations are postponed to the connection's next turn.
#[inline]
pub(crate) fn is_postponed(now: Instant, until: LongUntil) -> bool {
    until.is_some_and(|until| until <= now)
}

/// Takes steps, each of which returns the bytes it sent, until one returns a wait. `None` if the
/// connection must yield first.
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
