//! [`Semaphore`], and the counting core that [`RwLock`](super::RwLock) is made of as well.

use std::time::{Duration, Instant};

use super::const_unless_loom;
use super::short::Short;
use super::wait::{Node, Queue, Wait, Wakes};
use crate::base::atomic::{AtomicUsize, Ordering};
use crate::base::clock::after;
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// A number of permits that are taken and given back.
///
/// # Fairness
/// Strictly first come, first served: permits that are given back go to the first in line, and a
/// caller that comes while others wait stands behind them, even if there are permits enough for a
/// smaller request.
///
/// ```
/// use fiber::sync::Semaphore;
///
/// let connections = Semaphore::new(2);
/// let first = connections.acquire();
/// let second = connections.acquire();
/// assert!(connections.try_acquire().is_none());
/// drop(first);
/// assert!(connections.try_acquire().is_some());
/// # drop(second);
/// ```
#[derive(Debug)]
pub struct Semaphore {
    raw: RawSemaphore,
}

/// Permits; dropping it gives them back.
#[must_use = "dropped at once, the permits are given back at once"]
#[derive(Debug)]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Semaphore {
    /// The most permits a semaphore can have.
    pub const PERMITS_MAX: usize = PERMITS_MAX;

    const_unless_loom! {
        /// A semaphore with this many permits.
        ///
        /// # Panics
        /// If there are more than [`PERMITS_MAX`](Semaphore::PERMITS_MAX).
        pub fn new(permits: usize) -> Semaphore {
            Semaphore { raw: RawSemaphore::new(permits) }
        }
    }

    /// Waits for a permit.
    pub fn acquire(&self) -> Permit<'_> {
        self.acquire_many(1)
    }

    /// Waits for `count` permits at once.
    ///
    /// # Panics
    /// If `count` is more than [`PERMITS_MAX`](Semaphore::PERMITS_MAX): they would never come.
    pub fn acquire_many(&self, count: usize) -> Permit<'_> {
        self.wait(count, None);
        self.permit(count)
    }

    /// Waits for a permit, but not longer than `timeout`.
    pub fn acquire_timeout(&self, timeout: Duration) -> Option<Permit<'_>> {
        self.wait(1, Some(timeout)).then(|| self.permit(1))
    }

    /// A permit, if there is one and nothing waits.
    pub fn try_acquire(&self) -> Option<Permit<'_>> {
        self.try_acquire_many(1)
    }

    /// `count` permits, if there are so many and nothing waits.
    pub fn try_acquire_many(&self, count: usize) -> Option<Permit<'_>> {
        self.raw.try_acquire(count).then(|| self.permit(count))
    }

    /// Adds permits, which were acquired and [forgotten](Permit::forget) or are new.
    ///
    /// # Panics
    /// If there would be more than [`PERMITS_MAX`](Semaphore::PERMITS_MAX).
    pub fn release(&self, count: usize) {
        self.raw.release(count);
    }

    /// How many permits there are just now.
    pub fn available(&self) -> usize {
        self.raw.available()
    }

    fn wait(&self, count: usize, timeout: Option<Duration>) -> bool {
        let address = std::ptr::from_ref(self).addr();
        self.raw
            .acquire(count, timeout.map(after), WaitReason::Semaphore { address })
    }

    fn permit(&self, count: usize) -> Permit<'_> {
        Permit {
            semaphore: self,
            count,
        }
    }
}

impl Permit<'_> {
    /// Keeps the permits out of the semaphore, until as many are [released](Semaphore::release).
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.release(self.count);
    }
}

/// Something waits. While this is set, the state changes under the queue's lock only.
const WAITERS: usize = 1;
const ONE: usize = 2;
pub(super) const PERMITS_MAX: usize = usize::MAX >> 2;

const TOO_MANY: &str = "more permits than PERMITS_MAX";

/// The state with `count` permits more; `None` if there would be too many.
fn more(state: usize, count: usize) -> Option<usize> {
    let permits = (state / ONE).checked_add(count)?;
    (permits <= PERMITS_MAX).then(|| (permits * ONE) | (state & WAITERS))
}

/// Permits and a line of those that wait for some.
#[derive(Debug)]
pub(super) struct RawSemaphore {
    /// Permits times [`ONE`], and [`WAITERS`].
    state: AtomicUsize,
    queue: Short<Queue>,
}

impl RawSemaphore {
    const_unless_loom! {
        pub(super) fn new(permits: usize) -> RawSemaphore {
            assert!(permits <= PERMITS_MAX, "{}", TOO_MANY);
            RawSemaphore {
                state: AtomicUsize::new(permits * ONE),
                queue: Short::new(Queue::new()),
            }
        }
    }

    pub(super) fn available(&self) -> usize {
        self.state.load(Ordering::Relaxed) / ONE
    }

    #[inline]
    pub(super) fn try_acquire(&self, count: usize) -> bool {
        let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
        let may = |seen| seen & WAITERS == 0 && seen / ONE >= count;
        let next = |seen| may(seen).then(|| seen - count * ONE);
        self.state.fetch_update(set, fetch, next).is_ok()
    }

    /// `false` when the deadline has passed.
    #[inline]
    pub(super) fn acquire(
        &self,
        count: usize,
        deadline: Option<Instant>,
        reason: WaitReason,
    ) -> bool {
        assert!(count <= PERMITS_MAX, "{}", TOO_MANY);
        self.try_acquire(count) || self.acquire_slow(count, deadline, reason)
    }

    #[cold]
    fn acquire_slow(&self, count: usize, deadline: Option<Instant>, reason: WaitReason) -> bool {
        let wait = Wait::new();
        let node = Node::new(&wait, count, std::ptr::null_mut());
        if !self.enqueue(&node) {
            return true;
        }
        let _noted = waiting::on(reason);
        if wait.block(deadline).is_some() {
            return true;
        }
        // It may have been the one that the others stood behind.
        let wakes = self.queue.with(|queue| {
            queue.remove(&node);
            self.serve(queue)
        });
        wakes.wake();
        false
    }

    /// Stands in line; or takes the permits (`false`), if they are there after all.
    fn enqueue(&self, node: &Node) -> bool {
        self.queue.with(|queue| {
            let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
            let may = |seen| seen & WAITERS == 0 && seen / ONE >= node.tag();
            let next = |seen| match may(seen) {
                true => seen - node.tag() * ONE,
                false => seen | WAITERS,
            };
            let seen = self.state.fetch_update(set, fetch, |seen| Some(next(seen)));
            if seen.is_ok_and(may) {
                return false;
            }
            // SAFETY: the node is in the frame of `acquire_slow`, which goes on when the node is
            // claimed, and so out of the queue, or after it has removed it.
            unsafe { queue.push_back(node) };
            true
        })
    }

    #[inline]
    pub(super) fn release(&self, count: usize) {
        let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
        let next = |seen| (seen & WAITERS == 0).then(|| more(seen, count).expect(TOO_MANY));
        if self.state.fetch_update(set, fetch, next).is_err() {
            self.release_slow(count);
        }
    }

    #[cold]
    fn release_slow(&self, count: usize) {
        let wakes = self.queue.with(|queue| {
            let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
            let added = self
                .state
                .fetch_update(set, fetch, |seen| more(seen, count));
            added.map(|_| self.serve(queue))
        });
        wakes.expect(TOO_MANY).wake();
    }

    /// Gives permits to those at the front, as far as they go. With the queue's lock held.
    fn serve(&self, queue: &mut Queue) -> Wakes {
        let mut wakes = Wakes::default();
        while let Some(count) = queue.front_tag() {
            if self.state.load(Ordering::Acquire) / ONE < count {
                return wakes;
            }
            // The first may give up just now; then another stands there, which may want more.
            let Some(first) = queue.claim_front_if(count) else {
                continue;
            };
            self.state.fetch_sub(count * ONE, Ordering::AcqRel);
            wakes.push(first.grant(0));
        }
        self.state.fetch_and(!WAITERS, Ordering::AcqRel);
        wakes
    }
}
