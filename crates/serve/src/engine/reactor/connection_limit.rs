//! The connection limit over all loops, and the threads that wait for space under it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::waker::LoopHandle;

/// Time for threads to close their listeners.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
const CLOSE_STEP: Duration = Duration::from_millis(1);

/// Count of open connections, and the queue of threads that wait at the limit.
pub(crate) struct ConnectionLimit {
    /// Number of accepted connections that have not ended.
    open: AtomicUsize,
    open_max: usize,
    is_closing: AtomicBool,
    /// Number of threads that still accept.
    accepting: AtomicUsize,
    /// Threads that had connections to accept when there was no space. The first one is woken when
    /// any connection ends; so no listener waits while there is space, and none is forgotten.
    waiting: Mutex<VecDeque<Arc<LoopHandle>>>,
    /// True if some wait, so that the end of a connection usually costs a load and no lock.
    has_waiting: AtomicBool,
}

impl ConnectionLimit {
    pub(crate) fn new(open_max: usize, accepting: usize) -> ConnectionLimit {
        ConnectionLimit {
            open: AtomicUsize::new(0),
            open_max: open_max.max(1),
            is_closing: AtomicBool::new(false),
            accepting: AtomicUsize::new(accepting),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
        }
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn has_space(&self) -> bool {
        self.open() < self.open_max
    }

    /// Returns true if there is space. If not, `own` is queued, and woken when there is.
    pub(crate) fn has_space_or_wait(&self, own: &Arc<LoopHandle>) -> bool {
        if self.has_space() {
            return true;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_waiting.store(true, Ordering::SeqCst);
        // A connection may have ended before `own` was queued.
        let has_space = self.has_space();
        if !has_space {
            waiting.push_back(Arc::clone(own));
        }
        self.has_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
        has_space
    }

    /// Counts a connection. `false` if other threads have reached the limit first.
    pub(crate) fn enter(&self) -> bool {
        let more = |open| (open < self.open_max).then_some(open + 1);
        let set = Ordering::SeqCst;
        let fetch = Ordering::SeqCst;
        self.open.fetch_update(set, fetch, more).is_ok()
    }

    /// Counts a connection even beyond the limit: it cannot return to the listen queue.
    pub(crate) fn force(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a connection, and wakes the next waiting thread.
    pub(crate) fn leave(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        if self.has_waiting.load(Ordering::SeqCst) {
            self.wake_next();
        }
    }

    /// Wakes the next waiting thread if space is left after a woken thread has taken its share.
    pub(crate) fn wake_next_if_space(&self) {
        if self.has_waiting.load(Ordering::SeqCst) && self.has_space() {
            self.wake_next();
        }
    }

    fn wake_next(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.pop_front();
        self.has_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
        drop(waiting);
        if let Some(next) = next {
            next.has_space.store(true, Ordering::Release);
            next.waker.wake();
        }
    }

    /// Asks all threads to close their listeners.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Notes that a thread has closed its listeners.
    pub(crate) fn note_closed(&self) {
        self.accepting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until all threads have closed their listeners.
    pub(crate) fn wait_until_closed(&self) {
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while self.accepting.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(CLOSE_STEP);
        }
    }
}
