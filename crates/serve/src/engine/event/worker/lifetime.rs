//! How connections come to a loop, and how they leave it.

use std::os::fd::AsFd;

use rustix::net::SendFlags;
use session::{Opening, Session};

use super::{Worker, drop_session};
use crate::counters::Closed;
use crate::engine::event::House;
use crate::engine::event::connection::{Connection, Waits};
use crate::engine::event::mailbox::Accepted;
use crate::engine::event::wire::Wire;
use crate::shared::{DRAINING, SERVING};

impl<S, O> Worker<S, O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S,
{
    /// Takes what has come to the doors.
    pub(super) fn accept(&mut self) {
        let now = self.desk.now.monotonic;
        self.entrance.begin_turn(now, &mut *self.dispatcher);
        while let Some(accepted) =
            (self.entrance).next(now, &mut *self.dispatcher, &self.house.admission)
        {
            self.welcome(accepted);
        }
    }

    /// Begins to serve a connection, unless there is no room for it.
    pub(super) fn welcome(&mut self, accepted: Accepted) {
        let House {
            admission,
            gate,
            tls,
            ..
        } = &*self.house;
        if let Err(line) = admission.admit() {
            // In the clear also where TLS is spoken, as memcached does: a handshake is what there
            // is no room for.
            let _ = rustix::net::send(&accepted.socket, line.as_bytes(), SendFlags::NOSIGNAL);
            drop(accepted);
            gate.leave();
            return admission.refused();
        }
        let now = self.desk.now;
        let Some(mut carriage) = admission.carriage(tls[accepted.listener].as_ref(), now) else {
            admission.dismiss();
            return gate.leave();
        };
        let trusts_short_reads = self.is_level || self.dispatcher.tells_end();
        self.serial = (self.serial + 1) & (u32::MAX >> 1);
        let place = self.connections.vacant_entry();
        let (at, name) = (
            place.key(),
            u64::from(self.serial) << 32 | place.key() as u64,
        );
        match self.stage {
            SERVING => {}
            DRAINING => carriage.drain(now),
            _ => carriage.cut(now),
        }
        place.insert(Box::new(Connection {
            carriage,
            wire: Wire::new(accepted.socket, trusts_short_reads),
            waits: Waits::Turn,
            peer: accepted.peer,
            listener: accepted.listener,
            name,
            watched: None,
            is_queued: false,
            due: 0,
            timer: None,
        }));
        self.own.counters.accepted.add(1);
        self.go_on(at);
    }

    /// Closes a connection and counts why.
    pub(super) fn end(&mut self, at: usize, closed: Closed) {
        let connection = self.connections.remove(at);
        if let Some((timer, _)) = connection.timer {
            self.timers.cancel(timer);
        }
        if connection.watched.is_some() {
            // It is closed next. That it is watched is all that can be wrong.
            let _ = self.dispatcher.forget(connection.wire.as_fd());
        }
        // The descriptor first, then the count: who counts connections may count descriptors too.
        drop_session(connection);
        self.house.gate.leave();
        self.house.admission.dismiss();
        self.house.admission.shared.counters.closed(closed);
    }
}
