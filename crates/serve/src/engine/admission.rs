//! Admission: makes sessions of accepted sockets, the same way on every engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use session::{Now, Opening, Session};

use crate::connection::{Facts, Machine, TlsConnection};
use crate::counters::Closed;
use crate::listen::Bound;
use crate::shared::Shared;
use crate::tls::Tls;

/// Arguments of an engine's start.
pub(crate) struct Start<O> {
    pub(crate) admission: Admission<O>,
    pub(crate) listeners: Vec<Bound>,
    /// A fixed number of fibers or threads, for engines with one per connection.
    pub(crate) workers: Option<usize>,
}

/// Makes sessions, on any thread and for as long as the engine runs.
pub(crate) trait Opens<S>: Fn(Opening<'_>) -> S + Send + Sync + 'static {}

impl<S, O: Fn(Opening<'_>) -> S + Send + Sync + 'static> Opens<S> for O {}

/// Admits connections, or returns the refusal for those beyond the limit.
pub(crate) struct Admission<O> {
    pub(crate) shared: Arc<Shared>,
    open: O,
    names_peers: bool,
    /// Connections that were admitted and have not ended. Counted only if further ones are refused.
    admitted: AtomicUsize,
}

impl<O> Admission<O> {
    pub(crate) fn new(shared: Arc<Shared>, names_peers: bool, open: O) -> Admission<O> {
        Admission {
            names_peers: names_peers || shared.log.is_some() || shared.limits.asks_for_peers(),
            shared,
            open,
            admitted: AtomicUsize::new(0),
        }
    }

    /// True if sessions get the peer's address.
    #[cfg(feature = "event")]
    pub(crate) fn names_peers(&self) -> bool {
        self.names_peers
    }

    /// True if connections beyond the limit are refused; otherwise they wait in the listen queue.
    #[cfg(feature = "event")]
    pub(crate) fn has_refusal(&self) -> bool {
        self.shared.limits.refusal.is_some()
    }

    /// Counts a connection as accepted.
    ///
    /// # Errors
    /// The refusal to send if the limit is reached. Then call [`refused`](Admission::refused).
    pub(crate) fn admit(&self) -> Result<(), &'static str> {
        let Shared { counters, limits, .. } = &*self.shared;
        counters.accepted();
        let Some(line) = limits.refusal else {
            return Ok(()); // Accepting pauses at the limit.
        };
        if self.admitted.fetch_add(1, Ordering::Relaxed) < limits.connections_max {
            return Ok(());
        }
        Err(line)
    }

    /// Counts a refused connection.
    pub(crate) fn refused(&self) {
        self.release();
        self.shared.counters.closed(Closed::Refused);
    }

    /// Counts the end of an admitted connection.
    pub(crate) fn release(&self) {
        if self.shared.limits.refusal.is_some() {
            self.admitted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The machine of an admitted connection.
    pub(crate) fn machine<S: Session>(
        &self,
        tls: Option<&Arc<Tls>>,
        peer: impl FnOnce() -> Option<SocketAddr>,
        now: Now,
    ) -> Machine<S> {
        let tls = tls.map(TlsConnection::new);
        Machine::new(Arc::clone(&self.shared), tls, peer, now)
    }

    /// Makes the session of a connection. `peer` is called only if the address is needed and the
    /// client's is unknown, because it is a system call.
    pub(crate) fn session<S>(
        &self,
        listener: usize,
        peer: impl FnOnce() -> Option<SocketAddr>,
        facts: Facts<'_>,
        now: Now,
    ) -> S
    where
        O: Fn(Opening<'_>) -> S,
    {
        let Facts { tls, client } = facts;
        let peer = client.or_else(|| if self.names_peers { peer() } else { None });
        (self.open)(Opening { now, peer, listener, tls })
    }
}
