//! How connections come to a loop, and how they leave it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use netstack::device::Device;
use netstack::stack::FlowId;
use session::Session;

use super::{Acceptor, EventLoop};
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::netstack::connection::{Connection, FileReader};
use crate::engine::netstack::retransmit_buffer::RetransmitBuffer;
use crate::engine::reactor::{SHARE_OF_TURN, Wait, drop_session};
use crate::shared::CUTTING;

/// How long handshakes under way may take when the server stops to listen.
pub(super) const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(500);

/// How long the last bytes of a connection that has ended may take to be acknowledged: some two
/// minutes, as Linux gives a socket that nothing holds any more. tcp(7), `tcp_orphan_retries`
const LAST_BYTES_PATIENCE: Duration = Duration::from_secs(120);

/// How long the line of a refusal may take to be acknowledged: a round trip, and a retransmission.
/// The peer holds one of few places meanwhile.
const LINE_PATIENCE: Duration = Duration::from_secs(1);

/// How long the end of the server waits for the peers to acknowledge the ends of their connections.
/// It is sent again meanwhile, and afterwards nothing is: a few of the shortest time-outs.
pub(super) const ENDS_PATIENCE: Duration = Duration::from_secs(1);

impl<S: Session + 'static, O: Opens<S>, D: Device> EventLoop<S, O, D> {
    /// Takes those whose handshake is complete, as far as there is room, and time.
    pub(super) fn accept(&mut self) {
        self.has_more_to_accept = false;
        let mut until = None;
        let was_called = self.context.own.has_room.swap(false, Ordering::Acquire);
        self.is_in_line &= !was_called;
        while !self.is_in_line {
            let Some((id, listener)) = self.held.take().or_else(|| self.next_accepted()) else {
                break;
            };
            if !self.engine.connection_limit.has_room_for(&self.context.own) {
                self.held = Some((id, listener));
                self.is_in_line = true;
                self.engine.admission.shared.counters.accept_paused();
            } else if self.engine.connection_limit.enter() {
                self.welcome(id, listener);
                let now = self.context.update_clock().monotonic;
                if now >= *until.get_or_insert(now + SHARE_OF_TURN) {
                    self.has_more_to_accept = true;
                    break;
                }
            } else {
                self.held = Some((id, listener));
            }
        }
        if was_called {
            self.engine.connection_limit.pass_on();
        }
    }

    fn next_accepted(&mut self) -> Option<(FlowId, usize)> {
        let shard = self.netstack.shard();
        for &port in &self.ports {
            while let Some(id) = shard.accept(port) {
                let listener = shard.tuple(id);
                let listener =
                    listener.and_then(|it| self.engine.listener_of(it.local, it.local_port));
                match listener {
                    Some(listener) => return Some((id, listener)),
                    // Nothing listens at this address of the host.
                    None => shard.abort(id),
                }
            }
        }
        None
    }

    /// Begins to serve a connection, unless there is no room for it.
    fn welcome(&mut self, id: FlowId, listener: usize) {
        let admission = &self.engine.admission;
        let mut connection = Connection {
            id,
            machine: None,
            retransmit: RetransmitBuffer::default(),
            file: FileReader::default(),
            // Its long work is put off like that of others.
            waits: Wait::Thread,
            listener,
            is_queued: false,
        };
        if let Err(line) = admission.admit() {
            // In the clear also where TLS is spoken, as memcached does.
            let line = Bytes::from_static(line.as_bytes());
            self.netstack.shard().queue(id, line.len() as u64);
            connection
                .retransmit
                .put(&mut self.context.buffer_pool, line);
            self.connections.insert(connection);
            admission.refused();
            return self.leave(id, LINE_PATIENCE);
        }
        let tls = self.engine.listeners[listener].tls.as_ref();
        let mut machine = admission.machine(tls, self.context.now);
        machine.handle_server_state(self.server_state, self.context.now);
        connection.machine = Some(machine);
        self.connections.insert(connection);
        // Replies leave whole: a session's output of a turn is handed over before a frame is made.
        self.netstack.shard().set_nodelay(id, true);
        self.context.own.counters.accepted.add(1);
        self.go_on(id);
    }

    /// Ends a connection for the server, and counts why.
    pub(super) fn end(&mut self, id: FlowId, closed: Closed) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        drop_session(connection.machine.take());
        self.engine.admission.dismiss();
        self.engine.admission.shared.counters.closed(closed);
        // A peer that takes nothing is not sent what it has not taken.
        match closed == Closed::TooSlow || self.server_state == CUTTING {
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
        if has_ended || connection.retransmit.is_empty() {
            return self.part(id);
        }
        let until = self.context.now.monotonic + patience;
        connection.waits = Wait::Time { until };
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
                connection.retransmit.abandon(&mut self.context.buffer_pool);
            }
            self.timers.disarm(id.index() as u32);
            self.engine.connection_limit.leave();
        }
    }

    /// Ends with the handshakes that are under way.
    pub(super) fn stop_listening(&mut self) {
        let now = self.context.now.monotonic;
        let until = match self.acceptor {
            Acceptor::Closed => return,
            Acceptor::Closing(until) => until,
            Acceptor::Open => {
                for &port in &self.ports {
                    self.netstack.shard().refuse_handshakes(port);
                }
                now + HANDSHAKE_PATIENCE
            }
        };
        self.acceptor = Acceptor::Closing(until);
        let shard = self.netstack.shard();
        let mut left = self.ports.iter().map(|&port| shard.backlog_len(port));
        if now < until && (left.any(|len| len > 0) || self.held.is_some()) {
            return;
        }
        self.acceptor = Acceptor::Closed;
        for &port in &self.ports {
            self.netstack.shard().unlisten(port);
        }
        if let Some((id, _)) = self.held.take() {
            self.netstack.shard().abort(id);
        }
        self.engine.connection_limit.has_closed();
    }
}
