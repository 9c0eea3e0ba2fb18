//! How connections come to a loop, and how they leave it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use netstack::device::Device;
use netstack::stack::FlowId;
use session::Session;

use super::{Entrance, Worker};
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::loops::{SHARE_OF_TURN, Waits, drop_session};
use crate::engine::netstack::connection::{Connection, FileReader};
use crate::engine::netstack::flight::Flight;
use crate::shared::CUTTING;

/// How long handshakes under way may take when the server stops to listen.
pub(in crate::engine::netstack) const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(500);

/// How long the last bytes of a connection that has ended may take to be acknowledged: some two
/// minutes, as Linux gives a socket that nothing holds any more. tcp(7), `tcp_orphan_retries`
pub(in crate::engine::netstack) const LAST_BYTES_PATIENCE: Duration = Duration::from_secs(120);

/// How long the line of a refusal may take to be acknowledged: a round trip, and a retransmission.
/// The peer holds one of few places meanwhile.
pub(in crate::engine::netstack) const LINE_PATIENCE: Duration = Duration::from_secs(1);

/// How long the end of the server waits for the peers to acknowledge the ends of their connections.
/// It is sent again meanwhile, and afterwards nothing is: a few of the shortest time-outs.
pub(in crate::engine::netstack) const ENDS_PATIENCE: Duration = Duration::from_secs(1);

impl<S: Session + 'static, O: Opens<S>, D: Device> Worker<S, O, D> {
    /// Takes those whose handshake is complete, as far as there is room, and time.
    pub(super) fn accept(&mut self) {
        self.has_more_to_accept = false;
        let mut until = None;
        let was_called = self.desk.own.has_room.swap(false, Ordering::Acquire);
        self.is_in_line &= !was_called;
        while !self.is_in_line {
            let Some((id, door)) = self.held.take().or_else(|| self.next_accepted()) else {
                break;
            };
            if !self.hall.gate.has_room_for(&self.desk.own) {
                self.held = Some((id, door));
                self.is_in_line = true;
                self.hall.admission.shared.counters.accept_paused();
            } else if self.hall.gate.enter() {
                self.welcome(id, door);
                let now = self.desk.look_at_clock().monotonic;
                if now >= *until.get_or_insert(now + SHARE_OF_TURN) {
                    self.has_more_to_accept = true;
                    break;
                }
            } else {
                self.held = Some((id, door));
            }
        }
        if was_called {
            self.hall.gate.pass_on();
        }
    }

    fn next_accepted(&mut self) -> Option<(FlowId, usize)> {
        let shard = self.netstack.shard();
        for &port in &self.ports {
            while let Some(id) = shard.accept(port) {
                let door = shard.tuple(id);
                let door = door.and_then(|it| self.hall.door_of(it.local, it.local_port));
                match door {
                    Some(door) => return Some((id, door)),
                    // Nothing listens at this address of the host.
                    None => shard.abort(id),
                }
            }
        }
        None
    }

    /// Begins to serve a connection, unless there is no room for it.
    fn welcome(&mut self, id: FlowId, door: usize) {
        let admission = &self.hall.admission;
        let mut connection = Connection {
            id,
            carriage: None,
            flight: Flight::default(),
            file: FileReader::default(),
            // Its long work is put off like that of others.
            waits: Waits::Helper,
            door,
            is_queued: false,
        };
        if let Err(line) = admission.admit() {
            // In the clear also where TLS is spoken, as memcached does.
            let line = Bytes::from_static(line.as_bytes());
            self.netstack.shard().queue(id, line.len() as u64);
            connection.flight.put(&mut self.desk.hangar, line);
            self.connections.insert(connection);
            admission.refused();
            return self.leave(id, LINE_PATIENCE);
        }
        let tls = self.hall.doors[door].tls.as_ref();
        let mut carriage = admission.carriage(tls, self.desk.now);
        carriage.at_stage(self.stage, self.desk.now);
        connection.carriage = Some(carriage);
        self.connections.insert(connection);
        // Replies leave whole: a session's output of a turn is handed over before a frame is made.
        self.netstack.shard().set_nodelay(id, true);
        self.desk.own.counters.accepted.add(1);
        self.go_on(id);
    }

    /// Ends a connection for the server, and counts why.
    pub(super) fn end(&mut self, id: FlowId, closed: Closed) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        drop_session(connection.carriage.take());
        self.hall.admission.dismiss();
        self.hall.admission.shared.counters.closed(closed);
        // A peer that takes nothing is not sent what it has not taken.
        match closed == Closed::TooSlow || self.stage == CUTTING {
            true => self.abort(id),
            false => self.leave(id, LAST_BYTES_PATIENCE),
        }
    }

    /// Sends the end of the stream. The connection stays until the peer has acknowledged all bytes,
    /// which nothing else would send again, and keeps its place until then. It is reset if that
    /// takes too long.
    fn leave(&mut self, id: FlowId, patience: Duration) {
        self.netstack.shard().finish(id);
        let has_ended = self.netstack.shard().end(id).is_some();
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if has_ended || connection.flight.is_empty() {
            return self.part(id);
        }
        let until = self.desk.now.monotonic + patience;
        connection.waits = Waits::Time { until };
        self.arm(id, until);
    }

    /// The peer has everything: the rest is the shard's.
    pub(super) fn part(&mut self, id: FlowId) {
        let now = self.now();
        self.netstack.shard().close(now, id);
        self.forget(id);
    }

    /// Resets the connection.
    pub(super) fn abort(&mut self, id: FlowId) {
        self.netstack.shard().abort(id);
        self.forget(id);
    }

    fn forget(&mut self, id: FlowId) {
        if let Some(place) = self.connections.0.get_mut(id.index()) {
            if let Some(connection) = place.take() {
                connection.flight.abandon(&mut self.desk.hangar);
            }
            self.timers.disarm(id.index() as u32);
            self.hall.gate.leave();
        }
    }

    /// Ends with the handshakes that are under way.
    pub(super) fn close_entrance(&mut self) {
        let now = self.desk.now.monotonic;
        let until = match self.entrance {
            Entrance::Closed => return,
            Entrance::Closing(until) => until,
            Entrance::Open => {
                for &port in &self.ports {
                    self.netstack.shard().refuse_handshakes(port);
                }
                now + HANDSHAKE_PATIENCE
            }
        };
        self.entrance = Entrance::Closing(until);
        let shard = self.netstack.shard();
        let mut left = self.ports.iter().map(|&port| shard.backlog_len(port));
        if now < until && (left.any(|len| len > 0) || self.held.is_some()) {
            return;
        }
        self.entrance = Entrance::Closed;
        for &port in &self.ports {
            self.netstack.shard().unlisten(port);
        }
        if let Some((id, _)) = self.held.take() {
            self.netstack.shard().abort(id);
        }
        self.hall.gate.has_closed();
    }
}
