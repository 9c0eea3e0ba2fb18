//! The write stage: a loop that sends, and keeps the connections whose peers take their time.
//!
//! ```text
//!  ┌▶ wait ──▶ reports ──▶ news of the server ──▶ turns ──▶ arrivals ──▶ timers ──▶ hand over ─┐
//!  └────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Most replies are taken at once, and such a connection never gets a seat here. Nothing in this
//! loop waits but its dispatcher: a connection for which another stage has no room waits in line
//! here, so that what comes from the session stage always finds room soon.

use std::io;
use std::mem;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event::{Interest, Ready};
use session::{Now, Session};
use slab::Slab;

use super::connection::{Arrival, Cargo, Connection, Stop, cut, cut_arrival, guard};
use super::queue::{Outlet, Queue};
use super::rest::Rest;
use super::stages::Stages;
use crate::clock;
use crate::engine::loops::{
    House, LongUntil, Lookout, Loop, SHARE_OF_TURN, Seated, Waits, Watch, output, place_of,
    take_steps,
};
use crate::shared::{CUTTING, SERVING};

/// See the [module page](self).
pub(super) struct Writer<S, O> {
    house: Arc<House<O>>,
    own: Arc<Loop>,
    queue: Arc<Queue<Box<Connection<S>>>>,
    session: Outlet<Box<Connection<S>>>,
    readers: Vec<Outlet<Arrival<S>>>,
    rests: Vec<Arc<Rest<S>>>,
    batch_max: usize,
    lookout: Lookout,
    seats: Slab<Seat<S>>,
    /// More has come than a batch.
    has_more: bool,
    now: Now,
    /// Until when this turn of the loop goes on with long work.
    long_until: Instant,
    /// What the server was doing at the last look.
    stage: u8,
    // Empty between two turns, and kept for their memory.
    arrivals: Vec<Box<Connection<S>>>,
}

/// The seat of a connection that waits.
struct Seat<S> {
    watch: Watch,
    connection: Box<Connection<S>>,
    waits: Waits,
}

impl<S> Seated for Seat<S> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// What became of a connection.
enum Outcome {
    Waits(Waits),
    Leaves(Stop),
}

impl<S, O> Writer<S, O>
where
    S: Session + 'static,
{
    /// # Errors
    /// What the kernel says to the dispatcher.
    pub(super) fn new(
        house: Arc<House<O>>,
        stages: &Stages<S>,
        number: usize,
    ) -> io::Result<Writer<S, O>> {
        let writer = &stages.writers[number];
        let own = Arc::clone(&writer.own);
        let readers = stages.readers.iter();
        Ok(Writer {
            lookout: Lookout::new(&house, Arc::clone(&own))?,
            house,
            queue: Arc::clone(&writer.queue),
            session: Outlet::new(&stages.sessions, &own),
            readers: readers
                .map(|reader| Outlet::new(&reader.queue, &own))
                .collect(),
            rests: stages.rests.clone(),
            own,
            batch_max: stages.batch_max,
            seats: Slab::new(),
            has_more: false,
            now: clock::now(),
            long_until: Instant::now(),
            stage: SERVING,
            arrivals: Vec::new(),
        })
    }

    /// Writes until the server is over.
    pub(super) fn run(mut self) {
        while self.stage != CUTTING {
            let timeout = self.patience();
            self.lookout.wait(timeout);
            self.now = clock::now();
            self.long_until = self.now.monotonic + SHARE_OF_TURN;
            self.hear_reports();
            self.hear_news();
            self.give_turns();
            self.take_arrivals();
            self.look_at_timers();
            self.session.hand_over();
            self.readers.iter_mut().for_each(Outlet::hand_over);
        }
        self.end_all();
    }

    /// For how long nothing happens unless something is reported.
    fn patience(&self) -> Option<Duration> {
        if self.has_more || self.lookout.turns() > 0 {
            return Some(Duration::ZERO);
        }
        let next = self.lookout.next_expiry()?;
        Some(next.saturating_duration_since(self.now.monotonic))
    }

    fn hear_reports(&mut self) {
        while let Some(Ready { token, readiness }) = self.lookout.next_report() {
            let Some(at) = place_of(&mut self.seats, token.0) else {
                continue; // It has left in this turn.
            };
            let seat = &mut self.seats[at];
            seat.connection.wire.is_ready(readiness);
            match seat.waits {
                Waits::Room { .. } if readiness.is_writable() => self.go_on(at),
                // It would be reported again and again, for as long as it waits for something else.
                _ if self.lookout.is_level => {
                    self.lookout
                        .unwatch(&mut seat.watch, seat.connection.wire.as_fd());
                }
                _ => {}
            }
        }
    }

    /// Whether the server drains or is over.
    fn hear_news(&mut self) {
        let stage = self.house.admission.shared.stage.get();
        if stage == mem::replace(&mut self.stage, stage) || stage == CUTTING {
            return;
        }
        let places: Vec<_> = self.seats.iter().map(|(at, _)| at).collect();
        places.into_iter().for_each(|at| self.go_on(at));
    }

    /// A turn for each that waits for one now, or for as many as there is time for.
    fn give_turns(&mut self) {
        for _ in 0..self.lookout.turns() {
            if let Some(at) = self.lookout.take_turn(&mut self.seats) {
                self.go_on(at);
            }
            self.now = clock::now();
            if self.now.monotonic >= self.long_until {
                break;
            }
        }
    }

    /// Sends for those that have come, up to a batch.
    fn take_arrivals(&mut self) {
        let mut arrivals = mem::take(&mut self.arrivals);
        self.has_more = self.queue.take(self.batch_max, &mut arrivals);
        for mut connection in arrivals.drain(..) {
            let long_until = Some(self.long_until);
            let driven = drive(
                &mut connection,
                self.stage,
                &mut self.now,
                long_until,
                &self.own,
            );
            match driven {
                Outcome::Leaves(stop) => self.dispatch(connection, stop),
                Outcome::Waits(waits) => {
                    let seat = self.seats.vacant_entry();
                    let (at, watch) = (seat.key(), self.lookout.meet(seat.key()));
                    seat.insert(Seat {
                        watch,
                        connection,
                        waits,
                    });
                    self.wait_for(at, waits);
                }
            }
        }
        self.arrivals = arrivals;
    }

    fn look_at_timers(&mut self) {
        self.lookout.expire(self.now.monotonic);
        while let Some(at) = self.lookout.next_expired(&mut self.seats) {
            let seat = &mut self.seats[at];
            if self.lookout.is_over(&mut seat.watch, seat.waits.until()) {
                // If a report was lost, this finds what it was about.
                seat.connection.wire.try_again();
                self.go_on(at);
            }
        }
    }

    /// Goes on with a connection that has a seat.
    fn go_on(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        // In its turn nothing is put off.
        let long_until = (!matches!(seat.waits, Waits::Turn)).then_some(self.long_until);
        let connection = &mut seat.connection;
        match drive(connection, self.stage, &mut self.now, long_until, &self.own) {
            Outcome::Leaves(stop) => self.leave(at, stop),
            Outcome::Waits(waits) => {
                seat.waits = waits;
                self.wait_for(at, waits);
            }
        }
    }

    /// Sees to it that a connection is heard of when its wait is over.
    fn wait_for(&mut self, at: usize, waits: Waits) {
        let Seat {
            watch, connection, ..
        } = &mut self.seats[at];
        match waits {
            Waits::Room { until } => {
                self.lookout.arm(watch, until);
                let (fd, was_watched) = (connection.wire.as_fd(), watch.is_watched());
                if self.lookout.watch(watch, fd, Interest::WRITE).is_err() {
                    // The kernel has no memory to watch it: better an end that is counted than a
                    // connection that is never heard of.
                    connection.cargo = Cargo::Ruin;
                    self.leave(at, Stop::Read);
                } else if !was_watched && self.lookout.misses_room() {
                    connection.wire.try_again();
                    self.lookout.queue(watch);
                }
            }
            Waits::Time { until } => self.lookout.arm(watch, until),
            _ => self.lookout.queue(watch),
        }
    }

    /// A connection gives up its seat.
    fn leave(&mut self, at: usize, stop: Stop) {
        let Seat {
            mut watch,
            connection,
            ..
        } = self.seats.remove(at);
        self.lookout.part(&mut watch, connection.wire.as_fd());
        self.dispatch(connection, stop);
    }

    fn dispatch(&mut self, connection: Box<Connection<S>>, stop: Stop) {
        match stop {
            Stop::Rest => {
                if let Some(late) = self.rests[connection.reader].put(connection) {
                    cut(&self.house, late, self.now);
                }
            }
            Stop::Read => {
                let line = &mut self.readers[connection.reader].line;
                line.push_back(Arrival::Back(connection));
            }
            _ => self.session.line.push_back(connection),
        }
    }

    /// The server is over. What is with another stage ends there, or finds this queue closed.
    fn end_all(mut self) {
        let (house, now) = (&*self.house, clock::now());
        let lines = [
            self.queue.close(),
            self.session.queue.close(),
            self.session.line.drain(..).collect(),
        ];
        let here = self.seats.drain().map(|seat| seat.connection);
        for connection in lines.into_iter().flatten().chain(here) {
            cut(house, connection, now);
        }
        for reader in &mut self.readers {
            for arrival in reader.line.drain(..) {
                cut_arrival(house, arrival, now);
            }
        }
    }
}

/// Sends what is on its way out until that has to wait, or is up to another stage.
fn drive<S: Session>(
    connection: &mut Connection<S>,
    stage: u8,
    now: &mut Now,
    long_until: LongUntil,
    own: &Loop,
) -> Outcome {
    let driven = guard(connection, |connection| {
        connection.carriage.at_stage(stage, *now);
        connection.write(now, long_until, own)
    });
    driven.unwrap_or(Outcome::Leaves(Stop::Read))
}

impl<S: Session> Connection<S> {
    fn write(&mut self, now: &mut Now, long_until: LongUntil, own: &Loop) -> Outcome {
        let outcome = take_steps(|| {
            match self.next_stop() {
                Stop::Write => {}
                stop => return Break(Outcome::Leaves(stop)),
            }
            let Connection {
                carriage,
                wire,
                cargo,
                ..
            } = self;
            let slow = |read| {
                own.counters.slow_reads.add(1);
                *cargo = Cargo::Cold(Box::new(read));
            };
            match output(carriage, wire, now, long_until, Some(slow)) {
                Continue(len) => return Continue(len),
                Break(Waits::Helper) => return Break(Outcome::Leaves(Stop::Block)),
                Break(waits) if waits.are_over(*now) => carriage.expired(*now),
                Break(waits) => return Break(Outcome::Waits(waits)),
            }
            Continue(0)
        });
        outcome.unwrap_or(Outcome::Waits(Waits::Turn))
    }
}
