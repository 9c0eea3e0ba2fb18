//! What a carriage is told: time-outs, failures, drain.

use std::io;

use session::{GiveUp, Now, Phase, Session};

use super::{Carriage, DRAIN_GRACE, Drain, Stage, outgoing};
use crate::counters::Closed;
use crate::shared::{DRAINING, SERVING};

impl<S: Session> Carriage<S> {
    /// What it wanted could not be done.
    pub(crate) fn failed(&mut self, error: &io::Error, now: Now) {
        match error.kind() {
            io::ErrorKind::TimedOut => self.expired(now),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                self.fail(Closed::Peer, now);
            }
            _ => self.fail(Closed::Error, now),
        }
    }

    /// The time is up for what it wanted. Before that it changes nothing.
    pub(crate) fn expired(&mut self, now: Now) {
        if let Some(outgoing) = &mut self.outgoing {
            match now.monotonic < outgoing.until {
                true => outgoing.give_back(now.monotonic),
                false => self.fail(Closed::TooSlow, now),
            }
            return;
        }
        if now.monotonic < self.deadline {
            return;
        }
        match self.stage {
            _ if self.is_idle() && self.drain != Drain::No => {
                self.stage = Stage::Close(Closed::Drained);
            }
            Stage::Handshake if self.waits_for_memory() => self.begin_handshake(now),
            Stage::Handshake => self.stage = Stage::Close(Closed::TimedOut(Phase::Head)),
            Stage::Receive | Stage::Fill => {
                let phase = self.phase;
                let stage = Stage::Queues(Closed::TimedOut(phase));
                self.give_up(GiveUp::TimedOut(phase), stage, now);
            }
            Stage::Discard(closed) => self.stage = Stage::Queues(closed),
            // These do not wait for the peer.
            Stage::Open
            | Stage::Turn
            | Stage::Work { .. }
            | Stage::Working
            | Stage::Queues(_)
            | Stage::Finish(_)
            | Stage::Close(_) => {}
        }
        self.settle(now);
    }

    /// The server has come this far in its life.
    #[inline]
    pub(crate) fn at_stage(&mut self, stage: u8, now: Now) {
        match stage {
            SERVING => {}
            DRAINING => self.drain(now),
            _ => self.cut(now),
        }
    }

    /// The server drains: the conversation ends at the next request boundary, or soon if it is at
    /// one.
    pub(crate) fn drain(&mut self, now: Now) {
        if self.drain == Drain::No {
            self.drain = Drain::Untold;
            self.tell_drain(now);
            self.shorten_linger(now);
            self.settle(now);
        }
    }

    /// The drain's time is up. Whatever is under way is cut.
    pub(crate) fn cut(&mut self, now: Now) {
        if self.outgoing.is_some() || !matches!(self.stage, Stage::Close(_)) {
            self.stage = Stage::Close(Closed::Drained);
            self.drop_outgoing(None, now);
            if let Some(secure) = &mut self.secure {
                secure.has_ended = true;
            }
        }
        self.settle(now);
    }

    /// Tells the session, if it is at home and goes on.
    pub(super) fn tell_drain(&mut self, now: Now) {
        if self.drain == Drain::Untold && self.is_idle() {
            self.add_sending(now);
            self.deadline = self.deadline.min(now.monotonic + DRAIN_GRACE);
        }
        let goes_on = !self.stage.is_end();
        let (Drain::Untold, true, Some(session)) = (self.drain, goes_on, &mut self.session) else {
            return;
        };
        self.drain = Drain::Told;
        let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
        session.drain(now, out);
    }

    /// Lets the session say why the conversation ends.
    pub(super) fn give_up(&mut self, reason: GiveUp, stage: Stage, now: Now) {
        if let Some(session) = &mut self.session {
            let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
            session.give_up(reason, now, out);
        }
        self.stage = stage;
    }

    /// Closes at once, without what is still to be sent. If the end had been decided on before, and
    /// only last words were lost, that is the reason.
    pub(super) fn fail(&mut self, why: Closed, now: Now) {
        let is_reply_lost =
            self.outgoing.is_some() && !self.secure.as_ref().is_some_and(|secure| secure.has_ended);
        self.stage = match self.stage {
            Stage::Queues(closed)
            | Stage::Finish(closed)
            | Stage::Discard(closed)
            | Stage::Close(closed)
                if closed != Closed::Session || !is_reply_lost =>
            {
                Stage::Close(closed)
            }
            _ => Stage::Close(why),
        };
        self.drop_outgoing(None, now);
        if let Some(secure) = &mut self.secure {
            secure.has_ended = true;
        }
        self.settle(now);
    }
}
