//! The open connections, so that a drain finds them.

use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session::{Now, Session};

use crate::carriage::{Carriage, DRAIN_GRACE};
use crate::stream::Stream;

/// A stream, and since when it has been waiting between two requests: what a drain sees of it.
pub(crate) struct Connection<T> {
    pub(crate) stream: T,
    pub(crate) idle: IdleSince,
}

/// Since when a connection has been idle, for those that look from other threads: milliseconds after the
/// server's start, plus one; 0 is busy.
#[derive(Default)]
pub(crate) struct IdleSince(AtomicU64);

impl IdleSince {
    /// Notes that the carriage waits for input.
    #[inline]
    pub(crate) fn note<S: Session>(&self, carriage: &Carriage<S>, now: Now) {
        if carriage.is_idle() {
            self.begin(now.monotonic - carriage.shared().start);
        }
    }

    fn begin(&self, after_start: Duration) {
        self.0
            .store(after_start.as_millis() as u64 + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether it is idle and has been for long enough to be closed by a drain.
    fn is_over(&self, after_start: Duration) -> bool {
        let since = self.0.load(Ordering::Relaxed);
        since != 0 && after_start >= DRAIN_GRACE + Duration::from_millis(since)
    }
}

/// A connection that can be ended from outside.
trait Ended: Send + Sync {
    fn close_if_idle(&self, after_start: Duration);
    fn cut(&self);
}

impl<T: Stream> Ended for Connection<T> {
    fn close_if_idle(&self, after_start: Duration) {
        if self.idle.is_over(after_start) {
            // Wakes the reader as an end of the stream would. A request that crosses this is read first.
            let _ = self.stream.shutdown(Shutdown::Read);
        }
    }

    fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// All open connections of a server.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<slab::Slab<Arc<dyn Ended>>>,
}

impl Connections {
    pub(crate) fn register<T: Stream>(
        self: &Arc<Self>,
        connection: &Arc<Connection<T>>,
    ) -> Registered {
        let key = self.open().insert(Arc::clone(connection) as Arc<dyn Ended>);
        Registered {
            connections: Arc::clone(self),
            key,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open().len()
    }

    /// Closes those that are idle, so much time after the server's start.
    pub(crate) fn close_idle(&self, after_start: Duration) {
        let open = self.open();
        open.iter()
            .for_each(|(_, connection)| connection.close_if_idle(after_start));
    }

    /// Returns how many there were.
    pub(crate) fn cut(&self) -> usize {
        let open = self.open();
        open.iter().for_each(|(_, connection)| connection.cut());
        open.len()
    }

    fn open(&self) -> MutexGuard<'_, slab::Slab<Arc<dyn Ended>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the connection off the list when dropped, also by a panic.
pub(crate) struct Registered {
    connections: Arc<Connections>,
    key: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let connection = self.connections.open().remove(self.key);
        drop(connection);
    }
}
