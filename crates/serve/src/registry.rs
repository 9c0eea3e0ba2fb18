//! Registry of open connections, for drains.

use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use session::{Now, Session};

use crate::connection::{DRAIN_GRACE, LINGER_DRAIN_TIMEOUT, Machine};
use crate::stream::Stream;

/// A stream, and the time since when it waits between two requests: a drain's view of it.
pub(crate) struct Connection<T> {
    pub(crate) stream: T,
    pub(crate) idle: IdleSince,
}

/// Time since when a connection has been idle, for other threads: milliseconds after the server's
/// start, plus one; 0 means busy.
#[derive(Default)]
pub(crate) struct IdleSince(AtomicU64);

impl IdleSince {
    /// Notes that the machine waits for input, between two requests or after the last one.
    #[inline]
    pub(crate) fn note<S: Session>(&self, machine: &Machine<S>, now: Now) {
        if let Some(since) = machine.idle_since(now) {
            self.begin(since - machine.shared().start);
        }
    }

    fn begin(&self, after_start: Duration) {
        self.0.store(after_start.as_millis() as u64 + 1, Ordering::Relaxed);
    }

    /// Restarts the idle time, unless the connection is busy by now.
    fn restart(&self, after_start: Duration) {
        let since = self.0.load(Ordering::Relaxed);
        if since != 0 {
            let new = after_start.as_millis() as u64 + 1;
            let relaxed = Ordering::Relaxed;
            let _ = self.0.compare_exchange(since, new, relaxed, relaxed);
        }
    }

    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// True if it has been idle for long enough to be closed by a drain.
    fn is_over(&self, after_start: Duration) -> bool {
        let since = self.0.load(Ordering::Relaxed);
        since != 0 && after_start >= DRAIN_GRACE + Duration::from_millis(since)
    }
}

/// A connection that can be ended from outside.
trait Ended: Send + Sync {
    /// Returns true if it has been idle for long enough to be closed by a drain. If its socket has
    /// unsent data, it may continue until that is sent, and for a while after.
    fn check_idle(&self, after_start: Duration) -> bool;
    fn end(&self, how: Shutdown);
}

impl<T: Stream> Ended for Connection<T> {
    fn check_idle(&self, after_start: Duration) -> bool {
        let is_over = self.idle.is_over(after_start);
        if is_over && self.stream.has_unsent() {
            // The peer is reading, and may send meanwhile.
            self.idle.restart(after_start + LINGER_DRAIN_TIMEOUT - DRAIN_GRACE);
            return false;
        }
        is_over
    }

    fn end(&self, how: Shutdown) {
        // The peer may be gone already.
        let _ = self.stream.shutdown(how);
    }
}

/// All open connections of an engine, in one list per processor, so that processors do not
/// contend.
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

    /// Ends all that `are_to_end`; returns their number.
    ///
    /// The list must not be locked meanwhile: ending a connection may wait for a lock that another
    /// fiber is next to get, and a worker that leaves the list would block that fiber's processor.
    fn end(&self, how: Shutdown, are_to_end: impl Fn(&dyn Ended) -> bool) -> usize {
        let mut place = 0;
        let mut count = 0;
        while let Some((at, connection)) = self.next_from(place, &are_to_end) {
            connection.end(how);
            (place, count) = (at + 1, count + 1);
        }
        count
    }

    /// The next connection to end from this index on, with its index.
    fn next_from(
        &self,
        place: usize,
        is_to_end: impl Fn(&dyn Ended) -> bool,
    ) -> Option<(usize, Arc<dyn Ended>)> {
        let list = self.lock();
        let mut places = (place..list.capacity()).filter_map(|at| Some((at, list.get(at)?)));
        let (at, connection) = places.find(|(_, connection)| is_to_end(&***connection))?;
        Some((at, Arc::clone(connection)))
    }
}

impl Connections {
    pub(crate) fn new(processors: usize) -> Connections {
        let lists = (0..processors).map(|_| List::default()).collect();
        Connections { lists }
    }

    /// Registers a connection accepted by this processor. It may end on any thread.
    pub(crate) fn register<T: Stream>(
        self: &Arc<Self>,
        processor: usize,
        connection: &Arc<Connection<T>>,
    ) -> Registered {
        self.enlist(processor, Arc::clone(connection) as Arc<dyn Ended>)
    }

    fn enlist(self: &Arc<Self>, processor: usize, connection: Arc<dyn Ended>) -> Registered {
        Registered {
            connections: Arc::clone(self),
            processor: processor as u32,
            key: self.lists[processor].lock().insert(connection) as u32,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lists.iter().map(|list| list.lock().len()).sum()
    }

    /// Closes connections that are idle at this time after the server's start. That wakes their
    /// readers like an end of the stream. A request that crosses this is read first.
    pub(crate) fn close_idle(&self, after_start: Duration) {
        for list in &self.lists {
            list.end(Shutdown::Read, |connection| connection.check_idle(after_start));
        }
    }

    /// Cuts all connections. Returns their number.
    pub(crate) fn cut(&self) -> usize {
        let lists = self.lists.iter();
        lists.map(|list| list.end(Shutdown::Both, |_| true)).sum()
    }
}

/// Removes the connection from the list when dropped, even by a panic.
pub(crate) struct Registered {
    connections: Arc<Connections>,
    processor: u32,
    key: u32,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let list = &self.connections.lists[self.processor as usize];
        let connection = list.lock().remove(self.key as usize);
        drop(connection);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::stream::ThreadStream;
    use crate::stream::unacked::tests::{drain, full};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A connection that waits in `end` until its worker, on another thread, has left the list.
    struct WaitsForWorker(Mutex<Option<Registered>>);

    impl Ended for WaitsForWorker {
        fn check_idle(&self, _after_start: Duration) -> bool {
            true
        }

        fn end(&self, _how: Shutdown) {
            let registered = self.0.lock().unwrap().take();
            let (leave, has_left) = mpsc::channel();
            thread::spawn(move || {
                drop(registered);
                leave.send(())
            });
            let left = has_left.recv_timeout(PATIENCE);
            left.expect("a worker that waits for the list while another is ended");
        }
    }

    fn connections(count: usize) -> Arc<Connections> {
        let connections = Arc::new(Connections::new(2));
        for nth in 0..count {
            let progress = Arc::new(WaitsForWorker(Mutex::default()));
            let registered = connections.enlist(nth % 2, Arc::clone(&progress) as Arc<dyn Ended>);
            *progress.0.lock().unwrap() = Some(registered);
        }
        connections
    }

    /// The equivalent of `a_drain_leaves_slow_readers_their_reply` for connections that wait in a
    /// receive. Their wait is ended as if by the peer's end of stream, without a later wait.
    #[test]
    fn unsent_bytes_keep_an_idle_connection() {
        let [(tcp, peer), _unix] = full();
        let connection = Connection { stream: ThreadStream::new(tcp), idle: IdleSince::default() };
        connection.idle.begin(Duration::ZERO);
        let mut after_start = 2 * DRAIN_GRACE;
        assert!(!connection.check_idle(after_start));
        drain(peer);
        // It has time to read the rest from its own socket.
        assert!(!connection.check_idle(after_start + LINGER_DRAIN_TIMEOUT / 2));
        let start = Instant::now();
        while !connection.check_idle(after_start) {
            assert!(start.elapsed() < PATIENCE, "all bytes are sent");
            after_start += 2 * LINGER_DRAIN_TIMEOUT;
            thread::yield_now();
        }
        connection.idle.end();
        assert!(!connection.check_idle(2 * after_start), "the connection is busy");
    }

    /// Seen: a server on a netstack with fibers hung in two of 21 stops with 2,000 clients. Cause:
    /// the list was locked while a connection was cut, which waits for the lock of its shard. That
    /// lock had been handed to a fiber whose processor waited for the list, for another fiber whose
    /// connection had ended. Cure: the list is not locked meanwhile.
    #[test]
    fn workers_unregister_during_a_cut() {
        let open = connections(5);
        assert_eq!(open.cut(), 5);
        assert_eq!(open.count(), 0);
        let open = connections(5);
        open.close_idle(Duration::ZERO);
        assert_eq!(open.count(), 0);
    }
}
