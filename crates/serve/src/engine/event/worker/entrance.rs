//! How connections come to a loop, and how they leave it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::net::SendFlags;
use session::{Opening, Session};

use super::Worker;
use crate::counters::{AcceptError, Closed};
use crate::engine::event::connection::{Connection, Waits};
use crate::engine::event::doors::Came;
use crate::engine::event::mailbox::Accepted;
use crate::engine::event::wire::Wire;
use crate::engine::event::{Accept, House};
use crate::shared::{DRAINING, SERVING};

impl<S, O> Worker<S, O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S,
{
    /// Takes what has come to the doors.
    pub(super) fn accept(&mut self) {
        self.doors
            .end_rest(self.desk.now.monotonic, &mut *self.dispatcher);
        if !self.doors.has_some() {
            return;
        }
        for at in 0..self.doors.count() {
            for _ in 0..self.house.accepts_per_turn() {
                if self.is_full() {
                    if self.doors.is_full(&mut *self.dispatcher) {
                        self.house.admission.shared.counters.accept_paused();
                    }
                    return;
                }
                match self.doors.accept(at, self.house.admission.names_peers()) {
                    Came::Connection(accepted) => self.welcome(accepted),
                    Came::Nothing => break,
                    Came::Error(error) => self.accept_failed(&error),
                }
            }
            self.doors.is_served(at);
        }
    }

    /// Whether it has as many connections as a loop may have, where those beyond wait.
    fn is_full(&self) -> bool {
        !self.house.admission.has_refusal() && self.connections.len() >= self.own.connections_max
    }

    fn accept_failed(&mut self, error: &io::Error) {
        let counters = &self.house.admission.shared.counters;
        if counters.accept_failed(error) != AcceptError::Aborted {
            counters.accept_paused();
            let now = self.desk.now.monotonic;
            self.doors.rest(now, &mut *self.dispatcher);
        }
    }

    /// Begins to serve a connection, unless there is no room for it.
    pub(super) fn welcome(&mut self, accepted: Accepted) {
        let House {
            admission,
            gate,
            tls,
            options,
            ..
        } = &*self.house;
        if options.accept == Accept::Own {
            gate.open.fetch_add(1, Ordering::SeqCst);
        }
        if let Err(line) = admission.admit() {
            // In the clear also where TLS is spoken, as memcached does: a handshake is what there
            // is no room for.
            let _ = rustix::net::send(&accepted.socket, line.as_bytes(), SendFlags::NOSIGNAL);
            drop(accepted);
            gate.has_ended();
            return admission.refused();
        }
        let now = self.desk.now;
        let Some(mut carriage) = admission.carriage(tls[accepted.listener].as_ref(), now) else {
            admission.dismiss();
            return gate.has_ended();
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
        drop(connection);
        self.house.gate.has_ended();
        self.house.admission.dismiss();
        self.house.admission.shared.counters.closed(closed);
        self.doors.has_room(&mut *self.dispatcher);
    }
}
