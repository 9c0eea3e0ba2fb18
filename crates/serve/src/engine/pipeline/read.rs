//! The read stage: a loop that receives, and keeps the connections that wait for input.
//!
//! ```text
//!  ┌▶ wait ──▶ reports ──▶ server state ──▶ arrivals ──▶ timers ──▶ receive ──▶ hand over ─┐
//!  └───────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A connection begins and ends here, and keeps its slot while it is in another stage. With
//! edge-triggered reports it stays watched, so that no request costs a change of interest. Input is
//! received only if it can soon be handed over: while the session stage's queue is full, bytes stay
//! in the sockets.

use std::io;
use std::mem;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use event::{Dispatcher, Interest, Readiness, Ready};
use session::{Now, Session};
use slab::Slab;

use super::connection::{Arrival, Connection, Input, Payload, cut, cut_arrival, guard};
use super::idle::IdleList;
use super::queue::{Outlet, Queue};
use super::stages::Stages;
use crate::clock;
use crate::connection::Action;
use crate::counters::Closed;
use crate::engine::reactor::{
    Accepted, EngineContext, HasWatch, LoopHandle, Poller, RECEIVE_LEN, Socket, Wait, Watch,
    drop_session, slot_of,
};
use crate::shared::{CUTTING, SERVING};

/// See the [module page](self).
pub(super) struct Reader<S: Session, O> {
    engine: Arc<EngineContext<O>>,
    own: Arc<LoopHandle>,
    /// Number of the reader.
    number: usize,
    writers: usize,
    queue: Arc<Queue<Arrival<S>>>,
    session: Outlet<Box<Connection<S>>>,
    batch_max: usize,
    poller: Poller,
    /// Connections stay watched while they are in another stage.
    keeps_watch: bool,
    /// Connections. Those that may have input for the session are in the run queue.
    slots: Slab<ReadSlot<S>>,
    /// Returned connections with nothing to do.
    idle: Arc<IdleList<S>>,
    /// Finished work of connections that have not returned yet.
    early: Vec<(u64, S::Work)>,
    /// Number of connections with pending events that have not returned yet.
    expected: usize,
    /// More arrivals than a batch are queued.
    has_more: bool,
    now: Now,
    /// State of the server when it was last checked.
    server_state: u8,
    buffer: Vec<u8>,
    // Empty between two turns, kept for their capacity.
    arrivals: Vec<Arrival<S>>,
    idle_batch: Vec<Box<Connection<S>>>,
}

/// The slot of a connection.
struct ReadSlot<S: Session> {
    watch: Watch,
    /// `None` while the connection is in another stage.
    connection: Option<Box<Connection<S>>>,
    /// Readiness reported meanwhile.
    missed: Readiness,
    /// An event occurred meanwhile.
    is_expected: bool,
}

impl<S: Session> HasWatch for ReadSlot<S> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// Outcome for a ready connection.
enum ReadOutcome {
    Waits(Wait),
    Leaves,
}

impl<S, O> Reader<S, O>
where
    S: Session + 'static,
{
    /// # Errors
    /// Errors of the dispatcher.
    pub(super) fn new(
        engine: Arc<EngineContext<O>>,
        stages: &Stages<S>,
        number: usize,
        keeps_watch: bool,
        dispatcher: Box<dyn Dispatcher>,
    ) -> io::Result<Reader<S, O>> {
        let reader = &stages.readers[number];
        let own = Arc::clone(&reader.own);
        let poller = Poller::new(&engine, Arc::clone(&own), dispatcher)?;
        Ok(Reader {
            engine,
            number,
            writers: stages.writers.len(),
            queue: Arc::clone(&reader.queue),
            session: Outlet::new(&stages.sessions, &own),
            own,
            batch_max: stages.batch_max,
            keeps_watch: keeps_watch && !poller.is_level,
            poller,
            slots: Slab::new(),
            idle: Arc::clone(&stages.idle_lists[number]),
            early: Vec::new(),
            expected: 0,
            has_more: false,
            now: clock::now(),
            server_state: SERVING,
            buffer: vec![0; RECEIVE_LEN],
            arrivals: Vec::new(),
            idle_batch: Vec::new(),
        })
    }

    /// Reads until the server is over.
    pub(super) fn run(mut self) {
        while self.server_state != CUTTING {
            let timeout = self.patience();
            self.poller.wait(timeout);
            self.now = clock::now();
            self.take_idle(false);
            self.handle_reports();
            self.check_server_state();
            self.take_arrivals();
            if self.expected > 0 || self.server_state != SERVING {
                self.take_idle(true);
            }
            self.expire_timers();
            self.serve_ready();
        }
        self.end_all();
    }

    /// Time for which nothing happens without a report; `None`: forever.
    fn patience(&self) -> Option<Duration> {
        if self.has_more || (self.poller.run_queue_len() > 0 && !self.is_stuck()) {
            return Some(Duration::ZERO);
        }
        let next = self.poller.next_expiry()?;
        Some(next.saturating_duration_since(self.now.monotonic))
    }

    /// True if no more input can be handed over now.
    fn is_stuck(&self) -> bool {
        self.session.pending.len() >= self.batch_max
    }

    fn handle_reports(&mut self) {
        while let Some(Ready { token, readiness }) = self.poller.next_report() {
            let Some(at) = slot_of(&mut self.slots, token.0) else {
                continue; // It has ended in this turn.
            };
            let slot = &mut self.slots[at];
            let Some(connection) = &mut slot.connection else {
                slot.missed |= readiness;
                self.expect_back(at);
                continue;
            };
            connection.socket.set_ready(readiness);
            if self.poller.is_level {
                // A level-triggered socket would be reported until the session stage has space.
                self.poller.unwatch(&mut slot.watch, connection.socket.as_fd());
            }
            if readiness.is_readable() {
                self.poller.queue(&mut slot.watch);
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
        for at in places {
            self.handle_server_state(at);
        }
    }

    fn handle_server_state(&mut self, at: usize) {
        let state = self.server_state;
        let now = self.now;
        self.handle_event(at, |connection| connection.machine.handle_server_state(state, now));
    }

    /// Passes an event to a connection, then queues it.
    fn handle_event(&mut self, at: usize, event: impl FnOnce(&mut Connection<S>)) {
        let Some(connection) = &mut self.slots[at].connection else {
            return; // It is with another stage, which handles the event.
        };
        match guard(connection, event) {
            Some(()) => self.queue(at),
            None => self.end(at, Closed::Error),
        }
    }

    fn expire_timers(&mut self) {
        self.poller.expire(self.now.monotonic);
        while let Some(at) = self.poller.next_expired(&mut self.slots) {
            let ReadSlot { watch, connection, .. } = &mut self.slots[at];
            let until = connection.as_ref().map(|connection| connection.machine.deadline());
            if self.poller.handle_expiry(watch, until)
                && let Some(connection) = connection
            {
                // If a report was lost, this makes up for it.
                connection.socket.try_again();
                self.poller.queue(watch);
            } else if connection.is_none() {
                self.expect_back(at);
                // Take arrivals once more, so that the reader is woken when it returns.
                self.has_more = true;
            }
        }
    }

    /// Receives for ready connections, as far as their input can be handed over.
    fn serve_ready(&mut self) {
        for _ in 0..self.poller.run_queue_len() {
            if self.is_stuck() {
                self.session.hand_over();
                if self.is_stuck() {
                    return;
                }
            }
            if let Some(at) = self.poller.take_turn(&mut self.slots) {
                self.resume(at);
            }
        }
        self.session.hand_over();
    }

    /// Drives a connection until it waits or leaves for another stage.
    fn resume(&mut self, at: usize) {
        let ReadSlot { watch, connection, .. } = &mut self.slots[at];
        let Some(there) = connection else {
            return; // It is with another stage.
        };
        let buffer = &mut *self.buffer;
        let now = self.now;
        let driven = guard(there, |connection| connection.read(buffer, now));
        let is_watched = match driven.unwrap_or(ReadOutcome::Waits(Wait::End(Closed::Error))) {
            ReadOutcome::Waits(Wait::Input { until }) => {
                self.poller.arm(watch, until);
                self.poller.watch(watch, there.socket.as_fd(), Interest::READ)
            }
            ReadOutcome::Waits(Wait::End(closed)) => return self.end(at, closed),
            // It waits for work.
            ReadOutcome::Waits(_) => Ok(()),
            ReadOutcome::Leaves => {
                there.timer_expiry =
                    if self.keeps_watch { self.poller.timer_expiry(watch) } else { None };
                if !self.keeps_watch {
                    self.poller.unwatch(watch, there.socket.as_fd());
                }
                self.session.pending.extend(connection.take());
                Ok(())
            }
        };
        // The kernel has no memory to watch the socket: ending the connection, which is counted, is
        // better than never waking it.
        if is_watched.is_err() {
            self.end(at, Closed::Error);
        }
    }

    fn queue(&mut self, at: usize) {
        self.poller.queue(&mut self.slots[at].watch);
    }

    /// Notes an event of a connection that is in another stage.
    fn expect_back(&mut self, at: usize) {
        let is_new = !mem::replace(&mut self.slots[at].is_expected, true);
        self.expected += usize::from(is_new);
    }
}

// ---- how connections come, come back, and end

impl<S, O> Reader<S, O>
where
    S: Session + 'static,
{
    /// Takes arrivals, up to a batch.
    fn take_arrivals(&mut self) {
        let mut arrivals = mem::take(&mut self.arrivals);
        self.has_more = self.queue.take(self.batch_max, &mut arrivals);
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Accepted(accepted) => self.admit(accepted),
                Arrival::Back(connection) => self.take_back(connection),
                Arrival::Worked(token, work) => {
                    let Some(at) = slot_of(&mut self.slots, token) else {
                        drop_session(work);
                        continue;
                    };
                    match work {
                        Some(work) if self.slots[at].connection.is_some() => {
                            self.handle_event(at, |it| it.payload = Payload::Worked(Ok(work)));
                        }
                        Some(work) => {
                            self.early.push((token, work));
                            self.expect_back(at);
                        }
                        None => self.end(at, Closed::Error),
                    }
                }
            }
        }
        self.arrivals = arrivals;
    }

    /// Begins to serve a connection, unless the limit is exceeded.
    fn admit(&mut self, accepted: Accepted) {
        let Some((accepted, machine)) = self.engine.admit(accepted, self.now) else {
            return;
        };
        let slot = self.slots.vacant_entry();
        let (at, watch) = (slot.key(), self.poller.register(slot.key()));
        let connection = Box::new(Connection {
            machine,
            socket: Socket::new(accepted.socket, self.poller.trusts_short_reads()),
            peer: accepted.peer,
            listener: accepted.listener,
            reader: self.number,
            token: watch.token,
            timer_expiry: None,
            writer: at % self.writers,
            payload: Payload::Nothing,
        });
        slot.insert(ReadSlot {
            watch,
            connection: Some(connection),
            missed: Readiness::default(),
            is_expected: false,
        });
        self.own.counters.accepted.add(1);
        match self.server_state {
            SERVING => self.queue(at),
            _ => self.handle_server_state(at),
        }
    }

    /// Takes idle connections back. `is_expected`: wake the reader for later ones.
    fn take_idle(&mut self, is_expected: bool) {
        let mut batch = mem::take(&mut self.idle_batch);
        self.idle.take(&mut batch, is_expected);
        for connection in batch.drain(..) {
            self.take_back(connection);
        }
        self.idle_batch = batch;
    }

    /// Puts a returned connection back into its slot.
    fn take_back(&mut self, mut connection: Box<Connection<S>>) {
        let token = connection.token;
        let at = slot_of(&mut self.slots, token).expect("a slot exists until the end");
        let slot = &mut self.slots[at];
        connection.socket.set_ready(mem::take(&mut slot.missed));
        self.expected -= usize::from(mem::take(&mut slot.is_expected));
        match mem::replace(&mut connection.payload, Payload::Nothing) {
            Payload::Failed => {
                slot.connection = Some(connection);
                return self.end(at, Closed::Error);
            }
            Payload::Watch(work) => {
                let queue = Arc::clone(&self.queue);
                // The calling thread may be the one that empties this queue, so it must not wait.
                // If the queue is closed, so is the connection.
                let done = move |work| queue.put_over_limit(Arrival::Worked(token, work));
                let jobs = &self.engine.admission.shared.jobs;
                if let Err(work) = jobs.work(work, self.now, done) {
                    connection.payload = Payload::Worked(Err(work));
                }
            }
            payload => connection.payload = payload,
        }
        if let Some(nth) = self.early.iter().position(|(of, _)| *of == token) {
            let (_, work) = self.early.swap_remove(nth);
            connection.payload = Payload::Worked(Ok(work));
        }
        slot.connection = Some(connection);
        match self.server_state {
            SERVING => self.settle(at),
            _ => self.handle_server_state(at),
        }
    }

    /// Lets a connection without input for the session wait or end at once, not behind the ready
    /// ones.
    fn settle(&mut self, at: usize) {
        let Some(connection) = &mut self.slots[at].connection else {
            return;
        };
        let has_no_input = guard(connection, |connection| match connection.machine.next_action() {
            _ if !matches!(connection.payload, Payload::Nothing) => false,
            Action::Receive { .. } | Action::Fill { .. } => !connection.socket.may_receive(),
            Action::Nothing | Action::Close(_) => true,
            _ => false,
        });
        match has_no_input {
            Some(false) => self.queue(at),
            Some(true) | None => self.resume(at),
        }
    }

    /// Closes a connection and counts the reason.
    fn end(&mut self, at: usize, closed: Closed) {
        let ReadSlot { watch, connection, .. } = self.slots.remove(at);
        if let Some(connection) = connection {
            self.early.retain(|(of, _)| *of != connection.token);
            self.poller.deregister_closing(&watch, connection.socket.as_fd());
            self.engine.end(connection, closed);
        }
    }

    /// Ends all connections here. Those in another stage end there, or find this queue closed.
    fn end_all(mut self) {
        let engine = &*self.engine;
        let now = clock::now();
        for arrival in self.queue.close() {
            cut_arrival(engine, arrival, now);
        }
        let queued = [
            self.idle.close(),
            self.session.queue.close(),
            self.session.pending.drain(..).collect(),
        ];
        let here = self.slots.drain().filter_map(|slot| slot.connection);
        for connection in queued.into_iter().flatten().chain(here) {
            cut(engine, connection, now);
        }
    }
}

impl<S: Session> Connection<S> {
    /// Receives, or determines the wait.
    fn read(&mut self, buffer: &mut [u8], now: Now) -> ReadOutcome {
        loop {
            let Connection { machine, socket, payload, .. } = self;
            let (received, is_fill) = match machine.next_action() {
                _ if !matches!(payload, Payload::Nothing) => return ReadOutcome::Leaves,
                Action::Receive { until } => {
                    let part = machine.shared().memory.part_of(buffer);
                    (socket.receive(part, until), false)
                }
                Action::Fill { space, until } => (socket.receive(space, until), true),
                // The session could be made now, but often the first request has arrived already:
                // receive it first.
                Action::Open(_) => {
                    let part = machine.shared().memory.part_of(buffer);
                    match socket.receive(part, machine.deadline()) {
                        Continue(received) => (Continue(received), false),
                        Break(_) => return ReadOutcome::Leaves,
                    }
                }
                Action::Nothing => return ReadOutcome::Waits(Wait::Thread),
                Action::Close(closed) => return ReadOutcome::Waits(Wait::End(closed)),
                _ => return ReadOutcome::Leaves,
            };
            match received {
                Continue(Ok(len)) => {
                    *payload = if is_fill {
                        Payload::Filled(len)
                    } else {
                        let memory = &machine.shared().memory;
                        Payload::Input(Input::new(&buffer[..len], memory))
                    };
                    return ReadOutcome::Leaves;
                }
                Continue(Err(error)) => machine.handle_error(&error, now),
                Break(waits) if waits.is_over(now) => machine.handle_timeout(now),
                Break(waits) => return ReadOutcome::Waits(waits),
            }
        }
    }
}
