//! How connections come to a loop, and how they leave it.

use std::os::fd::AsFd;

use session::{Opening, Session};

use super::Worker;
use crate::counters::Closed;
use crate::engine::event::connection::Connection;
use crate::engine::loops::{Accepted, Waits, Wire, tell_stage};

impl<S, O> Worker<S, O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S,
{
    /// Takes what has come to the doors.
    pub(super) fn accept(&mut self) {
        let now = self.desk.now.monotonic;
        self.entrance.begin_turn(now, self.lookout.dispatcher());
        while let Some(accepted) =
            (self.entrance).next(now, self.lookout.dispatcher(), &self.house.admission)
        {
            self.welcome(accepted);
        }
    }

    /// Begins to serve a connection, unless there is no room for it.
    pub(super) fn welcome(&mut self, accepted: Accepted) {
        let now = self.desk.now;
        let Some((accepted, mut carriage)) = self.house.welcome(accepted, now) else {
            return;
        };
        tell_stage(&mut carriage, self.stage, now);
        let place = self.connections.vacant_entry();
        let at = place.key();
        place.insert(Box::new(Connection {
            carriage,
            wire: Wire::new(accepted.socket, self.lookout.trusts_short_reads()),
            waits: Waits::Turn,
            peer: accepted.peer,
            listener: accepted.listener,
            heard: self.lookout.meet(at),
            is_queued: false,
        }));
        self.own.counters.accepted.add(1);
        self.go_on(at);
    }

    /// Closes a connection and counts why.
    pub(super) fn end(&mut self, at: usize, closed: Closed) {
        let connection = self.connections.remove(at);
        self.lookout
            .forget(&connection.heard, connection.wire.as_fd());
        self.house.end(connection, closed);
    }
}
