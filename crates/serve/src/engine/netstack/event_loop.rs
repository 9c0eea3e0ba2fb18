//! One loop: a kernel thread that takes what has come, goes on with the connections that it is for,
//! sends what they have to send, and waits.
//!
//! ```text
//!  ┌▶ frames ──▶ news of the server ──▶ messages ──▶ events ──▶ turns ──▶ timers ──▶ accept ─┐
//!  └──────────────────────────── wait ◀──────────────────────────────────────── transmit ◀──┘
//! ```

mod lifetime;
mod turns;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use netstack::Netstack;
use netstack::device::Device;
use netstack::stack::frames::BURST_FRAMES_MAX;
use netstack::stack::wheel::TimerWheel;
use netstack::stack::{Backlog, FlowId, Pieces, Writer};
use netstack::tcp::{End, Happened};
use netstack::time::Instant as NetInstant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::Session;

use super::connection::{Connection, LoopContext, Message, cwnd_of};
use super::figures::Figures;
use super::retransmit_buffer::BufferPool;
use super::{Complaints, EngineContext};
use crate::clock;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::reactor::{LoopHandle, Wait, drop_session};
use crate::memory::give_free_memory_back;
use crate::shared::{CUTTING, SERVING};
use lifetime::{ENDS_PATIENCE, HANDSHAKE_PATIENCE};

/// How soon a frame is tried again that the device had no room for; and how long a loop leaves the
/// device alone after an error, which would come back at once. Each further error doubles that up
/// to the second: a device may be gone for ever.
const DEVICE_PAUSE: Duration = Duration::from_millis(1);
const DEVICE_PAUSE_MAX: Duration = Duration::from_millis(128);

/// See the [module page](self).
pub(super) struct EventLoop<S, O, D> {
    engine: Arc<EngineContext<O>>,
    figures: Arc<Figures>,
    netstack: Netstack<D>,
    connections: Connections<S>,
    context: LoopContext<S>,
    messages: Receiver<Message<S>>,
    /// Those that have a turn coming.
    turns: VecDeque<FlowId>,
    timers: TimerWheel,
    /// What the netstack's time is counted from.
    start: Instant,
    ports: Vec<u16>,
    acceptor: Acceptor,
    /// It was accepted when there was no room. It is the next one to come in.
    held: Option<(FlowId, usize)>,
    /// The last turn had no time for all that there may be to accept.
    has_more_to_accept: bool,
    /// It stands in the line of those that wait for room.
    is_in_line: bool,
    /// What the server was doing at the last look.
    server_state: u8,
    /// When the loop ends although peers have not acknowledged the ends of their connections; until
    /// the server is over, in the past.
    ends_until: Instant,
    /// The device gave as many frames as a burst takes, or has refused one.
    has_more_frames: bool,
    /// How long it is left alone after its last errors; zero while it works.
    device_pause: Duration,
    complaints: Complaints,
}

/// Whether handshakes begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acceptor {
    Open,
    /// Those under way may end until then.
    Closing(Instant),
    Closed,
}

/// By the index of their flows.
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
        own: Arc<LoopHandle>,
        figures: Arc<Figures>,
        mut netstack: Netstack<D>,
        backlog: Backlog,
    ) -> EventLoop<S, O, D> {
        let mut ports: Vec<u16> = engine
            .listeners
            .iter()
            .map(|listener| listener.address.port())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        for &port in &ports {
            netstack.shard().listen(port, backlog);
        }
        let (sender, messages) = mpsc::channel();
        let now = clock::now();
        let context = LoopContext {
            now,
            long_until: now.monotonic,
            buffer_pool: BufferPool::default(),
            own,
            messages: sender,
            jobs: Arc::clone(&engine.admission.shared.jobs),
        };
        let start = engine.admission.shared.start;
        netstack
            .interface()
            .announce(net_instant(start, context.now.monotonic));
        let began_at = context.now.monotonic;
        EventLoop {
            engine,
            figures,
            netstack,
            connections: Connections(Vec::new()),
            context,
            messages,
            turns: VecDeque::new(),
            timers: TimerWheel::new(),
            start,
            ports,
            acceptor: Acceptor::Open,
            held: None,
            has_more_to_accept: false,
            is_in_line: false,
            server_state: SERVING,
            ends_until: began_at,
            has_more_frames: false,
            device_pause: Duration::ZERO,
            complaints: Complaints::default(),
        }
    }

    /// Serves until the server is over, the last connection has ended, and its peer knows that.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            self.turn();
            self.wait();
        }
    }

    pub(super) fn is_over(&mut self) -> bool {
        self.server_state == CUTTING
            && self.acceptor == Acceptor::Closed
            && self.connections.is_empty()
            && !(self.context.now.monotonic < self.ends_until
                && self.netstack.shard().has_unacknowledged_ends())
    }

    /// Does all that there is to do now.
    pub(super) fn turn(&mut self) {
        self.context.begin_turn();
        let received = self.netstack.receive(self.now());
        self.complaints.has_received(&received);
        self.has_more_frames = matches!(received, Ok(count) if count >= BURST_FRAMES_MAX);
        self.check_server_state();
        self.handle_messages();
        self.handle_events();
        self.run_queued();
        self.expire_timers();
        self.accept();
        let transmitted = self.netstack.transmit(self.now(), &self.connections);
        if let Err(error) = &transmitted {
            self.complaints
                .cannot_send(error, self.context.now.monotonic);
        }
        self.rest_device(received.is_err() || transmitted.is_err());
        if self.context.buffer_pool.has_lost_a_crowd() {
            // Not on the loop, for which it takes too long. If it is refused, the memory stays.
            let _ = self.context.jobs.hand_over(false, give_free_memory_back);
        }
        self.figures
            .copy(&mut self.netstack, &self.context.buffer_pool);
    }

    fn rest_device(&mut self, has_failed: bool) {
        if !has_failed {
            self.device_pause = Duration::ZERO;
            return;
        }
        self.context.own.counters.errors.add(1);
        let longer = 2 * self.device_pause;
        self.device_pause = longer.clamp(DEVICE_PAUSE, DEVICE_PAUSE_MAX);
    }

    fn wait(&mut self) {
        if self.is_over() {
            return;
        }
        let patience = self.patience();
        let waker = &self.context.own.waker;
        // One that has failed reports that without end.
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
            // A failure is looked at by what is tried next.
            let _ = poll(&mut fds, Some(&timeout));
        });
        if !fds[0].revents().is_empty() {
            waker.is_heard();
        }
        let reports = fds.iter().filter(|fd| !fd.revents().is_empty()).count();
        self.context.own.counters.waits.add(1);
        self.context.own.counters.reports.add(reports as u64);
    }

    /// For how long nothing happens unless a frame or a message comes.
    pub(super) fn patience(&mut self) -> Duration {
        if self.has_more_frames || self.has_more_to_accept || !self.turns.is_empty() {
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

    #[cfg(test)]
    pub(super) fn buffer_pool(&self) -> &BufferPool {
        &self.context.buffer_pool
    }

    #[cfg(test)]
    pub(super) fn device(&mut self) -> &mut D {
        self.netstack.device()
    }

    #[cfg(test)]
    pub(super) fn device_pause(&self) -> Duration {
        self.device_pause
    }

    #[cfg(test)]
    pub(super) fn complaints(&self) -> &Complaints {
        &self.complaints
    }

    #[cfg(test)]
    pub(super) fn is_in_line(&self) -> bool {
        self.is_in_line
    }

    fn now(&self) -> NetInstant {
        net_instant(self.start, self.context.now.monotonic)
    }

    /// Whether the server drains or is over.
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
            match self.is_served(id) {
                true => self.tell(id, |machine, _, now| {
                    machine.handle_server_state(state, now)
                }),
                false if state == CUTTING => self.abort(id),
                false => {}
            }
        }
    }

    /// Whether there is such a connection, and it has not ended for the server.
    fn is_served(&mut self, id: FlowId) -> bool {
        let connection = self.connections.get_mut(id);
        connection.is_some_and(|it| it.machine.is_some())
    }

    fn handle_messages(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            match message {
                // The connection was cut meanwhile.
                Message::Worked(id, job) if !self.is_served(id) => drop_session(job),
                Message::Worked(id, Some(job)) => {
                    self.tell(id, |machine, _, now| machine.handle_worked(job, now));
                }
                Message::Worked(id, None) => self.end(id, Closed::Error),
                Message::Read(id, piece) => self.tell(id, |machine, file, now| {
                    if let Err(error) = file.has_read(piece) {
                        machine.handle_error(&error, now);
                    }
                }),
            }
        }
    }

    /// What has happened to connections.
    fn handle_events(&mut self) {
        while let Some((id, happened)) = self.netstack.shard().next_event() {
            let Some(connection) = self.connections.get_mut(id) else {
                continue; // It waits for room.
            };
            if happened.contains(Happened::RELEASED)
                && let Some(tcp) = self.netstack.shard().connection(id)
            {
                connection
                    .retransmit
                    .release(&mut self.context.buffer_pool, tcp.released());
            }
            let end = self.netstack.shard().end(id);
            if connection.machine.is_none() {
                if end.is_some() || connection.retransmit.is_empty() {
                    self.part(id);
                }
                continue;
            }
            match connection.waits {
                // It has closed as we have, and that is what its input says.
                _ if end.is_some_and(|end| end != End::Closed) => {
                    self.tell(id, |machine, _, now| {
                        machine.handle_error(&io::ErrorKind::ConnectionReset.into(), now);
                    });
                }
                Wait::Input { .. } => self.go_on(id),
                Wait::Writable { .. } => {
                    let cwnd = cwnd_of(self.netstack.shard(), id);
                    if connection
                        .retransmit
                        .has_room(&self.context.buffer_pool, cwnd)
                    {
                        self.go_on(id);
                    }
                }
                _ => {}
            }
        }
    }
}

fn net_instant(start: Instant, time: Instant) -> NetInstant {
    NetInstant::START + time.saturating_duration_since(start)
}
