//! How connections come to a loop, and how they leave it.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use session::Session;

use super::EventLoop;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::event::connection::Connection;
use crate::engine::reactor::{Accepted, SHARE_OF_TURN, Socket, Wait};

impl<S: Session + 'static, O: Opens<S>> EventLoop<S, O> {
    /// Begins to serve those that were distributed to this loop, and takes what has come to the listeners, as
    /// far as there is time.
    pub(super) fn accept(&mut self) {
        self.context.update_clock();
        self.welcome_distributed();
        let now = self.context.now.monotonic;
        self.acceptor.begin_turn(now, self.poller.dispatcher());
        loop {
            let now = self.context.now.monotonic;
            let dispatcher = self.poller.dispatcher();
            let next = (self.acceptor).next(now, dispatcher, &self.engine.admission);
            let Some(accepted) = next else { break };
            match self.inboxes.place_for_one_of(self.number) {
                own if own == self.number => self.let_in(accepted),
                other => {
                    self.own.counters.passed_on.add(1);
                    self.inboxes.distribute(other, accepted);
                }
            }
            self.context.update_clock();
        }
    }

    fn welcome_distributed(&mut self) {
        let until = self.context.now.monotonic + SHARE_OF_TURN;
        while let Some(accepted) = self.distributed.pop_front() {
            self.welcome(accepted);
            if self.context.update_clock().monotonic >= until {
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
        let now = self.context.now;
        let Some((accepted, mut machine)) = self.engine.welcome(accepted, now) else {
            self.own.open.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        machine.handle_server_state(self.server_state, now);
        let place = self.connections.vacant_entry();
        let at = place.key();
        place.insert(Box::new(Connection {
            machine,
            socket: Socket::new(accepted.socket, self.poller.trusts_short_reads()),
            // Its long work is put off like that of others.
            waits: Wait::Thread,
            peer: accepted.peer,
            listener: accepted.listener,
            watch: self.poller.meet(at),
        }));
        self.own.counters.accepted.add(1);
        self.go_on(at);
    }

    /// Closes a connection and counts why.
    pub(super) fn end(&mut self, at: usize, closed: Closed) {
        let connection = self.connections.remove(at);
        self.poller
            .forget(&connection.watch, connection.socket.as_fd());
        self.own.open.fetch_sub(1, Ordering::Relaxed);
        self.engine.end(connection, closed);
    }
}
