//! The thread that accepts for all loops and deals connections out.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use event::{Dispatcher, Interest, Ready, Token};

use super::bell::Loop;
use super::doors::{Accepted, Doors, REST};
use super::entrance::Entrance;
use super::house::House;
use crate::clock;

const BELL: u64 = 0;

/// Where connections are dealt to.
pub(crate) trait Deals {
    /// Whether there is room for one more. If not, `own` is rung for when there is.
    fn has_room(&mut self, own: &Arc<Loop>) -> bool;

    fn deal(&mut self, accepted: Accepted);
}

/// Where there is always room.
impl<F: FnMut(Accepted)> Deals for F {
    fn has_room(&mut self, _own: &Arc<Loop>) -> bool {
        true
    }

    fn deal(&mut self, accepted: Accepted) {
        self(accepted);
    }
}

/// See the [module page](self).
pub(crate) struct Dealer<O, D> {
    house: Arc<House<O>>,
    own: Arc<Loop>,
    to: D,
    dispatcher: Box<dyn Dispatcher>,
    entrance: Entrance,
}

impl<O, D: Deals> Dealer<O, D> {
    /// # Errors
    /// What the kernel says to the dispatcher.
    pub(crate) fn new(
        house: Arc<House<O>>,
        own: Arc<Loop>,
        to: D,
        doors: Doors,
        mut dispatcher: Box<dyn Dispatcher>,
    ) -> io::Result<Dealer<O, D>> {
        let interest = Interest::READ.pinned();
        dispatcher.add(own.bell.as_fd(), Token(BELL), interest)?;
        let mut entrance = Entrance::new(doors, &house, Arc::clone(&own));
        entrance.open(&mut *dispatcher)?;
        Ok(Dealer {
            house,
            own,
            to,
            dispatcher,
            entrance,
        })
    }

    /// Deals until the server closes.
    pub(crate) fn run(mut self) {
        let mut reports = Vec::new();
        while !self.house.gate.is_closing() {
            let now = clock::now().monotonic;
            let timeout = self.entrance.wakes_at();
            let timeout = timeout.map(|until| until.saturating_duration_since(now));
            let wait = |timeout| self.dispatcher.wait(&mut reports, timeout);
            let waited = self.own.bell.wait(timeout, wait);
            let counters = &self.own.counters;
            counters.waits.add(1);
            counters.reports.add(reports.len() as u64);
            if waited.is_err() {
                counters.errors.add(1);
                thread::sleep(REST);
            }
            for Ready { token, .. } in reports.drain(..) {
                match token.0 {
                    BELL => self.own.bell.is_heard(),
                    name => self.entrance.is_ready(name),
                }
            }
            let now = clock::now().monotonic;
            let (house, dispatcher) = (Arc::clone(&self.house), &mut *self.dispatcher);
            self.entrance.begin_turn(now, dispatcher);
            loop {
                if !self.to.has_room(&self.own) {
                    self.entrance.pause(&mut *self.dispatcher, &house.admission);
                    break;
                }
                self.entrance.go_on(now, &mut *self.dispatcher);
                let next = (self.entrance).next(now, &mut *self.dispatcher, &house.admission);
                let Some(accepted) = next else { break };
                self.deal(accepted);
            }
        }
        if let Some(accepted) = self.entrance.close(&mut *self.dispatcher) {
            self.deal(accepted);
        }
        self.house.gate.has_closed();
    }

    fn deal(&mut self, accepted: Accepted) {
        self.own.counters.passed_on.add(1);
        self.to.deal(accepted);
    }
}
