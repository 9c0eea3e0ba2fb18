//! A bounded queue in front of a stage.
//!
//! ```text
//!  put:   waits for space ─┐                        ┌── wait: threads of the session stage
//!                          ├──▶ │ │ │ │ limit ──────┤
//!  offer: comes back later ┘                        └── take: a loop, woken by its waker
//! ```
//!
//! Items are added and taken in batches, and each batch reads the clock once: the waiting time of
//! items is the latency of a hand-off.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::reactor::LoopHandle;

/// See the [module page](self).
pub(super) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    limit: usize,
    /// The loop that takes; without one, threads wait for items.
    taker: Option<Arc<LoopHandle>>,
    has_come: Condvar,
    has_space: Condvar,
}

struct QueueState<T> {
    items: VecDeque<(T, Instant)>,
    is_closed: bool,
    /// Number of threads that wait for items.
    takers: usize,
    /// Number of threads that wait for space.
    putters: usize,
    /// Loops to wake when there is space.
    offerers: Vec<Arc<LoopHandle>>,
    counted: Counted,
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) length: usize,
    pub(super) longest: usize,
    /// Most items that a loop has kept for it while it was full.
    pub(super) pending_longest: usize,
    /// Number of times that it was full.
    pub(super) full: u64,
    pub(super) taken: u64,
    pub(super) batches: u64,
    /// Total waiting time of all items taken.
    pub(super) waited: Duration,
}

impl Counted {
    /// Mean waiting time of an item.
    pub(super) fn wait_mean(&self) -> Duration {
        Duration::from_secs_f64(self.waited.as_secs_f64() / self.taken.max(1) as f64)
    }
}

impl<T> Queue<T> {
    /// A queue with this limit. `taker` is the loop that takes, if any.
    pub(super) fn new(limit: usize, taker: Option<Arc<LoopHandle>>) -> Queue<T> {
        Queue {
            state: Mutex::new(QueueState {
                items: VecDeque::new(),
                is_closed: false,
                takers: 0,
                putters: 0,
                offerers: Vec::new(),
                counted: Counted::default(),
            }),
            limit,
            taker,
            has_come: Condvar::new(),
            has_space: Condvar::new(),
        }
    }

    pub(super) fn counted(&self) -> Counted {
        let state = self.lock();
        Counted { length: state.items.len(), ..state.counted }
    }

    /// True if there is space. If not, `own` is woken when there is some.
    pub(super) fn has_space_or_wait(&self, own: &Arc<LoopHandle>) -> bool {
        let mut state = self.lock();
        let has_space = state.items.len() < self.limit || state.is_closed;
        if !has_space {
            state.comes_back(own);
        }
        has_space
    }

    /// Takes items from `pending` as far as there is space. If some are left, `own` is woken when
    /// there is more.
    pub(super) fn offer(&self, pending: &mut VecDeque<T>, own: &Arc<LoopHandle>) {
        if pending.is_empty() {
            return;
        }
        let mut state = self.lock();
        let count = state.push(pending, self.limit);
        if !pending.is_empty() && !state.is_closed {
            state.comes_back(own);
            state.counted.pending_longest = state.counted.pending_longest.max(pending.len());
        }
        self.wake_takers(state, count);
    }

    /// Takes all of `pending`, waiting for space where necessary. If the queue is closed, the rest
    /// stays in `pending`.
    pub(super) fn put(&self, pending: &mut VecDeque<T>) {
        while !pending.is_empty() {
            let mut state = self.lock();
            let count = state.push(pending, self.limit);
            if count == 0 && !state.is_closed {
                state.counted.full += 1;
            }
            while count == 0 && state.items.len() >= self.limit && !state.is_closed {
                state.putters += 1;
                let waited = self.has_space.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                state.putters -= 1;
            }
            if state.is_closed {
                return;
            }
            self.wake_takers(state, count);
        }
    }

    /// Adds one item even if the queue is full: for rare items from threads that must not wait. If
    /// the queue is closed, the item is dropped.
    pub(super) fn put_over_limit(&self, item: T) {
        let mut state = self.lock();
        if !state.is_closed {
            let limit = state.items.len() + 1;
            let count = state.push(&mut VecDeque::from([item]), limit);
            self.wake_takers(state, count);
        }
    }

    /// Moves up to `batch_max` items to the end of `batch`. Returns whether more are left.
    pub(super) fn take(&self, batch_max: usize, batch: &mut Vec<T>) -> bool {
        let state = self.lock();
        let has_more = state.items.len() > batch_max;
        if !state.items.is_empty() {
            self.pop(state, batch_max, batch);
        }
        has_more
    }

    /// Takes up to `batch_max` items, but leaves as many for each of the other waiting threads. A
    /// thread that `is_idle` waits for items. `false` if the queue is closed.
    pub(super) fn wait(
        &self,
        batch_max: usize,
        threads: usize,
        is_idle: bool,
        batch: &mut Vec<T>,
    ) -> bool {
        let mut state = self.lock();
        while is_idle && state.items.is_empty() && !state.is_closed {
            state.takers += 1;
            let waited = self.has_come.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.takers -= 1;
        }
        if state.is_closed {
            return false;
        }
        let share = state.items.len().div_ceil(threads).min(batch_max);
        if share > 0 {
            self.pop(state, share, batch);
        }
        true
    }

    /// Closes the queue. Returns its items.
    pub(super) fn close(&self) -> Vec<T> {
        let mut state = self.lock();
        state.is_closed = true;
        let rest = mem::take(&mut state.items);
        let offerers = mem::take(&mut state.offerers);
        drop(state);
        self.has_come.notify_all();
        self.has_space.notify_all();
        offerers.iter().for_each(|one| one.waker.wake());
        rest.into_iter().map(|(item, _)| item).collect()
    }

    fn pop(&self, mut state: MutexGuard<'_, QueueState<T>>, batch_max: usize, batch: &mut Vec<T>) {
        let (count, now) = (state.items.len().min(batch_max), Instant::now());
        let mut waited = Duration::ZERO;
        batch.extend(state.items.drain(..count).map(|(item, came)| {
            waited += now.saturating_duration_since(came);
            item
        }));
        state.counted.waited += waited;
        state.counted.taken += count as u64;
        state.counted.batches += 1;
        let putters = state.putters;
        let offerers = mem::take(&mut state.offerers);
        drop(state);
        for _ in 0..putters.min(count) {
            self.has_space.notify_one();
        }
        offerers.iter().for_each(|one| one.waker.wake());
    }

    fn wake_takers(&self, state: MutexGuard<'_, QueueState<T>>, count: usize) {
        let takers = state.takers;
        drop(state);
        match &self.taker {
            Some(taker) if count > 0 => taker.waker.wake(),
            _ => (0..takers.min(count)).for_each(|_| self.has_come.notify_one()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> QueueState<T> {
    /// Moves items as far as there is space. Returns their number.
    fn push(&mut self, pending: &mut VecDeque<T>, limit: usize) -> usize {
        if self.is_closed {
            return 0;
        }
        let (count, now) =
            (pending.len().min(limit.saturating_sub(self.items.len())), Instant::now());
        self.items.extend(pending.drain(..count).map(|item| (item, now)));
        self.counted.longest = self.counted.longest.max(self.items.len());
        count
    }

    fn comes_back(&mut self, own: &Arc<LoopHandle>) {
        self.counted.full += 1;
        if !self.offerers.iter().any(|other| Arc::ptr_eq(other, own)) {
            self.offerers.push(Arc::clone(own));
        }
    }
}

/// A loop's outlet to the queue of another stage. Items wait here while that is full, since a loop
/// never waits for another stage.
pub(super) struct Outlet<T> {
    pub(super) queue: Arc<Queue<T>>,
    pub(super) pending: VecDeque<T>,
    own: Arc<LoopHandle>,
}

impl<T> Outlet<T> {
    /// `own` is the loop.
    pub(super) fn new(queue: &Arc<Queue<T>>, own: &Arc<LoopHandle>) -> Outlet<T> {
        Outlet { queue: Arc::clone(queue), pending: VecDeque::new(), own: Arc::clone(own) }
    }

    /// Hands over as far as there is space.
    pub(super) fn hand_over(&mut self) {
        self.queue.offer(&mut self.pending, &self.own);
    }
}
