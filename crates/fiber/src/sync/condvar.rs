//! [`Condvar`].

use std::sync::{LockResult, PoisonError};
use std::time::{Duration, Instant};

use super::const_unless_loom;
use super::mutex::MutexGuard;
use super::short::ShortLock;
use super::wait::{Node, Queue, Wait, Wakes};
use crate::base::atomic::{AtomicBool, Ordering};
use crate::base::clock::after;
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// A condition variable, as of [`std::sync::Condvar`], for a [`Mutex`](super::Mutex) of this
/// module.
///
/// Waiters are notified in the order in which they came. A wait ends by a notification or a
/// time-out and for no other reason; still, look at the condition again, for others may have had
/// the lock in between.
///
/// ```
/// use std::sync::Arc;
/// use weftwork_fiber::sync::{Condvar, Mutex};
///
/// weftwork_fiber::run(|| {
///     let pair = Arc::new((Mutex::new(false), Condvar::new()));
///     let other = Arc::clone(&pair);
///     weftwork_fiber::spawn(move || {
///         *other.0.lock().unwrap() = true;
///         other.1.notify_one();
///     });
///     let ready = pair.1.wait_while(pair.0.lock().unwrap(), |ready| !*ready);
///     assert!(*ready.unwrap());
/// });
/// ```
#[derive(Debug)]
pub struct Condvar {
    queue: ShortLock<Queue>,
    /// Something is in the queue. A notifier that had the mutex after the waiter sees it without
    /// the lock.
    waiters: AtomicBool,
}

/// Result of a wait with a time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult {
    timed_out: bool,
}

impl WaitTimeoutResult {
    /// True if the wait ended by time-out and not by a notification.
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    const_unless_loom! {
        /// A condition variable without waiters.
        pub fn new() -> Condvar {
            Condvar { queue: ShortLock::new(Queue::new()), waiters: AtomicBool::new(false) }
        }
    }

    /// Unlocks, waits for a notification, locks again.
    ///
    /// # Errors
    /// The guard, if the mutex is poisoned.
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, None)
            .map(|(guard, _)| guard)
            .map_err(|error| PoisonError::new(error.into_inner().0))
    }

    /// Waits as long as `condition` holds.
    ///
    /// # Errors
    /// The guard, if the mutex is poisoned.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut *guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// Same as [`wait`](Condvar::wait), but not longer than `timeout` (and the time to have the
    /// lock again).
    ///
    /// # Errors
    /// The guard, if the mutex is poisoned.
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_until(guard, Some(after(timeout)))
    }

    /// Same as [`wait_while`](Condvar::wait_while), but not longer than `timeout`. The result is a
    /// time-out only if the condition still holds.
    ///
    /// # Errors
    /// The guard, if the mutex is poisoned.
    pub fn wait_timeout_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let deadline = after(timeout);
        let mut timed_out = false;
        while condition(&mut *guard) {
            if timed_out {
                return Ok((guard, WaitTimeoutResult { timed_out }));
            }
            let (locked, ended) = self.wait_until(guard, Some(deadline))?;
            (guard, timed_out) = (locked, ended.timed_out);
        }
        Ok((guard, WaitTimeoutResult { timed_out: false }))
    }

    /// Notifies the one that has waited longest.
    pub fn notify_one(&self) {
        if !self.waiters.load(Ordering::Relaxed) {
            return;
        }
        let wake = self.queue.with(|queue| {
            let first = queue.claim_front();
            self.waiters.store(!queue.is_empty(), Ordering::Relaxed);
            first.map(|first| first.grant(0))
        });
        if let Some(wake) = wake {
            wake.wake();
        }
    }

    /// Notifies all that wait now.
    pub fn notify_all(&self) {
        if !self.waiters.load(Ordering::Relaxed) {
            return;
        }
        let mut wakes = Wakes::default();
        self.queue.with(|queue| {
            self.waiters.store(false, Ordering::Relaxed);
            queue.grant_all(&mut wakes, |_| 0);
        });
        wakes.wake();
    }

    fn wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let mutex = guard.mutex();
        let timed_out = !self.block(deadline, || drop(guard));
        let result = WaitTimeoutResult { timed_out };
        match mutex.lock() {
            Ok(guard) => Ok((guard, result)),
            Err(error) => Err(PoisonError::new((error.into_inner(), result))),
        }
    }

    /// Queues the caller, unlocks, waits; `false` when the deadline has passed.
    fn block(&self, deadline: Option<Instant>, unlock: impl FnOnce()) -> bool {
        let wait = Wait::until(deadline);
        let node = Node::new(&wait, 0, std::ptr::null_mut());
        self.queue.with(|queue| {
            // SAFETY: this frame continues when the node is claimed, and so out of the queue, or
            // after it has removed it; and `unlock` does not unwind.
            unsafe { queue.push_back(&node) };
            self.waiters.store(true, Ordering::Relaxed);
        });
        unlock();
        let address = std::ptr::from_ref(self).addr();
        let _noted = waiting::on(WaitReason::Condvar { address });
        if wait.block(deadline).is_some() {
            return true;
        }
        self.queue.with(|queue| {
            queue.remove(&node);
            self.waiters.store(!queue.is_empty(), Ordering::Relaxed);
        });
        false
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}
