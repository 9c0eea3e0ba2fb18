//! State shared by all threads of an engine, and the admission and end of a connection.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use event::Dispatcher;
use rustix::net::SendFlags;
use session::{Now, Session};

use super::budget::SHARE_OF_TURN;
use super::connection_limit::ConnectionLimit;
use super::inbox::Inbox;
use super::listeners::Accepted;
use crate::clock;
use crate::connection::Machine;
use crate::counters::Closed;
use crate::engine::admission::{Admission, Start};
use crate::engine::pool::REFUSERS;
use crate::jobs::Jobs;
use crate::listen::Bound;
use crate::tls::Tls;

/// Number of connections that a thread accepts in one turn: initial and maximum. While some are
/// left in the listen queue, each turn takes twice as many as the previous one: open connections
/// wait for a bounded time, and new ones do not wait for many long turns.
const ACCEPTS: (usize, usize) = (64, 1024);

/// Opens the dispatcher of a loop, on the thread that will use it.
pub(crate) type OpenDispatcher = Box<dyn Fn() -> io::Result<Box<dyn Dispatcher>> + Send + Sync>;

/// See the [module page](self).
pub(crate) struct EngineContext<O> {
    pub(crate) admission: Admission<O>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    /// TLS of each listener, by number.
    tls: Vec<Option<Arc<Tls>>>,
    /// Number of connections that a thread accepts per turn: initial and maximum.
    pub(crate) accepts_per_turn: (usize, usize),
}

impl<O> EngineContext<O> {
    /// `connections_max` bounds the connections in addition to the limits. `accepting` is the
    /// number of threads that accept, and whether they accept many at a time.
    pub(crate) fn new(
        admission: Admission<O>,
        tls: Vec<Option<Arc<Tls>>>,
        connections_max: usize,
        (accepting, accepts_many): (usize, bool),
    ) -> Arc<EngineContext<O>> {
        let connections_max = connections_max.min(admission.shared.limits.connections_max);
        let refusers = if admission.has_refusal() { REFUSERS } else { 0 };
        let open_max = connections_max.saturating_add(refusers);
        Arc::new(EngineContext {
            admission,
            connection_limit: Arc::new(ConnectionLimit::new(open_max, accepting)),
            tls,
            accepts_per_turn: if accepts_many { ACCEPTS } else { (1, 1) },
        })
    }

    /// The same for an engine that accepts from sockets, which are returned.
    pub(crate) fn over_sockets(
        start: Start<O>,
        accepting: (usize, bool),
    ) -> (Arc<EngineContext<O>>, Vec<Bound>) {
        let Start { admission, listeners, workers } = start;
        let tls = listeners.iter().map(|bound| bound.tls.clone()).collect();
        let connections_max = workers.unwrap_or(usize::MAX);
        let engine = EngineContext::new(admission, tls, connections_max, accepting);
        (engine, listeners)
    }

    /// Creates the machine of an admitted connection.
    pub(crate) fn machine<S: Session>(
        &self,
        listener: usize,
        peer: impl FnOnce() -> Option<SocketAddr>,
        now: Now,
    ) -> Machine<S> {
        self.admission.machine(self.tls[listener].as_ref(), peer, now)
    }

    /// Admits a connection and creates its machine. `None` if the limit is exceeded: it was sent
    /// the refusal, and is closed.
    pub(crate) fn admit<S: Session>(
        &self,
        accepted: Accepted,
        now: Now,
    ) -> Option<(Accepted, Machine<S>)> {
        let EngineContext { admission, connection_limit, .. } = self;
        if let Err(line) = admission.admit() {
            // In plain text even on a TLS listener, as in memcached: there is no capacity for a
            // handshake.
            let _ = rustix::net::send(&accepted.socket, line.as_bytes(), SendFlags::NOSIGNAL);
            drop(accepted);
            connection_limit.leave();
            admission.refused();
            return None;
        }
        let machine = self.machine(accepted.listener, || accepted.peer, now);
        Some((accepted, machine))
    }

    /// Drops a connection with its socket, and counts the reason.
    pub(crate) fn end(&self, connection: impl Sized, closed: Closed) {
        // The descriptor first, then the count: tests may count both.
        drop_session(connection);
        self.connection_limit.leave();
        self.admission.release();
        self.admission.shared.counters.closed(closed);
    }
}

/// State shared by the connections of one loop: the clock, and the access to other threads.
pub(crate) struct LoopContext<K, A, W> {
    /// Time of the last clock reading.
    pub(crate) now: Now,
    /// End of long operations in this turn of the loop.
    pub(crate) long_until: Instant,
    pub(crate) inbox: Arc<Inbox<K, A, W>>,
    pub(crate) jobs: Arc<Jobs>,
    /// Buffer for input, which a session uses at once, or its machine copies.
    pub(crate) receive_buffer: Vec<u8>,
    /// Uncached files are read by threads. Otherwise the loop waits for the disk.
    pub(crate) has_file_threads: bool,
}

impl<K, A, W> LoopContext<K, A, W> {
    /// A context without a buffer for input, whose files are read by threads.
    pub(crate) fn new(inbox: Arc<Inbox<K, A, W>>, jobs: &Arc<Jobs>) -> LoopContext<K, A, W> {
        let now = clock::now();
        LoopContext {
            now,
            long_until: now.monotonic,
            inbox,
            jobs: Arc::clone(jobs),
            receive_buffer: Vec::new(),
            has_file_threads: true,
        }
    }

    /// Begins a turn of the loop.
    pub(crate) fn begin_turn(&mut self) {
        self.update_clock();
        self.long_until = self.now.monotonic + SHARE_OF_TURN;
    }

    /// True if this turn has used its time for long operations.
    pub(crate) fn is_late(&self) -> bool {
        self.now.monotonic >= self.long_until
    }

    pub(crate) fn update_clock(&mut self) -> Now {
        self.now = clock::now();
        self.now
    }
}

/// Drops the holder of a session, whose destructor may panic: the hook has reported it.
pub(crate) fn drop_session(holder: impl Sized) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(holder)));
}
