//! The last wait of a connection, until its last reply has reached the peer.
//!
//! A socket that is closed with unread input is reset at once, and one that receives input after it
//! was closed is reset then. Either throws away what the socket has not sent yet, and the reset may
//! overtake what it has (RFC 9112 9.6). So a connection *lingers* if input is there, or may still
//! come: its side of the stream ends, and it reads and discards until the peer closes.
//!
//! To wait for the peer's end costs as much as a receive, and nearly every peer sends nothing
//! behind its last request. So a connection that its peer has asked to close is closed at once if
//! nothing is unread and all of the reply has left the socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::Closed;
use crate::shared::Shared;

/// Time without input, and time in all, before the connection is closed: as nginx
/// (`lingering_timeout`, `lingering_time`).
pub(super) const LINGER_IDLE: Duration = Duration::from_secs(5);
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which a peer may go on sending while the server drains: a few round trips.
pub(crate) const LINGER_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that a peer may go on sending: an upload that a gigabit link brings in 10 s.
pub(super) const LINGER_LEN_MAX: u64 = 1 << 30;

/// Time that a drain leaves an idle connection open: longer than most round trips, so that a client
/// that has just sent a request on it gets a reply and not a reset.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(250);

/// State of a connection that lingers.
pub(super) struct Linger {
    shared: Arc<Shared>,
    /// Number of bytes discarded.
    len: u64,
    /// Time of the last input that counted, or of the beginning.
    last_input_at: Instant,
    /// Input keeps the connection open until then.
    extends_until: Instant,
    /// The end, whatever the peer does.
    until: Instant,
    /// The socket had something to send when it was last checked.
    had_unsent: bool,
    /// Time for a peer that was slow to read what its own socket has, silent or not.
    reads_until: Instant,
}

impl Linger {
    /// Begins to linger; `None` if too many connections do. A peer that was too slow has little
    /// time.
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

    /// Deadline for the peer's next bytes, or its end.
    pub(super) fn next_deadline(&self, is_draining: bool) -> Instant {
        let patience = if is_draining { DRAIN_GRACE } else { LINGER_IDLE };
        self.until.min(self.reads_until.max(self.last_input_at + patience))
    }

    /// Time since which it counts as idle for a drain.
    pub(super) fn idle_since(&self, now: Instant) -> Instant {
        self.reads_until.checked_sub(DRAIN_GRACE).map_or(now, |since| since.max(now))
    }

    /// True if input still keeps the connection open.
    pub(super) fn is_extended_by_input(&self, now: Instant) -> bool {
        now < self.extends_until
    }

    /// Notes whether the socket has something to send. Returns true if it has, or had at the last
    /// check: the peer is reading, and its input counts for some more time. It may send as it
    /// reads, as HTTP/2 does.
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

    /// True if the longest time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Begins another wait: the peer was silent for long enough, but takes its time to read.
    pub(super) fn wait_again(&mut self, now: Instant) {
        self.last_input_at = now;
    }

    /// Counts input that was discarded; `false` if it was too much.
    pub(super) fn discard(&mut self, len: usize, now: Instant) -> bool {
        self.len += len as u64;
        if self.is_extended_by_input(now) {
            self.last_input_at = now;
        }
        self.len < LINGER_LEN_MAX
    }

    /// Shortens the wait, because the server has begun to drain: to that of an idle connection if
    /// the peer is silent, and to a few round trips if it goes on sending.
    pub(super) fn shorten(&mut self, now: Instant) {
        self.extends_until = self.extends_until.min(now + LINGER_DRAIN_TIMEOUT);
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        self.shared.lingering.leave();
    }
}
