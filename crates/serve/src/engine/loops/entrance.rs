//! Where connections come in, for one thread: its doors, and the gate that they lead to.

use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use event::Dispatcher;

use super::bell::Loop;
use super::doors::{Accepted, Came, Doors};
use super::gate::Gate;
use super::house::House;
use crate::counters::AcceptError;
use crate::engine::admission::Admission;

/// See the [module page](self).
pub(crate) struct Entrance {
    doors: Doors,
    gate: Arc<Gate>,
    own: Arc<Loop>,
    accepts_per_turn: (usize, usize),
    /// How many each door may let in now, and whether one had to stop there.
    accepts_now: usize,
    has_more: bool,
    /// It was accepted when another thread took the last place. It is the next one to come in.
    held: Option<Accepted>,
    /// Which door has its turn, and how many came in by it.
    door: usize,
    came: usize,
    /// It waited for room, and was called.
    was_called: bool,
    /// It waits for room of another kind.
    is_paused: bool,
}

impl Entrance {
    pub(crate) fn new<O>(doors: Doors, house: &House<O>, own: Arc<Loop>) -> Entrance {
        Entrance {
            doors,
            gate: Arc::clone(&house.gate),
            own,
            accepts_per_turn: house.accepts_per_turn,
            accepts_now: 0,
            has_more: false,
            held: None,
            door: 0,
            came: 0,
            was_called: false,
            is_paused: false,
        }
    }

    /// Begins to watch the doors.
    ///
    /// # Errors
    /// What the dispatcher says.
    pub(crate) fn open(&mut self, dispatcher: &mut dyn Dispatcher) -> io::Result<()> {
        self.doors.open(dispatcher)
    }

    /// The door with this name is reported.
    pub(crate) fn is_ready(&mut self, name: u64) {
        self.doors.is_ready(name);
    }

    /// Whether there is something to accept, as far as is known.
    pub(crate) fn has_some(&self) -> bool {
        self.doors.has_some()
    }

    pub(crate) fn rest_until(&self) -> Option<Instant> {
        self.doors.rest_until()
    }

    /// Begins a turn, in which a bounded number comes in by each door.
    pub(crate) fn begin_turn(&mut self, now: Instant, dispatcher: &mut dyn Dispatcher) {
        let (first, most) = self.accepts_per_turn;
        self.accepts_now = match mem::take(&mut self.has_more) {
            true => (2 * self.accepts_now).min(most),
            false => first,
        };
        (self.door, self.came) = (0, 0);
        self.doors.end_rest(now, dispatcher);
        if self.own.has_room.load(Ordering::Acquire) {
            self.own.has_room.store(false, Ordering::Relaxed);
            self.was_called = true;
            self.doors.has_room(now, dispatcher);
        }
    }

    /// Lets connections wait in the queue, because there is no room where they go.
    pub(crate) fn pause<O>(&mut self, dispatcher: &mut dyn Dispatcher, admission: &Admission<O>) {
        if self.doors.is_open() {
            self.doors.is_full(dispatcher);
            if !mem::replace(&mut self.is_paused, true) {
                admission.shared.counters.accept_paused();
            }
        }
    }

    /// There is room again.
    pub(crate) fn go_on(&mut self, now: Instant, dispatcher: &mut dyn Dispatcher) {
        if mem::take(&mut self.is_paused) {
            self.doors.has_room(now, dispatcher);
        }
    }

    /// The next one that comes in, in this turn. It is counted as open.
    pub(crate) fn next<O>(
        &mut self,
        now: Instant,
        dispatcher: &mut dyn Dispatcher,
        admission: &Admission<O>,
    ) -> Option<Accepted> {
        let counters = &admission.shared.counters;
        while self.door < self.doors.count() && self.doors.is_open() {
            let is_over = self.came >= self.accepts_now;
            let has_some = self.doors.has_some_at(self.door);
            if is_over || !has_some {
                self.has_more |= is_over && has_some;
                self.doors.is_served(self.door);
                (self.door, self.came) = (self.door + 1, 0);
                continue;
            }
            if !self.gate.has_room_for(&self.own) {
                self.doors.is_full(dispatcher);
                counters.accept_paused();
                self.was_called = false;
                return None;
            }
            let came = match self.held.take() {
                Some(held) => Came::Connection(held),
                None => self.doors.accept(self.door, admission.names_peers()),
            };
            match came {
                Came::Connection(accepted) => {
                    self.came += 1;
                    if self.gate.enter() {
                        return Some(accepted);
                    }
                    self.held = Some(accepted);
                }
                Came::Nothing => {}
                Came::Error(error) if counters.accept_failed(&error) == AcceptError::Aborted => {
                    self.came += 1;
                }
                Came::Error(_) => {
                    counters.accept_paused();
                    self.doors.rest(now, dispatcher);
                }
            }
        }
        if mem::take(&mut self.was_called) {
            self.gate.pass_on();
        }
        None
    }

    /// Closes the doors for good. One that has come through is let in.
    pub(crate) fn close(&mut self, dispatcher: &mut dyn Dispatcher) -> Option<Accepted> {
        self.doors.close(dispatcher);
        let held = self.held.take();
        held.inspect(|_| self.gate.force())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.doors.are_closed()
    }
}
