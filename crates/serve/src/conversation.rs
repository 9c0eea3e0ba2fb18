//! One conversation: a session, the input that it has not used yet, and the phase that it waits in. No I/O;
//! drivers move the bytes.

use std::cell::RefCell;
use std::time::Instant;

use session::{GiveUp, Next, Now, Outbox, Phase, Received, Session};

use crate::limits::Limits;

/// More input than this is held for no session: each has smaller limits of its own.
const HELD_LEN_MAX: usize = 1024 * 1024;

/// What an idle conversation keeps allocated for unused input.
const HELD_LEN_KEPT: usize = 512;

/// A session and where it stands.
pub(crate) struct Conversation<S> {
    session: S,
    /// Input that the session has not used: the beginning of a request, as a rule nothing.
    held: Vec<u8>,
    phase: Phase,
    /// When the wait for the present phase ends.
    deadline: Instant,
    /// When the first byte came of the request that is to be answered next, and when the last input came.
    begun: Instant,
    arrived: Instant,
}

impl<S: Session> Conversation<S> {
    /// A new one: its first request must come within the head's time-out.
    pub(crate) fn new(session: S, now: Now, limits: &Limits) -> Conversation<S> {
        let deadline = now.monotonic + limits.head_timeout;
        Conversation {
            session,
            held: Vec::new(),
            phase: Phase::Idle,
            deadline,
            begun: now.monotonic,
            arrived: now.monotonic,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Gives the session what arrived. What it leaves is held.
    pub(crate) fn take(
        &mut self,
        input: &[u8],
        now: Now,
        limits: &Limits,
        out: &mut Outbox,
    ) -> Next {
        self.arrived = now.monotonic;
        if self.phase == Phase::Idle {
            self.begun = now.monotonic;
        }
        let received = if self.held.is_empty() {
            let received = self.session.receive(input, now, out);
            self.held.extend_from_slice(&input[received.used..]);
            received
        } else {
            self.held.extend_from_slice(input);
            self.receive_held(now, out)
        };
        self.follow(received, now, limits, out)
    }

    /// Shows the session its unused input again, after a flush or after work.
    pub(crate) fn go_on(&mut self, now: Now, limits: &Limits, out: &mut Outbox) -> Next {
        let received = self.receive_held(now, out);
        self.follow(received, now, limits, out)
    }

    /// Since when those replies have been waited for that the session has just made: the first of them, whose request may
    /// have come in pieces; and the others, whose requests came with the last input.
    pub(crate) fn asked_since(&mut self) -> (Instant, Instant) {
        let first = std::mem::replace(&mut self.begun, self.arrived);
        (first, self.arrived)
    }

    fn receive_held(&mut self, now: Now, out: &mut Outbox) -> Received {
        let received = self.session.receive(&self.held, now, out);
        assert!(
            received.used <= self.held.len(),
            "a session used {} of {} bytes",
            received.used,
            self.held.len()
        );
        self.held.drain(..received.used);
        received
    }

    fn follow(&mut self, received: Received, now: Now, limits: &Limits, out: &mut Outbox) -> Next {
        if let Next::Receive(phase) = received.next {
            self.wait_in(phase, received.used > 0, now, limits);
            if self.held.is_empty() && self.held.capacity() > HELD_LEN_KEPT {
                self.held = Vec::new();
            }
            if self.held.len() > HELD_LEN_MAX {
                self.session.give_up(GiveUp::TooLong, now, out);
                return Next::Linger;
            }
        }
        received.next
    }

    /// Sets the deadline of a wait. A head has one deadline for all of it, however its bytes are spread;
    /// `is_new` says that bytes were used, so it is another head than before.
    fn wait_in(&mut self, phase: Phase, is_new: bool, now: Now, limits: &Limits) {
        let timeout = match phase {
            Phase::Idle => Some(limits.idle_timeout),
            Phase::Body => Some(limits.body_timeout),
            Phase::Head if self.phase != Phase::Head || is_new => Some(limits.head_timeout),
            Phase::Head => None,
        };
        self.phase = phase;
        self.deadline = timeout.map_or(self.deadline, |timeout| now.monotonic + timeout);
    }

    /// Whether the session lends room for the body, and where.
    pub(crate) fn body_room(&mut self) -> &mut [u8] {
        match self.phase {
            Phase::Body if self.held.is_empty() => self.session.body_room(),
            _ => &mut [],
        }
    }

    /// Says that `len` bytes were received into the room.
    pub(crate) fn body_filled(
        &mut self,
        len: usize,
        now: Now,
        limits: &Limits,
        out: &mut Outbox,
    ) -> Next {
        let next = self.session.body_filled(len, now, out);
        if let Next::Receive(phase) = next {
            self.wait_in(phase, true, now, limits);
        }
        next
    }

    pub(crate) fn work(&mut self) {
        self.session.work();
    }

    pub(crate) fn drain(&mut self) {
        self.session.drain();
    }

    pub(crate) fn give_up(&mut self, reason: GiveUp, now: Now, out: &mut Outbox) {
        self.session.give_up(reason, now, out);
    }
}

thread_local! {
    static OUTBOXES: RefCell<Vec<Outbox>> = const { RefCell::new(Vec::new()) };
}

/// Outboxes that a thread keeps for the next replies.
const OUTBOXES_KEPT_MAX: usize = 64;

/// An outbox of this thread, taken for as long as there is something to send: connections that wait for a
/// request hold none.
pub(crate) struct PooledOutbox(Option<Outbox>);

impl PooledOutbox {
    pub(crate) fn take(is_logged: bool) -> PooledOutbox {
        let mut outbox = OUTBOXES.with_borrow_mut(Vec::pop).unwrap_or_default();
        outbox.set_logged(is_logged);
        PooledOutbox(Some(outbox))
    }

    pub(crate) fn get(&mut self) -> &mut Outbox {
        self.0.as_mut().expect("taken only by drop")
    }
}

impl Drop for PooledOutbox {
    fn drop(&mut self) {
        let Some(mut outbox) = self.0.take() else {
            return;
        };
        outbox.clear();
        OUTBOXES.with_borrow_mut(|kept| {
            if kept.len() < OUTBOXES_KEPT_MAX {
                kept.push(outbox);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_request_in_pieces_is_asked_since_its_first_byte() {
        let start = Now::read();
        let at = |seconds| Now {
            monotonic: start.monotonic + Duration::from_secs(seconds),
            ..start
        };
        let (limits, mut out) = (Limits::default(), Outbox::new());
        let mut conversation = Conversation::new(session::Echo, start, &limits);
        let mut asked = |inputs: &[(&[u8], u64)]| {
            for (input, seconds) in inputs {
                conversation.take(input, at(*seconds), &limits, &mut out);
            }
            conversation.asked_since()
        };
        let seconds = |first, others| (at(first).monotonic, at(others).monotonic);
        assert_eq!(asked(&[(b"pi", 1), (b"ng\nwhole\npo", 2)]), seconds(1, 2));
        assert_eq!(asked(&[(b"ng\n", 3)]), seconds(2, 3));
        assert_eq!(asked(&[(b"after a silence\n", 9)]), seconds(9, 9));
    }
}
