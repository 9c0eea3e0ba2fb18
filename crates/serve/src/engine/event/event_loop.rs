//! One loop: a kernel thread that waits for the next event and drives the connections concerned.
//!
//! ```text
//!  ┌▶ wait ──▶ server state ──▶ reports ──▶ messages ──▶ turns ──▶ timers ──▶ accept ─┐
//!  └──────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Ready};
use session::{Now, Session};
use slab::Slab;

use super::connection::Connection;
use super::inbox::{Inboxes, LoopContext, Message};
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::reactor::{
    Accepted, Acceptor, EngineContext, FIRST_LISTENER, Listeners, LoopHandle, Poller, RECEIVE_LEN,
    SHARE_OF_TURN, Socket, Wait, drop_session, slot_of,
};
use crate::shared::{CUTTING, SERVING};

/// See the [module page](self).
pub(super) struct EventLoop<S: Session, O> {
    engine: Arc<EngineContext<O>>,
    own: Arc<LoopHandle>,
    poller: Poller,
    acceptor: Acceptor,
    /// Inboxes of all loops, and this loop's number.
    inboxes: Arc<Inboxes<S::Work>>,
    number: usize,
    connections: Slab<Box<Connection<S>>>,
    context: LoopContext<S::Work>,
    /// State of the server when it was last checked.
    server_state: u8,
    /// Connections that were distributed to this loop and are not served yet: no more than the
    /// loop may have.
    distributed: VecDeque<Accepted>,
    // Empty between two turns, kept for their capacity.
    messages: Vec<Message<S::Work>>,
}

impl<S: Session + 'static, O: Opens<S>> EventLoop<S, O> {
    /// # Errors
    /// Errors of the dispatcher.
    pub(super) fn new(
        engine: Arc<EngineContext<O>>,
        own: Arc<LoopHandle>,
        inboxes: Arc<Inboxes<S::Work>>,
        number: usize,
        listeners: Listeners,
        has_file_threads: bool,
        dispatcher: Box<dyn Dispatcher>,
    ) -> io::Result<EventLoop<S, O>> {
        let mut poller = Poller::new(&engine, Arc::clone(&own), dispatcher)?;
        let mut acceptor = Acceptor::new(listeners, &engine, Arc::clone(&own));
        acceptor.open(poller.dispatcher())?;
        let context = LoopContext {
            receive_buffer: vec![0; RECEIVE_LEN],
            has_file_threads,
            ..LoopContext::new(inboxes.of(number), &engine.admission.shared.jobs)
        };
        Ok(EventLoop {
            engine,
            own,
            poller,
            acceptor,
            inboxes,
            number,
            connections: Slab::new(),
            context,
            server_state: SERVING,
            distributed: VecDeque::new(),
            messages: Vec::new(),
        })
    }

    /// Serves until the server is over and the last connection has ended.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            self.wait();
            // Before the reports, which may be newer than the state.
            self.check_server_state();
            self.handle_reports();
            self.handle_messages();
            self.run_queued();
            self.expire_timers();
            self.accept();
        }
    }

    fn is_over(&self) -> bool {
        self.server_state == CUTTING
            && self.acceptor.is_closed()
            && self.connections.is_empty()
            && self.distributed.is_empty()
    }

    fn wait(&mut self) {
        let timeout = self.patience();
        self.poller.wait(timeout);
        self.context.begin_turn();
    }

    /// Time until the loop must act without a report; `None`: never.
    fn patience(&self) -> Option<Duration> {
        if self.poller.run_queue_len() > 0
            || self.acceptor.has_some()
            || !self.distributed.is_empty()
        {
            return Some(Duration::ZERO);
        }
        let next =
            [self.poller.next_expiry(), self.acceptor.wakes_at()].into_iter().flatten().min();
        next.map(|next| next.saturating_duration_since(self.context.now.monotonic))
    }

    /// Checks whether the server drains or is over.
    fn check_server_state(&mut self) {
        if self.engine.connection_limit.is_closing() && !self.acceptor.is_closed() {
            if let Some(accepted) = self.acceptor.close(self.poller.dispatcher()) {
                self.admit_accepted(accepted);
            }
            self.engine.connection_limit.note_closed();
        }
        let state = self.engine.admission.shared.server_state.get();
        if state == mem::replace(&mut self.server_state, state) {
            return;
        }
        let slots: Vec<_> = self.connections.iter().map(|(at, _)| at).collect();
        for at in slots {
            self.resume_with(at, |connection, now| {
                connection.machine.handle_server_state(state, now)
            });
        }
    }

    fn handle_reports(&mut self) {
        while let Some(Ready { token, readiness }) = self.poller.next_report() {
            match token.0 {
                token @ FIRST_LISTENER.. => self.acceptor.set_ready(token),
                token => {
                    let Some(at) = slot_of(&mut self.connections, token) else {
                        continue; // It has ended in this turn.
                    };
                    let connection = &mut self.connections[at];
                    connection.socket.set_ready(readiness);
                    match connection.waits {
                        Wait::Input { .. } if readiness.is_readable() => self.resume(at),
                        Wait::Writable { .. } if readiness.is_writable() => self.resume(at),
                        Wait::Either { .. } => self.resume(at),
                        // A level-triggered socket would be reported again and again while the
                        // connection waits for something else.
                        _ if self.poller.is_level => self.unwatch(at),
                        _ => {}
                    }
                }
            }
        }
    }

    fn handle_messages(&mut self) {
        let mut messages = mem::take(&mut self.messages);
        self.context.inbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Accepted(accepted) => self.distributed.push_back(accepted),
                Message::Worked(token, work) => {
                    let Some(at) = slot_of(&mut self.connections, token) else {
                        // The connection was cut meanwhile.
                        drop_session(work);
                        continue;
                    };
                    match work {
                        Some(work) => self.resume_with(at, |connection, now| {
                            connection.machine.handle_worked(work, now);
                        }),
                        None => self.end(at, Closed::Error),
                    }
                }
                Message::Read(token, piece) => {
                    let Some(at) = slot_of(&mut self.connections, token) else {
                        continue;
                    };
                    self.resume_with(at, |connection, now| {
                        if let Err(error) = connection.socket.reader.handle_read(piece) {
                            connection.machine.handle_error(&error, now);
                        }
                    });
                }
            }
        }
        self.messages = messages;
    }

    /// Gives each queued connection a turn, as far as time allows.
    fn run_queued(&mut self) {
        for _ in 0..self.poller.run_queue_len() {
            if let Some(at) = self.poller.take_turn(&mut self.connections) {
                self.resume(at);
            }
            self.context.update_clock();
            if self.context.is_late() {
                break;
            }
        }
    }

    fn expire_timers(&mut self) {
        self.poller.expire(self.context.now.monotonic);
        while let Some(at) = self.poller.next_expired(&mut self.connections) {
            let connection = &mut self.connections[at];
            let until = connection.waits.until();
            if self.poller.handle_expiry(&mut connection.watch, until) {
                // If a report was lost, this makes up for it.
                connection.socket.try_again();
                self.resume(at);
            }
        }
    }

    /// Drives a connection until it waits, then registers the event that it waits for.
    #[inline]
    fn resume(&mut self, at: usize) {
        self.resume_with(at, |_, _| ());
    }

    /// Passes an event to a connection, then drives it.
    #[inline]
    fn resume_with(&mut self, at: usize, event: impl FnOnce(&mut Connection<S>, Now)) {
        let connection = &mut self.connections[at];
        let context = &mut self.context;
        let driven = catch_unwind(AssertUnwindSafe(|| {
            event(connection, context.now);
            connection.drive(context, &self.engine.admission)
        }));
        // A panicking session is a bug, and ends only this connection: the hook has reported it.
        let is_watched = match driven.unwrap_or(Wait::End(Closed::Error)) {
            Wait::Input { until } => {
                self.arm(at, until);
                self.watch(at, Interest::READ)
            }
            waits @ (Wait::Writable { until } | Wait::Either { until }) => {
                let wanted = match waits {
                    Wait::Either { .. } => Interest::BOTH,
                    _ => Interest::WRITE,
                };
                self.arm(at, until);
                let was_watched = self.connections[at].watch.is_watched();
                let is_watched = self.watch(at, wanted);
                if !was_watched && self.poller.misses_space() {
                    self.connections[at].socket.try_again();
                    self.queue(at);
                }
                is_watched
            }
            Wait::Time { until } => {
                self.arm(at, until);
                Ok(())
            }
            Wait::Turn => {
                self.queue(at);
                Ok(())
            }
            Wait::Thread => Ok(()),
            Wait::End(closed) => return self.end(at, closed),
        };
        // The kernel has no memory to watch the socket: ending the connection, which is counted, is
        // better than never waking it.
        if is_watched.is_err() {
            self.end(at, Closed::Error);
        }
    }

    fn queue(&mut self, at: usize) {
        self.poller.queue(&mut self.connections[at].watch);
    }

    fn watch(&mut self, at: usize, wanted: Interest) -> io::Result<()> {
        let Connection { watch, socket, .. } = &mut *self.connections[at];
        self.poller.watch(watch, socket.as_fd(), wanted)
    }

    fn unwatch(&mut self, at: usize) {
        let Connection { watch, socket, .. } = &mut *self.connections[at];
        self.poller.unwatch(watch, socket.as_fd());
    }

    fn arm(&mut self, at: usize, until: Instant) {
        self.poller.arm(&mut self.connections[at].watch, until);
    }
}

// ---- beginning and end of connections

impl<S: Session + 'static, O: Opens<S>> EventLoop<S, O> {
    /// Begins to serve connections distributed to this loop, and accepts from the listeners, as far
    /// as time allows.
    fn accept(&mut self) {
        self.context.update_clock();
        self.admit_distributed();
        let now = self.context.now.monotonic;
        self.acceptor.begin_turn(now, self.poller.dispatcher());
        loop {
            let now = self.context.now.monotonic;
            let dispatcher = self.poller.dispatcher();
            let next = (self.acceptor).next(now, dispatcher, &self.engine.admission);
            let Some(accepted) = next else { break };
            match self.inboxes.choose_loop(self.number) {
                own if own == self.number => self.admit_accepted(accepted),
                other => {
                    self.own.counters.passed_on.add(1);
                    self.inboxes.distribute(other, accepted);
                }
            }
            self.context.update_clock();
        }
    }

    fn admit_distributed(&mut self) {
        let until = self.context.now.monotonic + SHARE_OF_TURN;
        while let Some(accepted) = self.distributed.pop_front() {
            self.admit(accepted);
            if self.context.update_clock().monotonic >= until {
                break;
            }
        }
    }

    /// Begins to serve a connection accepted by this loop.
    fn admit_accepted(&mut self, accepted: Accepted) {
        self.own.open.fetch_add(1, Ordering::Relaxed);
        self.admit(accepted);
    }

    /// Begins to serve a connection that is counted for this loop, unless the limit is exceeded.
    fn admit(&mut self, accepted: Accepted) {
        let now = self.context.now;
        let Some((accepted, mut machine)) = self.engine.admit(accepted, now) else {
            self.own.open.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        machine.handle_server_state(self.server_state, now);
        let slot = self.connections.vacant_entry();
        let at = slot.key();
        slot.insert(Box::new(Connection {
            machine,
            socket: Socket::new(accepted.socket, self.poller.trusts_short_reads()),
            // A new connection has no turn yet: its long operations can be postponed.
            waits: Wait::Thread,
            peer: accepted.peer,
            listener: accepted.listener,
            watch: self.poller.register(at),
        }));
        self.own.counters.accepted.add(1);
        self.resume(at);
    }

    /// Closes a connection and counts the reason.
    fn end(&mut self, at: usize, closed: Closed) {
        let connection = self.connections.remove(at);
        self.poller.deregister_closing(&connection.watch, connection.socket.as_fd());
        self.own.open.fetch_sub(1, Ordering::Relaxed);
        self.engine.end(connection, closed);
    }
}
