//! Life cycle of a connection: opened, in use, closing, closed.

use std::mem;

use rustix::io::Errno;

use super::{ConnectionState, Reading, Worker};
use crate::io::operation::{Completion, CompletionKind, Route};
use crate::io::socket;
use crate::outcome::{Tally, record};

impl Worker<'_> {
    pub(super) fn open_due(&mut self) {
        while !self.opening.is_empty() && self.opening_ns <= self.now_ns {
            let slot = self.opening.start;
            self.opening.start += 1;
            self.opening_ns += self.opening_gap_ns;
            self.connect(slot);
        }
    }

    pub(super) fn connect(&mut self, slot: u32) {
        let is_on_demand = self.opens_on_demand();
        let plan = self.plan;
        let connection = &mut self.connections[slot as usize];
        let route = Route {
            to: &plan.targets[connection.target],
            from: connection.source,
            is_chatty: !is_on_demand || connection.session.is_some() || plan.http2,
        };
        match self.backend.open(slot, &route) {
            Ok(()) => {
                connection.state = ConnectionState::Connecting;
                connection.since_ns = self.now_ns;
                self.connecting += 1;
                self.did_send = true;
            }
            Err(error) => self.fail(slot, |tally| socket::count(&mut tally.errors, error)),
        }
    }

    pub(super) fn complete(&mut self, completion: Completion) {
        let slot = completion.slot;
        let is_closing = self.connections[slot as usize].state == ConnectionState::Closing;
        match completion.kind {
            _ if is_closing => {}
            CompletionKind::Connected => self.connected(slot, completion.result),
            CompletionKind::Received => self.received(slot, completion.result),
            CompletionKind::Sent if completion.result < 0 => {
                self.fail_with(slot, completion.result)
            }
            CompletionKind::Sent | CompletionKind::Cancelled => {}
        }
    }

    pub(super) fn connected(&mut self, slot: u32, result: i32) {
        if result < 0 {
            return self.fail_with(slot, result);
        }
        self.connecting -= 1;
        self.tally.opened += 1;
        let requests_max = self.draw_lifetime();
        let connection = &mut self.connections[slot as usize];
        let mut lasted_ns = self.now_ns - connection.since_ns;
        if let Some(handshake) = self.backend.take_handshake(slot) {
            let handshake_ns = handshake.lasted.as_nanos() as u64;
            record(&mut self.tally.handshake_ns, handshake_ns);
            self.tally.resumed += u64::from(handshake.is_resumed);
            lasted_ns = lasted_ns.saturating_sub(handshake_ns);
        }
        record(&mut self.tally.connect_ns, lasted_ns);
        connection.state = ConnectionState::Open;
        (connection.served, connection.requests_max) = (0, requests_max);
        connection.has_failed = false;
        connection.asked_ns = self.now_ns;
        connection.reading = Reading::None;
        connection.reader.reset();
        if slot >= self.active {
            self.receive_idle(slot);
        } else {
            self.open_streams(slot);
            self.send_due(slot);
            if self.connections[slot as usize].state == ConnectionState::Open {
                self.ensure_receive(slot);
            }
        }
    }

    /// Draws the number of requests after which a new connection is closed. The probability is the
    /// same after each one, so connections that open together, as after an overload, do not end
    /// together.
    fn draw_lifetime(&mut self) -> u32 {
        match self.plan.workload.requests_per_connection() {
            Some(mean) => self.lifetimes.tries(mean),
            None => u32::MAX,
        }
    }

    pub(super) fn fail_with(&mut self, slot: u32, result: i32) {
        let error = Errno::from_raw_os_error(-result);
        self.fail(slot, |tally| socket::count(&mut tally.errors, error));
    }

    /// Closes a connection, or the attempt at one, after an error that counts for each of its
    /// requests.
    pub(super) fn fail(&mut self, slot: u32, count: impl Fn(&mut Tally)) {
        let is_open_loop = self.is_open_loop();
        let connection = &mut self.connections[slot as usize];
        if connection.state != ConnectionState::Open && slot < self.active && !is_open_loop {
            // In place of the request that it was for, so that a run of a number of requests ends
            // without a server too. In an open loop that request has arrived already.
            self.left = self.left.saturating_sub(1);
        }
        connection.has_failed = true;
        connection.session = None;
        connection.queued_ns = None;
        connection.wake_ns = 0;
        for _ in 0..connection.in_flight.len().max(1) {
            count(&mut self.tally);
        }
        self.begin_close(slot);
    }

    /// Begins to close: cancels all operations. The connection is closed at the end of the
    /// iteration.
    pub(super) fn begin_close(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.state == ConnectionState::Connecting {
            self.connecting -= 1;
        }
        self.in_flight_total -= connection.in_flight.len() as u64;
        connection.in_flight.clear();
        if connection.state != ConnectionState::Closing {
            connection.state = ConnectionState::Closing;
            self.backend.cancel(slot);
            self.closing.push(slot);
        }
    }

    /// Closes connections on which the kernel has no operation any more.
    pub(super) fn finish_closes(&mut self) {
        let mut closing = mem::take(&mut self.closing);
        let mut kept = 0;
        for index in 0..closing.len() {
            let slot = closing[index];
            if self.backend.is_busy(slot) {
                closing[kept] = slot;
                kept += 1;
            } else {
                self.backend.close(slot);
                self.connections[slot as usize].state = ConnectionState::Closed;
                self.closed(slot);
            }
        }
        closing.truncate(kept);
        // A new connect may have failed at once.
        closing.append(&mut self.closing);
        self.closing = closing;
    }

    pub(super) fn closed(&mut self, slot: u32) {
        let connection = &self.connections[slot as usize];
        if slot >= self.active {
            self.tally.idle_closed += u64::from(!connection.has_failed);
        } else if connection.session.is_some() {
            // The server closed it in a pause: the session reconnects after the pause.
            if connection.wake_ns == 0 {
                self.connect(slot);
            }
        } else if self.is_open_loop() {
            match self.next_waiting() {
                Some(intended_ns) => self.assign(slot, intended_ns),
                None => self.mark_free(slot),
            }
        } else if self.has_more_to_ask() {
            if connection.has_failed { self.retry_later(slot) } else { self.connect(slot) }
        }
    }
}
