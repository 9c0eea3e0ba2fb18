//! [`Mutex`].

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::DerefMut;
use std::sync::atomic::AtomicU64;
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use super::short::ShortLock;
use super::wait::{Node, Queue, Wait, Wake};
use super::{Poison, const_unless_loom, guards, locks};
use crate::base::atomic::{AtomicU8, Ordering};
use crate::base::clock::after;
use crate::sched::processor;
use crate::sched::waiting;

/// Mutual exclusion, as of [`std::sync::Mutex`]: a fiber that has to wait suspends, a plain thread
/// sleeps.
///
/// # Fairness
/// Waiters are queued. A lock that is released while others wait is free for a moment: running code
/// may take it before the first waiter is awake, which saves a switch for every hand-over. But a
/// waiter that was woken and came too late goes back to the front, and the next release keeps the
/// lock for it. So no waiter is overtaken for longer than one wake-up takes, once it is the first.
/// Only a caller that [cannot suspend](super#code-that-cannot-suspend) goes first, because all
/// fibers of its processor wait with it.
///
/// # Poisoning
/// As in `std`: a guard that is dropped by a panic poisons the mutex, and `lock` then returns the
/// guard in an `Err`.
///
/// ```
/// use std::sync::Arc;
/// use weftwork_fiber::sync::Mutex;
///
/// let total = Arc::new(Mutex::new(0));
/// let sum = Arc::clone(&total);
/// weftwork_fiber::run(move || {
///     weftwork_fiber::scope(|scope| {
///         for n in 1..=10 {
///             let sum = &sum;
///             scope.spawn(move || *sum.lock().unwrap() += n);
///         }
///     });
/// });
/// assert_eq!(*total.lock().unwrap(), 55); // from a plain thread
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    poison: Poison,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// SAFETY: it owns the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}

/// The lock; dropping it unlocks.
#[must_use = "dropped at once, the mutex is unlocked at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    panicking: bool,
    /// Not `Send`, as std's.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    const_unless_loom! {
        /// An unlocked mutex.
        pub fn new(value: T) -> Mutex<T> {
            Mutex { raw: RawMutex::new(), poison: Poison::new(), value: UnsafeCell::new(value) }
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock. A fiber that locks twice waits for itself, forever.
    ///
    /// # Errors
    /// The guard, if the mutex is poisoned.
    ///
    /// # Panics
    /// If the caller [cannot suspend](super#code-that-cannot-suspend) and the lock is held by a
    /// fiber that can run on the caller's processor only.
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !self.raw.try_lock() {
            self.raw.lock_slow(None);
        }
        self.guard()
    }

    /// The lock, if it is free.
    ///
    /// # Errors
    /// `WouldBlock`, or the guard if the mutex is poisoned.
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if self.raw.try_lock() { Ok(self.guard()?) } else { Err(TryLockError::WouldBlock) }
    }

    /// Waits for the lock, but not longer than `timeout`. If the lock comes at the very end of the
    /// time, the call returns it.
    ///
    /// # Errors
    /// `WouldBlock` when the time is over, or the guard if the mutex is poisoned.
    pub fn lock_timeout(&self, timeout: Duration) -> TryLockResult<MutexGuard<'_, T>> {
        if self.raw.try_lock() || self.raw.lock_slow(Some(after(timeout))) {
            Ok(self.guard()?)
        } else {
            Err(TryLockError::WouldBlock)
        }
    }

    /// For the condition variable: the lock was just taken.
    #[inline]
    pub(super) fn guard(&self) -> LockResult<MutexGuard<'_, T>> {
        self.raw.note_owner();
        let guard =
            MutexGuard { lock: self, panicking: std::thread::panicking(), not_send: PhantomData };
        self.poison.check(guard)
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    pub(super) fn mutex(&self) -> &'a Mutex<T> {
        self.lock
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicking {
            self.lock.poison.set();
        }
        self.lock.raw.unlock();
    }
}

locks!(Mutex: try_lock);
guards!(MutexGuard);

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

const LOCKED: u8 = 1;
/// The queue is not empty. Changed under its lock only, and set only while LOCKED.
const WAITERS: u8 = 2;

/// Together with LOCKED: the lock has no owner yet. It is kept for a waiter that was woken to take
/// it.
///
/// That waiter may be a fiber of a processor whose thread is about to block in here, and would wait
/// for it in vain. So a caller that blocks its processor takes a kept lock, and the waiter finds it
/// taken.
const KEPT: u8 = 4;

/// Code for a waiter.
const IS_KEPT: usize = 0;
const TRY_AGAIN: usize = 1;

/// A waiter's tag.
const NEW: usize = 0;
/// The waiter was woken before, and came too late.
const OVERTAKEN: usize = 1;
/// Stands before all waiters that can suspend.
const BLOCKS_PROCESSOR: usize = 2;

const HELD_BEHIND_CALLER: &str = "this lock would never come: a fiber of this processor holds it, \
     and cannot run while a destructor of a fiber that panics, or on_processor_stack, waits for it";

/// The lock without a value.
#[derive(Debug)]
pub(super) struct RawMutex {
    state: AtomicU8,
    /// The number of the fiber that has it, for the list of fibers; 0 while none has, or has not
    /// noted it yet.
    owner: AtomicU64,
    queue: ShortLock<Queue>,
}

impl RawMutex {
    const_unless_loom! {
        pub(super) fn new() -> RawMutex {
            RawMutex {
                state: AtomicU8::new(0),
                owner: AtomicU64::new(0),
                queue: ShortLock::new(Queue::new()),
            }
        }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        let taken = |seen: u8| {
            self.state.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed)
        };
        match taken(0) {
            Ok(_) => true,
            // Free, though something waits: see "Fairness".
            Err(WAITERS) => taken(WAITERS).is_ok(),
            Err(_) => false,
        }
    }

    #[inline]
    fn note_owner(&self) {
        let fiber = processor::with_current(|_, fiber| fiber.control().id());
        self.owner.store(fiber.unwrap_or(0), Ordering::Relaxed);
    }

    /// `false` when the deadline has passed.
    #[cold]
    pub(super) fn lock_slow(&self, deadline: Option<Instant>) -> bool {
        let _noted = waiting::on_lock(&self.owner, deadline.is_some());
        let mut tag = NEW;
        loop {
            let wait = Wait::until(deadline);
            if wait.blocks_processor() {
                tag = BLOCKS_PROCESSOR;
            }
            let node = Node::new(&wait, tag, std::ptr::null_mut());
            if !self.enqueue(&node) {
                return true;
            }
            let is_in_vain =
                tag == BLOCKS_PROCESSOR && deadline.is_none() && self.is_held_behind_caller();
            if is_in_vain && wait.give_up() {
                self.leave(&node);
                panic!("{}", HELD_BEHIND_CALLER);
            }
            match wait.block(deadline) {
                Some(IS_KEPT) if self.take_kept() => return true,
                // This wake-up must not be lost: if the lock is taken again, its new owner has to
                // wake the next, else this waiter has it. Either way, one more check decides.
                Some(TRY_AGAIN) if self.try_lock() => return true,
                Some(_) => tag = OVERTAKEN,
                None => {
                    self.leave(&node);
                    return false;
                }
            }
        }
    }

    /// True if the owner is a fiber that cannot run before the caller, which cannot suspend, has
    /// the lock.
    fn is_held_behind_caller(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && processor::is_fiber_of_here(owner)
    }

    /// Comes for the lock that is kept, unless one that blocks its processor has taken it.
    fn take_kept(&self) -> bool {
        self.state.fetch_and(!KEPT, Ordering::Acquire) & KEPT != 0
    }

    /// Queues the caller, at the front if overtaken; or takes the lock (`false`), if it is free
    /// after all.
    fn enqueue(&self, node: &Node) -> bool {
        let takes_kept = node.tag() == BLOCKS_PROCESSOR;
        self.queue.with(|queue| {
            let is_free = |seen| seen & LOCKED == 0 || takes_kept && seen & KEPT != 0;
            let next = |seen| {
                if is_free(seen) { Some(seen & !KEPT | LOCKED) } else { Some(seen | WAITERS) }
            };
            let set = Ordering::Acquire;
            let fetch = Ordering::Relaxed;
            if self.state.fetch_update(set, fetch, next).is_ok_and(is_free) {
                return false;
            }
            // SAFETY: the node is in the frame of `lock_slow`, which continues when the node is
            // claimed, and so out of the queue, or after `leave`.
            unsafe {
                match node.tag() {
                    NEW => queue.push_back(node),
                    _ => queue.insert_behind(node, |tag| tag == BLOCKS_PROCESSOR),
                }
            }
            true
        })
    }

    /// Leaves the queue after a time-out.
    fn leave(&self, node: &Node) {
        self.queue.with(|queue| {
            queue.remove(node);
            if queue.is_empty() {
                self.state.fetch_and(!WAITERS, Ordering::Relaxed);
            }
        });
    }

    #[inline]
    pub(super) fn unlock(&self) {
        self.owner.store(0, Ordering::Relaxed);
        if self.state.compare_exchange(LOCKED, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.unlock_slow();
        }
    }

    #[cold]
    fn unlock_slow(&self) {
        let wake: Option<Wake> = self.queue.with(|queue| {
            let first = queue.claim_front();
            let waiters = if queue.is_empty() { 0 } else { WAITERS };
            let Some(first) = first else {
                self.state.store(waiters, Ordering::Release);
                return None;
            };
            if first.tag() != NEW {
                self.state.store(LOCKED | KEPT | waiters, Ordering::Release);
                return Some(first.grant(IS_KEPT));
            }
            self.state.store(waiters, Ordering::Release);
            Some(first.grant(TRY_AGAIN))
        });
        if let Some(wake) = wake {
            wake.wake();
        }
    }
}
