//! A connection on its way through the stages.

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

/// One connection. The stage that has it owns it.
pub(super) struct Connection<S: Session> {
    pub(super) machine: Machine<S>,
    pub(super) socket: Socket,
    pub(super) peer: Option<SocketAddr>,
    /// Number of the server's listener that it came from.
    pub(super) listener: usize,
    /// The thread that reads for it, and its token there.
    pub(super) reader: usize,
    pub(super) token: u64,
    /// Expiry of its reader's timer. `None` if the reader hears nothing of it while it is with
    /// another stage.
    pub(super) is_heard_by: Option<Instant>,
    /// The thread that writes for it, so that a buffer comes back to the thread that lent it.
    pub(super) writer: usize,
    pub(super) payload: Payload<S::Work>,
}

/// Data that a stage has for the next one.
pub(super) enum Payload<W> {
    Nothing,
    /// For the session stage: what was received, nothing if that was the end.
    Input(Input),
    /// For the session stage: so much was received into the session's own space.
    Filled(usize),
    /// For the session stage: a piece of a file that is not in memory.
    Cold(Box<DiskRead>),
    /// For the session stage: work to run.
    Work(W),
    /// For the read stage: work that waits for something to happen.
    Watch(W),
    /// For the session stage: work that was run, or could not be.
    Worked(Result<W, W>),
    /// For the read stage: a session has panicked.
    Ruin,
}

/// Input on its way from one stage to the next.
pub(super) struct Input {
    pub(super) bytes: Vec<u8>,
    _charge: Charge,
}

/// Shorter input than this is not charged: a request as a rule, and the queues have a limit.
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

/// For the read stage.
pub(super) enum Arrival<S: Session> {
    /// A connection that was accepted.
    Accepted(Accepted),
    /// One that wants more input, or its end.
    Back(Box<Connection<S>>),
    /// The work of this one is done, for which it has waited; `None` if it panicked.
    Worked(u64, Option<S::Work>),
}

/// Next stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The read stage, where it has nothing to do until its peer sends more.
    Rest,
    Read,
    /// The session stage.
    Turn,
    /// The session stage, for what may block.
    Block,
    Write,
}

impl<S: Session> Connection<S> {
    pub(super) fn next_stop(&mut self) -> Stop {
        match self.payload {
            Payload::Watch(_) | Payload::Ruin => return Stop::Read,
            Payload::Cold(_) | Payload::Work(_) => return Stop::Block,
            Payload::Input(_) | Payload::Filled(_) | Payload::Worked(_) => return Stop::Turn,
            Payload::Nothing => {}
        }
        match self.machine.next_action() {
            Action::Receive { until } | Action::Fill { until, .. }
                if !self.socket.may_receive() && self.is_heard_by.is_some_and(|at| at <= until) =>
            {
                Stop::Rest
            }
            Action::Receive { .. } | Action::Fill { .. } | Action::Nothing | Action::Close(_) => {
                Stop::Read
            }
            Action::Open(_) | Action::Turn | Action::Work => Stop::Turn,
            _ => Stop::Write,
        }
    }
}

/// Does something with a connection. A session that panics is our mistake, and ends this connection
/// only: the hook has reported it.
pub(super) fn guard<S: Session, R>(
    connection: &mut Connection<S>,
    does: impl FnOnce(&mut Connection<S>) -> R,
) -> Option<R> {
    let done = catch_unwind(AssertUnwindSafe(|| does(connection)));
    if done.is_err() {
        connection.payload = Payload::Ruin;
    }
    done.ok()
}

/// Ends a connection at once, because the server does.
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

/// The same for all that a reader's queue may hold.
pub(super) fn cut_arrival<S: Session, O>(engine: &EngineContext<O>, arrival: Arrival<S>, now: Now) {
    match arrival {
        Arrival::Back(connection) => cut(engine, connection, now),
        Arrival::Accepted(accepted) => {
            drop(accepted);
            engine.connection_limit.leave();
        }
        // Its connection is the reader's to end.
        Arrival::Worked(_, work) => drop_session(work),
    }
}
