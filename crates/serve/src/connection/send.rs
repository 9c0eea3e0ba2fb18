//! Queued output of a connection, and the peer's pace in taking it.
//!
//! A pool of the thread lends it while there is something to send: a connection that waits for a
//! request needs none.
//!
//! ```text
//!  the session ── put ──▶ out ─────────────── without TLS ──────────▶ Action::Send, SendFile
//!                          ├─ ReadFile ─▶ fetched ─── without TLS ──▶ Action::Send
//!                          │                 │
//!                          └─ TlsConnection ─┴─▶ sealed ─ with TLS ─▶ Action::Send
//! ```

mod pool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use session::{Chunk, Outbox};

use super::TlsConnection;
use super::action::{Action, FilePiece, Unacked, UnackedCheck};
use crate::buffers::{Buffers, PIECE_LEN_MAX};
use crate::counters::Closed;
use crate::limits::Limits;
use crate::memory::{Charge, Memory};

/// Output, and the peer's pace.
pub(crate) struct Outgoing {
    /// Output of the session.
    pub(super) out: Outbox,
    /// The output as TLS records, some 32 KiB at a time.
    pub(super) sealed: Outbox,
    /// Bytes read of the file at the front of `out`. The file still counts them as unsent, so they
    /// may be dropped at any time.
    fetched: Outbox,
    /// Charge for the memory of the outboxes.
    charge: Charge,
    /// Length of the fetched bytes, and the time to drop them.
    fetched_len: u64,
    fetched_until: Instant,
    /// Bytes to read of a file at a time.
    share: u64,
    /// Start of the sending, or of the current lap.
    lap_begun: Instant,
    /// Deadline for progress by the peer.
    pub(super) until: Instant,
    /// Start of the window in which the peer's rate is measured, and bytes taken in it.
    since: Instant,
    taken: u64,
    is_begun: bool,
    /// The socket could not take a file at once.
    is_in_pieces: bool,
    /// Result of the last check, and the delay before the next one.
    unacked: Option<Unacked>,
    check_after: Duration,
    /// Bytes sent since the last page of the page cache: no write can change them.
    copied: u64,
    /// Length of the last send, if not counted yet.
    pub(super) last_sent_len: usize,
}

/// Length of the end of a slow file that is sent as copies, so that the peer has something to take
/// while the machine waits for the last page of the page cache to be acknowledged.
pub(super) const COPIED_END_LEN: u64 = 256 * 1024;

/// Part of that end that is held back meanwhile.
pub(super) const HELD_BACK_LEN: u64 = 16 * 1024;

/// Time for which bytes read wait for the peer. Buffers for files have a limit, and active peers
/// need them.
pub(super) const FETCHED_PATIENCE: Duration = Duration::from_secs(1);

/// Least number of bytes read at a time for a peer that was slow to take them.
const SHARE_MIN: u64 = 64 * 1024;

/// Delays between two checks of unacknowledged bytes. The socket reports when it has sent all, so a
/// peer that pauses costs little, and the wait is not longer than the pause. From then on the peer
/// acknowledges them within a round trip, which is not reported: each delay is a quarter longer
/// than the previous one, so a check is late by at most a quarter of that time.
const UNACKED_CHECK_MIN: Duration = Duration::from_micros(100);
const UNACKED_CHECK_MAX: Duration = Duration::from_millis(250);

impl Outgoing {
    /// Takes an empty `Outgoing` from the pool.
    #[inline]
    pub(super) fn take(is_logged: bool, memory: &Memory, now: Instant) -> Box<Outgoing> {
        let kept = pool::take();
        let mut outgoing = kept.unwrap_or_else(|| Outgoing::new(now));
        outgoing.out.set_logged(is_logged);
        let is_lean = memory.is_short();
        outgoing.out.set_lean(is_lean);
        outgoing.fetched.set_lean(is_lean);
        outgoing
    }

    #[cold]
    pub(super) fn new(now: Instant) -> Box<Outgoing> {
        Box::new(Outgoing {
            out: Outbox::new(),
            sealed: Outbox::new(),
            charge: Charge::default(),
            fetched: Outbox::new(),
            fetched_len: 0,
            fetched_until: now,
            share: PIECE_LEN_MAX,
            lap_begun: now,
            until: now,
            since: now,
            taken: 0,
            is_begun: false,
            is_in_pieces: false,
            unacked: None,
            check_after: Duration::ZERO,
            copied: 0,
            last_sent_len: 0,
        })
    }

    /// Returns it to the pool. Content is dropped.
    #[inline]
    pub(super) fn put_back(mut self: Box<Outgoing>, memory: &Arc<Memory>) {
        if !memory.is_ample() {
            return; // It is freed.
        }
        self.is_begun = false;
        if !self.is_empty() {
            self.out.clear();
            self.sealed.clear();
            self.fetched.clear();
        }
        // It may have freed memory that was too much to keep.
        self.charge(memory);
        pool::put_back(self);
    }

    /// Charges the memory of the outboxes. Returns true if it has grown.
    #[inline]
    pub(super) fn charge(&mut self, memory: &Arc<Memory>) -> bool {
        let allocated_len = self.out.allocated_len() + self.sealed.allocated_len();
        self.charge.set(memory, allocated_len)
    }

    /// Number of bytes charged.
    pub(super) fn charged_len(&self) -> usize {
        self.charge.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty() && self.sealed.is_empty()
    }

    /// Starts the clock of a sending, unless one is in progress.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant, limits: &Limits) {
        if !self.is_begun {
            self.is_begun = true;
            self.is_in_pieces = false;
            self.unacked = None;
            self.share = PIECE_LEN_MAX;
            self.lap_begun = now;
            self.since = now;
            self.taken = 0;
            self.until = now + limits.send_timeout;
        }
    }

    /// Begins another lap. Returns the start and the duration of the sending, or of the last lap.
    #[inline]
    pub(super) fn lap(&mut self, now: Instant) -> Option<(Instant, Duration)> {
        self.is_begun.then(|| {
            let begun = std::mem::replace(&mut self.lap_begun, now);
            (begun, now.saturating_duration_since(begun))
        })
    }

    /// Returns the next output action. Never called when empty.
    #[inline]
    pub(super) fn next_action<'a>(
        &'a self,
        is_tls: bool,
        is_last: bool,
        buffers: &'a Arc<Buffers>,
    ) -> Action<'a> {
        let until = self.until;
        if !self.sealed.is_empty() {
            return Action::Send { out: &self.sealed, until: self.taken_until(), is_last };
        }
        let out = &self.out;
        let front = out.front();
        if is_tls && !(self.fetched.is_empty() && matches!(front, Some(Chunk::File(_)))) {
            return Action::Close(Closed::Error); // Never in the clear.
        }
        let Some(Chunk::File(range)) = front else {
            return Action::Send { out, until, is_last };
        };
        if !self.fetched.is_empty() {
            return Action::Send {
                out: &self.fetched,
                until: self.taken_until(),
                is_last: is_last && self.fetched.queued_len() == out.queued_len(),
            };
        }
        // The length has been announced: a file that ends early or was written meanwhile can only
        // be truncated, so that it is not taken for complete. `sendfile(2)` queues the page cache's
        // own pages, so a write changes bytes that were sent but not yet acknowledged. A write into
        // a settled file changes its stamp: if the socket could not take a file at once, its last
        // bytes are held back until all such pages were acknowledged and the stamp is still equal.
        // For unsettled files every piece is a copy. docs/serve.md lists the remaining risk.
        let len = range.len();
        let piece = |len, checks_file| FilePiece {
            range,
            len,
            checks_file,
            share: self.share,
            buffers,
            until,
            is_last: is_last && len == out.queued_len() && len <= PIECE_LEN_MAX,
        };
        let pages = |len, checks_file| Action::SendFile(piece(len, checks_file));
        let copy = |len| Action::ReadFile(piece(len, false));
        match self.unacked {
            _ if is_tls || !range.settled => copy(len),
            _ if !self.is_in_pieces => pages(len, false),
            _ if len > COPIED_END_LEN => pages(len - COPIED_END_LEN, true),
            _ if len > HELD_BACK_LEN => copy(len - HELD_BACK_LEN),
            Some(unacked) if unacked.len <= self.copied => copy(len),
            unacked => Action::CheckUnacked(match unacked {
                Some(Unacked { all_is_sent: false, .. }) => self.check(UNACKED_CHECK_MAX, false),
                _ => self.check(self.check_after, true),
            }),
        }
    }

    /// Deadline for progress by the peer, or for dropping the fetched bytes.
    fn taken_until(&self) -> Instant {
        if self.fetched.is_empty() { self.until } else { self.until.min(self.fetched_until) }
    }

    /// Takes bytes read of the file at the front. If the previous ones were taken in less than half
    /// of their time, the next read is twice as long: its bytes will be taken in time too.
    pub(super) fn fetch(&mut self, bytes: Bytes, now: Instant) {
        if now + FETCHED_PATIENCE / 2 < self.fetched_until {
            self.share = (2 * self.share).min(PIECE_LEN_MAX);
        }
        self.fetched_len = bytes.len() as u64;
        self.fetched_until = now + FETCHED_PATIENCE;
        self.fetched.put_shared(bytes);
    }

    /// Drops fetched bytes that the peer has not taken in time. The next reads are as long as the
    /// part that it took.
    pub(super) fn give_back(&mut self, now: Instant) {
        if !self.fetched.is_empty() && now >= self.fetched_until {
            let taken = self.fetched_len - self.fetched.queued_len();
            self.share = taken.clamp(SHARE_MIN, PIECE_LEN_MAX / 2);
            self.fetched.clear();
        }
    }

    /// Encrypts the next in-memory bytes if no record is pending. Returns the plaintext length.
    pub(super) fn seal(&mut self, tls: &mut TlsConnection) -> usize {
        if !self.sealed.is_empty() {
            return 0;
        }
        if self.fetched.is_empty() {
            return tls.seal(&mut self.out, &mut self.sealed);
        }
        let len = tls.seal(&mut self.fetched, &mut self.sealed);
        self.out.consume(len as u64);
        len
    }

    /// Drops unencrypted data: nothing follows an alert, and exhausted keys encrypt nothing.
    pub(super) fn drop_plain(&mut self) {
        self.fetched.clear();
        self.out.consume(self.out.queued_len());
    }

    fn check(&self, after: Duration, all_was_sent: bool) -> UnackedCheck {
        UnackedCheck { after, all_was_sent, enough: self.copied }
    }

    /// Takes the result of a check; `false` if the peer is too slow.
    pub(super) fn checked(&mut self, unacked: Unacked, now: Instant, limits: &Limits) -> bool {
        let before = self.unacked.replace(unacked);
        self.check_after = if unacked.all_is_sent {
            (self.check_after * 5 / 4).clamp(UNACKED_CHECK_MIN, UNACKED_CHECK_MAX)
        } else {
            Duration::ZERO
        };
        let Unacked { len, .. } = unacked;
        match before {
            Some(before) if len >= before.len => now <= self.until,
            before => {
                self.taken += before.map_or(0, |before| before.len - len);
                self.keeps_pace(now, limits)
            }
        }
    }

    /// Notes that the peer has taken `len` bytes.
    #[inline]
    pub(super) fn consume(&mut self, len: u64) {
        self.taken += len;
        if !self.sealed.is_empty() {
            return self.sealed.consume(len);
        }
        if let Some(Chunk::File(range)) = self.out.front() {
            self.copied = if self.fetched.is_empty() { 0 } else { self.copied + len };
            if !self.fetched.is_empty() {
                self.fetched.consume(len);
            }
            self.is_in_pieces |= len < range.len();
            self.unacked = None;
            self.check_after = Duration::ZERO;
        }
        self.out.consume(len);
    }

    /// Judges the peer's rate while something is left to send; `false` if less than the minimum was
    /// taken in a whole window.
    pub(super) fn keeps_pace(&mut self, now: Instant, limits: &Limits) -> bool {
        self.until = now + limits.send_timeout;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < limits.send_rate_window {
            return true;
        }
        let taken_min = (limits.send_rate_min as f64 * elapsed.as_secs_f64()) as u64;
        let keeps = self.taken >= taken_min;
        self.since = now;
        self.taken = 0;
        keeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_lent_again_empty() {
        let now = Instant::now();
        let memory = Arc::new(Memory::new(1 << 20));
        let mut one = Outgoing::take(false, &memory, now);
        one.out.put(b"not sent");
        one.sealed.put(b"not sent");
        let address = &raw const *one;
        one.put_back(&memory);
        // Takes the memory of `one` if it was freed instead of kept.
        let _other = Outgoing::new(now);
        let again = Outgoing::take(false, &memory, now);
        assert_eq!(&raw const *again, address);
        assert!(again.is_empty());
    }
}
