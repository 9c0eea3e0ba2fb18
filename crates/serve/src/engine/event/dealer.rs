//! The thread that accepts for all loops and deals connections out in turn.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use event::{Dispatcher, Interest, Mechanism, Ready, Token};

use super::House;
use super::doors::{Came, Doors};
use super::mailbox::{Letter, Mailbox};
use crate::clock;
use crate::counters::AcceptError;

const BELL: u64 = 0;

/// See the [module page](self).
pub(super) struct Dealer<S, O> {
    house: Arc<House<O>>,
    mailboxes: Vec<Arc<Mailbox<S>>>,
    /// Whose turn it is.
    next: usize,
    dispatcher: Box<dyn Dispatcher>,
    doors: Doors,
    connections_max: usize,
}

impl<S, O> Dealer<S, O> {
    pub(super) fn new(
        house: Arc<House<O>>,
        mailboxes: Vec<Arc<Mailbox<S>>>,
        mut doors: Doors,
        connections_max: usize,
    ) -> std::io::Result<Dealer<S, O>> {
        let mut dispatcher = Mechanism::Epoll.open()?;
        let interest = Interest::READ.pinned();
        dispatcher.add(house.gate.bell.as_fd(), Token(BELL), interest)?;
        doors.open(&mut *dispatcher)?;
        Ok(Dealer {
            house,
            mailboxes,
            next: 0,
            dispatcher,
            doors,
            connections_max,
        })
    }

    /// Deals until the server closes.
    pub(super) fn run(mut self) {
        let mut reports = Vec::new();
        while !self.house.gate.is_closing() {
            let now = clock::now().monotonic;
            let timeout = self.doors.rest_until();
            let timeout = timeout.map(|until| until.saturating_duration_since(now));
            if self.dispatcher.wait(&mut reports, timeout).is_err() {
                std::thread::sleep(super::doors::REST);
            }
            for Ready { token, .. } in reports.drain(..) {
                match token.0 {
                    BELL => self.house.gate.bell.reset(),
                    name => self.doors.is_ready(name),
                }
            }
            if !self.is_full() {
                self.doors.has_room(&mut *self.dispatcher);
            }
            self.doors
                .end_rest(clock::now().monotonic, &mut *self.dispatcher);
            (0..self.doors.count()).for_each(|at| self.accept(at));
        }
        self.doors.close(&mut *self.dispatcher);
        self.house.gate.has_closed();
    }

    /// Takes what waits at a door.
    fn accept(&mut self, at: usize) {
        let counters = &self.house.admission.shared.counters;
        for _ in 0..self.house.accepts_per_turn() {
            if self.is_full() {
                if self.doors.is_full(&mut *self.dispatcher) {
                    counters.accept_paused();
                }
                return;
            }
            match self.doors.accept(at, self.house.admission.names_peers()) {
                Came::Connection(accepted) => {
                    self.house.gate.open.fetch_add(1, Ordering::SeqCst);
                    let mailbox = &self.mailboxes[self.next];
                    self.next = (self.next + 1) % self.mailboxes.len();
                    mailbox.post(Letter::Accepted(accepted));
                }
                Came::Nothing => break,
                Came::Error(error) => {
                    if counters.accept_failed(&error) != AcceptError::Aborted {
                        counters.accept_paused();
                        let now = clock::now().monotonic;
                        self.doors.rest(now, &mut *self.dispatcher);
                    }
                }
            }
        }
        self.doors.is_served(at);
    }

    /// Whether there are as many connections as there may be. If so, the end of one rings.
    fn is_full(&self) -> bool {
        if self.house.admission.has_refusal() {
            return false;
        }
        let gate = &self.house.gate;
        let is_full = || gate.open.load(Ordering::SeqCst) >= self.connections_max;
        if !is_full() {
            return false;
        }
        gate.dealer_waits.store(true, Ordering::SeqCst);
        // One may have ended before it could know.
        is_full()
    }
}
