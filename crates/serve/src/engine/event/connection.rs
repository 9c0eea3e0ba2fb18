//! A connection of a loop. It does what its carriage wants until it would have to wait, and says
//! for what.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Instant;

use event::Interest;
use fiber::{Tick, TimerKey};
use session::{Now, Opening, Session};

use super::mailbox::{Letter, Mailbox};
use super::wire::{SlowRead, Wire};
use crate::carriage::{Carriage, Want};
use crate::clock;
use crate::counters::Closed;
use crate::engine::admission::Admission;
use crate::file::Buffer;
use crate::jobs::Jobs;

/// What a connection waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waits {
    /// Input.
    Input { until: Instant },
    /// Room in the socket's buffer.
    Room { until: Instant },
    /// The time.
    Time { until: Instant },
    /// A thread that works or reads for it.
    Helper,
    /// Its next turn.
    Turn,
    /// Nothing: this is the end.
    End(Closed),
}

/// One connection.
pub(super) struct Connection<S> {
    pub(super) carriage: Carriage<S>,
    pub(super) wire: Wire,
    pub(super) waits: Waits,
    pub(super) peer: Option<SocketAddr>,
    /// Which of the server's listeners it came from.
    pub(super) listener: usize,
    /// Its name in letters and reports. No other connection of the loop has had it.
    pub(super) name: u64,
    /// What the dispatcher watches it for.
    pub(super) watched: Option<Interest>,
    /// It stands in the queue of those that have a turn coming.
    pub(super) is_queued: bool,
    /// When the wait ends, and the timer that is set. It may be set for earlier: nearly every wait
    /// ends later than the one before, so a timer is set anew when it comes and not before.
    pub(super) due: Tick,
    pub(super) timer: Option<(TimerKey, Tick)>,
}

/// What the connections of a loop share.
pub(super) struct Desk<S> {
    /// What time it was at the last look.
    pub(super) now: Now,
    /// Where input is received: a session uses it at once, or the carriage holds it.
    pub(super) room: Vec<u8>,
    pub(super) mailbox: Arc<Mailbox<S>>,
    pub(super) jobs: Arc<Jobs>,
    /// Whether threads read what is not in memory. Otherwise the loop waits for the disk.
    pub(super) has_file_threads: bool,
    /// What the connection whose turn it is has sent in it.
    pub(super) sent_len: u64,
}

/// After so many steps, or so much that was sent, a connection gives way to others: neither a peer
/// that takes a file as fast as it is sent, nor one that sends without end, keeps a loop to itself.
const STEPS_MAX: usize = 16;
const SENT_LEN_MAX: u64 = 512 * 1024;

impl<S: Session + 'static> Connection<S> {
    /// Does what the carriage wants until it would have to wait, and notes for what.
    pub(super) fn drive(
        &mut self,
        desk: &mut Desk<S>,
        admission: &Admission<impl Fn(Opening<'_>) -> S>,
    ) -> Waits {
        // A connection that has waited for a turn of its session has one now. The next comes after
        // those of others.
        let mut has_turn = matches!(self.waits, Waits::Turn);
        desk.sent_len = 0;
        for _ in 0..STEPS_MAX {
            match self.step(desk, admission, &mut has_turn) {
                Break(Waits::Input { until } | Waits::Room { until })
                    if until <= desk.now.monotonic =>
                {
                    self.carriage.expired(desk.now);
                }
                Break(waits) => {
                    self.waits = waits;
                    return waits;
                }
                Continue(()) if desk.sent_len >= SENT_LEN_MAX => break,
                Continue(()) => {}
            }
        }
        self.waits = Waits::Turn;
        self.waits
    }

    /// Does one thing that the carriage wants.
    #[inline]
    fn step(
        &mut self,
        desk: &mut Desk<S>,
        admission: &Admission<impl Fn(Opening<'_>) -> S>,
        has_turn: &mut bool,
    ) -> ControlFlow<Waits> {
        let Connection {
            carriage,
            wire,
            name,
            ..
        } = self;
        match carriage.want() {
            Want::Send {
                out,
                until,
                is_last,
            } => {
                let sent = wire.send_out(out, until, is_last)?;
                desk.sent_len += sent.taken.as_ref().unwrap_or(&0);
                match sent.taken {
                    // What was taken at once took no time.
                    Ok(len) if sent.is_all && !carriage.is_timed() => {
                        carriage.sent(len, desk.now);
                    }
                    taken => tell(carriage, taken, desk.look_at_clock(), Carriage::sent),
                }
            }
            Want::Receive { until } => match wire.receive(&mut desk.room, until)? {
                Ok(len) => carriage.input(&desk.room[..len], desk.now),
                Err(error) => carriage.failed(&error, desk.now),
            },
            Want::Fill { room, until } => {
                let filled = wire.receive(room, until)?;
                tell(carriage, filled, desk.now, Carriage::filled);
            }
            Want::File(piece) => {
                let sent = wire.send_file(&piece, desk.slow(*name))?;
                desk.sent_len += sent.as_ref().unwrap_or(&0);
                tell(carriage, sent, desk.look_at_clock(), Carriage::sent);
            }
            Want::Copy { range, until } => {
                let sent = wire.send_copy(range, until, desk.slow(*name))?;
                desk.sent_len += sent.as_ref().unwrap_or(&0);
                tell(carriage, sent, desk.look_at_clock(), Carriage::sent);
            }
            Want::Read { range } => {
                let read = wire.read(range, desk.slow(*name))?;
                tell(carriage, read, desk.look_at_clock(), Carriage::file_bytes);
            }
            Want::Untaken { after } => {
                let untaken = wire.untaken_len(after, desk.now)?;
                tell(carriage, untaken, desk.now, Carriage::untaken);
            }
            Want::Turn => {
                if !std::mem::take(has_turn) {
                    return Break(Waits::Turn);
                }
                carriage.go_on(desk.look_at_clock());
            }
            Want::Work => {
                let (job, mailbox, name) = (carriage.begin_work(), desk.mailbox.clone(), *name);
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
            Want::Finish => tell(carriage, wire.finish(), desk.now, Carriage::finished),
            Want::Close(closed) => return Break(Waits::End(closed)),
        }
        Continue(())
    }
}

impl<S: Session + 'static> Desk<S> {
    pub(super) fn look_at_clock(&mut self) -> Now {
        self.now = clock::now();
        self.now
    }

    /// How a connection has a file read without waiting for it: a thread posts the piece.
    fn slow(&self, name: u64) -> Option<impl FnOnce(SlowRead)> {
        let Desk { mailbox, jobs, .. } = self;
        self.has_file_threads.then_some(move |read: SlowRead| {
            mailbox.count_slow_read();
            let (buffer, to) = (Buffer::take(), Arc::clone(mailbox));
            let call = move || to.post(Letter::Read(name, read.run(buffer)));
            if let Err(error) = jobs.hand_over(false, call) {
                mailbox.post(Letter::Read(name, Err(error)));
            }
        })
    }
}

/// Tells the carriage what came of what it wanted.
fn tell<S: Session, R>(
    carriage: &mut Carriage<S>,
    result: io::Result<R>,
    now: Now,
    told: impl FnOnce(&mut Carriage<S>, R, Now),
) {
    match result {
        Ok(result) => told(carriage, result, now),
        Err(error) => carriage.failed(&error, now),
    }
}
