//! The write stage: a loop that sends, and keeps the connections of slow peers.
//!
//! ```text
//!  ┌▶ wait ──▶ reports ──▶ server state ──▶ turns ──▶ arrivals ──▶ timers ──▶ hand over ─┐
//!  └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Most replies are sent at once, and such a connection never gets a slot here. The loop blocks
//! only in its dispatcher: a connection for which another stage has no space waits here, so that
//! connections from the session stage soon find space.

use std::io;
use std::mem;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Ready};
use session::{Now, Session};
use slab::Slab;

use super::connection::{Arrival, Connection, Payload, Stop, cut, cut_arrival, guard};
use super::idle::IdleList;
use super::queue::{Outlet, Queue};
use super::stages::Stages;
use crate::clock;
use crate::engine::reactor::{
    EngineContext, HasWatch, LongUntil, LoopHandle, Poller, SHARE_OF_TURN, Wait, Watch, output,
    slot_of, take_steps,
};
use crate::shared::{CUTTING, SERVING};

/// See the [module page](self).
pub(super) struct Writer<S: Session, O> {
    engine: Arc<EngineContext<O>>,
    own: Arc<LoopHandle>,
    queue: Arc<Queue<Box<Connection<S>>>>,
    session: Outlet<Box<Connection<S>>>,
    readers: Vec<Outlet<Arrival<S>>>,
    idle_lists: Vec<Arc<IdleList<S>>>,
    batch_max: usize,
    poller: Poller,
    slots: Slab<WriteSlot<S>>,
    /// More arrivals than a batch are queued.
    has_more: bool,
    now: Now,
    /// End of long operations in this turn of the loop.
    long_until: Instant,
    /// State of the server when it was last checked.
    server_state: u8,
    // Empty between two turns, kept for their capacity.
    arrivals: Vec<Box<Connection<S>>>,
}

/// The slot of a waiting connection.
struct WriteSlot<S: Session> {
    watch: Watch,
    connection: Box<Connection<S>>,
    waits: Wait,
}

impl<S: Session> HasWatch for WriteSlot<S> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// Outcome for a connection.
enum WriteOutcome {
    Waits(Wait),
    Leaves(Stop),
}

impl<S, O> Writer<S, O>
where
    S: Session + 'static,
{
    /// # Errors
    /// Errors of the dispatcher.
    pub(super) fn new(
        engine: Arc<EngineContext<O>>,
        stages: &Stages<S>,
        number: usize,
        dispatcher: Box<dyn Dispatcher>,
    ) -> io::Result<Writer<S, O>> {
        let writer = &stages.writers[number];
        let own = Arc::clone(&writer.own);
        let readers = stages.readers.iter();
        Ok(Writer {
            poller: Poller::new(&engine, Arc::clone(&own), dispatcher)?,
            engine,
            queue: Arc::clone(&writer.queue),
            session: Outlet::new(&stages.sessions, &own),
            readers: readers.map(|reader| Outlet::new(&reader.queue, &own)).collect(),
            idle_lists: stages.idle_lists.clone(),
            own,
            batch_max: stages.batch_max,
            slots: Slab::new(),
            has_more: false,
            now: clock::now(),
            long_until: Instant::now(),
            server_state: SERVING,
            arrivals: Vec::new(),
        })
    }

    /// Writes until the server is over.
    pub(super) fn run(mut self) {
        while self.server_state != CUTTING {
            let timeout = self.patience();
            self.poller.wait(timeout);
            self.now = clock::now();
            self.long_until = self.now.monotonic + SHARE_OF_TURN;
            self.handle_reports();
            self.check_server_state();
            self.run_queued();
            self.take_arrivals();
            self.expire_timers();
            self.session.hand_over();
            self.readers.iter_mut().for_each(Outlet::hand_over);
        }
        self.end_all();
    }

    /// Time for which nothing happens without a report; `None`: forever.
    fn patience(&self) -> Option<Duration> {
        if self.has_more || self.poller.run_queue_len() > 0 {
            return Some(Duration::ZERO);
        }
        let next = self.poller.next_expiry()?;
        Some(next.saturating_duration_since(self.now.monotonic))
    }

    fn handle_reports(&mut self) {
        while let Some(Ready { token, readiness }) = self.poller.next_report() {
            let Some(at) = slot_of(&mut self.slots, token.0) else {
                continue; // It has left in this turn.
            };
            let slot = &mut self.slots[at];
            slot.connection.socket.set_ready(readiness);
            match slot.waits {
                Wait::Writable { .. } if readiness.is_writable() => self.resume(at),
                // A level-triggered socket would be reported while it waits for something else.
                _ if self.poller.is_level => {
                    self.poller.unwatch(&mut slot.watch, slot.connection.socket.as_fd());
                }
                _ => {}
            }
        }
    }

    /// Checks whether the server drains or is over.
    fn check_server_state(&mut self) {
        let state = self.engine.admission.shared.server_state.get();
        if state == mem::replace(&mut self.server_state, state) || state == CUTTING {
            return;
        }
        let places: Vec<_> = self.slots.iter().map(|(at, _)| at).collect();
        places.into_iter().for_each(|at| self.resume(at));
    }

    /// Gives each queued connection a turn, as far as time allows.
    fn run_queued(&mut self) {
        for _ in 0..self.poller.run_queue_len() {
            if let Some(at) = self.poller.take_turn(&mut self.slots) {
                self.resume(at);
            }
            self.now = clock::now();
            if self.now.monotonic >= self.long_until {
                break;
            }
        }
    }

    /// Sends for arrived connections, up to a batch.
    fn take_arrivals(&mut self) {
        let mut arrivals = mem::take(&mut self.arrivals);
        self.has_more = self.queue.take(self.batch_max, &mut arrivals);
        for mut connection in arrivals.drain(..) {
            let long_until = Some(self.long_until);
            let driven =
                drive(&mut connection, self.server_state, &mut self.now, long_until, &self.own);
            match driven {
                WriteOutcome::Leaves(stop) => self.dispatch(connection, stop),
                WriteOutcome::Waits(waits) => {
                    let slot = self.slots.vacant_entry();
                    let (at, watch) = (slot.key(), self.poller.register(slot.key()));
                    slot.insert(WriteSlot { watch, connection, waits });
                    self.wait_for(at, waits);
                }
            }
        }
        self.arrivals = arrivals;
    }

    fn expire_timers(&mut self) {
        self.poller.expire(self.now.monotonic);
        while let Some(at) = self.poller.next_expired(&mut self.slots) {
            let slot = &mut self.slots[at];
            if self.poller.handle_expiry(&mut slot.watch, slot.waits.until()) {
                // If a report was lost, this makes up for it.
                slot.connection.socket.try_again();
                self.resume(at);
            }
        }
    }

    /// Drives a connection that has a slot.
    fn resume(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        // In its turn nothing is postponed.
        let long_until = (!matches!(slot.waits, Wait::Turn)).then_some(self.long_until);
        let connection = &mut slot.connection;
        match drive(connection, self.server_state, &mut self.now, long_until, &self.own) {
            WriteOutcome::Leaves(stop) => self.leave(at, stop),
            WriteOutcome::Waits(waits) => {
                slot.waits = waits;
                self.wait_for(at, waits);
            }
        }
    }

    /// Registers the event or timer that a connection waits for.
    fn wait_for(&mut self, at: usize, waits: Wait) {
        let WriteSlot { watch, connection, .. } = &mut self.slots[at];
        match waits {
            Wait::Writable { until } => {
                self.poller.arm(watch, until);
                let (fd, was_watched) = (connection.socket.as_fd(), watch.is_watched());
                if self.poller.watch(watch, fd, Interest::WRITE).is_err() {
                    // The kernel has no memory to watch the socket: ending the connection, which is
                    // counted, is better than never waking it.
                    connection.payload = Payload::Failed;
                    self.leave(at, Stop::Read);
                } else if !was_watched && self.poller.misses_space() {
                    connection.socket.try_again();
                    self.poller.queue(watch);
                }
            }
            Wait::Time { until } => self.poller.arm(watch, until),
            _ => self.poller.queue(watch),
        }
    }

    /// Removes a connection from its slot and dispatches it.
    fn leave(&mut self, at: usize, stop: Stop) {
        let WriteSlot { mut watch, connection, .. } = self.slots.remove(at);
        self.poller.deregister(&mut watch, connection.socket.as_fd());
        self.dispatch(connection, stop);
    }

    fn dispatch(&mut self, connection: Box<Connection<S>>, stop: Stop) {
        match stop {
            Stop::Idle => {
                if let Some(late) = self.idle_lists[connection.reader].put(connection) {
                    cut(&self.engine, late, self.now);
                }
            }
            Stop::Read => {
                let pending = &mut self.readers[connection.reader].pending;
                pending.push_back(Arrival::Back(connection));
            }
            _ => self.session.pending.push_back(connection),
        }
    }

    /// Ends all connections here. Those in another stage end there, or find this queue closed.
    fn end_all(mut self) {
        let engine = &*self.engine;
        let now = clock::now();
        let queued = [
            self.queue.close(),
            self.session.queue.close(),
            self.session.pending.drain(..).collect(),
        ];
        let here = self.slots.drain().map(|slot| slot.connection);
        for connection in queued.into_iter().flatten().chain(here) {
            cut(engine, connection, now);
        }
        for reader in &mut self.readers {
            for arrival in reader.pending.drain(..) {
                cut_arrival(engine, arrival, now);
            }
        }
    }
}

/// Sends queued output until it must wait, or another stage is needed.
fn drive<S: Session>(
    connection: &mut Connection<S>,
    server_state: u8,
    now: &mut Now,
    long_until: LongUntil,
    own: &LoopHandle,
) -> WriteOutcome {
    let driven = guard(connection, |connection| {
        connection.machine.handle_server_state(server_state, *now);
        connection.write(now, long_until, own)
    });
    driven.unwrap_or(WriteOutcome::Leaves(Stop::Read))
}

impl<S: Session> Connection<S> {
    fn write(&mut self, now: &mut Now, long_until: LongUntil, own: &LoopHandle) -> WriteOutcome {
        let outcome = take_steps(|| {
            match self.next_stop() {
                Stop::Write => {}
                stop => return Break(WriteOutcome::Leaves(stop)),
            }
            let Connection { machine, socket, payload, .. } = self;
            let slow = |read| {
                own.counters.slow_reads.add(1);
                *payload = Payload::Cold(Box::new(read));
            };
            match output(machine, socket, now, long_until, Some(slow)) {
                Continue(len) => return Continue(len),
                Break(Wait::Thread) => return Break(WriteOutcome::Leaves(Stop::Block)),
                Break(waits) if waits.is_over(*now) => machine.handle_timeout(*now),
                Break(waits) => return Break(WriteOutcome::Waits(waits)),
            }
            Continue(0)
        });
        outcome.unwrap_or(WriteOutcome::Waits(Wait::Turn))
    }
}
