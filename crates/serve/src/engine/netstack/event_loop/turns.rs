//! How a loop goes on with its connections: when, and with what they are told.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use netstack::device::Device;
use netstack::stack::FlowId;
use session::{Now, Session};

use super::{EventLoop, net_instant};
use crate::connection::Machine;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::netstack::connection::FileReader;
use crate::engine::reactor::Wait;

impl<S: Session + 'static, O: Opens<S>, D: Device> EventLoop<S, O, D> {
    /// A turn for each that waits for one now, or for as many as there is time for.
    pub(super) fn run_queued(&mut self) {
        for _ in 0..self.turns.len() {
            let Some(id) = self.turns.pop_front() else {
                return;
            };
            if let Some(connection) = self.connections.get_mut(id) {
                connection.is_queued = false;
                self.go_on(id);
            }
            if self.context.update_clock().monotonic >= self.context.long_until {
                return;
            }
        }
    }

    pub(super) fn expire_timers(&mut self) {
        let now = self.now();
        while let Some(index) = self.timers.expired(now) {
            let Some(Some(connection)) = self.connections.0.get(index as usize) else {
                continue;
            };
            let id = connection.id;
            let Some(until) = connection.waits.until() else {
                continue;
            };
            if until > self.context.now.monotonic {
                // It was put off.
                self.arm(id, until);
            } else if connection.machine.is_some() {
                self.go_on(id);
            } else {
                self.abort(id);
            }
        }
    }

    /// Goes on with a connection until it waits.
    #[inline]
    pub(super) fn go_on(&mut self, id: FlowId) {
        self.tell(id, |_, _, _| ());
    }

    /// Tells a connection something, and goes on with it, unless it has ended for the server.
    #[inline]
    pub(super) fn tell(
        &mut self,
        id: FlowId,
        told: impl FnOnce(&mut Machine<S>, &mut FileReader, Now),
    ) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if connection.machine.is_none() {
            return;
        }
        let (context, shard) = (&mut self.context, self.netstack.shard());
        let driven = catch_unwind(AssertUnwindSafe(|| {
            if let Some(machine) = &mut connection.machine {
                told(machine, &mut connection.file, context.now);
            }
            connection.drive(context, shard, &self.engine.admission)
        }));
        // A session that panics is our mistake, and ends this connection only: the hook has
        // reported it.
        match driven.unwrap_or(Wait::End(Closed::Error)) {
            Wait::Input { until } | Wait::Writable { until } | Wait::Time { until } => {
                self.arm(id, until);
            }
            Wait::Turn => {
                if !mem::replace(&mut connection.is_queued, true) {
                    self.turns.push_back(id);
                }
            }
            Wait::Thread => {}
            Wait::End(closed) => self.end(id, closed),
        }
    }

    pub(super) fn arm(&mut self, id: FlowId, until: Instant) {
        let at = net_instant(self.start, until);
        self.timers.arm(id.index() as u32, at);
    }
}
