//! One loop: a kernel thread that takes received frames, drives the connections concerned, sends
//! their output, and waits.
//!
//! ```text
//!  ┌▶ frames ──▶ server state ──▶ messages ──▶ events ──▶ turns ──▶ timers ──▶ accept ─┐
//!  └──────────────────────────── wait ◀──────────────────────────────────── transmit ◀─┘
//! ```

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use netstack::Netstack;
use netstack::device::Device;
use netstack::stack::frames::BURST_FRAMES_MAX;
use netstack::stack::wheel::TimerWheel;
use netstack::stack::{Backlog, FlowId, Pieces, Writer};
use netstack::tcp::{End, TcpEvents};
use netstack::time::Instant as NetInstant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::{Now, Session};

use super::connection::{Connection, LoopContext, Message, cwnd_of, peer_of};
use super::figures::Figures;
use super::retransmit_buffer::{BufferPool, RetransmitBuffer};
use super::{DeviceMessages, NetstackListener, listener_of};
use crate::connection::Machine;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::reactor::{
    EngineContext, FileReader, Inbox, LoopHandle, SHARE_OF_TURN, Wait, drop_session,
};
use crate::memory::give_free_memory_back;
use crate::shared::{CUTTING, SERVING};

/// Delay before a frame for which the device had no space is retried; also the first delay after
/// an error of the device, which might recur at once. Each further error doubles it, up to the
/// maximum: a device may be gone forever.
const DEVICE_PAUSE: Duration = Duration::from_millis(1);
const DEVICE_PAUSE_MAX: Duration = Duration::from_millis(128);

/// Time for handshakes in progress when the server stops listening.
const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(500);

/// Time for the last bytes of an ended connection to be acknowledged: some two minutes, as Linux
/// gives an orphaned socket. tcp(7), `tcp_orphan_retries`
const LAST_BYTES_PATIENCE: Duration = Duration::from_secs(120);

/// Time for a refusal to be acknowledged: a round trip, and a retransmission. The peer occupies one
/// of few slots meanwhile.
const LINE_PATIENCE: Duration = Duration::from_secs(1);

/// Time for the peers to acknowledge their FINs when the server ends: a few of the shortest
/// time-outs. FINs are retransmitted meanwhile, and not afterwards.
const ENDS_PATIENCE: Duration = Duration::from_secs(1);

/// See the [module page](self).
pub(super) struct EventLoop<S: Session, O, D> {
    engine: Arc<EngineContext<O>>,
    listeners: Arc<[NetstackListener]>,
    own: Arc<LoopHandle>,
    figures: Arc<Figures>,
    pub(super) netstack: Netstack<D>,
    connections: Connections<S>,
    context: LoopContext<S::Work>,
    pub(super) buffer_pool: BufferPool,
    /// Run queue.
    run_queue: VecDeque<FlowId>,
    timers: TimerWheel,
    /// Origin of the netstack's time.
    start: Instant,
    ports: Vec<u16>,
    acceptor: Acceptor,
    /// A connection accepted at the limit, and its listener. It is admitted next.
    held: Option<(FlowId, usize)>,
    /// The last turn had no time to accept everything.
    has_more_to_accept: bool,
    /// It waits in the queue of the connection limit.
    pub(super) waits_for_space: bool,
    // Empty between two turns, kept for its capacity.
    messages: Vec<Message<S::Work>>,
    /// State of the server when it was last checked.
    server_state: u8,
    /// Deadline for peers to acknowledge the ends of their connections; in the past until the
    /// server is over.
    ends_until: Instant,
    /// The last burst of frames was full, or the device refused one.
    has_more_frames: bool,
    /// Delay before the device is retried after errors; zero while it works.
    pub(super) device_pause: Duration,
    pub(super) device_messages: DeviceMessages,
}

/// State of accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acceptor {
    Open,
    /// Deadline for handshakes in progress.
    Closing(Instant),
    Closed,
}

/// Indexed by flow.
struct Connections<S>(Vec<Option<Box<Connection<S>>>>);

impl<S> Writer for Connections<S> {
    fn gather<'a>(&'a self, id: FlowId, offset: u64, len: usize, pieces: &mut Pieces<'a>) {
        if let Some(Some(connection)) = self.0.get(id.index()) {
            connection.retransmit.gather(offset, len, pieces);
        }
    }
}

impl<S> Connections<S> {
    fn get_mut(&mut self, id: FlowId) -> Option<&mut Connection<S>> {
        let connection = self.0.get_mut(id.index())?.as_deref_mut()?;
        (connection.id == id).then_some(connection)
    }

    fn insert(&mut self, connection: Connection<S>) {
        let at = connection.id.index();
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(Box::new(connection));
    }

    fn ids(&self) -> Vec<FlowId> {
        self.0.iter().flatten().map(|it| it.id).collect()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

impl<S: Session + 'static, O: Opens<S>, D: Device> EventLoop<S, O, D> {
    pub(super) fn new(
        engine: Arc<EngineContext<O>>,
        listeners: Arc<[NetstackListener]>,
        own: Arc<LoopHandle>,
        figures: Arc<Figures>,
        mut netstack: Netstack<D>,
        backlog: Backlog,
    ) -> EventLoop<S, O, D> {
        let mut ports: Vec<u16> =
            listeners.iter().map(|listener| listener.address.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        for &port in &ports {
            netstack.shard().listen(port, backlog);
        }
        let inbox = Arc::new(Inbox::new(Arc::clone(&own)));
        let context = LoopContext::new(inbox, &engine.admission.shared.jobs);
        let start = engine.admission.shared.start;
        netstack.interface().announce(net_instant(start, context.now.monotonic));
        let began_at = context.now.monotonic;
        EventLoop {
            engine,
            listeners,
            own,
            figures,
            netstack,
            connections: Connections(Vec::new()),
            context,
            messages: Vec::new(),
            buffer_pool: BufferPool::default(),
            run_queue: VecDeque::new(),
            timers: TimerWheel::default(),
            start,
            ports,
            acceptor: Acceptor::Open,
            held: None,
            has_more_to_accept: false,
            waits_for_space: false,
            server_state: SERVING,
            ends_until: began_at,
            has_more_frames: false,
            device_pause: Duration::ZERO,
            device_messages: DeviceMessages::default(),
        }
    }

    /// Serves until the server is over and the last connection has ended and been acknowledged.
    pub(super) fn run(mut self) {
        while !self.may_end() {
            self.turn();
            self.wait();
        }
    }

    pub(super) fn may_end(&mut self) -> bool {
        self.server_state == CUTTING
            && self.acceptor == Acceptor::Closed
            && self.connections.is_empty()
            && !(self.context.now.monotonic < self.ends_until
                && self.netstack.shard().has_unacknowledged_ends())
    }

    /// Does everything that can be done now.
    pub(super) fn turn(&mut self) {
        self.context.begin_turn();
        let received = self.netstack.receive(self.now());
        self.device_messages.note_received(&received);
        self.has_more_frames = matches!(received, Ok(count) if count >= BURST_FRAMES_MAX);
        self.check_server_state();
        self.handle_messages();
        self.handle_events();
        self.run_queued();
        self.expire_timers();
        self.accept();
        let transmitted = self.netstack.transmit(self.now(), &self.connections);
        if let Err(error) = &transmitted {
            self.device_messages.note_send_failure(error, self.context.now.monotonic);
        }
        self.update_device_pause(received.is_err() || transmitted.is_err());
        if self.buffer_pool.take_crowd_end() {
            // Not on the loop: it takes too long. If refused, the memory stays with the allocator.
            let _ = self.context.jobs.hand_over(give_free_memory_back);
        }
        self.figures.copy(&mut self.netstack, &self.buffer_pool);
    }

    fn update_device_pause(&mut self, has_failed: bool) {
        if !has_failed {
            self.device_pause = Duration::ZERO;
            return;
        }
        self.own.counters.errors.add(1);
        let longer = 2 * self.device_pause;
        self.device_pause = longer.clamp(DEVICE_PAUSE, DEVICE_PAUSE_MAX);
    }

    fn wait(&mut self) {
        if self.may_end() {
            return;
        }
        let patience = self.patience();
        let waker = &self.own.waker;
        // A failed device would be reported without end.
        let device = self.netstack.device().descriptor();
        let device = device.filter(|_| self.device_pause.is_zero());
        let fds = [waker.as_fd(), device.unwrap_or(waker.as_fd())];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        waker.wait(Some(patience), |timeout| {
            let timeout = timeout.unwrap_or_default();
            let timeout = Timespec {
                tv_sec: timeout.as_secs().min(3600) as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            // A failure is handled by the next calls.
            let _ = poll(&mut fds, Some(&timeout));
        });
        if !fds[0].revents().is_empty() {
            waker.reset();
        }
        let reports = fds.iter().filter(|fd| !fd.revents().is_empty()).count();
        self.own.counters.waits.add(1);
        self.own.counters.reports.add(reports as u64);
    }

    /// Time for which nothing happens unless a frame or a message arrives.
    pub(super) fn patience(&mut self) -> Duration {
        if self.has_more_frames || self.has_more_to_accept || !self.run_queue.is_empty() {
            return Duration::ZERO;
        }
        let now = net_instant(self.start, Instant::now());
        let next = self.netstack.wakes_at().min(self.timers.wakes_at());
        let mut patience = next.since(now);
        if let Acceptor::Closing(_) = self.acceptor {
            patience = patience.min(HANDSHAKE_PATIENCE);
        }
        let until_the_end = self.ends_until.saturating_duration_since(Instant::now());
        if !until_the_end.is_zero() {
            patience = patience.min(until_the_end);
        }
        if self.netstack.is_held_up() {
            patience = patience.min(DEVICE_PAUSE);
        }
        if !self.device_pause.is_zero() {
            patience = patience.clamp(DEVICE_PAUSE, self.device_pause);
        }
        patience
    }

    fn now(&self) -> NetInstant {
        net_instant(self.start, self.context.now.monotonic)
    }

    /// Checks whether the server drains or is over.
    fn check_server_state(&mut self) {
        if self.engine.connection_limit.is_closing() {
            self.stop_listening();
        }
        let state = self.engine.admission.shared.server_state.get();
        if state == mem::replace(&mut self.server_state, state) {
            return;
        }
        if state == CUTTING {
            self.ends_until = self.context.now.monotonic + ENDS_PATIENCE;
        }
        for id in self.connections.ids() {
            if self.serves(id) {
                self.resume_with(id, |machine, _, now| machine.handle_server_state(state, now));
            } else if state == CUTTING {
                self.abort(id);
            }
        }
    }

    /// True if the connection exists and the server still serves it.
    fn serves(&mut self, id: FlowId) -> bool {
        let connection = self.connections.get_mut(id);
        connection.is_some_and(|it| it.machine.is_some())
    }

    fn handle_messages(&mut self) {
        let mut messages = mem::take(&mut self.messages);
        self.context.inbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Accepted(never) => match never {},
                // The connection was cut meanwhile.
                Message::Worked(id, work) if !self.serves(id) => drop_session(work),
                Message::Worked(id, Some(work)) => {
                    self.resume_with(id, |machine, _, now| machine.handle_worked(work, now));
                }
                Message::Worked(id, None) => self.end(id, Closed::Error),
                Message::Read(id, piece) => self.resume_with(id, |machine, file, now| {
                    if let Err(error) = file.handle_read(piece) {
                        machine.handle_error(&error, now);
                    }
                }),
            }
        }
        self.messages = messages;
    }

    /// Handles the shard's events.
    fn handle_events(&mut self) {
        while let Some((id, events)) = self.netstack.shard().next_event() {
            let Some(connection) = self.connections.get_mut(id) else {
                continue; // It waits for space.
            };
            if events.contains(TcpEvents::RELEASED)
                && let Some(tcp) = self.netstack.shard().connection(id)
            {
                connection.retransmit.release(&mut self.buffer_pool, tcp.released());
            }
            let end = self.netstack.shard().end(id);
            if connection.machine.is_none() {
                if end.is_some() || connection.retransmit.is_empty() {
                    self.close(id);
                }
                continue;
            }
            match connection.waits {
                // An orderly close by both sides shows in the input.
                _ if end.is_some_and(|end| end != End::Closed) => {
                    self.resume_with(id, |machine, _, now| {
                        machine.handle_error(&io::ErrorKind::ConnectionReset.into(), now);
                    });
                }
                Wait::Input { .. } | Wait::Either { .. } => self.resume(id),
                Wait::Writable { .. } => {
                    let cwnd = cwnd_of(self.netstack.shard(), id);
                    if connection.retransmit.has_space(&self.buffer_pool, cwnd) {
                        self.resume(id);
                    }
                }
                _ => {}
            }
        }
    }
}

// ---- the run queue and the timers

impl<S: Session + 'static, O: Opens<S>, D: Device> EventLoop<S, O, D> {
    /// Gives each queued connection a turn, as far as time allows.
    fn run_queued(&mut self) {
        for _ in 0..self.run_queue.len() {
            let Some(id) = self.run_queue.pop_front() else {
                return;
            };
            if let Some(connection) = self.connections.get_mut(id) {
                connection.is_queued = false;
                self.resume(id);
            }
            self.context.update_clock();
            if self.context.is_late() {
                return;
            }
        }
    }

    fn expire_timers(&mut self) {
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
                // The deadline was extended.
                self.arm(id, until);
            } else if connection.machine.is_some() {
                self.resume(id);
            } else {
                self.abort(id);
            }
        }
    }

    /// Drives a connection until it waits.
    #[inline]
    fn resume(&mut self, id: FlowId) {
        self.resume_with(id, |_, _, _| ());
    }

    /// Passes an event to a connection and drives it, unless the server is done with it.
    #[inline]
    fn resume_with(
        &mut self,
        id: FlowId,
        event: impl FnOnce(&mut Machine<S>, &mut FileReader, Now),
    ) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if connection.machine.is_none() {
            return;
        }
        let context = &mut self.context;
        let pool = &mut self.buffer_pool;
        let shard = self.netstack.shard();
        let driven = catch_unwind(AssertUnwindSafe(|| {
            if let Some(machine) = &mut connection.machine {
                event(machine, &mut connection.file, context.now);
            }
            connection.drive(context, pool, shard, &self.engine.admission)
        }));
        // A panicking session is a bug, and ends only this connection: the hook has reported it.
        match driven.unwrap_or(Wait::End(Closed::Error)) {
            Wait::Input { until }
            | Wait::Writable { until }
            | Wait::Either { until }
            | Wait::Time { until } => {
                self.arm(id, until);
            }
            Wait::Turn => {
                if !mem::replace(&mut connection.is_queued, true) {
                    self.run_queue.push_back(id);
                }
            }
            Wait::Thread => {}
            Wait::End(closed) => self.end(id, closed),
        }
    }

    fn arm(&mut self, id: FlowId, until: Instant) {
        let at = net_instant(self.start, until);
        self.timers.arm(id.index() as u32, at);
    }
}

// ---- how connections come and leave

impl<S: Session + 'static, O: Opens<S>, D: Device> EventLoop<S, O, D> {
    /// Accepts connections whose handshake is complete, as far as limit and time allow.
    fn accept(&mut self) {
        self.has_more_to_accept = false;
        let mut until = None;
        let was_woken = self.own.has_space.swap(false, Ordering::Acquire);
        self.waits_for_space &= !was_woken;
        while !self.waits_for_space {
            let Some((id, listener)) = self.held.take().or_else(|| self.next_accepted()) else {
                break;
            };
            if !self.engine.connection_limit.has_space_or_wait(&self.own) {
                self.held = Some((id, listener));
                self.waits_for_space = true;
                self.engine.admission.shared.counters.accept_paused();
            } else if self.engine.connection_limit.enter() {
                self.admit(id, listener);
                let now = self.context.update_clock().monotonic;
                if now >= *until.get_or_insert(now + SHARE_OF_TURN) {
                    self.has_more_to_accept = true;
                    break;
                }
            } else {
                self.held = Some((id, listener));
            }
        }
        if was_woken {
            self.engine.connection_limit.wake_next_if_space();
        }
    }

    fn next_accepted(&mut self) -> Option<(FlowId, usize)> {
        let shard = self.netstack.shard();
        for &port in &self.ports {
            while let Some(id) = shard.accept(port) {
                let listener = shard.tuple(id);
                let listener =
                    listener.and_then(|it| listener_of(&self.listeners, it.local, it.local_port));
                match listener {
                    Some(listener) => return Some((id, listener)),
                    // No listener at this address of the host.
                    None => shard.abort(id),
                }
            }
        }
        None
    }

    /// Begins to serve a connection, unless the limit is exceeded.
    fn admit(&mut self, id: FlowId, listener: usize) {
        let admission = &self.engine.admission;
        let mut connection = Connection {
            id,
            machine: None,
            retransmit: RetransmitBuffer::default(),
            file: FileReader::default(),
            // A new connection has no turn yet: its long operations can be postponed.
            waits: Wait::Thread,
            listener,
            is_queued: false,
        };
        if let Err(line) = admission.admit() {
            // In plain text even on a TLS listener, as in memcached.
            let line = Bytes::from_static(line.as_bytes());
            self.netstack.shard().queue(id, line.len() as u64);
            connection.retransmit.put(&mut self.buffer_pool, line);
            self.connections.insert(connection);
            admission.refused();
            return self.leave(id, LINE_PATIENCE);
        }
        let shard = self.netstack.shard();
        let peer = || peer_of(shard, id);
        let mut machine = self.engine.machine(listener, peer, self.context.now);
        machine.handle_server_state(self.server_state, self.context.now);
        connection.machine = Some(machine);
        self.connections.insert(connection);
        // Replies leave whole: all output of a turn is queued before a frame is made.
        self.netstack.shard().set_nodelay(id, true);
        self.own.counters.accepted.add(1);
        self.resume(id);
    }

    /// Ends the service of a connection, and counts the reason.
    fn end(&mut self, id: FlowId, closed: Closed) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        drop_session(connection.machine.take());
        self.engine.admission.release();
        self.engine.admission.shared.counters.closed(closed);
        // The rest is not sent to a peer that takes nothing.
        if closed == Closed::TooSlow || self.server_state == CUTTING {
            self.abort(id)
        } else {
            self.leave(id, LAST_BYTES_PATIENCE)
        }
    }

    /// Sends the end of the stream. The connection keeps its slot until the peer has acknowledged
    /// all bytes, since nothing else could retransmit them. It is reset if that takes too long.
    fn leave(&mut self, id: FlowId, patience: Duration) {
        self.netstack.shard().finish(id);
        let has_ended = self.netstack.shard().end(id).is_some();
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        if has_ended || connection.retransmit.is_empty() {
            return self.close(id);
        }
        let until = self.context.now.monotonic + patience;
        connection.waits = Wait::Time { until };
        self.arm(id, until);
    }

    /// Closes a connection whose bytes are all acknowledged: the rest is up to the shard.
    fn close(&mut self, id: FlowId) {
        let now = self.now();
        self.netstack.shard().close(now, id);
        self.remove(id);
    }

    /// Resets the connection.
    fn abort(&mut self, id: FlowId) {
        self.netstack.shard().abort(id);
        self.remove(id);
    }

    fn remove(&mut self, id: FlowId) {
        if let Some(place) = self.connections.0.get_mut(id.index()) {
            if let Some(connection) = place.take() {
                connection.retransmit.abandon(&mut self.buffer_pool);
            }
            self.timers.disarm(id.index() as u32);
            self.engine.connection_limit.leave();
        }
    }

    /// Stops listening once handshakes in progress are done.
    fn stop_listening(&mut self) {
        let now = self.context.now.monotonic;
        let until = match self.acceptor {
            Acceptor::Closed => return,
            Acceptor::Closing(until) => until,
            Acceptor::Open => {
                for &port in &self.ports {
                    self.netstack.shard().refuse_handshakes(port);
                }
                now + HANDSHAKE_PATIENCE
            }
        };
        self.acceptor = Acceptor::Closing(until);
        let shard = self.netstack.shard();
        let mut left = self.ports.iter().map(|&port| shard.backlog_len(port));
        if now < until && (left.any(|len| len > 0) || self.held.is_some()) {
            return;
        }
        self.acceptor = Acceptor::Closed;
        for &port in &self.ports {
            self.netstack.shard().unlisten(port);
        }
        if let Some((id, _)) = self.held.take() {
            self.netstack.shard().abort(id);
        }
        self.engine.connection_limit.note_closed();
    }
}

fn net_instant(start: Instant, time: Instant) -> NetInstant {
    NetInstant::START + time.saturating_duration_since(start)
}
