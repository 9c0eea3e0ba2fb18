//! Sessions with think times, and idle connections.

use super::{ConnectionState, Reading, SessionProgress, Worker};
use crate::plan::Workload;

impl Worker<'_> {
    pub(super) fn page_of(&self, session: SessionProgress) -> Option<u32> {
        let Workload::Sessions(sessions) = &self.plan.workload else {
            return None;
        };
        let burst = sessions.scripts[session.script].bursts.get(session.burst)?;
        burst.pages.get(session.sent).copied()
    }

    /// Sends the next requests of a session whose connection is open.
    pub(super) fn continue_session(&mut self, slot: u32, due_ns: u64) {
        if let Some(session) = &mut self.connections[slot as usize].session {
            session.due_ns = due_ns;
        }
        // The first request of a burst goes alone; the others follow together after its reply.
        while let Some(session) = self.connections[slot as usize].session {
            let is_waiting = !self.connections[slot as usize].in_flight.is_empty();
            if self.page_of(session).is_none()
                || (session.sent <= 1 && is_waiting)
                || !self.has_stream(slot)
            {
                return;
            }
            self.send_request(slot, due_ns);
        }
    }

    pub(super) fn after_session_reply(&mut self, slot: u32) {
        let connection = &self.connections[slot as usize];
        let Some(session) = connection.session else {
            return;
        };
        if self.page_of(session).is_some() {
            self.continue_session(slot, self.now_ns);
        } else if connection.in_flight.is_empty() {
            let think_ns = self.next_burst(slot);
            match (self.connections[slot as usize].session, think_ns) {
                (None, _) => self.begin_close(slot),
                (Some(_), 0) => self.continue_session(slot, self.now_ns),
                (Some(_), think_ns) => self.wake_at(slot, self.now_ns + think_ns),
            }
        }
    }

    /// Advances to the next burst, or ends the session. Returns the pause before it.
    pub(super) fn next_burst(&mut self, slot: u32) -> u64 {
        let Workload::Sessions(sessions) = &self.plan.workload else {
            return 0;
        };
        let Some(session) = &mut self.connections[slot as usize].session else {
            return 0;
        };
        let bursts = &sessions.scripts[session.script].bursts;
        let think_ns = bursts.get(session.burst).map_or(0, |burst| burst.think.as_nanos() as u64);
        session.burst += 1;
        session.sent = 0;
        if session.burst >= bursts.len() {
            self.connections[slot as usize].session = None;
            self.tally.sessions += 1;
        }
        think_ns
    }

    /// Handles the end of a session's connection: if the burst is complete, the session advances.
    /// The next connection is opened at once, or after the pause.
    pub(super) fn end_burst_on_close(&mut self, slot: u32) {
        let connection = &self.connections[slot as usize];
        if let Some(session) = connection.session
            && self.page_of(session).is_none()
        {
            self.next_burst(slot);
        }
    }

    pub(super) fn receive_idle(&mut self, slot: u32) {
        self.connections[slot as usize].reading = Reading::Discard;
        self.backend.discard(slot, u64::MAX);
    }

    pub(super) fn received_idle(&mut self, slot: u32, bytes: i32) {
        match bytes {
            0 => self.begin_close(slot),
            _ => self.receive_idle(slot),
        }
    }

    pub(super) fn plan_trickle(&mut self, slot: u32) {
        if let Some(every) = self.plan.idle.byte_every {
            // Spread over the period: idle clients are not synchronous.
            let every_ns = every.as_nanos() as u64;
            let first_ns = self.now_ns + self.random.below(every_ns.max(1));
            self.wake_at(slot, first_ns);
        }
    }

    /// Sends the next byte of a request, repeatedly.
    pub(super) fn trickle(&mut self, slot: u32) {
        let Some(every) = self.plan.idle.byte_every else {
            return;
        };
        let connection = &mut self.connections[slot as usize];
        if connection.state == ConnectionState::Open {
            let byte = self.protocol.trickle(connection.trickled);
            connection.trickled += 1;
            self.backend.output(slot).push(byte);
            self.tally.sent_bytes += 1;
            self.did_send = true;
            self.wake_at(slot, self.now_ns + every.as_nanos() as u64);
        }
    }
}
