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

/// Since when a connection has been idle, for those that look from other threads: milliseconds
/// after the server's start, plus one; 0 is busy.
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
            // Wakes the reader as an end of the stream would. A request that crosses this is read
            // first.
            let _ = self.stream.shutdown(Shutdown::Read);
        }
    }

    fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// All open connections of an engine, in a list for each worker: workers do not wait for each
/// other.
pub(crate) struct Connections {
    lists: Box<[List]>,
}

/// In cache lines of its own (two, which x86 prefetches together).
#[derive(Default)]
#[repr(align(128))]
struct List(Mutex<slab::Slab<Arc<dyn Ended>>>);

impl List {
    fn lock(&self) -> MutexGuard<'_, slab::Slab<Arc<dyn Ended>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    pub(crate) fn new(workers: usize) -> Connections {
        let lists = (0..workers).map(|_| List::default()).collect();
        Connections { lists }
    }

    /// Takes a connection that this worker has accepted. It may end on any thread.
    pub(crate) fn register<T: Stream>(
        self: &Arc<Self>,
        worker: usize,
        connection: &Arc<Connection<T>>,
    ) -> Registered {
        let connection = Arc::clone(connection) as Arc<dyn Ended>;
        Registered {
            connections: Arc::clone(self),
            worker: worker as u32,
            key: self.lists[worker].lock().insert(connection) as u32,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lists.iter().map(|list| list.lock().len()).sum()
    }

    /// Closes those that are idle, so much time after the server's start.
    pub(crate) fn close_idle(&self, after_start: Duration) {
        for list in &self.lists {
            let close =
                |(_, connection): (_, &Arc<dyn Ended>)| connection.close_if_idle(after_start);
            list.lock().iter().for_each(close);
        }
    }

    /// Returns how many there were.
    pub(crate) fn cut(&self) -> usize {
        let cut = |list: &List| {
            let open = list.lock();
            open.iter().for_each(|(_, connection)| connection.cut());
            open.len()
        };
        self.lists.iter().map(cut).sum()
    }
}

/// Takes the connection off the list when dropped, also by a panic.
pub(crate) struct Registered {
    connections: Arc<Connections>,
    worker: u32,
    key: u32,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let list = &self.connections.lists[self.worker as usize];
        let connection = list.lock().remove(self.key as usize);
        drop(connection);
    }
}
