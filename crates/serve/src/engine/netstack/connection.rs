//! A connection of a loop. It does what its carriage wants until it would have to wait, and says
//! for what.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use bytes::Bytes;
use netstack::stack::{FlowId, Shard};
use session::{Now, Session};

use super::flight::{Flight, Hangar};
use crate::carriage::{Carriage, FilePiece, Queues, Untaken, Want};
use crate::clock;
use crate::engine::admission::{Admission, Opens};
use crate::engine::loops::{
    LONG_LEN, LongUntil, Loop, SHARE_OF_TURN, Waits, is_put_off, take_steps, tell,
};
use crate::file;
use crate::jobs::{Job, Jobs};

/// One connection.
pub(super) struct Connection<S> {
    pub(super) id: FlowId,
    /// `None` once it has ended for the server, and its last bytes are not acknowledged.
    pub(super) carriage: Option<Carriage<S>>,
    pub(super) flight: Flight,
    pub(super) file: FileReader,
    pub(super) waits: Waits,
    /// Which of the doors it came by.
    pub(super) door: usize,
    /// It stands in the queue of those that have a turn coming.
    pub(super) is_queued: bool,
}

/// What the connections of a loop share.
pub(super) struct Desk<S> {
    /// What time it was at the last look.
    pub(super) now: Now,
    /// Until when this turn of the loop goes on with long work.
    pub(super) long_until: Instant,
    pub(super) hangar: Hangar,
    pub(super) own: Arc<Loop>,
    pub(super) letters: Sender<Letter<S>>,
    pub(super) jobs: Arc<Jobs>,
}

/// What other threads have for a connection. It has one coming at a time.
pub(super) enum Letter<S> {
    /// Its session has worked; `None` if it panicked.
    Worked(FlowId, Option<Job<S>>),
    /// A piece of a file was read for it.
    Read(FlowId, io::Result<Bytes>),
}

/// What is read from the page cache at a time, and held until it is acknowledged.
pub(super) const CACHED_PIECE_LEN: u64 = 256 * 1024;

impl<S: Session + 'static> Connection<S> {
    /// Does what the carriage wants until it would have to wait, and notes for what.
    pub(super) fn drive(
        &mut self,
        desk: &mut Desk<S>,
        shard: &mut Shard,
        admission: &Admission<impl Opens<S>>,
    ) -> Waits {
        // A connection that has waited for a turn of its session has one now. The next comes after
        // those of others.
        let mut has_turn = matches!(self.waits, Waits::Turn);
        // Nor is its long work put off then.
        let until = (!has_turn).then_some(desk.long_until);
        let waits = take_steps(
            || match self.step(desk, shard, admission, &mut has_turn, until) {
                Break(waits) if waits.are_over(desk.now) => {
                    if let Some(carriage) = &mut self.carriage {
                        carriage.expired(desk.now);
                    }
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
        shard: &mut Shard,
        admission: &Admission<impl Opens<S>>,
        has_turn: &mut bool,
        long_until: LongUntil,
    ) -> ControlFlow<Waits, u64> {
        let (id, flight, file) = (self.id, &mut self.flight, &mut self.file);
        let Some(carriage) = &mut self.carriage else {
            return Break(self.waits);
        };
        let is_put_off = is_put_off(desk.now.monotonic, long_until);
        let is_long = carriage.is_handshaking();
        match carriage.want() {
            Want::Receive { until } => {
                let (front, _) = shard.peek(id);
                let len = front.len().min(carriage.shared().memory.receive_len_max());
                if len > 0 && is_long && is_put_off {
                    return Break(Waits::Turn);
                } else if len > 0 {
                    carriage.input(&front[..len], desk.now);
                    shard.consume(id, len);
                    if is_long {
                        desk.look_at_clock();
                    }
                } else if has_input_ended(shard, id) {
                    carriage.end_of_input(desk.now);
                } else {
                    return Break(Waits::Input { until });
                }
            }
            Want::Fill { room, until } => {
                let len = shard.read(id, room);
                if len == 0 && !has_input_ended(shard, id) {
                    return Break(Waits::Input { until });
                }
                carriage.filled(len, desk.now);
            }
            Want::Send { out, .. } if is_put_off && out.queued_len() > LONG_LEN => {
                return Break(Waits::Turn);
            }
            Want::File(piece) | Want::Read(piece) if is_put_off && piece.len > LONG_LEN => {
                return Break(Waits::Turn);
            }
            Want::Send { out, until, .. } => {
                let cwnd = cwnd_of(shard, id);
                if !flight.has_room(&desk.hangar, cwnd) {
                    return Break(Waits::Room { until });
                }
                let len = flight.take(&mut desk.hangar, cwnd, out);
                // What was taken at once took no time.
                let now = match carriage.is_timed() {
                    true => desk.look_at_clock(),
                    false => desk.now,
                };
                shard.queue(id, len);
                carriage.sent(len, now);
                return Continue(len);
            }
            Want::File(piece) | Want::Read(piece) => {
                if !flight.has_room(&desk.hangar, cwnd_of(shard, id)) {
                    return Break(Waits::Room { until: piece.until });
                }
                let read = match file.is_at_rest() && file::has_changed(&piece) {
                    true => Ok(Bytes::new()),
                    false => file.read(&piece, desk, id)?,
                };
                tell(carriage, read, desk.look_at_clock(), Carriage::read);
            }
            // All that was sent is a copy, so no write to the file changes it any more.
            Want::Untaken(_) => carriage.untaken(Untaken::NONE, desk.now),
            Want::Turn => {
                if !mem::take(has_turn) {
                    return Break(Waits::Turn);
                }
                carriage.go_on(desk.look_at_clock());
            }
            Want::Work => {
                let job = carriage.begin_work();
                let (letters, own) = (desk.letters.clone(), Arc::clone(&desk.own));
                let done = move |job| post(&letters, &own, Letter::Worked(id, job));
                if let Err(error) = desk.jobs.work(job, desk.now, done) {
                    carriage.failed(&error, desk.now);
                }
            }
            Want::Nothing => return Break(Waits::Helper),
            Want::Open { tls } => {
                let peer = || {
                    let tuple = shard.tuple(id)?;
                    Some(SocketAddr::new(tuple.remote, tuple.remote_port))
                };
                let session = admission.session(self.door, peer, tls, desk.now);
                carriage.opened(session, desk.now);
            }
            Want::Queues { .. } => {
                // What was not acknowledged is kept until it is, whatever becomes of the carriage.
                let (front, _) = shard.peek(id);
                let unread = front.len() as u64;
                let queues = Queues {
                    unread,
                    ..Queues::default()
                };
                carriage.queues(queues, desk.now);
            }
            Want::Finish => {
                shard.finish(id);
                carriage.finished((), desk.now);
            }
            Want::Close(closed) => return Break(Waits::End(closed)),
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

    pub(super) fn look_at_clock(&mut self) -> Now {
        self.now = clock::now();
        self.now
    }
}

/// Whether no more comes, and all that came was read.
fn has_input_ended(shard: &Shard, id: FlowId) -> bool {
    let has_ended = |it: &netstack::tcp::Connection| it.is_peer_closed() || it.end().is_some();
    let connection = shard.connection(id);
    connection.is_none_or(|it| has_ended(it) && it.readable_len() == 0)
}

/// What TCP may have under way.
pub(super) fn cwnd_of(shard: &Shard, id: FlowId) -> u64 {
    shard.connection(id).map_or(0, |tcp| tcp.cwnd())
}

/// Leaves a letter at a loop. If that has ended, so has the connection.
fn post<S>(letters: &Sender<Letter<S>>, own: &Loop, letter: Letter<S>) {
    let _ = letters.send(letter);
    own.bell.ring();
}

/// How the file is read whose turn it is.
#[derive(Default)]
pub(super) enum FileReader {
    #[default]
    AtRest,
    /// A thread reads.
    Away,
    /// It has read this.
    Back(Bytes),
}

impl FileReader {
    fn is_at_rest(&self) -> bool {
        matches!(self, FileReader::AtRest)
    }

    /// A thread has read for it.
    pub(super) fn has_read(&mut self, bytes: io::Result<Bytes>) -> io::Result<()> {
        *self = FileReader::AtRest;
        *self = FileReader::Back(bytes?);
        Ok(())
    }

    /// The beginning of a piece: at once if it is in memory, else a thread reads it first.
    fn read<S: Session + 'static>(
        &mut self,
        piece: &FilePiece<'_>,
        desk: &mut Desk<S>,
        id: FlowId,
    ) -> ControlFlow<Waits, io::Result<Bytes>> {
        match mem::take(self) {
            FileReader::Back(bytes) => return Continue(Ok(bytes)),
            FileReader::Away => {
                *self = FileReader::Away;
                return Break(Waits::Helper);
            }
            FileReader::AtRest => {}
        }
        let Some(read) = file::on_disk(piece) else {
            return Continue(file::read_cached(piece, CACHED_PIECE_LEN));
        };
        desk.own.counters.slow_reads.add(1);
        let (letters, own) = (desk.letters.clone(), Arc::clone(&desk.own));
        let call = move || post(&letters, &own, Letter::Read(id, read.run()));
        match desk.jobs.hand_over(false, call) {
            Ok(()) => {
                *self = FileReader::Away;
                Break(Waits::Helper)
            }
            Err(error) => Continue(Err(error)),
        }
    }
}
