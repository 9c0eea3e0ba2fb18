//! How connections come to a loop, and how they leave it.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use session::Session;

use super::Worker;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::event::connection::Connection;
use crate::engine::loops::{Accepted, SHARE_OF_TURN, Waits, Wire};

impl<S: Session + 'static, O: Opens<S>> Worker<S, O> {
    /// Begins to serve those that were dealt to this loop, and takes what has come to the doors, as
    /// far as there is time.
    pub(super) fn accept(&mut self) {
        self.desk.look_at_clock();
        self.welcome_dealt();
        let now = self.desk.now.monotonic;
        self.entrance.begin_turn(now, self.lookout.dispatcher());
        loop {
            let now = self.desk.now.monotonic;
            let dispatcher = self.lookout.dispatcher();
            let next = (self.entrance).next(now, dispatcher, &self.house.admission);
            let Some(accepted) = next else { break };
            match self.mailboxes.place_for_one_of(self.number) {
                own if own == self.number => self.let_in(accepted),
                other => {
                    self.own.counters.passed_on.add(1);
                    self.mailboxes.deal(other, accepted);
                }
            }
            self.desk.look_at_clock();
        }
    }

    fn welcome_dealt(&mut self) {
        let until = self.desk.now.monotonic + SHARE_OF_TURN;
        while let Some(accepted) = self.dealt.pop_front() {
            self.welcome(accepted);
            if self.desk.look_at_clock().monotonic >= until {
                break;
            }
        }
    }

    /// Begins to serve a connection that this loop has accepted.
    pub(super) fn let_in(&mut self, accepted: Accepted) {
        self.own.open.fetch_add(1, Ordering::Relaxed);
        self.welcome(accepted);
    }

    /// Begins to serve a connection that is counted as this loop's, unless there is no room for
    /// it.
    pub(super) fn welcome(&mut self, accepted: Accepted) {
        let now = self.desk.now;
        let Some((accepted, mut carriage)) = self.house.welcome(accepted, now) else {
            self.own.open.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        carriage.at_stage(self.stage, now);
        let place = self.connections.vacant_entry();
        let at = place.key();
        place.insert(Box::new(Connection {
            carriage,
            wire: Wire::new(accepted.socket, self.lookout.trusts_short_reads()),
            // Its long work is put off like that of others.
            waits: Waits::Helper,
            peer: accepted.peer,
            listener: accepted.listener,
            watch: self.lookout.meet(at),
        }));
        self.own.counters.accepted.add(1);
        self.go_on(at);
    }

    /// Closes a connection and counts why.
    pub(super) fn end(&mut self, at: usize, closed: Closed) {
        let connection = self.connections.remove(at);
        self.lookout
            .forget(&connection.watch, connection.wire.as_fd());
        self.own.open.fetch_sub(1, Ordering::Relaxed);
        self.house.end(connection, closed);
    }
}
