//! A connection of a loop. It does what its carriage wants until it would have to wait, and says
//! for what.

use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Instant;

use session::{Now, Session};

use super::mailbox::{Letter, Mailbox};
use crate::carriage::{Carriage, Want};
use crate::clock;
use crate::engine::admission::{Admission, Opens};
use crate::engine::loops::{
    LongUntil, SHARE_OF_TURN, Seated, Waits, Watch, Wire, is_put_off, output, take_steps, tell,
};
use crate::file::DiskRead;
use crate::jobs::Jobs;

/// One connection.
pub(super) struct Connection<S> {
    pub(super) carriage: Carriage<S>,
    pub(super) wire: Wire,
    pub(super) waits: Waits,
    pub(super) peer: Option<SocketAddr>,
    /// Which of the server's listeners it came from.
    pub(super) listener: usize,
    /// What the loop has told its dispatcher and its timers of it.
    pub(super) watch: Watch,
}

impl<S> Seated for Box<Connection<S>> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// What the connections of a loop share.
pub(super) struct Desk<S> {
    /// What time it was at the last look.
    pub(super) now: Now,
    /// Until when this turn of the loop goes on with long work.
    pub(super) long_until: Instant,
    /// Where input is received: a session uses it at once, or the carriage holds it.
    pub(super) room: Vec<u8>,
    pub(super) mailbox: Arc<Mailbox<S>>,
    pub(super) jobs: Arc<Jobs>,
    /// Whether threads read what is not in memory. Otherwise the loop waits for the disk.
    pub(super) has_file_threads: bool,
}

impl<S: Session + 'static> Connection<S> {
    /// Does what the carriage wants until it would have to wait, and notes for what.
    pub(super) fn drive(
        &mut self,
        desk: &mut Desk<S>,
        admission: &Admission<impl Opens<S>>,
    ) -> Waits {
        // A connection that has waited for a turn of its session has one now. The next comes after
        // those of others.
        let mut has_turn = matches!(self.waits, Waits::Turn);
        // Nor is its long work put off then.
        let long_until = (!has_turn).then_some(desk.long_until);
        let waits = take_steps(
            || match self.step(desk, admission, &mut has_turn, long_until) {
                Break(waits) if waits.are_over(desk.now) => {
                    self.carriage.expired(desk.now);
                    Continue(0)
                }
                stepped => stepped,
            },
        );
        self.waits = waits.unwrap_or(Waits::Turn);
        self.waits
    }

    /// Does one thing that the carriage wants. Says how much that sent.
    #[inline]
    fn step(
        &mut self,
        desk: &mut Desk<S>,
        admission: &Admission<impl Opens<S>>,
        has_turn: &mut bool,
        long_until: LongUntil,
    ) -> ControlFlow<Waits, u64> {
        let Connection {
            carriage,
            wire,
            watch,
            ..
        } = self;
        match carriage.want() {
            Want::Receive { until } => {
                let is_long = carriage.is_handshaking();
                if is_long && is_put_off(desk.now.monotonic, long_until) && wire.may_receive() {
                    return Break(Waits::Turn);
                }
                let room = carriage.shared().memory.part_of(&mut desk.room);
                match wire.receive(room, until)? {
                    Ok(len) => carriage.input(&desk.room[..len], desk.now),
                    Err(error) => carriage.failed(&error, desk.now),
                }
                if is_long {
                    desk.look_at_clock();
                }
            }
            Want::Fill { room, until } => {
                let filled = wire.receive(room, until)?;
                tell(carriage, filled, desk.now, Carriage::filled);
            }
            Want::Turn => {
                if !std::mem::take(has_turn) {
                    return Break(Waits::Turn);
                }
                carriage.go_on(desk.look_at_clock());
            }
            Want::Work => {
                let (job, mailbox, name) =
                    (carriage.begin_work(), desk.mailbox.clone(), watch.name);
                let done = move |job| mailbox.post(Letter::Worked(name, job));
                if let Err(error) = desk.jobs.work(job, desk.now, done) {
                    carriage.failed(&error, desk.now);
                }
            }
            Want::Nothing => return Break(Waits::Helper),
            Want::Open { tls } => {
                let session = admission.session(self.listener, || self.peer, tls, desk.now);
                carriage.opened(session, desk.now);
            }
            Want::Close(closed) => return Break(Waits::End(closed)),
            _ => {
                let slow = slow(&desk.mailbox, &desk.jobs, watch.name);
                let slow = desk.has_file_threads.then_some(slow);
                return output(carriage, wire, &mut desk.now, long_until, slow);
            }
        }
        Continue(0)
    }
}

impl<S> Desk<S> {
    /// Begins a turn of the loop.
    pub(super) fn begin_turn(&mut self) {
        self.look_at_clock();
        self.long_until = self.now.monotonic + SHARE_OF_TURN;
    }

    /// Whether this turn has done its share of long work.
    pub(super) fn is_late(&mut self) -> bool {
        self.look_at_clock().monotonic >= self.long_until
    }

    pub(super) fn look_at_clock(&mut self) -> Now {
        self.now = clock::now();
        self.now
    }
}

/// How a connection has a file read without waiting for it: a thread posts the piece.
fn slow<S: Session + 'static>(
    mailbox: &Arc<Mailbox<S>>,
    jobs: &Arc<Jobs>,
    name: u64,
) -> impl FnOnce(DiskRead) {
    move |read: DiskRead| {
        mailbox.count_slow_read();
        let to = Arc::clone(mailbox);
        let call = move || to.post(Letter::Read(name, read.run()));
        if let Err(error) = jobs.hand_over(false, call) {
            mailbox.post(Letter::Read(name, Err(error)));
        }
    }
}
