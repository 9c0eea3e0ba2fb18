//! The limit on connections, over all loops, and the threads that wait for room under it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::waker::LoopHandle;

/// How long threads may take to close their listeners.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
const CLOSE_STEP: Duration = Duration::from_millis(1);

/// Connections that come in and go out.
pub(crate) struct ConnectionLimit {
    /// Those that were accepted and have not ended.
    open: AtomicUsize,
    open_max: usize,
    is_closing: AtomicBool,
    /// Threads that still accept.
    accepting: AtomicUsize,
    /// Threads that had something to accept when there was no room. The first one is called when a
    /// connection ends, wherever that is; so no queue waits while there is room, and none is
    /// forgotten.
    waiting: Mutex<VecDeque<Arc<LoopHandle>>>,
    /// Whether there are some, so that the end of a connection costs a look and no lock.
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

    /// Connections open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn has_room(&self) -> bool {
        self.open() < self.open_max
    }

    /// Whether there is room. If not, `own` is called when there is.
    pub(crate) fn has_room_for(&self, own: &Arc<LoopHandle>) -> bool {
        if self.has_room() {
            return true;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_waiting.store(true, Ordering::SeqCst);
        // A connection may have ended before it could know.
        let has_room = self.has_room();
        if !has_room {
            waiting.push_back(Arc::clone(own));
        }
        self.has_waiting
            .store(!waiting.is_empty(), Ordering::SeqCst);
        has_room
    }

    /// Counts a connection in. `false` if other threads were faster, and it is one too many.
    pub(crate) fn enter(&self) -> bool {
        let more = |open| (open < self.open_max).then_some(open + 1);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        self.open.fetch_update(set, fetch, more).is_ok()
    }

    /// Counts a connection in, also beyond the limit: it cannot go back into the queue.
    pub(crate) fn force(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// A connection has ended.
    pub(crate) fn leave(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        if self.has_waiting.load(Ordering::SeqCst) {
            self.call_next();
        }
    }

    /// A thread that was called has taken what it could: if there is room left, the next one is.
    pub(crate) fn pass_on(&self) {
        if self.has_waiting.load(Ordering::SeqCst) && self.has_room() {
            self.call_next();
        }
    }

    fn call_next(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.pop_front();
        self.has_waiting
            .store(!waiting.is_empty(), Ordering::SeqCst);
        drop(waiting);
        if let Some(next) = next {
            next.has_room.store(true, Ordering::Release);
            next.waker.wake();
        }
    }

    /// From now on listeners are to be closed.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// A thread has closed its listeners.
    pub(crate) fn has_closed(&self) {
        self.accepting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until all have.
    pub(crate) fn wait_until_closed(&self) {
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while self.accepting.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(CLOSE_STEP);
        }
    }
}
