//! The read stage: a loop that receives, and keeps the connections that wait for input.
//!
//! ```text
//!  ┌▶ wait ──▶ reports ──▶ news of the server ──▶ arrivals ──▶ timers ──▶ receive ──▶ hand over ─┐
//!  └──────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A connection begins and ends here, and keeps its seat while it is with another stage: where
//! reports come by edge, it stays watched, so that no request costs a change of interest.
//! It is received from only if what comes can soon be handed over: while the session stage's queue
//! is full, bytes stay in the sockets.

mod lifetime;

use std::io;
use std::mem;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use event::{Interest, Readiness, Ready};
use session::{Now, Session};
use slab::Slab;

use super::connection::{Arrival, Cargo, Connection, Input, guard};
use super::queue::{Outlet, Queue};
use super::rest::Rest;
use super::stages::Stages;
use crate::carriage::Want;
use crate::clock;
use crate::counters::Closed;
use crate::engine::loops::{House, Lookout, Loop, ROOM_LEN, Seated, Waits, Watch, place_of};
use crate::shared::{CUTTING, SERVING};

/// See the [module page](self).
pub(super) struct Reader<S, O> {
    house: Arc<House<O>>,
    own: Arc<Loop>,
    /// Which of the readers it is.
    number: usize,
    writers: usize,
    queue: Arc<Queue<Arrival<S>>>,
    session: Outlet<Box<Connection<S>>>,
    batch_max: usize,
    lookout: Lookout,
    /// Whether connections stay watched while they are with another stage.
    keeps_watch: bool,
    /// Those that may have something for the session have a turn coming, in the order in which that
    /// came.
    seats: Slab<Seat<S>>,
    /// Those that came back and have nothing to do.
    rest: Arc<Rest<S>>,
    /// How many it has something for that are not back yet.
    expected: usize,
    /// More has come than a batch.
    has_more: bool,
    now: Now,
    /// What the server was doing at the last look.
    stage: u8,
    room: Vec<u8>,
    // Empty between two turns, and kept for their memory.
    arrivals: Vec<Arrival<S>>,
    rested: Vec<Box<Connection<S>>>,
}

/// The seat of a connection.
struct Seat<S> {
    watch: Watch,
    /// `None` while it is with another stage.
    connection: Option<Box<Connection<S>>>,
    /// What was reported of it meanwhile.
    missed: Readiness,
    /// Something happened meanwhile.
    is_expected: bool,
}

impl<S> Seated for Seat<S> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// What became of a connection that was ready.
enum Outcome {
    Waits(Waits),
    Leaves,
}

impl<S, O> Reader<S, O>
where
    S: Session + 'static,
{
    /// # Errors
    /// What the kernel says to the dispatcher.
    pub(super) fn new(
        house: Arc<House<O>>,
        stages: &Stages<S>,
        number: usize,
        keeps_watch: bool,
    ) -> io::Result<Reader<S, O>> {
        let reader = &stages.readers[number];
        let own = Arc::clone(&reader.own);
        let lookout = Lookout::new(&house, Arc::clone(&own))?;
        Ok(Reader {
            house,
            number,
            writers: stages.writers.len(),
            queue: Arc::clone(&reader.queue),
            session: Outlet::new(&stages.sessions, &own),
            own,
            batch_max: stages.batch_max,
            keeps_watch: keeps_watch && !lookout.is_level,
            lookout,
            seats: Slab::new(),
            rest: Arc::clone(&stages.rests[number]),
            expected: 0,
            has_more: false,
            now: clock::now(),
            stage: SERVING,
            room: vec![0; ROOM_LEN],
            arrivals: Vec::new(),
            rested: Vec::new(),
        })
    }

    /// Reads until the server is over.
    pub(super) fn run(mut self) {
        while self.stage != CUTTING {
            let timeout = self.patience();
            self.lookout.wait(timeout);
            self.now = clock::now();
            self.take_rested(false);
            self.hear_reports();
            self.hear_news();
            self.take_arrivals();
            if self.expected > 0 || self.stage != SERVING {
                self.take_rested(true);
            }
            self.look_at_timers();
            self.serve_ready();
        }
        self.end_all();
    }

    /// For how long nothing happens unless something is reported.
    fn patience(&self) -> Option<Duration> {
        if self.has_more || (self.lookout.turns() > 0 && !self.is_stuck()) {
            return Some(Duration::ZERO);
        }
        let next = self.lookout.next_expiry()?;
        Some(next.saturating_duration_since(self.now.monotonic))
    }

    /// Whether there is as much to hand over as may wait for room.
    fn is_stuck(&self) -> bool {
        self.session.line.len() >= self.batch_max
    }

    fn hear_reports(&mut self) {
        while let Some(Ready { token, readiness }) = self.lookout.next_report() {
            let Some(at) = place_of(&mut self.seats, token.0) else {
                continue; // It has ended in this turn.
            };
            let seat = &mut self.seats[at];
            let Some(connection) = &mut seat.connection else {
                seat.missed |= readiness;
                self.expect_back(at);
                continue;
            };
            connection.wire.is_ready(readiness);
            if self.lookout.is_level {
                // It would be reported again and again until the session stage has room for it.
                self.lookout
                    .unwatch(&mut seat.watch, connection.wire.as_fd());
            }
            if readiness.is_readable() {
                self.lookout.queue(&mut seat.watch);
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
        for at in places {
            self.receive_news(at);
        }
    }

    fn receive_news(&mut self, at: usize) {
        let (stage, now) = (self.stage, self.now);
        self.tell(at, |connection| connection.carriage.at_stage(stage, now));
    }

    /// Tells a connection something that may give it something to do.
    fn tell(&mut self, at: usize, told: impl FnOnce(&mut Connection<S>)) {
        let Some(connection) = &mut self.seats[at].connection else {
            return; // It is with another stage, and will be told there.
        };
        match guard(connection, told) {
            Some(()) => self.queue(at),
            None => self.end(at, Closed::Error),
        }
    }

    fn look_at_timers(&mut self) {
        self.lookout.expire(self.now.monotonic);
        while let Some(at) = self.lookout.next_expired(&mut self.seats) {
            let Seat {
                watch, connection, ..
            } = &mut self.seats[at];
            let until = connection
                .as_ref()
                .map(|connection| connection.carriage.deadline());
            if self.lookout.is_over(watch, until)
                && let Some(connection) = connection
            {
                // If a report was lost, this finds what it was about.
                connection.wire.try_again();
                self.lookout.queue(watch);
            } else if connection.is_none() {
                self.expect_back(at);
                // Once more, to be woken for it.
                self.has_more = true;
            }
        }
    }

    /// Receives for those that are ready, as far as that can be handed over.
    fn serve_ready(&mut self) {
        for _ in 0..self.lookout.turns() {
            if self.is_stuck() {
                self.session.hand_over();
                if self.is_stuck() {
                    return;
                }
            }
            if let Some(at) = self.lookout.take_turn(&mut self.seats) {
                self.go_on(at);
            }
        }
        self.session.hand_over();
    }

    /// Goes on with a connection until it waits or leaves.
    fn go_on(&mut self, at: usize) {
        let Seat {
            watch, connection, ..
        } = &mut self.seats[at];
        let Some(there) = connection else {
            return; // It is with another stage.
        };
        let (room, now) = (&mut *self.room, self.now);
        let driven = guard(there, |connection| connection.read(room, now));
        let is_heard_of = match driven.unwrap_or(Outcome::Waits(Waits::End(Closed::Error))) {
            Outcome::Waits(Waits::Input { until }) => {
                self.lookout.arm(watch, until);
                self.lookout
                    .watch(watch, there.wire.as_fd(), Interest::READ)
            }
            Outcome::Waits(Waits::End(closed)) => return self.end(at, closed),
            // For work.
            Outcome::Waits(_) => Ok(()),
            Outcome::Leaves => {
                there.is_heard_by = match self.keeps_watch {
                    true => self.lookout.comes_at(watch),
                    false => None,
                };
                if !self.keeps_watch {
                    self.lookout.unwatch(watch, there.wire.as_fd());
                }
                self.session.line.extend(connection.take());
                Ok(())
            }
        };
        // The kernel has no memory to watch it: better an end that is counted than a connection
        // that is never heard of.
        if is_heard_of.is_err() {
            self.end(at, Closed::Error);
        }
    }

    fn queue(&mut self, at: usize) {
        self.lookout.queue(&mut self.seats[at].watch);
    }

    /// Something has happened to a connection that is with another stage.
    fn expect_back(&mut self, at: usize) {
        let is_new = !mem::replace(&mut self.seats[at].is_expected, true);
        self.expected += usize::from(is_new);
    }
}

impl<S: Session> Connection<S> {
    /// Receives, or finds out what it waits for.
    fn read(&mut self, room: &mut [u8], now: Now) -> Outcome {
        loop {
            let Connection {
                carriage,
                wire,
                cargo,
                ..
            } = self;
            let (received, is_fill) = match carriage.want() {
                Want::Receive { until } => {
                    let part = carriage.shared().memory.part_of(room);
                    (wire.receive(part, until), false)
                }
                Want::Fill { room, until } => (wire.receive(room, until), true),
                // The session is made as soon as there is a connection; but the first request is
                // often there already.
                Want::Open { .. } => {
                    let part = carriage.shared().memory.part_of(room);
                    match wire.receive(part, carriage.deadline()) {
                        Continue(received) => (Continue(received), false),
                        Break(_) => return Outcome::Leaves,
                    }
                }
                Want::Nothing => return Outcome::Waits(Waits::Helper),
                Want::Close(closed) => return Outcome::Waits(Waits::End(closed)),
                _ => return Outcome::Leaves,
            };
            match received {
                Continue(Ok(len)) => {
                    *cargo = match is_fill {
                        true => Cargo::Filled(len),
                        false => {
                            let memory = &carriage.shared().memory;
                            Cargo::Input(Input::new(&room[..len], memory))
                        }
                    };
                    return Outcome::Leaves;
                }
                Continue(Err(error)) => carriage.failed(&error, now),
                Break(waits) if waits.are_over(now) => carriage.expired(now),
                Break(waits) => return Outcome::Waits(waits),
            }
        }
    }
}
