//! The connection machine: its states, the next action of each, and the events that move it.
//!
//! The [module above](super) draws the states. In this file, in order: the machine and its states;
//! the next action; events of input and of output; then the steps that several events share. Events
//! of the end are in [`ending`].

mod ending;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use session::{GiveUp, Next, Now, Outbox, Phase, Received, Session, WORKS_MAX};

use super::action::{Action, Facts, FileProgress, Unacked};
use super::linger::Linger;
pub(crate) use super::linger::{DRAIN_GRACE, LINGER_DRAIN_TIMEOUT};
use super::origin::Origin;
use super::send::Outgoing;
use super::{TlsConnection, is_record_whole};
use crate::counters::Closed;
use crate::memory::{Charge, HELD_LEN_FULL};
use crate::shared::Shared;

/// One connection. See the [module page](super).
pub(crate) struct Machine<S> {
    pub(super) shared: Arc<Shared>,
    /// `None` before it is opened and after its end.
    session: Option<S>,
    /// `None` without TLS, and while records are being opened.
    tls: Option<Box<TlsConnection>>,
    pub(super) is_tls: bool,
    /// `Some` if a setting needs the client's address.
    pub(super) origin: Option<Box<Origin>>,
    /// INVARIANT: between two calls it is `Some` only with unsent data.
    outgoing: Option<Box<Outgoing>>,
    /// Input that the session has not used: the beginning of a request, usually empty.
    pub(super) held: Vec<u8>,
    held_charge: Charge,
    /// Deadline of the current wait for input.
    deadline: Instant,
    /// Arrival of the first byte of the next request to answer, and the delay from it to the last
    /// input.
    begun: Instant,
    arrived_after_us: u32,
    /// Total bytes sent, saturating.
    sent_len: u32,
    pub(super) state: State,
    phase: Phase,
    drain: Drain,
    /// Number of the session's works that are running.
    works: u8,
    /// In Duplex: the session may have work to hand out.
    asks_for_work: bool,
    /// The engine runs work in place, so that output goes first.
    works_in_place: bool,
    /// `Some` after the end of the server's side of the stream, while waiting for the peer's.
    linger: Option<Box<Linger>>,
    /// The peer will send nothing more.
    is_ended: bool,
    /// The peer's side of the stream has ended, so no input is left or can arrive. Under TLS the
    /// peer may have announced its end earlier.
    is_stream_ended: bool,
}

/// The state when no output is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waiting for a PROXY header.
    Proxy,
    Handshake,
    Open,
    Receive,
    /// Input is taken even while output is queued.
    Duplex {
        has_more: bool,
    },
    Fill,
    Turn,
    Work,
    Working,
    CheckQueues(Closed),
    Finish(Closed),
    Discard(Closed),
    Close(Closed),
}

impl State {
    /// True once the conversation is to end.
    fn is_end(self) -> bool {
        matches!(
            self,
            State::CheckQueues(_) | State::Finish(_) | State::Discard(_) | State::Close(_)
        )
    }
}

/// Draining of the server, from this connection's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// The session has not been told yet.
    Pending,
    /// The session has been told.
    Announced,
}

/// Limit on held input, in bytes. Each session has smaller limits of its own.
const HELD_LEN_MAX: usize = 1024 * 1024;

/// Length of held input from which no more is taken while output is queued, in bytes.
const HELD_LEN_DUPLEX: usize = 32 * 1024;

/// Capacity for unused input that an idle machine keeps, in bytes.
const HELD_LEN_KEPT: usize = 512;

/// Time between two checks of a handshake that waits for memory.
const MEMORY_CHECK_EVERY: Duration = Duration::from_millis(100);

/// Time that TLS's close_notify may wait for space in the socket's buffer, if no reply precedes it:
/// a peer that takes nothing more goes without. After a reply it has as long as the reply, because
/// a peer takes a reply without it for a truncated one.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(100);

/// Bytes that a new connection sends without a wait, unless the peer has almost no space: every
/// initial congestion window is larger (RFC 6928), and so is the receive window of a socket with
/// the smallest buffer that Linux allows. socket(7)
const SENT_AT_ONCE_LEN_MAX: u32 = 1024;

// ---- the next action

impl<S: Session> Machine<S> {
    /// A newly accepted connection.
    ///
    /// `peer` is called only if a setting needs the address, because it may be a system call.
    pub(crate) fn new(
        shared: Arc<Shared>,
        tls: Option<Box<TlsConnection>>,
        peer: impl FnOnce() -> Option<SocketAddr>,
        now: Now,
    ) -> Self {
        let (state, patience) = match tls {
            None => (State::Open, shared.limits.head_timeout),
            Some(_) => (State::Handshake, shared.limits.handshake_timeout),
        };
        let mut machine = Machine {
            shared,
            session: None,
            is_tls: tls.is_some(),
            origin: None,
            tls,
            outgoing: None,
            held: Vec::new(),
            held_charge: Charge::default(),
            deadline: now.monotonic + patience,
            begun: now.monotonic,
            arrived_after_us: 0,
            sent_len: 0,
            state,
            phase: Phase::Idle,
            drain: Drain::No,
            works: 0,
            asks_for_work: false,
            works_in_place: false,
            linger: None,
            is_ended: false,
            is_stream_ended: false,
        };
        if machine.shared.limits.asks_for_peers() {
            machine.identify(peer());
        }
        machine
    }

    /// Declares that the engine runs work in place, during which the connection waits.
    pub(crate) fn work_in_place(&mut self) {
        self.works_in_place = true;
    }

    /// Returns the next action. Asking changes nothing.
    #[inline]
    pub(crate) fn next_action(&mut self) -> Action<'_> {
        if let State::Duplex { has_more } = self.state {
            let may_work = !self.works_in_place || self.outgoing.is_none();
            if self.asks_for_work && usize::from(self.works) < WORKS_MAX && may_work {
                return Action::Work;
            }
            if has_more && self.has_space() {
                return Action::Turn;
            }
        }
        if let Some(outgoing) = &self.outgoing {
            let is_last = self.state.is_end() && !self.is_tls;
            return outgoing.next_action(self.is_tls, is_last, &self.shared.buffers);
        }
        let until = self.deadline;
        match self.state {
            // The connection continues because of running work.
            State::Duplex { .. } if self.is_ended => Action::Nothing,
            State::Receive
            | State::Duplex { .. }
            | State::Proxy
            | State::Handshake
            | State::Discard(_) => Action::Receive { until },
            State::Fill => {
                let space = self.session.as_mut().map(S::body_buffer).unwrap_or_default();
                Action::Fill { space, until }
            }
            State::Turn => Action::Turn,
            State::Work => Action::Work,
            State::Working => Action::Nothing,
            State::Open => Action::Open(Facts {
                tls: self.tls.as_ref().map(|tls| tls.facts()),
                client: self.client(),
            }),
            State::CheckQueues(_) => {
                Action::CheckQueues { asks_unsent: self.sent_len > SENT_AT_ONCE_LEN_MAX }
            }
            State::Finish(_) => Action::Finish,
            State::Close(closed) => Action::Close(closed),
        }
    }

    /// True if input is accepted while output is queued: an engine that waits for space should then
    /// wait for input as well.
    #[inline]
    pub(crate) fn is_duplex(&self) -> bool {
        let is_overfull = |outgoing: &Outgoing| outgoing.out.is_overfull();
        matches!(self.state, State::Duplex { .. })
            && self.held.len() < HELD_LEN_DUPLEX
            && !self.is_ended
            && !self.outgoing.as_deref().is_some_and(is_overfull)
    }

    /// True if work runs while the session continues.
    #[inline]
    pub(crate) fn has_works_out(&self) -> bool {
        self.works > 0
    }

    /// True if work is running, or the session may have some to hand out.
    fn may_work(&self) -> bool {
        self.works > 0 || self.asks_for_work
    }

    /// True if the session waits for work and nothing else.
    pub(crate) fn waits_for_work(&self) -> bool {
        self.state == State::Working
    }

    /// True if there is space for a session with more output.
    fn has_space(&self) -> bool {
        let is_half_empty = |outgoing: &Outgoing| outgoing.out.is_half_empty();
        self.outgoing.as_deref().is_none_or(is_half_empty)
    }

    /// True if a complete reply is queued, so that its sending must be timed.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.out.is_timed())
    }

    /// True if the next input belongs to a TLS handshake, which takes long.
    #[inline]
    pub(crate) fn is_handshaking(&self) -> bool {
        self.state == State::Handshake
    }

    /// Deadline of the current wait for input, for an engine that waits outside of the action.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// True if the connection waits for input, but not for the rest of a request.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        let waits = matches!(
            self.state,
            State::Receive | State::Duplex { .. } | State::Proxy | State::Handshake
        );
        self.phase == Phase::Idle && waits && self.works == 0
    }

    /// True if the connection only waits for its peer to close.
    #[inline]
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.state, State::Discard(_))
    }

    /// Time since when it waits for input between two requests, or after the last one, for the
    /// purposes of a drain. `None` if it waits for the rest of a request.
    #[inline]
    pub(crate) fn idle_since(&self, now: Now) -> Option<Instant> {
        match &self.linger {
            Some(linger) if self.is_lingering() => Some(linger.idle_since(now.monotonic)),
            _ => self.is_idle().then_some(now.monotonic),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

// ---- events of input and of the session

impl<S: Session> Machine<S> {
    /// Takes the session requested by [`Action::Open`].
    pub(crate) fn handle_opened(&mut self, session: S, now: Now) {
        debug_assert_eq!(self.state, State::Open, "opened once");
        self.session = Some(session);
        self.deadline = now.monotonic + self.shared.limits.head_timeout;
        self.state = if self.held.is_empty() { State::Receive } else { State::Turn };
        self.announce_drain(now);
        self.settle(now);
    }

    /// Takes input; an empty slice is the end of the stream.
    #[inline]
    pub(crate) fn handle_input(&mut self, input: &[u8], now: Now) {
        match self.tls {
            _ if input.is_empty() => return self.handle_end_of_input(now),
            None => self.take(input, now),
            Some(_) => self.take_records(input, now),
        }
        self.settle(now);
    }

    /// Notes that the peer will send nothing more.
    pub(crate) fn handle_end_of_input(&mut self, now: Now) {
        self.is_ended = true;
        self.is_stream_ended = true;
        self.settle(now);
    }

    /// Takes the number of bytes received by [`Action::Fill`]; 0 is the end of the stream.
    pub(crate) fn handle_filled(&mut self, filled: io::Result<usize>, now: Now) {
        let len = match filled {
            Ok(0) => return self.handle_end_of_input(now),
            Ok(len) => len,
            Err(error) => return self.handle_error(&error, now),
        };
        self.shared.counters.received(len);
        let Some(session) = &mut self.session else {
            return;
        };
        let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
        let next = session.body_filled(len, now, out);
        self.follow(Received { used: len, next }, now);
        self.settle(now);
    }

    /// Gives the session the turn requested by [`Action::Turn`].
    pub(crate) fn handle_turn(&mut self, now: Now) {
        if matches!(self.state, State::Turn | State::Duplex { has_more: true }) {
            self.show_held(now);
            self.settle(now);
        }
    }

    /// Hands out work for [`Action::Work`]. `None` if there is no more.
    ///
    /// # Panics
    /// If the session has none but waits for it.
    pub(crate) fn take_work(&mut self, now: Now) -> Option<S::Work> {
        let work = self.session.as_mut().and_then(S::take_work);
        if self.state == State::Work {
            assert!(work.is_some(), "a session waits for work that it does not have");
            self.state = State::Working;
        } else {
            self.asks_for_work = work.is_some();
        }
        if work.is_some() {
            self.works += 1;
            self.shared.counters.worked();
        } else if self.is_ended {
            // The connection may have been open only for this work.
            self.settle(now);
        }
        work
    }

    /// Takes back finished work.
    pub(crate) fn handle_worked(&mut self, work: S::Work, now: Now) {
        self.take_back(now, |session, out| session.handle_worked(work, now, out));
    }

    /// Takes back work that could not be run.
    pub(crate) fn handle_refused(&mut self, work: S::Work, now: Now) {
        self.take_back(now, |session, out| session.handle_refused(work, now, out));
    }

    /// Returns work to the session, if the conversation continues.
    fn take_back(&mut self, now: Now, give: impl FnOnce(&mut S, &mut Outbox) -> Next) {
        self.works -= 1;
        if let Some(session) = &mut self.session
            && !self.state.is_end()
        {
            let is_unseen = match self.state {
                State::Working => !self.held.is_empty(),
                state => state == State::Turn,
            };
            let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
            let next = give(session, out);
            self.follow(Received { used: 0, next }, now);
            if is_unseen && matches!(self.state, State::Receive | State::Duplex { .. }) {
                self.state = State::Turn;
            }
        }
        self.settle(now);
    }

    /// Passes input to the session, or holds it until the session's turn.
    #[inline]
    fn take(&mut self, input: &[u8], now: Now) {
        self.note_arrival(now);
        match (self.state, &mut self.session) {
            (State::Receive | State::Duplex { .. } | State::Fill, Some(session)) => {
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
            (State::Discard(_), _) => self.discard(input.len(), now),
            (State::Finish(_) | State::Close(_), _) => {}
            (State::Proxy, _) => {
                self.shared.counters.received(input.len());
                self.take_proxy_header(input, now);
            }
            // This input is no longer in the socket, where a check of the queues would find it.
            (State::CheckQueues(closed), _) => self.state = State::Finish(closed),
            _ => {
                self.shared.counters.received(input.len());
                if self.held.len() + input.len() <= HELD_LEN_MAX {
                    self.held.extend_from_slice(input);
                } else {
                    self.refuse_too_long(now);
                }
            }
        }
    }

    #[cold]
    fn take_records(&mut self, input: &[u8], now: Now) {
        match self.state {
            State::Discard(_) => return self.take(input, now),
            State::Proxy => return self.take_proxy_header(input, now),
            _ => {}
        }
        if self.tls.as_ref().is_some_and(|tls| !tls.has_begun()) {
            self.held.extend_from_slice(input);
            return self.begin_handshake(now);
        }
        self.open_records(input, now);
    }

    /// Begins the handshake if the peer's first record is complete and there is memory for it.
    /// Otherwise waits for these.
    pub(super) fn begin_handshake(&mut self, now: Now) {
        let Some(tls) = &mut self.tls else {
            return;
        };
        if !is_record_whole(&self.held) {
            return;
        }
        let Shared { memory, limits, .. } = &*self.shared;
        let end = self.begun + limits.handshake_timeout;
        if memory.is_full() {
            memory.count_wait();
            self.deadline = end.min(now.monotonic + MEMORY_CHECK_EVERY);
            if end <= now.monotonic {
                self.state = State::Close(Closed::NoMemory);
            }
            return;
        }
        self.deadline = end.min(now.monotonic + memory.handshake_timeout(limits.handshake_timeout));
        if tls.begin(memory).is_err() {
            self.state = State::Close(Closed::Error);
            return;
        }
        let held = std::mem::take(&mut self.held);
        self.open_records(&held, now);
    }

    /// True if a handshake only lacks memory.
    fn waits_for_memory(&self) -> bool {
        let has_begun = self.tls.as_ref().is_none_or(|tls| tls.has_begun());
        !has_begun && is_record_whole(&self.held)
    }

    fn open_records(&mut self, input: &[u8], now: Now) {
        let Some(mut tls) = self.tls.take() else {
            return;
        };
        let opened = tls.open(input, |plain| self.take(plain, now));
        let outgoing = outgoing(&mut self.outgoing, &self.shared, now);
        let sealed = &mut outgoing.sealed;
        match opened.as_ref().map_err(|error| tls.in_the_clear(error)) {
            Err(Some(text)) => {
                tls.has_ended = true;
                sealed.put(text);
                self.state = State::Finish(Closed::Error);
            }
            // TLS's own records: handshake, tickets, alerts. Records keep their order.
            Err(None) => {
                tls.has_ended = true;
                tls.take_records(sealed);
                outgoing.drop_plain();
                self.state = State::CheckQueues(Closed::Error);
            }
            Ok(has_peer_ended) => {
                tls.take_records(sealed);
                self.is_ended |= has_peer_ended;
            }
        }
        if self.state == State::Handshake && !tls.is_handshaking() {
            self.state = State::Open;
        }
        let has_grown = tls.charge(&self.shared.memory);
        self.tls = Some(tls);
        if has_grown {
            self.check_memory(true, now);
        }
    }

    /// Records the arrival of input, in microseconds, up to an hour after the request began.
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

    /// Passes its unused input to the session again.
    fn show_held(&mut self, now: Now) {
        let Some(session) = &mut self.session else {
            return;
        };
        let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
        let received = session.receive(&self.held, now, out);
        let len = self.held.len();
        assert!(received.used <= len, "a session used {} of {len} bytes", received.used);
        self.held.drain(..received.used);
        self.follow(received, now);
    }

    /// Moves to the state that the session's result requires.
    #[inline]
    fn follow(&mut self, received: Received, now: Now) {
        self.state = match received.next {
            Next::Receive(phase) => {
                self.wait_in(phase, received.used > 0, now);
                if self.held.is_empty() && self.held.capacity() > HELD_LEN_KEPT {
                    self.held = Vec::new();
                }
                if self.held.len() > HELD_LEN_MAX {
                    return self.refuse_too_long(now);
                }
                match phase {
                    Phase::Body if self.lends_space() => State::Fill,
                    _ => State::Receive,
                }
            }
            Next::Duplex { phase, has_more } => {
                self.wait_in(phase, received.used > 0, now);
                if self.held.len() > HELD_LEN_MAX {
                    return self.refuse_too_long(now);
                }
                self.asks_for_work = true;
                if usize::from(self.works) == WORKS_MAX {
                    self.shared.jobs.count_deferral();
                }
                State::Duplex { has_more }
            }
            Next::Flush => State::Turn,
            Next::Work => State::Work,
            // With input after the last request, or from a peer that did not ask for the end and
            // may have sent the next request.
            Next::Close if !self.held.is_empty() || self.drain == Drain::Announced => {
                State::Finish(Closed::Session)
            }
            Next::Close => State::CheckQueues(Closed::Session),
            Next::Linger => State::Finish(Closed::Session),
        };
    }

    #[cold]
    fn refuse_too_long(&mut self, now: Now) {
        self.give_up(GiveUp::TooLong, State::Finish(Closed::TooLong), now);
    }

    /// Sets the deadline of a wait. A head has one deadline in total, however its bytes are spread;
    /// `is_new` means that bytes were used, so it is another head.
    #[inline]
    fn wait_in(&mut self, phase: Phase, is_new: bool, now: Now) {
        if phase != Phase::Head || self.phase != Phase::Head || is_new {
            self.phase = phase;
            self.deadline = now.monotonic + self.timeout();
        }
    }

    /// Time-out of the current phase.
    #[inline]
    fn timeout(&self) -> Duration {
        let limits = &self.shared.limits;
        match self.phase {
            Phase::Idle if self.drain == Drain::Announced => limits.idle_timeout.min(DRAIN_GRACE),
            Phase::Idle => limits.idle_timeout,
            Phase::Body => limits.body_timeout,
            Phase::Head => limits.head_timeout,
        }
    }

    /// True if the session lends space for the next input. Never under TLS, where input arrives as
    /// records.
    fn lends_space(&mut self) -> bool {
        self.held.is_empty()
            && !self.is_tls
            && (self.session.as_mut()).is_some_and(|session| !session.body_buffer().is_empty())
    }
}

// ---- events of output

impl<S: Session> Machine<S> {
    /// Takes the number of bytes that [`Action::Send`] sent; 0 if there were none because a file
    /// was truncated.
    ///
    /// `now` may be the time of the last event if the engine sent everything it was offered and
    /// [`is_timed`](Machine::is_timed) is false: time only matters for a remainder.
    #[inline]
    pub(crate) fn handle_sent(&mut self, sent: io::Result<u64>, now: Now) {
        let len = match sent {
            Ok(len) => len,
            Err(error) => return self.handle_error(&error, now),
        };
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        if len == 0 {
            return self.cut_off(now);
        }
        outgoing.consume(len);
        let sent_len = u32::try_from(len).unwrap_or(u32::MAX);
        self.sent_len = self.sent_len.saturating_add(sent_len);
        if self.tls.is_none() {
            if outgoing.is_empty() && outgoing.out.replies() > 0 {
                // Counted together with the replies.
                outgoing.last_sent_len = len as usize;
            } else {
                self.shared.counters.sent(len as usize);
            }
        }
        if !outgoing.is_empty() && !outgoing.keeps_pace(now.monotonic, &self.shared.limits) {
            return self.fail(Closed::TooSlow, now);
        }
        self.settle(now);
    }

    /// Takes the result of [`Action::CheckUnacked`].
    pub(crate) fn handle_unacked(&mut self, unacked: io::Result<Unacked>, now: Now) {
        match unacked {
            Err(error) => self.handle_error(&error, now),
            Ok(unacked) => {
                if let Some(outgoing) = &mut self.outgoing
                    && !outgoing.checked(unacked, now.monotonic, &self.shared.limits)
                {
                    self.fail(Closed::TooSlow, now);
                }
            }
        }
    }

    /// Takes the progress of [`Action::SendFile`].
    pub(crate) fn handle_file_progress(&mut self, progress: io::Result<FileProgress>, now: Now) {
        match progress {
            Ok(FileProgress::Sent(len)) => self.handle_sent(Ok(len), now),
            Ok(FileProgress::Read(bytes)) => self.handle_read(Ok(bytes), now),
            Err(error) => self.handle_error(&error, now),
        }
    }

    /// Takes the next bytes of the file being sent; none if it ended early.
    pub(crate) fn handle_read(&mut self, read: io::Result<Bytes>, now: Now) {
        let bytes = match read {
            Ok(bytes) if bytes.is_empty() => return self.cut_off(now),
            Ok(bytes) => bytes,
            Err(error) => return self.handle_error(&error, now),
        };
        if let Some(outgoing) = &mut self.outgoing
            && !outgoing.out.is_empty()
        {
            outgoing.fetch(bytes, now.monotonic);
        }
        self.settle(now);
    }

    /// Truncates a reply: the file has changed since its length was announced.
    fn cut_off(&mut self, now: Now) {
        self.fail(Closed::Error, now);
    }
}

// ---- the end of every event

impl<S: Session> Machine<S> {
    /// Completes every event: encrypts, returns an empty outbox to the pool, and ends the
    /// conversation where it is over.
    #[inline]
    fn settle(&mut self, now: Now) {
        if let Some(outgoing) = &mut self.outgoing {
            // Under TLS a reply leaves `out` when encrypted, and is sent with its records.
            if outgoing.sealed.is_empty() && outgoing.out.has_sent() {
                account_sent(&self.shared, &mut outgoing.out, false, now);
            }
            if let Some(tls) = &mut self.tls {
                let len = outgoing.seal(tls);
                if len > 0 {
                    self.shared.counters.sent(len);
                }
                if tls.has_ended && !outgoing.out.is_empty() {
                    outgoing.drop_plain();
                    self.state = State::Close(Closed::Error);
                }
            }
            if !outgoing.is_empty() {
                outgoing.begin(now.monotonic, &self.shared.limits);
                let has_grown = outgoing.charge(&self.shared.memory);
                if has_grown || self.held_len() != self.held_charge.len() {
                    self.check_memory(has_grown, now);
                }
                return;
            }
            let sending = self.add_sending(now);
            self.drop_outgoing(sending, now);
        }
        if self.held_len() != self.held_charge.len() {
            self.check_memory(false, now);
        }
        if self.is_ended || !matches!(self.state, State::Receive | State::Fill) {
            self.settle_end(now);
        }
    }

    /// Bytes that the connection holds apart from its output.
    #[inline]
    fn held_len(&self) -> usize {
        self.held.capacity() + self.session.as_ref().map_or(0, S::held_len)
    }

    /// Charges held memory. If all connections together reach the limit, and this one has grown and
    /// holds much, it is closed.
    #[cold]
    fn check_memory(&mut self, has_grown: bool, now: Now) {
        let held_len = self.held_len();
        let Machine { shared, held, .. } = self;
        let has_grown = self.held_charge.set(&shared.memory, held_len) || has_grown;
        // Count the input itself, not the capacity reserved for the rest of a request.
        let held_len = held_len - held.capacity() + held.len();
        let outgoing_len = (self.outgoing.as_ref()).map_or(0, |outgoing| outgoing.charged_len());
        let records_len = self.tls.as_ref().map_or(0, |tls| tls.buffer_len());
        if has_grown
            && outgoing_len + held_len + records_len > HELD_LEN_FULL
            && shared.memory.is_full()
            && !matches!(self.state, State::Close(_))
        {
            self.fail(Closed::NoMemory, now);
        }
    }

    /// Advances at the end of input or of the conversation, with no output queued; sends TLS's
    /// close_notify.
    fn settle_end(&mut self, now: Now) {
        if self.is_ended && self.drain != Drain::No && self.is_idle() {
            self.end_drained(now);
            return self.settle(now);
        }
        self.state = match self.state {
            // Between requests, the connection waits for work only while the peer is connected.
            State::Duplex { .. } if self.may_work() && self.phase != Phase::Idle => self.state,
            State::Receive
            | State::Duplex { has_more: false }
            | State::Fill
            | State::Proxy
            | State::Handshake
                if self.is_ended =>
            {
                if self.is_stream_ended {
                    State::Close(Closed::Peer)
                } else {
                    State::CheckQueues(Closed::Peer)
                }
            }
            State::CheckQueues(closed) | State::Discard(closed) if self.is_stream_ended => {
                State::Close(closed)
            }
            state => state,
        };
        if let Some(tls) = &mut self.tls
            && !tls.has_ended
            && !tls.is_handshaking()
            && matches!(
                self.state,
                State::CheckQueues(_)
                    | State::Finish(_)
                    | State::Close(
                        Closed::Session | Closed::Drained | Closed::Peer | Closed::TimedOut(_)
                    )
            )
        {
            let outgoing = outgoing(&mut self.outgoing, &self.shared, now);
            tls.end(&mut outgoing.sealed);
            outgoing.begin(now.monotonic, &self.shared.limits);
            if matches!(
                self.state,
                State::Close(_)
                    | State::CheckQueues(Closed::TimedOut(_) | Closed::Drained)
                    | State::Finish(Closed::Drained)
            ) {
                outgoing.until = now.monotonic + GOODBYE_PATIENCE;
            }
            return;
        }
        if self.state.is_end()
            && let Some(mut session) = self.session.take()
        {
            let out = &mut outgoing(&mut self.outgoing, &self.shared, now).out;
            session.closed(now, out);
            self.drop_outgoing(None, now);
        }
    }

    /// Extends the wait for input by the duration of a sending, during which nothing was received,
    /// or had to be. Returns the start and the duration of the sending.
    #[inline(always)]
    fn add_sending(&mut self, now: Now) -> Option<(Instant, Duration)> {
        if !matches!(self.state, State::Receive | State::Fill) {
            self.add_sending_beside(now);
            return None;
        }
        let sending = self.outgoing.as_mut()?.lap(now.monotonic)?;
        self.deadline += sending.1;
        Some(sending)
    }

    /// The same in Duplex: the session's turns have restarted the wait, except for the time since
    /// the last one.
    #[cold]
    fn add_sending_beside(&mut self, now: Now) {
        if matches!(self.state, State::Duplex { .. }) && self.phase != Phase::Head {
            self.deadline = self.deadline.max(now.monotonic + self.timeout() / 2);
        }
    }

    /// Returns the outgoing data to the pool, sent or not. `sending` is the start and the duration
    /// of the sending, if known.
    #[inline]
    fn drop_outgoing(&mut self, sending: Option<(Instant, Duration)>, now: Now) {
        if let Some(mut outgoing) = self.outgoing.take() {
            let replies = outgoing.out.take_replies();
            if replies > 0 {
                self.account(&mut outgoing, replies, sending, now);
            }
            if outgoing.out.is_timed() {
                account_sent(&self.shared, &mut outgoing.out, true, now);
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
        let (first, others) = self.take_asked_since();
        let took = |asked| match sending {
            // The common case: the request arrived in one piece. This spares a subtraction.
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

    /// Takes the arrival times of the requests just answered: of the first, which may have come in
    /// pieces, and of the others, which came with the last input.
    fn take_asked_since(&mut self) -> (Instant, Instant) {
        let after = Duration::from_micros(std::mem::take(&mut self.arrived_after_us).into());
        let arrived = self.begun + after;
        (std::mem::replace(&mut self.begun, arrived), arrived)
    }
}

/// Counts and logs individually timed replies: those sent, or all.
#[cold]
fn account_sent(shared: &Shared, out: &mut Outbox, takes_all: bool, now: Now) {
    let replied = |took| shared.counters.replied(1, took, 0);
    let write = |lines: &[u8]| (shared.log.iter()).for_each(|log| log.write(lines));
    out.take_sent(now.monotonic, takes_all, replied, write);
}

/// Returns the outgoing data, taken from the pool if there is none yet.
#[inline]
fn outgoing<'a>(
    outgoing: &'a mut Option<Box<Outgoing>>,
    shared: &Shared,
    now: Now,
) -> &'a mut Outgoing {
    outgoing
        .get_or_insert_with(|| Outgoing::take(shared.log.is_some(), &shared.memory, now.monotonic))
}
