//! The life of a connection: opened, in use, parting, closed.

use std::mem;

use rustix::io::Errno;

use super::{Reading, State, Worker};
use crate::io::operation::{Completion, Route, What};
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
        let place = &mut self.slots[slot as usize];
        let route = Route {
            to: place.target,
            from: place.source,
            is_chatty: !is_on_demand || place.session.is_some(),
        };
        match self.backend.open(slot, &route) {
            Ok(()) => {
                place.state = State::Connecting;
                place.since_ns = self.now_ns;
                self.connecting += 1;
                self.did_send = true;
            }
            Err(error) => self.fail(slot, |tally| socket::count(&mut tally.errors, error)),
        }
    }

    pub(super) fn complete(&mut self, completion: Completion) {
        let slot = completion.port;
        let is_closing = self.slots[slot as usize].state == State::Closing;
        match completion.what {
            _ if is_closing => {}
            What::Connected => self.connected(slot, completion.result),
            What::Received => self.received(slot, completion.result),
            What::Sent if completion.result < 0 => self.broke(slot, completion.result),
            What::Sent | What::Cancelled => {}
        }
    }

    pub(super) fn connected(&mut self, slot: u32, result: i32) {
        if result < 0 {
            return self.broke(slot, result);
        }
        self.connecting -= 1;
        self.tally.opened += 1;
        let life = self.life();
        let place = &mut self.slots[slot as usize];
        record(&mut self.tally.connect_ns, self.now_ns - place.since_ns);
        place.state = State::Open;
        (place.served, place.life) = (0, life);
        place.has_failed = false;
        place.reading = Reading::Nothing;
        place.reader.reset();
        if slot >= self.asking {
            self.listen_idle(slot);
        } else {
            self.pump(slot);
            if self.slots[slot as usize].state == State::Open {
                self.listen(slot);
            }
        }
    }

    /// After how many requests a new connection is closed. The chance is the same after each one,
    /// so connections that open together, as after an overload, do not end together: not the
    /// first time, and not later.
    fn life(&mut self) -> u32 {
        match self.plan.workload.requests_per_connection() {
            Some(mean) => self.lives.tries(mean),
            None => u32::MAX,
        }
    }

    pub(super) fn broke(&mut self, slot: u32, result: i32) {
        let error = Errno::from_raw_os_error(-result);
        self.fail(slot, |tally| socket::count(&mut tally.errors, error));
    }

    /// Ends a connection, or the attempt at one, because of an error, which every request on it
    /// counts.
    pub(super) fn fail(&mut self, slot: u32, count: impl Fn(&mut Tally)) {
        let place = &mut self.slots[slot as usize];
        place.has_failed = true;
        place.session = None;
        place.wanted = None;
        place.wake_ns = 0;
        for _ in 0..place.flights.len().max(1) {
            count(&mut self.tally);
        }
        self.part(slot);
    }

    /// Begins to close. What is under way is cancelled; the slot is given free at the end of the
    /// turn.
    pub(super) fn part(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if place.state == State::Connecting {
            self.connecting -= 1;
        }
        self.in_flight -= place.flights.len() as u64;
        place.flights.clear();
        if place.state != State::Closing {
            place.state = State::Closing;
            self.backend.cancel(slot);
            self.leaving.push(slot);
        }
    }

    /// Closes those that the kernel is done with.
    pub(super) fn leave(&mut self) {
        let mut leaving = mem::take(&mut self.leaving);
        let mut kept = 0;
        for index in 0..leaving.len() {
            let slot = leaving[index];
            if self.backend.is_busy(slot) {
                leaving[kept] = slot;
                kept += 1;
            } else {
                self.backend.close(slot);
                self.slots[slot as usize].state = State::Closed;
                self.left(slot);
            }
        }
        leaving.truncate(kept);
        // Connecting anew may have failed at once.
        leaving.append(&mut self.leaving);
        self.leaving = leaving;
    }

    pub(super) fn left(&mut self, slot: u32) {
        let place = &self.slots[slot as usize];
        if slot >= self.asking {
            self.tally.idle_closed += u64::from(!place.has_failed);
        } else if place.session.is_some() {
            // The server closed it in a pause: the session's next connection is opened after that.
            if place.wake_ns == 0 {
                self.connect(slot);
            }
        } else if self.is_open_loop() {
            match self.next_waiting() {
                Some(intended_ns) => self.assign(slot, intended_ns),
                None => self.list(slot),
            }
        } else if !self.is_ending {
            match place.has_failed {
                true => self.retry_later(slot),
                false => self.connect(slot),
            }
        }
    }
}
