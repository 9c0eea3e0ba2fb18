//! The accept pool of engines with one fiber or thread per connection: each of these workers
//! accepts a connection and then serves it, and a few always wait for the next.
//!
//! At its connection limit a server *pauses accepting*: all workers are busy, and the kernel keeps
//! further connections in the listen queue, in order, until one ends. A 503 would cost an accept, a
//! reply and a close each when the server can least afford it, and invite the peer to retry at
//! once.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::admission::{Admission, Start};
use crate::counters::AcceptError;
use crate::listen::Bound;
use crate::registry::Connections;
use crate::stream::Stream;
use crate::tls::Tls;

/// Workers that wait for connections, per accept point. A burst of this many connections is
/// accepted in one turn, rather than one by one while others are served.
const SPARE_MIN: usize = 32;

/// Number of waiting workers above which a worker that has served its connection ends.
const SPARE_MAX: usize = 128;

/// Workers beyond the connection limit that send refusals.
pub(super) const REFUSERS: usize = 32;

/// Time to send a refusal: the buffer of a fresh socket takes it at once.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(100);

/// Pause after running out of descriptors or memory: long enough for some connections to end, short
/// enough to go unnoticed in the listen queue.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The workers and their accept points.
pub(crate) struct AcceptPool<L, O> {
    pub(crate) admission: Admission<O>,
    pub(crate) connections: Arc<Connections>,
    points: Vec<AcceptPoint<L>>,
    total: AtomicUsize,
    total_max: usize,
    is_fixed: bool,
}

/// A running pool, from the server's view.
pub(crate) struct Workers<L> {
    connections: Arc<Connections>,
    listeners: Vec<Arc<L>>,
    /// Keeps the files of Unix sockets, which are removed with their `Bound`.
    bound: Vec<Bound>,
}

/// A pool, and the part of it that the server keeps.
type Made<L, O> = (Arc<AcceptPool<L, O>>, Workers<L>);

/// A listener that workers wait on.
pub(crate) trait Listener {
    /// Ends all waits.
    fn close(&self);
}

impl<L: Listener> Workers<L> {
    pub(crate) fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    pub(crate) fn stop_accepting(&self) {
        self.listeners.iter().for_each(|listener| listener.close());
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connections.count()
    }

    pub(crate) fn close_idle(&self, after_start: Duration) {
        self.connections.close_idle(after_start);
    }

    pub(crate) fn cut(&self) -> usize {
        self.connections.cut()
    }
}

/// One listener on one processor, where workers wait. In cache lines of its own (two, which x86
/// prefetches together).
#[repr(align(128))]
pub(crate) struct AcceptPoint<L> {
    pub(crate) listener: Arc<L>,
    pub(crate) tls: Option<Arc<Tls>>,
    /// Number of the server's listener.
    pub(crate) number: usize,
    /// Number of the engine's processor that its workers run on.
    pub(crate) processor: usize,
    idle: AtomicUsize,
}

impl<L, O> AcceptPool<L, O> {
    /// A pool for all processors, without workers yet. They accept from the listeners that `listen`
    /// makes of each bound socket.
    ///
    /// # Errors
    /// Same as `listen`.
    pub(crate) fn new(
        start: Start<O>,
        listen: impl Fn(&Bound) -> io::Result<L>,
        processors: usize,
        workers_max: usize,
    ) -> io::Result<Made<L, O>> {
        let listen = |bound: &Bound| Ok((Arc::new(listen(bound)?), bound.tls.clone()));
        let listeners = start.listeners.iter().map(listen);
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let Start { admission, listeners: bound, workers } = start;
        let limits = &admission.shared.limits;
        let workers_max = limits.connections_max.min(workers_max);
        let refusers = limits.refusal.map_or(0, |_| REFUSERS);
        let of_processor = |processor| {
            let each = listeners.iter().enumerate();
            each.map(move |(number, (listener, tls))| AcceptPoint {
                listener: Arc::clone(listener),
                tls: tls.clone(),
                number,
                processor,
                idle: AtomicUsize::new(0),
            })
        };
        let pool = AcceptPool {
            connections: Arc::new(Connections::new(processors)),
            points: (0..processors).flat_map(of_processor).collect(),
            total: AtomicUsize::new(0),
            total_max: workers
                .unwrap_or(workers_max)
                .min(workers_max)
                // At least one per listener, since otherwise nothing would accept from it.
                .max(listeners.len())
                + refusers,
            is_fixed: workers.is_some(),
            admission,
        };
        let workers = Workers {
            connections: Arc::clone(&pool.connections),
            listeners: listeners.into_iter().map(|(listener, _)| listener).collect(),
            bound,
        };
        Ok((Arc::new(pool), workers))
    }

    pub(crate) fn point(&self, index: usize) -> &AcceptPoint<L> {
        &self.points[index]
    }

    /// Starts the first workers; `spawn` makes one that accepts at the point with this index.
    ///
    /// # Errors
    /// Errors of `spawn`.
    pub(crate) fn start(&self, spawn: impl Fn(usize) -> io::Result<()>) -> io::Result<()> {
        let wanted = if self.is_fixed { self.total_max } else { self.points.len() * SPARE_MIN };
        for index in (0..self.points.len()).cycle().take(wanted) {
            if !self.take_slot() {
                break;
            }
            self.add(index, &spawn)?;
        }
        Ok(())
    }

    /// Counts one more worker; `false` if the limit is reached.
    fn take_slot(&self) -> bool {
        let set = Ordering::Relaxed;
        let fetch = Ordering::Relaxed;
        let more = |total| (total < self.total_max).then_some(total + 1);
        self.total.fetch_update(set, fetch, more).is_ok()
    }

    /// Adds a worker, which already has a slot, to a point.
    fn add(&self, index: usize, spawn: impl Fn(usize) -> io::Result<()>) -> io::Result<()> {
        self.point(index).idle.fetch_add(1, Ordering::Relaxed);
        spawn(index).inspect_err(|_| self.give_up(index))
    }

    /// Uncounts a waiting worker.
    fn give_up(&self, index: usize) {
        self.total.fetch_sub(1, Ordering::Relaxed);
        self.point(index).idle.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits for the next connection; `None` if the listener was closed, and the worker has been
    /// uncounted.
    pub(crate) fn accept<T>(
        &self,
        index: usize,
        accept: impl Fn(&L) -> io::Result<T>,
    ) -> Option<T> {
        loop {
            match accept(&self.point(index).listener) {
                Ok(stream) => return Some(stream),
                Err(error) if self.survives(&error) => {}
                Err(_) => {
                    self.give_up(index);
                    return None;
                }
            }
        }
    }

    /// Pauses after an error if necessary; `false` if accepting ends.
    fn survives(&self, error: &io::Error) -> bool {
        if error.kind() == io::ErrorKind::NotConnected {
            return false; // The listener was closed.
        }
        let counters = &self.admission.shared.counters;
        if counters.accept_failed(error) != AcceptError::Aborted {
            counters.accept_paused();
            fiber::sleep(ACCEPT_PAUSE);
        }
        true
    }

    /// Counts a connection. `false` if it exceeds the limit and has been sent the refusal. `spawn`
    /// as in [`start`](AcceptPool::start).
    pub(crate) fn admit<T: Stream>(
        &self,
        index: usize,
        stream: &T,
        spawn: impl Fn(usize) -> io::Result<()>,
    ) -> bool {
        let admitted = self.admission.admit();
        let spare = self.point(index).idle.fetch_sub(1, Ordering::Relaxed) - 1;
        if spare < SPARE_MIN / 2 && !self.is_fixed {
            self.add_spare(index, SPARE_MIN - spare, spawn);
        } else if spare == 0 {
            self.admission.shared.counters.accept_paused();
        }
        let Err(line) = admitted else { return true };
        // In plain text even on a TLS listener, as in memcached: there is no capacity for a
        // handshake.
        let deadline = Instant::now() + REFUSAL_PATIENCE;
        let _ = stream.send(&[IoSlice::new(line.as_bytes())], false, deadline);
        self.admission.refused();
        false
    }

    /// Adds waiting workers if few are left, up to the limit. While none waits, accepting pauses
    /// until a connection ends.
    fn add_spare(&self, index: usize, count: usize, spawn: impl Fn(usize) -> io::Result<()>) {
        for _ in 0..count {
            if !self.take_slot() || self.add(index, &spawn).is_err() {
                break;
            }
        }
        if self.point(index).idle.load(Ordering::Relaxed) == 0 {
            self.admission.shared.counters.accept_paused();
        }
    }

    /// Decides after a connection whether the worker continues; if not, it has been uncounted.
    pub(crate) fn is_to_stay(&self, index: usize) -> bool {
        let idle = &self.point(index).idle;
        if !self.is_fixed && idle.load(Ordering::Relaxed) >= SPARE_MAX {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        idle.fetch_add(1, Ordering::Relaxed);
        true
    }
}
