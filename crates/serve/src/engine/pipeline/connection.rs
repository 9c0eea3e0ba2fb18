//! A connection in the pipeline.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use session::{Now, Session};

use crate::connection::{Action, Machine};
use crate::counters::Closed;
use crate::engine::reactor::{Accepted, EngineContext, Socket, drop_session};
use crate::file::DiskRead;
use crate::memory::{Charge, Memory};

/// One connection, owned by its current stage.
pub(super) struct Connection<S: Session> {
    pub(super) machine: Machine<S>,
    pub(super) socket: Socket,
    pub(super) peer: Option<SocketAddr>,
    /// Number of the server's listener that accepted it.
    pub(super) listener: usize,
    /// Its reader thread, and its token there.
    pub(super) reader: usize,
    pub(super) token: u64,
    /// Expiry of its reader's timer. `None` if the reader gets no reports for it while it is in
    /// another stage.
    pub(super) timer_expiry: Option<Instant>,
    /// Its writer thread, fixed so that a buffer returns to the thread that lent it.
    pub(super) writer: usize,
    pub(super) payload: Payload<S::Work>,
}

/// Data for the next stage.
pub(super) enum Payload<W> {
    Nothing,
    /// For the session stage: received input; empty at the end.
    Input(Input),
    /// For the session stage: number of bytes received into the session's own space.
    Filled(usize),
    /// For the session stage: a piece of an uncached file.
    Cold(Box<DiskRead>),
    /// For the session stage: work to run.
    Work(W),
    /// For the read stage: work that waits for an event.
    Watch(W),
    /// For the session stage: finished or refused work.
    Worked(Result<W, W>),
    /// For the read stage: the session has panicked.
    Failed,
}

/// Input between two stages.
pub(super) struct Input {
    pub(super) bytes: Vec<u8>,
    _charge: Charge,
}

/// Input up to this length is not charged: usually a request, and the queues have a limit.
const CHARGED_LEN_MIN: usize = 4 * 1024;

impl Input {
    pub(super) fn new(bytes: &[u8], memory: &Arc<Memory>) -> Input {
        let mut charge = Charge::default();
        if bytes.len() >= CHARGED_LEN_MIN {
            charge.set(memory, bytes.len());
        }
        let bytes = bytes.to_vec();
        Input { bytes, _charge: charge }
    }
}

/// Items for the read stage.
pub(super) enum Arrival<S: Session> {
    /// An accepted connection.
    Accepted(Accepted),
    /// A connection that waits for more input, or is to end.
    Back(Box<Connection<S>>),
    /// The work that this connection waits for is done; `None` if it panicked.
    Worked(u64, Option<S::Work>),
}

/// Next stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The read stage, with nothing to do until the peer sends more.
    Idle,
    Read,
    /// The session stage.
    Turn,
    /// The session stage, for work that may block.
    Block,
    Write,
}

impl<S: Session> Connection<S> {
    pub(super) fn next_stop(&mut self) -> Stop {
        match self.payload {
            Payload::Watch(_) | Payload::Failed => return Stop::Read,
            Payload::Cold(_) | Payload::Work(_) => return Stop::Block,
            Payload::Input(_) | Payload::Filled(_) | Payload::Worked(_) => return Stop::Turn,
            Payload::Nothing => {}
        }
        match self.machine.next_action() {
            Action::Receive { until } | Action::Fill { until, .. }
                if !self.socket.may_receive()
                    && self.timer_expiry.is_some_and(|at| at <= until) =>
            {
                Stop::Idle
            }
            Action::Receive { .. } | Action::Fill { .. } | Action::Nothing | Action::Close(_) => {
                Stop::Read
            }
            Action::Open(_) | Action::Turn | Action::Work => Stop::Turn,
            _ => Stop::Write,
        }
    }
}

/// Calls `act` on a connection. A panicking session is a bug, and ends only this connection: the
/// hook has reported it.
pub(super) fn guard<S: Session, R>(
    connection: &mut Connection<S>,
    does: impl FnOnce(&mut Connection<S>) -> R,
) -> Option<R> {
    let done = catch_unwind(AssertUnwindSafe(|| does(connection)));
    if done.is_err() {
        connection.payload = Payload::Failed;
    }
    done.ok()
}

/// Ends a connection at once, at the end of the server.
pub(super) fn cut<S: Session, O>(
    engine: &EngineContext<O>,
    mut connection: Box<Connection<S>>,
    now: Now,
) {
    let closed = guard(&mut connection, |connection| {
        connection.machine.handle_cut(now);
        match connection.machine.next_action() {
            Action::Close(closed) => closed,
            _ => Closed::Drained,
        }
    });
    engine.end(connection, closed.unwrap_or(Closed::Error));
}

/// The same for all items of a reader's queue.
pub(super) fn cut_arrival<S: Session, O>(engine: &EngineContext<O>, arrival: Arrival<S>, now: Now) {
    match arrival {
        Arrival::Back(connection) => cut(engine, connection, now),
        Arrival::Accepted(accepted) => {
            drop(accepted);
            engine.connection_limit.leave();
        }
        // The reader ends its connection.
        Arrival::Worked(_, work) => drop_session(work),
    }
}
