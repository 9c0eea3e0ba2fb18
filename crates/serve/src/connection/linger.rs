//! The last wait of a connection, for its last reply to reach the peer.
//!
//! A socket closed with unread input is reset at once, and a closed socket that receives input is
//! reset then. Either discards data that the socket has not sent yet, and the reset may overtake
//! data that it has sent (RFC 9112 9.6). A connection therefore *lingers* if input is unread or may
//! still arrive: its side of the stream ends, and it discards input until the peer closes.
//!
//! Waiting for the peer's end costs as much as a receive, and nearly every peer sends nothing after
//! its last request. A connection that its peer has asked to close is therefore closed at once if
//! nothing is unread and all of the reply has left the socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::Closed;
use crate::shared::Shared;

/// Time without input, and total time, before the connection is closed; as in nginx
/// (`lingering_timeout`, `lingering_time`).
pub(super) const LINGER_IDLE: Duration = Duration::from_secs(5);
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which a peer may continue to send while the server drains: a few round trips.
pub(crate) const LINGER_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that a peer may still send: an upload that takes 10 s on a gigabit link.
pub(super) const LINGER_LEN_MAX: u64 = 1 << 30;

/// Time that a drain leaves an idle connection open: longer than most round trips, so that a
/// request in flight gets a reply and not a reset.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(250);

/// State of a lingering connection.
pub(super) struct Linger {
    shared: Arc<Shared>,
    /// Number of bytes discarded.
    len: u64,
    /// Time of the last input that extended the wait, or of the beginning.
    last_input_at: Instant,
    /// Time until which input keeps the connection open.
    extends_until: Instant,
    /// Final deadline, whatever the peer does.
    until: Instant,
    /// The socket had unsent data at the last check.
    had_unsent: bool,
    /// Time for a slow peer, even a silent one, to read data from its own socket.
    reads_until: Instant,
}

impl Linger {
    /// Begins to linger; `None` if too many connections do. A peer that timed out gets little time.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        closed: Closed,
        is_draining: bool,
        now: Instant,
    ) -> Option<Box<Linger>> {
        let timeout = match closed {
            Closed::TimedOut(_) => LINGER_IDLE,
            _ => LINGER_TIMEOUT,
        };
        let extends_for = if is_draining { LINGER_DRAIN_TIMEOUT } else { timeout };
        shared.lingering.enter(is_draining).then(|| {
            Box::new(Linger {
                shared: Arc::clone(shared),
                len: 0,
                last_input_at: now,
                extends_until: now + extends_for,
                until: now + timeout,
                had_unsent: false,
                reads_until: now,
            })
        })
    }

    /// Deadline for the peer's next bytes or its end.
    pub(super) fn next_deadline(&self, is_draining: bool) -> Instant {
        let patience = if is_draining { DRAIN_GRACE } else { LINGER_IDLE };
        self.until.min(self.reads_until.max(self.last_input_at + patience))
    }

    /// Time from which the connection counts as idle for a drain.
    pub(super) fn idle_since(&self, now: Instant) -> Instant {
        self.reads_until.checked_sub(DRAIN_GRACE).map_or(now, |since| since.max(now))
    }

    /// True if input still keeps the connection open.
    pub(super) fn is_extended_by_input(&self, now: Instant) -> bool {
        now < self.extends_until
    }

    /// Notes whether the socket has unsent data. Returns true if it has, or had at the last check:
    /// the peer is reading, and its input counts for some more time. It may send while it reads, as
    /// in HTTP/2.
    pub(super) fn note_unsent(&mut self, has_unsent: bool, now: Instant) -> bool {
        let had_unsent = std::mem::replace(&mut self.had_unsent, has_unsent);
        let is_reading = had_unsent || has_unsent;
        if is_reading {
            let reads_until = self.until.min(now + LINGER_DRAIN_TIMEOUT);
            self.extends_until = self.extends_until.max(reads_until);
            if !has_unsent {
                self.reads_until = reads_until;
            }
        }
        is_reading
    }

    /// True if the final deadline has passed.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Begins another wait: the peer was silent for long enough, but is still reading.
    pub(super) fn wait_again(&mut self, now: Instant) {
        self.last_input_at = now;
    }

    /// Counts discarded input; `false` if it exceeds the limit.
    pub(super) fn discard(&mut self, len: usize, now: Instant) -> bool {
        self.len += len as u64;
        if self.is_extended_by_input(now) {
            self.last_input_at = now;
        }
        self.len < LINGER_LEN_MAX
    }

    /// Shortens the wait when the server begins to drain: as for an idle connection if the peer is
    /// silent, and to a few round trips if it continues to send.
    pub(super) fn shorten(&mut self, now: Instant) {
        self.extends_until = self.extends_until.min(now + LINGER_DRAIN_TIMEOUT);
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        self.shared.lingering.leave();
    }
}
