//! One loop: a kernel thread that waits for whatever comes next, and goes on with the connections
//! that it is for.
//!
//! ```text
//!  ┌▶ wait ──▶ reports ──▶ news of the server ──▶ letters ──▶ turns ──▶ timers ──▶ accept ─┐
//!  └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

mod lifetime;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Ready, Token, Trigger};
use fiber::{Tick, Wheel};
use session::{Now, Opening, Session};
use slab::Slab;

use super::connection::{Connection, Desk, Waits};
use super::doors::Doors;
use super::entrance::Entrance;
use super::mailbox::{Letter, Mailbox};
use super::{House, Loop};
use crate::clock;
use crate::counters::Closed;
use crate::shared::{CUTTING, DRAINING, SERVING};

/// The name of the bell in reports.
const BELL: u64 = u64::MAX;

/// The name of the first listener. Connections have smaller names: their place, and a number that
/// grows.
pub(super) const DOORS: u64 = 1 << 63;

/// As much is received at a time: all that has come meanwhile, as a rule, and little enough for a
/// processor's cache.
const ROOM_LEN: usize = 64 * 1024;

/// A tick of the timers is some 131 µs: the shortest wait is 100 µs, and a shift is cheaper than a
/// division.
const TICK_SHIFT: u32 = 17;

/// After an error of the dispatcher, which would come back at once.
const ERROR_PAUSE: Duration = Duration::from_millis(5);

/// See the [module page](self).
pub(super) struct Worker<S, O> {
    house: Arc<House<O>>,
    own: Arc<Loop>,
    dispatcher: Box<dyn Dispatcher>,
    is_level: bool,
    entrance: Entrance,
    connections: Slab<Box<Connection<S>>>,
    /// How many connections there have been: the half of a name that tells it from others at the
    /// same place.
    serial: u32,
    desk: Desk<S>,
    timers: Wheel<u64>,
    /// Those that have a turn coming.
    turns: VecDeque<u64>,
    /// What the server was doing at the last look.
    stage: u8,
    // Empty between two turns, and kept for their memory.
    reports: Vec<Ready>,
    letters: Vec<Letter<S>>,
    expired: Vec<u64>,
}

impl<S, O> Worker<S, O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S,
{
    /// # Errors
    /// What the kernel says to the dispatcher.
    pub(super) fn new(
        house: Arc<House<O>>,
        own: Arc<Loop>,
        mailbox: Arc<Mailbox<S>>,
        doors: Doors,
    ) -> io::Result<Worker<S, O>> {
        let mut dispatcher = (house.open_dispatcher)()?;
        let is_level = match dispatcher.trigger() {
            Trigger::Level => true,
            Trigger::Edge => false,
            // It would cost a call for each report, and has nothing to offer for it.
            Trigger::OneShot => return Err(io::ErrorKind::Unsupported.into()),
        };
        dispatcher.add(own.bell.as_fd(), Token(BELL), Interest::READ.pinned())?;
        let mut entrance = Entrance::new(doors, &house, Arc::clone(&own));
        entrance.open(&mut *dispatcher)?;
        let desk = Desk {
            now: clock::now(),
            room: vec![0; ROOM_LEN],
            mailbox,
            jobs: Arc::clone(&house.admission.shared.jobs),
            has_file_threads: house.options.has_file_threads,
            sent_len: 0,
        };
        Ok(Worker {
            house,
            own,
            dispatcher,
            is_level,
            entrance,
            connections: Slab::new(),
            serial: 0,
            desk,
            timers: Wheel::new(),
            turns: VecDeque::new(),
            stage: SERVING,
            reports: Vec::new(),
            letters: Vec::new(),
            expired: Vec::new(),
        })
    }

    /// Serves until the server is over and the last connection has ended.
    pub(super) fn run(mut self) {
        while !(self.stage == CUTTING && self.entrance.is_closed() && self.connections.is_empty()) {
            self.wait();
            self.hear_reports();
            // After the bell, which is among the reports, was made ready to ring again.
            self.hear_news();
            self.read_letters();
            self.give_turns();
            self.look_at_timers();
            self.accept();
        }
    }

    fn wait(&mut self) {
        let timeout = self.patience();
        if self.dispatcher.wait(&mut self.reports, timeout).is_err() {
            // What was ready is reported by a later wait.
            self.own.counters.errors.add(1);
            thread::sleep(ERROR_PAUSE);
        }
        self.desk.look_at_clock();
        self.own.counters.waits.add(1);
        self.own.counters.reports.add(self.reports.len() as u64);
    }

    /// For how long nothing happens unless something is reported.
    fn patience(&self) -> Option<Duration> {
        if !self.turns.is_empty() || self.entrance.has_some() {
            return Some(Duration::ZERO);
        }
        let expiry = self.timers.next_expiry();
        let expiry = expiry.map(|tick| self.start() + Duration::from_nanos(tick << TICK_SHIFT));
        let next = [expiry, self.entrance.rest_until()]
            .into_iter()
            .flatten()
            .min();
        next.map(|next| next.saturating_duration_since(self.desk.now.monotonic))
    }

    fn start(&self) -> Instant {
        self.house.admission.shared.start
    }

    /// Whether the server drains or is over.
    fn hear_news(&mut self) {
        if self.house.gate.is_closing() && !self.entrance.is_closed() {
            if let Some(accepted) = self.entrance.close(&mut *self.dispatcher) {
                self.welcome(accepted);
            }
            self.house.gate.has_closed();
        }
        let stage = self.house.admission.shared.stage.get();
        if stage == mem::replace(&mut self.stage, stage) {
            return;
        }
        let places: Vec<_> = self.connections.iter().map(|(at, _)| at).collect();
        for at in places {
            self.tell(at, |connection, now| match stage {
                DRAINING => connection.carriage.drain(now),
                _ => connection.carriage.cut(now),
            });
        }
    }

    fn hear_reports(&mut self) {
        let mut reports = mem::take(&mut self.reports);
        for Ready { token, readiness } in reports.drain(..) {
            match token.0 {
                BELL => self.own.bell.reset(),
                name @ DOORS.. => self.entrance.is_ready(name),
                name => {
                    let Some(at) = self.place_of(name) else {
                        continue; // It has ended in this turn.
                    };
                    let connection = &mut self.connections[at];
                    connection.wire.is_ready(readiness);
                    match connection.waits {
                        Waits::Input { .. } if readiness.is_readable() => self.go_on(at),
                        Waits::Room { .. } if readiness.is_writable() => self.go_on(at),
                        // It would be reported again and again, for as long as it waits for
                        // something else.
                        _ if self.is_level => self.unwatch(at),
                        _ => {}
                    }
                }
            }
        }
        self.reports = reports;
    }

    fn read_letters(&mut self) {
        let mut letters = mem::take(&mut self.letters);
        self.desk.mailbox.take(&mut letters);
        for letter in letters.drain(..) {
            match letter {
                Letter::Accepted(accepted) => self.welcome(accepted),
                Letter::Worked(name, job) => {
                    let Some(at) = self.place_of(name) else {
                        // The connection was cut meanwhile.
                        drop_session(job);
                        continue;
                    };
                    match job {
                        Some(job) => self.tell(at, |connection, now| {
                            connection.carriage.worked(job, now);
                        }),
                        None => self.end(at, Closed::Error),
                    }
                }
                Letter::Read(name, piece) => {
                    let Some(at) = self.place_of(name) else {
                        continue;
                    };
                    self.tell(at, |connection, now| {
                        if let Err(error) = connection.wire.has_read(piece) {
                            connection.carriage.failed(&error, now);
                        }
                    });
                }
            }
        }
        self.letters = letters;
    }

    /// A turn for each that waits for one now.
    fn give_turns(&mut self) {
        for _ in 0..self.turns.len() {
            let Some(at) = self.turns.pop_front().and_then(|name| self.place_of(name)) else {
                continue;
            };
            self.connections[at].is_queued = false;
            self.go_on(at);
        }
    }

    fn look_at_timers(&mut self) {
        let now = self.tick_of(self.desk.now.monotonic);
        let mut expired = mem::take(&mut self.expired);
        self.timers.advance(now, |name| expired.push(name));
        for name in expired.drain(..) {
            let Some(at) = self.place_of(name) else {
                continue;
            };
            let connection = &mut self.connections[at];
            connection.timer = None;
            match connection.waits {
                Waits::Helper | Waits::Turn | Waits::End(_) => {}
                Waits::Input { until } | Waits::Room { until } | Waits::Time { until }
                    if connection.due > now =>
                {
                    self.arm(at, until);
                }
                _ => {
                    // If a report was lost, this finds what it was about.
                    connection.wire.try_again();
                    self.go_on(at);
                }
            }
        }
        self.expired = expired;
    }

    /// Where the connection of this name is, unless it has ended.
    fn place_of(&self, name: u64) -> Option<usize> {
        let at = (name & u64::from(u32::MAX)) as usize;
        let connection = self.connections.get(at)?;
        (connection.name == name).then_some(at)
    }

    /// Goes on with a connection until it waits, and sees to it that it is heard of then.
    #[inline]
    fn go_on(&mut self, at: usize) {
        self.tell(at, |_, _| ());
    }

    /// Tells a connection something, and goes on with it.
    #[inline]
    fn tell(&mut self, at: usize, told: impl FnOnce(&mut Connection<S>, Now)) {
        let (connection, desk) = (&mut self.connections[at], &mut self.desk);
        let driven = catch_unwind(AssertUnwindSafe(|| {
            told(connection, desk.now);
            connection.drive(desk, &self.house.admission)
        }));
        // A session that panics is our mistake, and ends this connection only: the hook has
        // reported it.
        let is_heard_of = match driven.unwrap_or(Waits::End(Closed::Error)) {
            Waits::Input { until } => {
                self.arm(at, until);
                self.watch(at, Interest::READ)
            }
            Waits::Room { until } => {
                self.arm(at, until);
                let was_watched = self.connections[at].watched.is_some();
                let is_heard_of = self.watch(at, Interest::WRITE);
                if !was_watched && self.misses_room() {
                    self.connections[at].wire.try_again();
                    self.queue(at);
                }
                is_heard_of
            }
            Waits::Time { until } => {
                self.arm(at, until);
                Ok(())
            }
            Waits::Turn => {
                self.queue(at);
                Ok(())
            }
            Waits::Helper => Ok(()),
            Waits::End(closed) => return self.end(at, closed),
        };
        // The kernel has no memory to watch it: better an end that is counted than a connection
        // that is never heard of.
        if is_heard_of.is_err() {
            self.own.counters.errors.add(1);
            self.end(at, Closed::Error);
        }
    }

    /// Whether a write has to fail while the socket is watched, or its room may not be reported: so
    /// it is with real-time signals on Unix sockets, and a connection is watched after that write.
    fn misses_room(&self) -> bool {
        !self.is_level && !self.dispatcher.tells_end()
    }

    fn queue(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if !mem::replace(&mut connection.is_queued, true) {
            self.turns.push_back(connection.name);
        }
    }

    /// Has the dispatcher report what the connection waits for. By edge it is watched for input
    /// from the beginning, and for both for good once it has waited for room: no request costs a
    /// change then.
    fn watch(&mut self, at: usize, wanted: Interest) -> io::Result<()> {
        let connection = &mut self.connections[at];
        let interest = match connection.watched {
            Some(watched) if watched == wanted || watched == Interest::BOTH => return Ok(()),
            Some(_) if !self.is_level => Interest::BOTH,
            _ => wanted,
        };
        let (fd, token) = (connection.wire.as_fd(), Token(connection.name));
        self.own.counters.changes.add(1);
        match connection.watched {
            None => self.dispatcher.add(fd, token, interest)?,
            Some(_) => self.dispatcher.modify(fd, token, interest)?,
        }
        connection.watched = Some(interest);
        Ok(())
    }

    fn unwatch(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.watched.take().is_some() {
            self.own.counters.changes.add(1);
            // It is watched, and that is all that can be wrong.
            let _ = self.dispatcher.remove(connection.wire.as_fd());
        }
    }

    /// Sees to it that a timer comes when the wait ends, or before.
    fn arm(&mut self, at: usize, until: Instant) {
        // Up: never early.
        let due = self.tick_of(until) + 1;
        let connection = &mut self.connections[at];
        connection.due = due;
        if let Some((timer, set_for)) = connection.timer {
            if set_for <= due {
                return;
            }
            self.timers.cancel(timer);
        }
        connection.timer = Some((self.timers.insert(due, connection.name), due));
    }

    fn tick_of(&self, time: Instant) -> Tick {
        let since = time.saturating_duration_since(self.house.admission.shared.start);
        u64::try_from(since.as_nanos() >> TICK_SHIFT).unwrap_or(Tick::MAX >> 1)
    }
}

/// Drops what holds a session, whose destructor may panic: the hook has reported it.
fn drop_session(holder: impl Sized) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(holder)));
}
