//! How connections come to a reader, come back to it, and end.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;

use event::Readiness;
use session::Session;

use super::{Reader, Seat};
use crate::carriage::Want;
use crate::clock;
use crate::counters::Closed;
use crate::engine::loops::{Accepted, Wire, drop_session, place_of};
use crate::engine::pipeline::connection::{Arrival, Cargo, Connection, cut, cut_arrival, guard};
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
                    let Some(at) = place_of(&mut self.seats, name) else {
                        drop_session(job);
                        continue;
                    };
                    let now = self.now;
                    match job {
                        Some(job) => {
                            self.tell(at, |connection| connection.carriage.worked(*job, now));
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
        let Some((accepted, carriage)) = self.house.welcome(accepted, self.now) else {
            return;
        };
        let seat = self.seats.vacant_entry();
        let (at, watch) = (seat.key(), self.lookout.meet(seat.key()));
        let connection = Box::new(Connection {
            carriage,
            wire: Wire::new(accepted.socket, self.lookout.trusts_short_reads()),
            peer: accepted.peer,
            listener: accepted.listener,
            reader: self.number,
            name: watch.name,
            is_heard_by: None,
            writer: at % self.writers,
            cargo: Cargo::Nothing,
        });
        seat.insert(Seat {
            watch,
            connection: Some(connection),
            missed: Readiness::default(),
            is_expected: false,
        });
        self.own.counters.accepted.add(1);
        match self.stage {
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

    /// A connection is back at its seat.
    fn take_back(&mut self, mut connection: Box<Connection<S>>) {
        let name = connection.name;
        let at = place_of(&mut self.seats, name).expect("a seat is kept until the end");
        let seat = &mut self.seats[at];
        connection.wire.is_ready(mem::take(&mut seat.missed));
        self.expected -= usize::from(mem::take(&mut seat.is_expected));
        match mem::replace(&mut connection.cargo, Cargo::Nothing) {
            Cargo::Ruin => {
                seat.connection = Some(connection);
                return self.end(at, Closed::Error);
            }
            Cargo::Watch(job) => {
                let queue = Arc::clone(&self.queue);
                let done = move |job: Option<_>| {
                    let worked = Arrival::Worked(name, job.map(Box::new));
                    // If the queue is closed, so is the connection.
                    queue.put(&mut VecDeque::from([worked]));
                };
                let jobs = &self.house.admission.shared.jobs;
                if let Err(error) = jobs.work(*job, self.now, done) {
                    connection.carriage.failed(&error, self.now);
                }
            }
            cargo => connection.cargo = cargo,
        }
        seat.connection = Some(connection);
        match self.stage {
            SERVING => self.settle(at),
            _ => self.receive_news(at),
        }
    }

    /// Lets a connection wait, or end, at once, and not behind those that are ready, if it has
    /// nothing for the session.
    fn settle(&mut self, at: usize) {
        let Some(connection) = &mut self.seats[at].connection else {
            return;
        };
        let rests = guard(connection, |connection| match connection.carriage.want() {
            Want::Receive { .. } | Want::Fill { .. } => !connection.wire.may_receive(),
            Want::Nothing | Want::Close(_) => true,
            _ => false,
        });
        match rests {
            Some(false) => self.queue(at),
            Some(true) | None => self.go_on(at),
        }
    }

    /// Closes a connection and counts why.
    pub(super) fn end(&mut self, at: usize, closed: Closed) {
        let Seat {
            watch, connection, ..
        } = self.seats.remove(at);
        if let Some(connection) = connection {
            self.lookout.forget(&watch, connection.wire.as_fd());
            self.house.end(connection, closed);
        }
    }

    /// The server is over. What is with another stage ends there, or finds this queue closed.
    pub(super) fn end_all(mut self) {
        let (house, now) = (&*self.house, clock::now());
        for arrival in self.queue.close() {
            cut_arrival(house, arrival, now);
        }
        let lines = [
            self.rest.close(),
            self.session.queue.close(),
            self.session.line.drain(..).collect(),
        ];
        let here = self.seats.drain().filter_map(|seat| seat.connection);
        for connection in lines.into_iter().flatten().chain(here) {
            cut(house, connection, now);
        }
    }
}
