//! The last part of a connection: it stays until its last reply has reached the peer.
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

use session::{Now, Session};

use super::{Carriage, DRAIN_GRACE, Drain, Stage};
use crate::counters::Closed;
use crate::shared::Shared;

/// How long a peer may send nothing, and how long in all, before the connection is closed: as nginx
/// (`lingering_timeout`, `lingering_time`).
pub(super) const LINGER_IDLE: Duration = Duration::from_secs(5);
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a peer may go on sending while the server drains: a few round trips.
pub(super) const LINGER_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How much a peer may go on sending: an upload that a gigabit link brings in 10 s.
pub(super) const LINGER_LEN_MAX: u64 = 1 << 30;

/// Bytes in the queues of a socket whose stream this side ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queues {
    /// Received, and not read.
    pub(crate) unread: u64,
    /// Not sent, because the peer has no room for them.
    pub(crate) unsent: u64,
}

/// A connection that lingers.
pub(super) struct Linger {
    shared: Arc<Shared>,
    /// How much was discarded.
    len: u64,
    /// When it began, or the peer sent something last.
    heard: Instant,
    /// Until when what the peer sends keeps it open.
    hears_until: Instant,
    /// When it ends at the latest.
    until: Instant,
}

impl Linger {
    /// `None` if too many do. A peer that was too slow has little time.
    fn begin(
        shared: &Arc<Shared>,
        closed: Closed,
        drain: Drain,
        now: Instant,
    ) -> Option<Box<Linger>> {
        let timeout = match closed {
            Closed::TimedOut(_) => LINGER_IDLE,
            _ => LINGER_TIMEOUT,
        };
        let hears_for = match drain {
            Drain::No => timeout,
            Drain::Untold | Drain::Told => LINGER_DRAIN_TIMEOUT,
        };
        shared.lingering.enter().then(|| {
            Box::new(Linger {
                shared: Arc::clone(shared),
                len: 0,
                heard: now,
                hears_until: now + hears_for,
                until: now + timeout,
            })
        })
    }

    /// Until when it waits for the peer's next bytes, or its end.
    fn next_deadline(&self, drain: Drain) -> Instant {
        let patience = match drain {
            Drain::No => LINGER_IDLE,
            Drain::Untold | Drain::Told => DRAIN_GRACE,
        };
        self.until.min(self.heard + patience)
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        self.shared.lingering.leave();
    }
}

impl<S: Session> Carriage<S> {
    /// Whether it waits only for its peer to close.
    #[inline]
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.stage, Stage::Discard(_))
    }

    /// So much is left in the socket's queues.
    pub(crate) fn queues(&mut self, queues: Queues, now: Now) {
        if let Stage::Queues(closed) = self.stage {
            let hears = (self.linger.as_ref()).is_none_or(|it| now.monotonic < it.hears_until);
            let is_in_use = queues.unsent > 0 || (queues.unread > 0 && hears);
            self.stage = match &mut self.linger {
                None if is_in_use => Stage::Finish(closed),
                // It has been silent for long enough, but takes its time to read.
                Some(linger) if is_in_use && now.monotonic < linger.until => {
                    linger.heard = now.monotonic;
                    self.deadline = linger.next_deadline(self.drain);
                    Stage::Discard(closed)
                }
                _ => Stage::Close(closed),
            };
        }
        self.settle(now);
    }

    /// Our side of the stream has ended.
    pub(crate) fn finished(&mut self, (): (), now: Now) {
        if let Stage::Finish(closed) = self.stage {
            self.linger = Linger::begin(&self.shared, closed, self.drain, now.monotonic);
            self.stage = match &self.linger {
                None => Stage::Close(closed),
                Some(linger) => {
                    self.deadline = linger.next_deadline(self.drain);
                    Stage::Discard(closed)
                }
            };
            // What follows is discarded as it comes, whether it is in records or not; and behind
            // the peer's goodbye the end of the stream is still to come.
            self.secure = None;
            self.held = Vec::new();
            self.is_ended = self.is_stream_ended;
        }
        self.settle(now);
    }

    /// Discards input that came behind the last request.
    pub(super) fn discard(&mut self, input_len: usize, now: Now) {
        let (Stage::Discard(closed), Some(linger)) = (self.stage, &mut self.linger) else {
            return;
        };
        linger.len += input_len as u64;
        if now.monotonic < linger.hears_until {
            linger.heard = now.monotonic;
        }
        self.deadline = linger.next_deadline(self.drain);
        if linger.len >= LINGER_LEN_MAX {
            self.stage = Stage::Close(closed);
        }
    }

    /// A drain has begun: it lingers for no longer than an idle connection stays open, if its peer
    /// is silent, and not for long if the peer goes on sending.
    pub(super) fn shorten_linger(&mut self, now: Now) {
        if let (Stage::Discard(_), Some(linger)) = (self.stage, &mut self.linger) {
            let hears_until = now.monotonic + LINGER_DRAIN_TIMEOUT;
            linger.hears_until = linger.hears_until.min(hears_until);
            self.deadline = linger.next_deadline(self.drain);
        }
    }
}
