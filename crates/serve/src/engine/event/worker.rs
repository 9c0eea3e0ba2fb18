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
use std::time::{Duration, Instant};

use event::{Interest, Ready};
use session::{Now, Session};
use slab::Slab;

use super::connection::{Connection, Desk};
use super::mailbox::{Letter, Mailboxes};
use crate::clock;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::loops::{
    Accepted, DOORS, Doors, Entrance, House, Lookout, Loop, ROOM_LEN, Waits, drop_session, place_of,
};
use crate::shared::{CUTTING, SERVING};

/// See the [module page](self).
pub(super) struct Worker<S, O> {
    house: Arc<House<O>>,
    own: Arc<Loop>,
    lookout: Lookout,
    entrance: Entrance,
    /// Those of all loops, and which of them is this loop's.
    mailboxes: Arc<Mailboxes<S>>,
    number: usize,
    connections: Slab<Box<Connection<S>>>,
    desk: Desk<S>,
    /// What the server was doing at the last look.
    stage: u8,
    /// Connections that were dealt to this loop and are not served yet: no more than it may have.
    dealt: VecDeque<Accepted>,
    // Empty between two turns, and kept for their memory.
    letters: Vec<Letter<S>>,
}

impl<S: Session + 'static, O: Opens<S>> Worker<S, O> {
    /// # Errors
    /// What the kernel says to the dispatcher.
    pub(super) fn new(
        house: Arc<House<O>>,
        own: Arc<Loop>,
        mailboxes: Arc<Mailboxes<S>>,
        number: usize,
        doors: Doors,
        has_file_threads: bool,
    ) -> io::Result<Worker<S, O>> {
        let mut lookout = Lookout::new(&house, Arc::clone(&own))?;
        let mut entrance = Entrance::new(doors, &house, Arc::clone(&own));
        entrance.open(lookout.dispatcher())?;
        let now = clock::now();
        let desk = Desk {
            now,
            long_until: now.monotonic,
            room: vec![0; ROOM_LEN],
            mailbox: mailboxes.of(number),
            jobs: Arc::clone(&house.admission.shared.jobs),
            has_file_threads,
        };
        Ok(Worker {
            house,
            own,
            lookout,
            entrance,
            mailboxes,
            number,
            connections: Slab::new(),
            desk,
            stage: SERVING,
            dealt: VecDeque::new(),
            letters: Vec::new(),
        })
    }

    /// Serves until the server is over and the last connection has ended.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            self.wait();
            // Before what is reported, which may have come after the news.
            self.hear_news();
            self.hear_reports();
            self.read_letters();
            self.give_turns();
            self.look_at_timers();
            self.accept();
        }
    }

    fn is_over(&self) -> bool {
        self.stage == CUTTING
            && self.entrance.is_closed()
            && self.connections.is_empty()
            && self.dealt.is_empty()
    }

    fn wait(&mut self) {
        let timeout = self.patience();
        self.lookout.wait(timeout);
        self.desk.begin_turn();
    }

    /// For how long nothing happens unless something is reported.
    fn patience(&self) -> Option<Duration> {
        if self.lookout.turns() > 0 || self.entrance.has_some() || !self.dealt.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = [self.lookout.next_expiry(), self.entrance.wakes_at()]
            .into_iter()
            .flatten()
            .min();
        next.map(|next| next.saturating_duration_since(self.desk.now.monotonic))
    }

    /// Whether the server drains or is over.
    fn hear_news(&mut self) {
        if self.house.gate.is_closing() && !self.entrance.is_closed() {
            if let Some(accepted) = self.entrance.close(self.lookout.dispatcher()) {
                self.let_in(accepted);
            }
            self.house.gate.has_closed();
        }
        let stage = self.house.admission.shared.stage.get();
        if stage == mem::replace(&mut self.stage, stage) {
            return;
        }
        let places: Vec<_> = self.connections.iter().map(|(at, _)| at).collect();
        for at in places {
            self.tell(at, |connection, now| {
                connection.carriage.at_stage(stage, now)
            });
        }
    }

    fn hear_reports(&mut self) {
        while let Some(Ready { token, readiness }) = self.lookout.next_report() {
            match token.0 {
                name @ DOORS.. => self.entrance.is_ready(name),
                name => {
                    let Some(at) = place_of(&mut self.connections, name) else {
                        continue; // It has ended in this turn.
                    };
                    let connection = &mut self.connections[at];
                    connection.wire.is_ready(readiness);
                    match connection.waits {
                        Waits::Input { .. } if readiness.is_readable() => self.go_on(at),
                        Waits::Room { .. } if readiness.is_writable() => self.go_on(at),
                        // It would be reported again and again, for as long as it waits for
                        // something else.
                        _ if self.lookout.is_level => self.unwatch(at),
                        _ => {}
                    }
                }
            }
        }
    }

    fn read_letters(&mut self) {
        let mut letters = mem::take(&mut self.letters);
        self.desk.mailbox.take(&mut letters);
        for letter in letters.drain(..) {
            match letter {
                Letter::Accepted(accepted) => self.dealt.push_back(accepted),
                Letter::Worked(name, job) => {
                    let Some(at) = place_of(&mut self.connections, name) else {
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
                    let Some(at) = place_of(&mut self.connections, name) else {
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

    /// A turn for each that waits for one now, or for as many as there is time for.
    fn give_turns(&mut self) {
        for _ in 0..self.lookout.turns() {
            if let Some(at) = self.lookout.take_turn(&mut self.connections) {
                self.go_on(at);
            }
            if self.desk.is_late() {
                break;
            }
        }
    }

    fn look_at_timers(&mut self) {
        self.lookout.expire(self.desk.now.monotonic);
        while let Some(at) = self.lookout.next_expired(&mut self.connections) {
            let connection = &mut self.connections[at];
            let until = connection.waits.until();
            if self.lookout.is_over(&mut connection.watch, until) {
                // If a report was lost, this finds what it was about.
                connection.wire.try_again();
                self.go_on(at);
            }
        }
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
                let was_watched = self.connections[at].watch.is_watched();
                let is_heard_of = self.watch(at, Interest::WRITE);
                if !was_watched && self.lookout.misses_room() {
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
            self.end(at, Closed::Error);
        }
    }

    fn queue(&mut self, at: usize) {
        self.lookout.queue(&mut self.connections[at].watch);
    }

    fn watch(&mut self, at: usize, wanted: Interest) -> io::Result<()> {
        let Connection { watch, wire, .. } = &mut *self.connections[at];
        self.lookout.watch(watch, wire.as_fd(), wanted)
    }

    fn unwatch(&mut self, at: usize) {
        let Connection { watch, wire, .. } = &mut *self.connections[at];
        self.lookout.unwatch(watch, wire.as_fd());
    }

    fn arm(&mut self, at: usize, until: Instant) {
        self.lookout.arm(&mut self.connections[at].watch, until);
    }
}
