//! What a carriage is told: its session, and input.

use session::{GiveUp, Next, Now, Phase, Received, Session};

use super::secure::is_record_whole;
use super::{
    Carriage, DRAIN_GRACE, Drain, HELD_LEN_KEPT, HELD_LEN_MAX, MEMORY_LOOK, Stage, outgoing,
};
use crate::counters::Closed;
use crate::shared::Shared;

impl<S: Session> Carriage<S> {
    /// Here is its session.
    pub(crate) fn opened(&mut self, session: S, now: Now) {
        debug_assert_eq!(self.stage, Stage::Open, "opened once");
        self.session = Some(session);
        self.deadline = now.monotonic + self.shared.limits.head_timeout;
        self.stage = match self.held.is_empty() {
            true => Stage::Receive,
            false => Stage::Turn,
        };
        self.tell_drain(now);
        self.settle(now);
    }

    /// Input has come; none is the end.
    #[inline]
    pub(crate) fn input(&mut self, input: &[u8], now: Now) {
        match self.secure {
            _ if input.is_empty() => return self.end_of_input(now),
            None => self.take(input, now),
            Some(_) => self.take_records(input, now),
        }
        self.settle(now);
    }

    /// The peer has sent all that it will.
    pub(crate) fn end_of_input(&mut self, now: Now) {
        self.is_ended = true;
        self.is_stream_ended = true;
        self.settle(now);
    }

    /// `len` bytes of input were put into the room; none is the end.
    pub(crate) fn filled(&mut self, len: usize, now: Now) {
        if len == 0 {
            return self.end_of_input(now);
        }
        self.shared.counters.received(len);
        let Some(session) = &mut self.session else {
            return;
        };
        let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
        let next = session.body_filled(len, now, out);
        self.follow(Received { used: len, next }, now);
        self.settle(now);
    }

    /// Shows input to the session, or holds it until the session has its turn.
    #[inline]
    pub(super) fn take(&mut self, input: &[u8], now: Now) {
        self.note_arrival(now);
        match (self.stage, &mut self.session) {
            (Stage::Receive | Stage::Fill, Some(session)) => {
                self.shared.counters.received(input.len());
                let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
                if self.held.is_empty() {
                    let received = session.receive(input, now, out);
                    self.held.extend_from_slice(&input[received.used..]);
                    self.follow(received, now);
                } else {
                    self.held.extend_from_slice(input);
                    self.show_held(now);
                }
            }
            (Stage::Discard(_), _) => self.discard(input.len(), now),
            (Stage::Finish(_) | Stage::Close(_), _) => {}
            // It was not left in the socket, where a look would find it.
            (Stage::Queues(closed), _) => self.stage = Stage::Finish(closed),
            _ => {
                self.shared.counters.received(input.len());
                match self.held.len() + input.len() <= HELD_LEN_MAX {
                    true => self.held.extend_from_slice(input),
                    false => self.refuse_too_long(now),
                }
            }
        }
    }

    #[cold]
    pub(super) fn take_records(&mut self, input: &[u8], now: Now) {
        if let Stage::Discard(_) = self.stage {
            return self.take(input, now);
        }
        if (self.secure.as_ref()).is_some_and(|secure| !secure.has_begun()) {
            self.held.extend_from_slice(input);
            return self.begin_handshake(now);
        }
        self.open_records(input, now);
    }

    /// Begins the handshake if the peer's first record is whole, and there is memory for it.
    /// Otherwise it waits for that.
    pub(super) fn begin_handshake(&mut self, now: Now) {
        let Some(secure) = &mut self.secure else {
            return;
        };
        if !is_record_whole(&self.held) {
            return;
        }
        let Shared { memory, limits, .. } = &*self.shared;
        let end = self.begun + limits.handshake_timeout;
        if memory.is_full() {
            memory.count_wait();
            self.deadline = end.min(now.monotonic + MEMORY_LOOK);
            if end <= now.monotonic {
                self.stage = Stage::Close(Closed::NoMemory);
            }
            return;
        }
        self.deadline = end.min(now.monotonic + memory.handshake_timeout(limits.handshake_timeout));
        if secure.begin(memory).is_err() {
            self.stage = Stage::Close(Closed::Error);
            return;
        }
        let held = std::mem::take(&mut self.held);
        self.open_records(&held, now);
    }

    /// Whether all is there for a handshake but memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        let has_begun = (self.secure.as_ref()).is_none_or(|secure| secure.has_begun());
        !has_begun && is_record_whole(&self.held)
    }

    fn open_records(&mut self, input: &[u8], now: Now) {
        let Some(mut secure) = self.secure.take() else {
            return;
        };
        let opened = secure.open(input, |plain| self.take(plain, now));
        let sealed = &mut outgoing(&mut self.outgoing, &self.shared, now).sealed;
        match opened.as_ref().map_err(|error| secure.in_the_clear(error)) {
            Err(Some(text)) => {
                secure.has_ended = true;
                sealed.put(text);
                self.stage = Stage::Finish(Closed::Error);
            }
            // What TLS has to say itself: handshake, tickets, alerts. Records keep the order in
            // which they were made.
            Err(None) => {
                secure.has_ended = true;
                secure.take_records(sealed);
                self.stage = Stage::Close(Closed::Error);
            }
            Ok(has_peer_ended) => {
                secure.take_records(sealed);
                self.is_ended |= has_peer_ended;
            }
        }
        if self.stage == Stage::Handshake && !secure.is_handshaking() {
            self.stage = Stage::Open;
        }
        let has_grown = secure.charge(&self.shared.memory);
        self.secure = Some(secure);
        if has_grown {
            self.check_memory(true, now);
        }
    }

    /// Notes when input came, to the microsecond, and up to an hour after the request began.
    #[inline]
    fn note_arrival(&mut self, now: Now) {
        self.arrived_after_us = 0;
        if self.phase == Phase::Idle {
            self.begun = now.monotonic;
        } else {
            let after = now.monotonic.saturating_duration_since(self.begun);
            self.arrived_after_us = u32::try_from(after.as_micros()).unwrap_or(u32::MAX);
        }
    }

    /// Shows the session its unused input again.
    pub(super) fn show_held(&mut self, now: Now) {
        let Some(session) = &mut self.session else {
            return;
        };
        let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
        let received = session.receive(&self.held, now, out);
        let len = self.held.len();
        assert!(
            received.used <= len,
            "a session used {} of {len} bytes",
            received.used
        );
        self.held.drain(..received.used);
        self.follow(received, now);
    }

    /// Goes to the stage that the session's answer leads to.
    #[inline]
    pub(super) fn follow(&mut self, received: Received, now: Now) {
        self.stage = match received.next {
            Next::Receive(phase) => {
                self.wait_in(phase, received.used > 0, now);
                if self.held.is_empty() && self.held.capacity() > HELD_LEN_KEPT {
                    self.held = Vec::new();
                }
                if self.held.len() > HELD_LEN_MAX {
                    return self.refuse_too_long(now);
                }
                match phase {
                    Phase::Body if self.lends_room() => Stage::Fill,
                    _ => Stage::Receive,
                }
            }
            Next::Flush => Stage::Turn,
            Next::Work => Stage::Work { waits: false },
            Next::Wait => Stage::Work { waits: true },
            // With input behind the last request, or from a peer that did not ask for the end and
            // may have sent the next one.
            Next::Close if !self.held.is_empty() || self.drain == Drain::Told => {
                Stage::Finish(Closed::Session)
            }
            Next::Close => Stage::Queues(Closed::Session),
            Next::Linger => Stage::Finish(Closed::Session),
        };
    }

    #[cold]
    fn refuse_too_long(&mut self, now: Now) {
        self.give_up(GiveUp::TooLong, Stage::Finish(Closed::TooLong), now);
    }

    /// Sets the deadline of a wait. A head has one deadline for all of it, however its bytes are
    /// spread; `is_new` says that bytes were used, so it is another head than before.
    #[inline]
    pub(super) fn wait_in(&mut self, phase: Phase, is_new: bool, now: Now) {
        let limits = &self.shared.limits;
        let timeout = match phase {
            Phase::Idle if self.drain == Drain::Told => limits.idle_timeout.min(DRAIN_GRACE),
            Phase::Idle => limits.idle_timeout,
            Phase::Body => limits.body_timeout,
            Phase::Head if self.phase == Phase::Head && !is_new => return,
            Phase::Head => limits.head_timeout,
        };
        self.phase = phase;
        self.deadline = now.monotonic + timeout;
    }

    /// Whether the session has room of its own for what comes. Under TLS input comes as records.
    pub(super) fn lends_room(&mut self) -> bool {
        self.held.is_empty()
            && !self.is_secure
            && (self.session.as_mut()).is_some_and(|session| !session.body_buffer().is_empty())
    }
}
