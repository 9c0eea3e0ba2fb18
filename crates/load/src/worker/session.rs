//! Sessions of requests with think times, and connections that ask for nothing.

use super::{Reading, Session, State, Worker};
use crate::plan::Workload;

impl Worker<'_> {
    pub(super) fn page_of(&self, session: Session) -> Option<u32> {
        let Workload::Sessions(sessions) = &self.plan.workload else {
            return None;
        };
        let burst = sessions.scripts[session.script].bursts.get(session.burst)?;
        burst.pages.get(session.sent).copied()
    }

    /// Sends what comes next in a session whose connection is open.
    pub(super) fn go_on(&mut self, slot: u32, due_ns: u64) {
        if let Some(session) = &mut self.slots[slot as usize].session {
            session.due_ns = due_ns;
        }
        // The first request of a burst goes alone; the others, all at once, after its reply.
        while let Some(session) = self.slots[slot as usize].session {
            let is_waiting = !self.slots[slot as usize].flights.is_empty();
            if self.page_of(session).is_none() || (session.sent <= 1 && is_waiting) {
                return;
            }
            self.ask(slot, due_ns);
        }
    }

    pub(super) fn after_session_reply(&mut self, slot: u32) {
        let place = &self.slots[slot as usize];
        let Some(session) = place.session else { return };
        if self.page_of(session).is_some() {
            self.go_on(slot, self.now_ns);
        } else if place.flights.is_empty() {
            let think_ns = self.next_burst(slot);
            match (self.slots[slot as usize].session, think_ns) {
                (None, _) => self.part(slot),
                (Some(_), 0) => self.go_on(slot, self.now_ns),
                (Some(_), think_ns) => self.wake_at(slot, self.now_ns + think_ns),
            }
        }
    }

    /// Steps to the next burst, or ends the session. Returns the pause before it.
    pub(super) fn next_burst(&mut self, slot: u32) -> u64 {
        let Workload::Sessions(sessions) = &self.plan.workload else {
            return 0;
        };
        let Some(session) = &mut self.slots[slot as usize].session else {
            return 0;
        };
        let bursts = &sessions.scripts[session.script].bursts;
        let think_ns = bursts
            .get(session.burst)
            .map_or(0, |burst| burst.think.as_nanos() as u64);
        session.burst += 1;
        session.sent = 0;
        if session.burst >= bursts.len() {
            self.slots[slot as usize].session = None;
            self.tally.sessions += 1;
        }
        think_ns
    }

    /// The connection of a session ends: so does the session if it has said all; else it goes on
    /// with the next connection: at once, or after the pause if it is in one.
    pub(super) fn end_or_go_on(&mut self, slot: u32) {
        let place = &self.slots[slot as usize];
        if let Some(session) = place.session
            && self.page_of(session).is_none()
        {
            self.next_burst(slot);
        }
    }

    pub(super) fn listen_idle(&mut self, slot: u32) {
        self.slots[slot as usize].reading = Reading::Discard;
        self.backend.discard(slot, u64::MAX);
    }

    pub(super) fn heard_idle(&mut self, slot: u32, bytes: i32) {
        match bytes {
            0 => self.part(slot),
            _ => self.listen_idle(slot),
        }
    }

    pub(super) fn plan_trickle(&mut self, slot: u32) {
        if let Some(every) = self.plan.idle.byte_every {
            // Spread over the period: idle clients are not in step.
            let every_ns = every.as_nanos() as u64;
            let first_ns = self.now_ns + self.random.below(every_ns.max(1));
            self.wake_at(slot, first_ns);
        }
    }

    /// Sends the next byte of a request, over and over.
    pub(super) fn trickle(&mut self, slot: u32) {
        let Some(every) = self.plan.idle.byte_every else {
            return;
        };
        let place = &mut self.slots[slot as usize];
        if place.state == State::Open {
            let byte = self.speaker.trickle(place.trickled);
            place.trickled += 1;
            self.backend.output(slot).push(byte);
            self.tally.sent_bytes += 1;
            self.did_send = true;
            self.wake_at(slot, self.now_ns + every.as_nanos() as u64);
        }
    }
}
