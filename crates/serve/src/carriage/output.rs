//! What a carriage is told: output, turns and work.

use std::time::{Duration, Instant};

use bytes::Bytes;
use session::{Now, Session};

use super::outgoing::Outgoing;
use super::{Carriage, Carried, Drain, GOODBYE_PATIENCE, Stage, Untaken, outgoing};
use crate::counters::Closed;
use crate::jobs::Job;
use crate::memory::HELD_LEN_FULL;

impl<S: Session> Carriage<S> {
    /// The peer took the first `len` bytes of what was to be sent; 0 if there are none, because a
    /// file was cut short.
    ///
    /// `now` may be the time of the last event if the engine could send all that it was offered and
    /// the carriage [`is_timed`](Carriage::is_timed) not: only a rest is judged by the time.
    #[inline]
    pub(crate) fn sent(&mut self, len: u64, now: Now) {
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        if len == 0 {
            return self.cut_off(now);
        }
        outgoing.consume(len);
        let sent_len = u32::try_from(len).unwrap_or(u32::MAX);
        self.sent_len = self.sent_len.saturating_add(sent_len);
        if self.secure.is_none() {
            match outgoing.is_empty() && outgoing.out.replies() > 0 {
                // Counted together with them.
                true => outgoing.last_sent_len = len as usize,
                false => self.shared.counters.sent(len as usize),
            }
        }
        if !outgoing.is_empty() && !outgoing.keeps_pace(now.monotonic, &self.shared.limits) {
            return self.fail(Closed::TooSlow, now);
        }
        self.settle(now);
    }

    /// So much of what was sent the peer has not taken.
    pub(crate) fn untaken(&mut self, untaken: Untaken, now: Now) {
        if let Some(outgoing) = &mut self.outgoing
            && !outgoing.looked(untaken, now.monotonic, &self.shared.limits)
        {
            self.fail(Closed::TooSlow, now);
        }
    }

    /// The piece of a file that was to be sent has come this far.
    pub(crate) fn carried(&mut self, carried: Carried, now: Now) {
        match carried {
            Carried::Sent(len) => self.sent(len, now),
            Carried::Read(bytes) => self.read(bytes, now),
        }
    }

    /// The next bytes of the file that is to be sent; none is its early end.
    pub(crate) fn read(&mut self, bytes: Bytes, now: Now) {
        if bytes.is_empty() {
            return self.cut_off(now);
        }
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.fetch(bytes, now.monotonic);
        }
        self.settle(now);
    }

    /// The file that was to be sent is not what it was when its length was announced. The reply is
    /// cut off.
    pub(super) fn cut_off(&mut self, now: Now) {
        self.fail(Closed::Error, now);
    }

    /// It is the session's turn.
    pub(crate) fn go_on(&mut self, now: Now) {
        if self.stage == Stage::Turn {
            self.show_held(now);
            self.settle(now);
        }
    }

    /// Hands out the work.
    ///
    /// # Panics
    /// If it does not want any done.
    pub(crate) fn begin_work(&mut self) -> Job<S> {
        let Stage::Work { waits } = self.stage else {
            panic!("work that was not asked for: {:?}", self.stage);
        };
        self.stage = Stage::Working;
        self.shared.counters.worked();
        let session = self.session.take();
        Job {
            session: session.expect("it is at home until it works"),
            waits,
        }
    }

    /// The work is done.
    pub(crate) fn worked(&mut self, job: Job<S>, now: Now) {
        self.session = Some(job.session);
        if self.stage == Stage::Working {
            self.stage = Stage::Turn;
            self.tell_drain(now);
        }
        self.settle(now);
    }

    /// After everything that it was told: makes records, gives back an outbox that is empty, and
    /// ends what has come to its end.
    #[inline]
    pub(super) fn settle(&mut self, now: Now) {
        if let Some(outgoing) = &mut self.outgoing {
            if let Some(secure) = &mut self.secure {
                let len = outgoing.seal(secure);
                if len > 0 {
                    self.shared.counters.sent(len);
                }
            }
            if !outgoing.is_empty() {
                outgoing.begin(now.monotonic, &self.shared.limits);
                let has_grown = outgoing.charge(&self.shared.memory);
                if has_grown || self.held.capacity() != self.held_charge.len() {
                    self.check_memory(has_grown, now);
                }
                return;
            }
            let sending = self.add_sending(now);
            self.drop_outgoing(sending, now);
        }
        if self.held.capacity() != self.held_charge.len() {
            self.check_memory(false, now);
        }
        if self.is_ended || !matches!(self.stage, Stage::Receive | Stage::Fill) {
            self.settle_end(now);
        }
    }

    /// Charges what it holds. If all connections hold all that they may, and this one has come to
    /// hold much, it is closed.
    #[cold]
    pub(super) fn check_memory(&mut self, has_grown: bool, now: Now) {
        let Carriage { shared, held, .. } = self;
        let has_grown = self.held_charge.set(&shared.memory, held.capacity()) || has_grown;
        let outgoing_len = (self.outgoing.as_ref()).map_or(0, |outgoing| outgoing.charged_len());
        let records_len = (self.secure.as_ref()).map_or(0, |secure| secure.buffer_len());
        if has_grown
            && outgoing_len + held.len() + records_len > HELD_LEN_FULL
            && shared.memory.is_full()
            && !matches!(self.stage, Stage::Close(_))
        {
            self.fail(Closed::NoMemory, now);
        }
    }

    /// With nothing on its way out: whether this is the end, and what is said at it.
    pub(super) fn settle_end(&mut self, now: Now) {
        self.stage = match self.stage {
            _ if self.is_ended && self.drain != Drain::No && self.is_idle() => {
                Stage::Close(Closed::Drained)
            }
            Stage::Receive | Stage::Fill | Stage::Handshake if self.is_ended => {
                match self.is_stream_ended {
                    true => Stage::Close(Closed::Peer),
                    false => Stage::Queues(Closed::Peer),
                }
            }
            Stage::Queues(closed) | Stage::Discard(closed) if self.is_stream_ended => {
                Stage::Close(closed)
            }
            stage => stage,
        };
        if let Some(secure) = &mut self.secure
            && !secure.has_ended
            && !secure.is_handshaking()
            && matches!(
                self.stage,
                Stage::Queues(_)
                    | Stage::Finish(_)
                    | Stage::Close(
                        Closed::Session | Closed::Drained | Closed::Peer | Closed::TimedOut(_)
                    )
            )
        {
            let outgoing = outgoing(&mut self.outgoing, &self.shared, now);
            secure.end(&mut outgoing.sealed);
            outgoing.begin(now.monotonic, &self.shared.limits);
            if matches!(
                self.stage,
                Stage::Close(_) | Stage::Queues(Closed::TimedOut(_))
            ) {
                outgoing.until = now.monotonic + GOODBYE_PATIENCE;
            }
            return;
        }
        if self.stage.is_end()
            && let Some(mut session) = self.session.take()
        {
            session.closed(now);
        }
    }

    /// Nothing is received while a reply is sent, so the wait for input is longer by that time.
    /// Says how long it was, and since when.
    #[inline]
    pub(super) fn add_sending(&mut self, now: Now) -> Option<(Instant, Duration)> {
        if let Some(outgoing) = &mut self.outgoing
            && matches!(self.stage, Stage::Receive | Stage::Fill)
        {
            let sending = outgoing.lap(now.monotonic);
            self.deadline += sending.map_or(Duration::ZERO, |(_, len)| len);
            return sending;
        }
        None
    }

    /// Gives back what is or was on its way out; `sending` if it is known since when it was, and
    /// how long.
    #[inline]
    pub(super) fn drop_outgoing(&mut self, sending: Option<(Instant, Duration)>, now: Now) {
        if let Some(mut outgoing) = self.outgoing.take() {
            let replies = outgoing.out.take_replies();
            if replies > 0 {
                self.account(&mut outgoing, replies, sending, now);
            }
            outgoing.put_back(&self.shared.memory);
        }
    }

    /// Counts and logs the replies that have just been sent, or could not be, with the time from
    /// the first byte of the request to the last of the reply.
    fn account(
        &mut self,
        outgoing: &mut Outgoing,
        replies: usize,
        sending: Option<(Instant, Duration)>,
        now: Now,
    ) {
        let (first, others) = self.asked_since();
        let took = |asked| match sending {
            // As a rule: the request came in one piece. Subtracting once more would cost a little.
            Some((since, took)) if since == asked => took,
            _ => now.monotonic.saturating_duration_since(asked),
        };
        let sent_len = std::mem::take(&mut outgoing.last_sent_len);
        let counters = &self.shared.counters;
        counters.replied(1, took(first), sent_len);
        if replies > 1 {
            counters.replied(replies as u64 - 1, took(others), 0);
        }
        if let Some(log) = &self.shared.log {
            let nth_took = |nth| took(if nth == 0 { first } else { others });
            outgoing.out.take_log(nth_took, |lines| log.write(lines));
        }
    }

    /// Since when those replies have been waited for that the session has just made: the first of
    /// them, whose request may have come in pieces; and the others, whose requests came with the
    /// last input.
    pub(super) fn asked_since(&mut self) -> (Instant, Instant) {
        let after = Duration::from_micros(std::mem::take(&mut self.arrived_after_us).into());
        let arrived = self.begun + after;
        (std::mem::replace(&mut self.begun, arrived), arrived)
    }
}
