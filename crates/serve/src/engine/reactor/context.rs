//! What all threads of an engine share, and how a connection begins and ends there.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use event::Dispatcher;
use rustix::net::SendFlags;
use session::{Now, Session};

use super::connection_limit::ConnectionLimit;
use super::listeners::Accepted;
use crate::connection::Machine;
use crate::counters::Closed;
use crate::engine::admission::{Admission, Start};
use crate::engine::pool::REFUSERS;
use crate::listen::Bound;
use crate::tls::Tls;

/// How many connections a thread accepts in one turn: the first time, and at most. As long as some
/// are left in the listen queue, each turn takes twice as many as the one before. So those inside
/// wait for a bounded time, and those outside do not wait for many long turns.
const ACCEPTS: (usize, usize) = (64, 1024);

/// Opens the dispatcher of a loop, on the thread that it belongs to.
pub(crate) type OpenDispatcher = Box<dyn Fn() -> io::Result<Box<dyn Dispatcher>> + Send + Sync>;

/// See the [module page](self).
pub(crate) struct EngineContext<O> {
    pub(crate) admission: Admission<O>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    /// By the number of the listener.
    tls: Vec<Option<Arc<Tls>>>,
    open_dispatcher: OpenDispatcher,
    /// How many connections a thread accepts before it looks around again: the first time, and at
    /// most.
    pub(crate) accepts_per_turn: (usize, usize),
}

impl<O> EngineContext<O> {
    /// `accepting`: how many threads accept, and whether they accept many at a time.
    pub(crate) fn new(
        start: Start<O>,
        open_dispatcher: OpenDispatcher,
        (accepting, accepts_many): (usize, bool),
    ) -> (Arc<EngineContext<O>>, Vec<Bound>) {
        let Start {
            admission,
            listeners,
            workers,
        } = start;
        let connections_max = admission.shared.limits.connections_max;
        let connections_max = workers.map_or(connections_max, |few| few.min(connections_max));
        let refusers = match admission.has_refusal() {
            true => REFUSERS,
            false => 0,
        };
        let open_max = connections_max.saturating_add(refusers);
        let engine = EngineContext {
            admission,
            connection_limit: Arc::new(ConnectionLimit::new(open_max, accepting)),
            tls: listeners.iter().map(|bound| bound.tls.clone()).collect(),
            open_dispatcher,
            accepts_per_turn: if accepts_many { ACCEPTS } else { (1, 1) },
        };
        (Arc::new(engine), listeners)
    }

    pub(crate) fn open_dispatcher(&self) -> io::Result<Box<dyn Dispatcher>> {
        (self.open_dispatcher)()
    }

    /// The machine of a connection that was accepted. `None` if there is no room for it: it has
    /// been told so then, and is closed.
    pub(crate) fn welcome<S: Session>(
        &self,
        accepted: Accepted,
        now: Now,
    ) -> Option<(Accepted, Machine<S>)> {
        let EngineContext {
            admission,
            connection_limit,
            ..
        } = self;
        if let Err(line) = admission.admit() {
            // In the clear also where TLS is spoken, as memcached does: a handshake is what there
            // is no room for.
            let _ = rustix::net::send(&accepted.socket, line.as_bytes(), SendFlags::NOSIGNAL);
            drop(accepted);
            connection_limit.leave();
            admission.refused();
            return None;
        }
        let machine = admission.machine(self.tls[accepted.listener].as_ref(), now);
        Some((accepted, machine))
    }

    /// Drops what a connection was, its socket with it, and counts why.
    pub(crate) fn end(&self, connection: impl Sized, closed: Closed) {
        // The descriptor first, then the count: what counts connections may count descriptors too.
        drop_session(connection);
        self.connection_limit.leave();
        self.admission.dismiss();
        self.admission.shared.counters.closed(closed);
    }
}

/// Drops what holds a session, whose destructor may panic: the hook has reported it.
pub(crate) fn drop_session(holder: impl Sized) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(holder)));
}
