//! How connections come to a reader, come back to it, and end.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;

use event::Readiness;
use session::Session;

use super::{Reader, Slot};
use crate::clock;
use crate::connection::Action;
use crate::counters::Closed;
use crate::engine::pipeline::connection::{Arrival, Connection, Payload, cut, cut_arrival, guard};
use crate::engine::reactor::{Accepted, Socket, drop_session, slot_of};
use crate::shared::SERVING;

impl<S, O> Reader<S, O>
where
    S: Session + 'static,
{
    /// Takes over what has come, up to a batch.
    pub(super) fn take_arrivals(&mut self) {
        let mut arrivals = mem::take(&mut self.arrivals);
        self.has_more = self.queue.take(self.batch_max, &mut arrivals);
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Accepted(accepted) => self.welcome(accepted),
                Arrival::Back(connection) => self.take_back(connection),
                Arrival::Worked(name, job) => {
                    let Some(at) = slot_of(&mut self.slots, name) else {
                        drop_session(job);
                        continue;
                    };
                    let now = self.now;
                    match job {
                        Some(job) => {
                            self.tell(at, |connection| connection.machine.handle_worked(*job, now));
                        }
                        None => self.end(at, Closed::Error),
                    }
                }
            }
        }
        self.arrivals = arrivals;
    }

    /// Begins to serve a connection, unless there is no room for it.
    fn welcome(&mut self, accepted: Accepted) {
        let Some((accepted, machine)) = self.engine.welcome(accepted, self.now) else {
            return;
        };
        let slot = self.slots.vacant_entry();
        let (at, watch) = (slot.key(), self.poller.meet(slot.key()));
        let connection = Box::new(Connection {
            machine,
            socket: Socket::new(accepted.socket, self.poller.trusts_short_reads()),
            peer: accepted.peer,
            listener: accepted.listener,
            reader: self.number,
            name: watch.name,
            is_heard_by: None,
            writer: at % self.writers,
            payload: Payload::Nothing,
        });
        slot.insert(Slot {
            watch,
            connection: Some(connection),
            missed: Readiness::default(),
            is_expected: false,
        });
        self.own.counters.accepted.add(1);
        match self.server_state {
            SERVING => self.queue(at),
            _ => self.receive_news(at),
        }
    }

    /// Takes back those that rest. `is_expected` if it is to be woken for those that come later.
    pub(super) fn take_rested(&mut self, is_expected: bool) {
        let mut rested = mem::take(&mut self.rested);
        self.rest.take(&mut rested, is_expected);
        for connection in rested.drain(..) {
            self.take_back(connection);
        }
        self.rested = rested;
    }

    /// A connection is back at its slot.
    fn take_back(&mut self, mut connection: Box<Connection<S>>) {
        let name = connection.name;
        let at = slot_of(&mut self.slots, name).expect("a slot is kept until the end");
        let slot = &mut self.slots[at];
        connection.socket.is_ready(mem::take(&mut slot.missed));
        self.expected -= usize::from(mem::take(&mut slot.is_expected));
        match mem::replace(&mut connection.payload, Payload::Nothing) {
            Payload::Ruin => {
                slot.connection = Some(connection);
                return self.end(at, Closed::Error);
            }
            Payload::Watch(job) => {
                let queue = Arc::clone(&self.queue);
                let done = move |job: Option<_>| {
                    let worked = Arrival::Worked(name, job.map(Box::new));
                    // If the queue is closed, so is the connection.
                    queue.put(&mut VecDeque::from([worked]));
                };
                let jobs = &self.engine.admission.shared.jobs;
                if let Err(error) = jobs.work(*job, self.now, done) {
                    connection.machine.handle_error(&error, self.now);
                }
            }
            payload => connection.payload = payload,
        }
        slot.connection = Some(connection);
        match self.server_state {
            SERVING => self.settle(at),
            _ => self.receive_news(at),
        }
    }

    /// Lets a connection wait, or end, at once, and not behind those that are ready, if it has
    /// nothing for the session.
    fn settle(&mut self, at: usize) {
        let Some(connection) = &mut self.slots[at].connection else {
            return;
        };
        let rests = guard(connection, |connection| {
            match connection.machine.next_action() {
                Action::Receive { .. } | Action::Fill { .. } => !connection.socket.may_receive(),
                Action::Nothing | Action::Close(_) => true,
                _ => false,
            }
        });
        match rests {
            Some(false) => self.queue(at),
            Some(true) | None => self.go_on(at),
        }
    }

    /// Closes a connection and counts why.
    pub(super) fn end(&mut self, at: usize, closed: Closed) {
        let Slot {
            watch, connection, ..
        } = self.slots.remove(at);
        if let Some(connection) = connection {
            self.poller.forget(&watch, connection.socket.as_fd());
            self.engine.end(connection, closed);
        }
    }

    /// The server is over. What is with another stage ends there, or finds this queue closed.
    pub(super) fn end_all(mut self) {
        let (engine, now) = (&*self.engine, clock::now());
        for arrival in self.queue.close() {
            cut_arrival(engine, arrival, now);
        }
        let lines = [
            self.rest.close(),
            self.session.queue.close(),
            self.session.line.drain(..).collect(),
        ];
        let here = self.slots.drain().filter_map(|slot| slot.connection);
        for connection in lines.into_iter().flatten().chain(here) {
            cut(engine, connection, now);
        }
    }
}
