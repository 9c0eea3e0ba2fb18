//! Arrivals, and the backlog of those that find no free connection.

use super::{ConnectionState, SessionProgress, Worker};
use crate::outcome::record;
use crate::plan::Workload;
use crate::plan::schedule::Schedule;

impl Worker<'_> {
    pub(super) fn admit(&mut self) {
        while self.next_arrival_ns <= self.now_ns
            && self.next_arrival_ns < self.times.end_ns
            && self.left > 0
        {
            let intended_ns = self.next_arrival_ns;
            let next = self.schedule.as_mut().and_then(Schedule::next_ns);
            self.left -= 1;
            self.next_arrival_ns = next.filter(|_| self.left > 0).unwrap_or(u64::MAX);
            let is_measured = self.is_measured(intended_ns);
            self.tally.intended += u64::from(is_measured);
            if is_measured {
                // Recorded even if no connection is free: the lag is the generator's fault.
                record(&mut self.tally.lag_ns, self.now_ns - intended_ns);
            }
            if let Some(slot) = self.next_free() {
                self.assign(slot, intended_ns);
                continue;
            }
            self.tally.waited += u64::from(is_measured);
            if self.backlog.len() < self.backlog_max {
                self.backlog.push_back(intended_ns);
                self.tally.backlog_max = self.tally.backlog_max.max(self.backlog.len() as u64);
            } else {
                self.tally.missed += u64::from(is_measured);
            }
        }
    }

    /// True if a request of the open loop counts in the current interval. Requests of the warm-up
    /// do not count after it.
    pub(super) fn is_measured(&self, intended_ns: u64) -> bool {
        intended_ns >= self.times.warm_up_ns || self.now_ns < self.times.warm_up_ns
    }

    pub(super) fn next_free(&mut self) -> Option<u32> {
        while let Some(slot) = self.free.pop_front() {
            self.connections[slot as usize].is_free_listed = false;
            if self.can_take(slot) {
                return Some(slot);
            }
        }
        None
    }

    pub(super) fn can_take(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        match connection.state {
            ConnectionState::Closed => connection.queued_ns.is_none() && connection.wake_ns == 0,
            ConnectionState::Open => connection.session.is_none() && self.has_capacity(slot),
            ConnectionState::Connecting | ConnectionState::Closing => false,
        }
    }

    pub(super) fn has_capacity(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        let under_way = connection.in_flight.len() as u32;
        under_way < self.plan.depth.min(connection.reader.in_flight_max())
            && connection.served.saturating_add(under_way) < connection.requests_max
    }

    /// Assigns a request to a connection that can take it.
    pub(super) fn assign(&mut self, slot: u32, intended_ns: u64) {
        if let Workload::Sessions(sessions) = &self.plan.workload {
            let script = self.next_script % sessions.scripts.len();
            self.next_script = script + self.plan.threads as usize;
            let is_in_time = self.now_ns < self.times.end_ns && self.is_measured(intended_ns);
            self.tally.sessions_begun += u64::from(is_in_time);
            self.connections[slot as usize].session =
                Some(SessionProgress { script, burst: 0, sent: 0, due_ns: intended_ns });
        }
        if self.connections[slot as usize].state == ConnectionState::Open {
            self.send_request(slot, intended_ns);
            self.mark_free(slot);
        } else {
            self.connections[slot as usize].queued_ns = Some(intended_ns);
            self.connect(slot);
        }
    }

    /// Lists a connection as free if it can take a request.
    pub(super) fn mark_free(&mut self, slot: u32) {
        if self.is_open_loop()
            && !self.connections[slot as usize].is_free_listed
            && self.can_take(slot)
        {
            self.connections[slot as usize].is_free_listed = true;
            self.free.push_back(slot);
        }
    }

    /// Takes the oldest request of the backlog that has not timed out.
    pub(super) fn next_waiting(&mut self) -> Option<u64> {
        let timeout_ns = self.plan.request_timeout.as_nanos() as u64;
        while let Some(intended_ns) = self.backlog.pop_front() {
            if self.now_ns - intended_ns < timeout_ns {
                return Some(intended_ns);
            }
            self.tally.errors.client_timeout += 1;
        }
        None
    }
}
