//! One loop: a kernel thread that takes what has come, goes on with the connections that it is for,
//! sends what they have to send, and waits.
//!
//! ```text
//!  ┌▶ frames ──▶ news of the server ──▶ letters ──▶ events ──▶ turns ──▶ timers ──▶ accept ─┐
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

use super::connection::{Connection, Desk, Letter, cwnd_of};
use super::figures::Figures;
use super::flight::Hangar;
use super::{Complaints, Hall};
use crate::clock;
use crate::counters::Closed;
use crate::engine::admission::Opens;
use crate::engine::loops::{Loop, Waits, drop_session};
use crate::memory::give_free_memory_back;
use crate::shared::{CUTTING, SERVING};
pub(super) use lifetime::{ENDS_PATIENCE, HANDSHAKE_PATIENCE, LAST_BYTES_PATIENCE, LINE_PATIENCE};

/// How soon a frame is tried again that the device had no room for; and how long a loop leaves the
/// device alone after an error, which would come back at once. Each further error doubles that up
/// to the second: a device may be gone for ever.
const DEVICE_PAUSE: Duration = Duration::from_millis(1);
const DEVICE_PAUSE_MAX: Duration = Duration::from_millis(128);

/// See the [module page](self).
pub(super) struct Worker<S, O, D> {
    hall: Arc<Hall<O>>,
    figures: Arc<Figures>,
    netstack: Netstack<D>,
    connections: Connections<S>,
    desk: Desk<S>,
    letters: Receiver<Letter<S>>,
    /// Those that have a turn coming.
    turns: VecDeque<FlowId>,
    timers: TimerWheel,
    /// What the netstack's time is counted from.
    start: Instant,
    ports: Vec<u16>,
    entrance: Entrance,
    /// It was accepted when there was no room. It is the next one to come in.
    held: Option<(FlowId, usize)>,
    /// The last turn had no time for all that there may be to accept.
    has_more_to_accept: bool,
    /// It stands in the line of those that wait for room.
    is_in_line: bool,
    /// What the server was doing at the last look.
    stage: u8,
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
enum Entrance {
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
            connection.flight.gather(offset, len, pieces);
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

impl<S: Session + 'static, O: Opens<S>, D: Device> Worker<S, O, D> {
    pub(super) fn new(
        hall: Arc<Hall<O>>,
        own: Arc<Loop>,
        figures: Arc<Figures>,
        mut netstack: Netstack<D>,
        backlog: Backlog,
    ) -> Worker<S, O, D> {
        let mut ports: Vec<u16> = hall.doors.iter().map(|door| door.address.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        for &port in &ports {
            netstack.shard().listen(port, backlog);
        }
        let (sender, letters) = mpsc::channel();
        let now = clock::now();
        let desk = Desk {
            now,
            long_until: now.monotonic,
            hangar: Hangar::default(),
            own,
            letters: sender,
            jobs: Arc::clone(&hall.admission.shared.jobs),
        };
        let start = hall.admission.shared.start;
        netstack
            .interface()
            .announce(net_instant(start, desk.now.monotonic));
        let began_at = desk.now.monotonic;
        Worker {
            hall,
            figures,
            netstack,
            connections: Connections(Vec::new()),
            desk,
            letters,
            turns: VecDeque::new(),
            timers: TimerWheel::new(),
            start,
            ports,
            entrance: Entrance::Open,
            held: None,
            has_more_to_accept: false,
            is_in_line: false,
            stage: SERVING,
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
        self.stage == CUTTING
            && self.entrance == Entrance::Closed
            && self.connections.is_empty()
            && !(self.desk.now.monotonic < self.ends_until
                && self.netstack.shard().has_unacknowledged_ends())
    }

    /// Does all that there is to do now.
    pub(super) fn turn(&mut self) {
        self.desk.begin_turn();
        let received = self.netstack.receive(self.now());
        self.complaints.has_received(&received);
        self.has_more_frames = matches!(received, Ok(count) if count >= BURST_FRAMES_MAX);
        self.hear_news();
        self.read_letters();
        self.hear_events();
        self.give_turns();
        self.look_at_timers();
        self.accept();
        let transmitted = self.netstack.transmit(self.now(), &self.connections);
        if let Err(error) = &transmitted {
            self.complaints.cannot_send(error, self.desk.now.monotonic);
        }
        self.rest_device(received.is_err() || transmitted.is_err());
        if self.desk.hangar.has_lost_a_crowd() {
            // Not on the loop, for which it takes too long. If it is refused, the memory stays.
            let _ = self.desk.jobs.hand_over(false, give_free_memory_back);
        }
        self.figures.copy(&mut self.netstack, &self.desk.hangar);
    }

    fn rest_device(&mut self, has_failed: bool) {
        if !has_failed {
            self.device_pause = Duration::ZERO;
            return;
        }
        self.desk.own.counters.errors.add(1);
        let longer = 2 * self.device_pause;
        self.device_pause = longer.clamp(DEVICE_PAUSE, DEVICE_PAUSE_MAX);
    }

    fn wait(&mut self) {
        if self.is_over() {
            return;
        }
        let patience = self.patience();
        let bell = &self.desk.own.bell;
        // One that has failed reports that without end.
        let device = self.netstack.device().descriptor();
        let device = device.filter(|_| self.device_pause.is_zero());
        let fds = [bell.as_fd(), device.unwrap_or(bell.as_fd())];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        bell.wait(Some(patience), |timeout| {
            let timeout = timeout.unwrap_or_default();
            let timeout = Timespec {
                tv_sec: timeout.as_secs().min(3600) as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            // A failure is looked at by what is tried next.
            let _ = poll(&mut fds, Some(&timeout));
        });
        if !fds[0].revents().is_empty() {
            bell.is_heard();
        }
        let reports = fds.iter().filter(|fd| !fd.revents().is_empty()).count();
        self.desk.own.counters.waits.add(1);
        self.desk.own.counters.reports.add(reports as u64);
    }

    /// For how long nothing happens unless a frame or a letter comes.
    pub(super) fn patience(&mut self) -> Duration {
        if self.has_more_frames || self.has_more_to_accept || !self.turns.is_empty() {
            return Duration::ZERO;
        }
        let now = net_instant(self.start, Instant::now());
        let next = self.netstack.wakes_at().min(self.timers.wakes_at());
        let mut patience = next.since(now);
        if let Entrance::Closing(_) = self.entrance {
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
    pub(super) fn hangar(&self) -> &Hangar {
        &self.desk.hangar
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
        net_instant(self.start, self.desk.now.monotonic)
    }

    /// Whether the server drains or is over.
    fn hear_news(&mut self) {
        if self.hall.gate.is_closing() {
            self.close_entrance();
        }
        let stage = self.hall.admission.shared.stage.get();
        if stage == mem::replace(&mut self.stage, stage) {
            return;
        }
        if stage == CUTTING {
            self.ends_until = self.desk.now.monotonic + ENDS_PATIENCE;
        }
        for id in self.connections.ids() {
            match self.is_served(id) {
                true => self.tell(id, |carriage, _, now| carriage.at_stage(stage, now)),
                false if stage == CUTTING => self.abort(id),
                false => {}
            }
        }
    }

    /// Whether there is such a connection, and it has not ended for the server.
    fn is_served(&mut self, id: FlowId) -> bool {
        let connection = self.connections.get_mut(id);
        connection.is_some_and(|it| it.carriage.is_some())
    }

    fn read_letters(&mut self) {
        while let Ok(letter) = self.letters.try_recv() {
            match letter {
                // The connection was cut meanwhile.
                Letter::Worked(id, job) if !self.is_served(id) => drop_session(job),
                Letter::Worked(id, Some(job)) => {
                    self.tell(id, |carriage, _, now| carriage.worked(job, now));
                }
                Letter::Worked(id, None) => self.end(id, Closed::Error),
                Letter::Read(id, piece) => self.tell(id, |carriage, file, now| {
                    if let Err(error) = file.has_read(piece) {
                        carriage.failed(&error, now);
                    }
                }),
            }
        }
    }

    /// What has happened to connections.
    fn hear_events(&mut self) {
        while let Some((id, happened)) = self.netstack.shard().next_event() {
            let Some(connection) = self.connections.get_mut(id) else {
                continue; // It waits for room.
            };
            if happened.contains(Happened::RELEASED)
                && let Some(tcp) = self.netstack.shard().connection(id)
            {
                connection
                    .flight
                    .release(&mut self.desk.hangar, tcp.released());
            }
            let end = self.netstack.shard().end(id);
            if connection.carriage.is_none() {
                if end.is_some() || connection.flight.is_empty() {
                    self.part(id);
                }
                continue;
            }
            match connection.waits {
                // It has closed as we have, and that is what its input says.
                _ if end.is_some_and(|end| end != End::Closed) => {
                    self.tell(id, |carriage, _, now| {
                        carriage.failed(&io::ErrorKind::ConnectionReset.into(), now);
                    });
                }
                Waits::Input { .. } => self.go_on(id),
                Waits::Room { .. } => {
                    let cwnd = cwnd_of(self.netstack.shard(), id);
                    if connection.flight.has_room(&self.desk.hangar, cwnd) {
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
