//! One connection of a loop: does its machine's actions over the shard, up to the next wait.

use std::convert::Infallible;
use std::mem;
use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};

use bytes::Bytes;
use netstack::stack::{FlowId, Shard};
use session::{Now, Session};

use super::retransmit_buffer::{BufferPool, RetransmitBuffer};
use crate::connection::{Action, Machine, Queues, Unacked};
use crate::engine::admission::{Admission, Opens};
use crate::engine::reactor::{
    self, FileReader, LONG_LEN, LongUntil, Wait, is_postponed, take_steps,
};
use crate::file::{self, DiskRead};

/// One connection.
pub(super) struct Connection<S> {
    pub(super) id: FlowId,
    /// `None` once the server is done with it while its last bytes are unacknowledged.
    pub(super) machine: Option<Machine<S>>,
    pub(super) retransmit: RetransmitBuffer,
    pub(super) file: FileReader,
    pub(super) waits: Wait,
    /// Number of the listener that accepted it.
    pub(super) listener: usize,
    /// It is in the run queue.
    pub(super) is_queued: bool,
}

/// State shared by the connections of one loop. A shard accepts for itself, so no connection
/// arrives as a message.
pub(super) type LoopContext<W> = reactor::LoopContext<FlowId, Infallible, W>;

/// Messages to one loop.
pub(super) type Message<W> = reactor::Message<FlowId, Infallible, W>;

/// Bytes to read from the page cache at a time. They are held until acknowledged.
const CACHED_PIECE_LEN: u64 = 256 * 1024;

impl<S: Session + 'static> Connection<S> {
    /// Does the machine's actions until one would have to wait. Records and returns the wait.
    pub(super) fn drive(
        &mut self,
        context: &mut LoopContext<S::Work>,
        buffer_pool: &mut BufferPool,
        shard: &mut Shard,
        admission: &Admission<impl Opens<S>>,
    ) -> Wait {
        // A connection that has waited for a turn of its session has one now. The next one comes
        // after other connections.
        let mut has_turn = matches!(self.waits, Wait::Turn);
        // In its turn, its long operations are not postponed either.
        let until = (!has_turn).then_some(context.long_until);
        let waits = take_steps(|| {
            match self.step(context, buffer_pool, shard, admission, &mut has_turn, until) {
                Break(waits) if waits.is_over(context.now) => {
                    if let Some(machine) = &mut self.machine {
                        machine.handle_timeout(context.now);
                    }
                    Continue(0)
                }
                stepped => stepped,
            }
        });
        self.waits = waits.unwrap_or(Wait::Turn);
        self.waits
    }

    /// Does the next action. Returns the number of bytes sent.
    #[inline]
    fn step(
        &mut self,
        context: &mut LoopContext<S::Work>,
        buffer_pool: &mut BufferPool,
        shard: &mut Shard,
        admission: &Admission<impl Opens<S>>,
        has_turn: &mut bool,
        long_until: LongUntil,
    ) -> ControlFlow<Wait, u64> {
        let (id, retransmit, file) = (self.id, &mut self.retransmit, &mut self.file);
        let Some(machine) = &mut self.machine else {
            return Break(self.waits);
        };
        let is_postponed = is_postponed(context.now.monotonic, long_until);
        let is_long = machine.is_handshaking();
        match machine.next_action() {
            Action::Receive { until } => {
                let (front, _) = shard.peek(id);
                let len = front.len().min(machine.shared().memory.receive_len_max());
                if len > 0 && is_long && is_postponed {
                    return Break(Wait::Turn);
                } else if len > 0 {
                    machine.handle_input(&front[..len], context.now);
                    shard.consume(id, len);
                    if is_long {
                        context.update_clock();
                    }
                } else if has_input_ended(shard, id) {
                    machine.handle_end_of_input(context.now);
                } else {
                    return Break(Wait::Input { until });
                }
            }
            Action::Fill { space, until } => {
                let len = shard.read(id, space);
                if len == 0 && !has_input_ended(shard, id) {
                    return Break(Wait::Input { until });
                }
                machine.handle_filled(Ok(len), context.now);
            }
            Action::Send { out, .. } if is_postponed && out.queued_len() > LONG_LEN => {
                return Break(Wait::Turn);
            }
            Action::SendFile(piece) | Action::ReadFile(piece)
                if is_postponed && piece.len > LONG_LEN =>
            {
                return Break(Wait::Turn);
            }
            Action::Send { out, until, .. } => {
                let cwnd = cwnd_of(shard, id);
                if !retransmit.has_space(buffer_pool, cwnd) {
                    if !machine.is_duplex() {
                        return Break(Wait::Writable { until });
                    }
                    if try_receive(machine, shard, id, context.now) {
                        return Continue(0);
                    }
                    return Break(Wait::Either { until });
                }
                let len = retransmit.take(buffer_pool, cwnd, out);
                // A send that completed at once took no time.
                let now = if machine.is_timed() { context.update_clock() } else { context.now };
                shard.queue(id, len);
                machine.handle_sent(Ok(len), now);
                return Continue(len);
            }
            Action::SendFile(piece) | Action::ReadFile(piece) => {
                if !retransmit.has_space(buffer_pool, cwnd_of(shard, id)) {
                    return Break(Wait::Writable { until: piece.until });
                }
                let read = match file.take()? {
                    Some(bytes) => Ok(bytes),
                    None if file::has_changed(&piece) => Ok(Bytes::new()),
                    None => {
                        let LoopContext { inbox, jobs, .. } = context;
                        let slow = |read: DiskRead| inbox.read(jobs, id, read);
                        file.fetch(&piece, Some(slow))?;
                        file::read_cached(&piece, CACHED_PIECE_LEN)
                    }
                };
                machine.handle_read(read, context.update_clock());
            }
            // All bytes sent are copies, so writes to the file no longer change them.
            Action::CheckUnacked(_) => machine.handle_unacked(Ok(Unacked::NONE), context.now),
            Action::Turn => {
                if !mem::take(has_turn) {
                    return Break(Wait::Turn);
                }
                if machine.is_duplex() && try_receive(machine, shard, id, context.now) {
                    return Continue(0);
                }
                machine.handle_turn(context.update_clock());
            }
            Action::Work => {
                let LoopContext { inbox, jobs, now, .. } = context;
                if let Some(work) = machine.take_work(*now)
                    && let Err(work) = inbox.work(jobs, id, work, *now)
                {
                    machine.handle_refused(work, *now);
                }
            }
            Action::Nothing => return Break(Wait::Thread),
            Action::Open(facts) => {
                let peer = || peer_of(shard, id);
                let session = admission.session(self.listener, peer, facts, context.now);
                machine.handle_opened(session, context.now);
            }
            Action::CheckQueues { .. } => {
                // Unacknowledged bytes are kept, whatever happens to the machine.
                let (front, _) = shard.peek(id);
                let unread = front.len() as u64;
                let queues = Queues { unread, ..Queues::default() };
                machine.handle_queues(Ok(queues), context.now);
            }
            Action::Finish => {
                shard.finish(id);
                machine.handle_finished(Ok(()), context.now);
            }
            Action::Close(closed) => return Break(Wait::End(closed)),
        }
        Continue(0)
    }
}

/// Takes input that arrived during output. `false` if there is none.
fn try_receive<S: Session>(
    machine: &mut Machine<S>,
    shard: &mut Shard,
    id: FlowId,
    now: Now,
) -> bool {
    let (front, _) = shard.peek(id);
    let len = front.len().min(machine.shared().memory.receive_len_max());
    if len > 0 {
        machine.handle_input(&front[..len], now);
        shard.consume(id, len);
    } else if has_input_ended(shard, id) {
        machine.handle_end_of_input(now);
    } else {
        return false;
    }
    true
}

/// True if all input was read and no more can arrive.
fn has_input_ended(shard: &Shard, id: FlowId) -> bool {
    let has_ended = |it: &netstack::tcp::Connection| it.is_peer_closed() || it.end().is_some();
    let connection = shard.connection(id);
    connection.is_none_or(|it| has_ended(it) && it.readable_len() == 0)
}

/// The peer's address, if the connection exists.
pub(super) fn peer_of(shard: &Shard, id: FlowId) -> Option<SocketAddr> {
    let tuple = shard.tuple(id)?;
    Some(SocketAddr::new(tuple.remote, tuple.remote_port))
}

/// Bytes that TCP may have in flight.
pub(super) fn cwnd_of(shard: &Shard, id: FlowId) -> u64 {
    shard.connection(id).map_or(0, |tcp| tcp.cwnd())
}
