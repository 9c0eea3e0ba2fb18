//! The thread that accepts for all loops and deals connections out in turn.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use event::{Dispatcher, Interest, Mechanism, Ready, Token};

use super::doors::{Doors, REST};
use super::entrance::Entrance;
use super::mailbox::{Accepted, Letter, Mailbox};
use super::{House, Loop};
use crate::clock;

const BELL: u64 = 0;

/// See the [module page](self).
pub(super) struct Dealer<S, O> {
    house: Arc<House<O>>,
    own: Arc<Loop>,
    mailboxes: Vec<Arc<Mailbox<S>>>,
    /// Whose turn it is.
    next: usize,
    dispatcher: Box<dyn Dispatcher>,
    entrance: Entrance,
}

impl<S, O> Dealer<S, O> {
    pub(super) fn new(
        house: Arc<House<O>>,
        own: Arc<Loop>,
        mailboxes: Vec<Arc<Mailbox<S>>>,
        doors: Doors,
    ) -> io::Result<Dealer<S, O>> {
        let mut dispatcher = Mechanism::Epoll.open()?;
        let interest = Interest::READ.pinned();
        dispatcher.add(own.bell.as_fd(), Token(BELL), interest)?;
        let mut entrance = Entrance::new(doors, &house, Arc::clone(&own));
        entrance.open(&mut *dispatcher)?;
        Ok(Dealer {
            house,
            own,
            mailboxes,
            next: 0,
            dispatcher,
            entrance,
        })
    }

    /// Deals until the server closes.
    pub(super) fn run(mut self) {
        let mut reports = Vec::new();
        while !self.house.gate.is_closing() {
            let now = clock::now().monotonic;
            let timeout = self.entrance.rest_until();
            let timeout = timeout.map(|until| until.saturating_duration_since(now));
            if self.dispatcher.wait(&mut reports, timeout).is_err() {
                thread::sleep(REST);
            }
            for Ready { token, .. } in reports.drain(..) {
                match token.0 {
                    BELL => self.own.bell.reset(),
                    name => self.entrance.is_ready(name),
                }
            }
            let now = clock::now().monotonic;
            let (house, dispatcher) = (Arc::clone(&self.house), &mut *self.dispatcher);
            self.entrance.begin_turn(now, dispatcher);
            while let Some(accepted) =
                (self.entrance).next(now, &mut *self.dispatcher, &house.admission)
            {
                self.deal(accepted);
            }
        }
        if let Some(accepted) = self.entrance.close(&mut *self.dispatcher) {
            self.deal(accepted);
        }
        self.house.gate.has_closed();
    }

    fn deal(&mut self, accepted: Accepted) {
        let mailbox = &self.mailboxes[self.next];
        self.next = (self.next + 1) % self.mailboxes.len();
        mailbox.post(Letter::Accepted(accepted));
    }
}
