//! Events at the end of a conversation: errors, time-outs, drain, last checks of the socket.

use std::io;

use session::{GiveUp, Now, Phase, Session};

use super::{DRAIN_GRACE, Drain, GOODBYE_PATIENCE, Machine, State, outgoing};
use crate::connection::action::Queues;
use crate::connection::linger::Linger;
use crate::counters::Closed;
use crate::shared::{DRAINING, SERVING};

impl<S: Session> Machine<S> {
    /// Takes the error of an action.
    pub(crate) fn handle_error(&mut self, error: &io::Error, now: Now) {
        match error.kind() {
            io::ErrorKind::TimedOut => self.handle_timeout(now),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                self.fail(Closed::Peer, now);
            }
            _ => self.fail(Closed::Error, now),
        }
    }

    /// Handles the deadline of an action. An early call changes nothing.
    pub(crate) fn handle_timeout(&mut self, now: Now) {
        if let Some(outgoing) = &mut self.outgoing {
            if now.monotonic < outgoing.until {
                outgoing.give_back(now.monotonic);
            } else {
                self.fail(Closed::TooSlow, now);
            }
            return;
        }
        if now.monotonic < self.deadline {
            return;
        }
        match self.state {
            _ if self.is_idle() && self.drain != Drain::No => self.end_drained(now),
            State::Handshake if self.waits_for_memory() => self.begin_handshake(now),
            State::Proxy | State::Handshake => {
                self.state = State::Close(Closed::TimedOut(Phase::Head));
            }
            State::Duplex { .. } if self.works > 0 => self.wait_in(self.phase, true, now),
            State::Receive | State::Duplex { .. } | State::Fill => {
                let phase = self.phase;
                let state = State::CheckQueues(Closed::TimedOut(phase));
                self.give_up(GiveUp::TimedOut(phase), state, now);
            }
            State::Discard(closed) => self.state = State::CheckQueues(closed),
            // These states do not wait for the peer.
            State::Open
            | State::Turn
            | State::Work
            | State::Working
            | State::CheckQueues(_)
            | State::Finish(_)
            | State::Close(_) => {}
        }
        self.settle(now);
    }

    /// Takes the server's state: serving, draining or cutting.
    #[inline]
    pub(crate) fn handle_server_state(&mut self, server_state: u8, now: Now) {
        match server_state {
            SERVING => {}
            DRAINING => self.handle_drain(now),
            _ => self.handle_cut(now),
        }
    }

    /// Begins a drain: the conversation ends at the next request boundary, or soon if it is at one.
    pub(crate) fn handle_drain(&mut self, now: Now) {
        if self.drain == Drain::No {
            self.drain = Drain::Pending;
            self.announce_drain(now);
            if let (State::Discard(_), Some(linger)) = (self.state, &mut self.linger) {
                linger.shorten(now.monotonic);
                self.deadline = linger.next_deadline(true);
            }
            self.settle(now);
        }
    }

    /// Ends a drain: its time is up, and everything still open is cut.
    pub(crate) fn handle_cut(&mut self, now: Now) {
        if self.outgoing.is_some() || !matches!(self.state, State::Close(_)) {
            self.state = State::Close(Closed::Drained);
            self.drop_outgoing(None, now);
            if let Some(tls) = &mut self.tls {
                tls.has_ended = true;
            }
        }
        self.settle(now);
    }

    /// Takes the result of [`Action::CheckQueues`].
    pub(crate) fn handle_queues(&mut self, queues: io::Result<Queues>, now: Now) {
        let queues = match queues {
            Ok(queues) => queues,
            Err(error) => return self.handle_error(&error, now),
        };
        if let State::CheckQueues(closed) = self.state {
            let has_unsent = queues.unsent > 0;
            let is_draining = self.drain != Drain::No;
            let has_unread = queues.unread > 0;
            let is_in_use = match &mut self.linger {
                None => has_unsent || has_unread,
                Some(linger) => {
                    let is_reading = linger.note_unsent(has_unsent, now.monotonic);
                    has_unsent
                        || (is_reading && is_draining)
                        || (has_unread && linger.is_extended_by_input(now.monotonic))
                }
            };
            self.state = match &mut self.linger {
                None if is_in_use => State::Finish(closed),
                Some(linger) if is_in_use && !linger.is_over(now.monotonic) => {
                    linger.wait_again(now.monotonic);
                    self.deadline = linger.next_deadline(is_draining);
                    State::Discard(closed)
                }
                _ => State::Close(closed),
            };
            // The server's side had ended before the queues were counted.
            if has_unsent && matches!(self.state, State::Finish(_)) {
                self.handle_finished(Ok(()), now);
                if let Some(linger) = &mut self.linger {
                    linger.note_unsent(true, now.monotonic);
                }
                return;
            }
        }
        self.settle(now);
    }

    /// Takes the result of [`Action::Finish`]: the server's side of the stream has ended.
    pub(crate) fn handle_finished(&mut self, finished: io::Result<()>, now: Now) {
        if let Err(error) = finished {
            return self.handle_error(&error, now);
        }
        if let State::Finish(closed) = self.state {
            let is_draining = self.drain != Drain::No;
            self.linger = Linger::begin(&self.shared, closed, is_draining, now.monotonic);
            self.state = match &self.linger {
                None => State::Close(closed),
                Some(linger) => {
                    self.deadline = linger.next_deadline(is_draining);
                    State::Discard(closed)
                }
            };
            // Further input is discarded undecrypted; after the peer's close_notify the end of the
            // stream is still to come.
            self.tls = None;
            self.held = Vec::new();
            self.is_ended = self.is_stream_ended;
        }
        self.settle(now);
    }

    /// Discards input that follows the last request.
    pub(super) fn discard(&mut self, input_len: usize, now: Now) {
        let (State::Discard(closed), Some(linger)) = (self.state, &mut self.linger) else {
            return;
        };
        let may_go_on = linger.discard(input_len, now.monotonic);
        self.deadline = linger.next_deadline(self.drain != Drain::No);
        if !may_go_on {
            self.state = State::Close(closed);
        }
    }

    /// Announces a drain to the session, if there is one and the conversation continues.
    pub(super) fn announce_drain(&mut self, now: Now) {
        if self.drain == Drain::Pending && self.is_idle() {
            self.add_sending(now);
            self.deadline = self.deadline.min(now.monotonic + DRAIN_GRACE);
        }
        let goes_on = !self.state.is_end();
        let (Drain::Pending, true, Some(session)) = (self.drain, goes_on, &mut self.session) else {
            return;
        };
        self.drain = Drain::Announced;
        let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
        session.drain(now, out);
        if let State::Duplex { has_more } = &mut self.state {
            *has_more = true; // It may have come to its end.
        }
    }

    /// Lets the session announce the reason for the end.
    pub(super) fn give_up(&mut self, reason: GiveUp, state: State, now: Now) {
        if let Some(session) = &mut self.session {
            let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
            session.give_up(reason, now, out);
        }
        self.state = state;
    }

    /// Ends an idle connection in a drain. The session may send last words, which wait for space as
    /// briefly as a close_notify. The peer of such a session, for example of HTTP/2, sends while it
    /// reads: its last reply may still be in a socket.
    pub(super) fn end_drained(&mut self, now: Now) {
        self.give_up(GiveUp::Drained, State::CheckQueues(Closed::Drained), now);
        if let Some(outgoing) = &mut self.outgoing
            && !outgoing.is_empty()
        {
            outgoing.begin(now.monotonic, &self.shared.limits);
            outgoing.until = now.monotonic + GOODBYE_PATIENCE;
            self.state = State::Finish(Closed::Drained);
        }
    }

    /// Closes at once, without sending the rest. If the end had been decided before, and only last
    /// words were lost, the earlier reason counts.
    pub(super) fn fail(&mut self, why: Closed, now: Now) {
        let is_reply_lost =
            self.outgoing.is_some() && !self.tls.as_ref().is_some_and(|tls| tls.has_ended);
        self.state = match self.state {
            State::CheckQueues(closed)
            | State::Finish(closed)
            | State::Discard(closed)
            | State::Close(closed)
                if closed != Closed::Session || !is_reply_lost =>
            {
                State::Close(closed)
            }
            _ => State::Close(why),
        };
        self.drop_outgoing(None, now);
        if let Some(tls) = &mut self.tls {
            tls.has_ended = true;
        }
        self.settle(now);
    }
}
