//! [`RwLock`].

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::DerefMut;
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::Duration;

use super::semaphore::{PERMITS_MAX, RawSemaphore};
use super::{Poison, const_unless_loom, guards, locks};
use crate::base::clock::after;
use crate::switch::reason::WaitReason;

/// Many readers or one writer, as of [`std::sync::RwLock`].
///
/// # Fairness
/// Strictly first come, first served, so neither side is preferred: a reader that comes while a
/// writer waits is queued behind it; a released lock goes to the writer at the front, or to all
/// readers at the front up to the next writer. So a fiber that has a read lock must not take
/// another one: a writer may have come in between, and each would wait for the other.
///
/// # Poisoning
/// As in `std`: a panic poisons the lock when it drops a write guard.
pub struct RwLock<T: ?Sized> {
    /// A reader takes one permit, a writer takes all.
    permits: RawSemaphore,
    poison: Poison,
    value: UnsafeCell<T>,
}

const READER: usize = 1;
const WRITER: usize = PERMITS_MAX;

// SAFETY: the permits give the value to one writer or to readers, which share it.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
// SAFETY: it owns the value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}

/// The right to read; dropping it gives it back.
#[must_use = "dropped at once, the lock is given back at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    not_send: PhantomData<*const ()>,
}

/// The right to write; dropping it gives it back.
#[must_use = "dropped at once, the lock is given back at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    panicking: bool,
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    const_unless_loom! {
        /// A free lock.
        pub fn new(value: T) -> RwLock<T> {
            RwLock {
                permits: RawSemaphore::new(PERMITS_MAX),
                poison: Poison::new(),
                value: UnsafeCell::new(value),
            }
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until it may read.
    ///
    /// # Errors
    /// The guard, if the lock is poisoned.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.acquire(READER, None);
        self.poison.check(self.read_guard())
    }

    /// Waits until it may write.
    ///
    /// # Errors
    /// The guard, if the lock is poisoned.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.acquire(WRITER, None);
        self.poison.check(self.write_guard())
    }

    /// The right to read, if nothing writes or waits.
    ///
    /// # Errors
    /// `WouldBlock`, or the guard if the lock is poisoned.
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        self.guard_if(self.permits.try_acquire(READER), || self.read_guard())
    }

    /// The right to write, if nothing has or awaits the lock.
    ///
    /// # Errors
    /// `WouldBlock`, or the guard if the lock is poisoned.
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        self.guard_if(self.permits.try_acquire(WRITER), || self.write_guard())
    }

    /// Same as [`read`](RwLock::read), but not longer than `timeout`.
    ///
    /// # Errors
    /// `WouldBlock` when the time is over, or the guard if the lock is poisoned.
    pub fn read_timeout(&self, timeout: Duration) -> TryLockResult<RwLockReadGuard<'_, T>> {
        self.guard_if(self.acquire(READER, Some(timeout)), || self.read_guard())
    }

    /// Same as [`write`](RwLock::write), but not longer than `timeout`.
    ///
    /// # Errors
    /// `WouldBlock` when the time is over, or the guard if the lock is poisoned.
    pub fn write_timeout(&self, timeout: Duration) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        self.guard_if(self.acquire(WRITER, Some(timeout)), || self.write_guard())
    }

    fn acquire(&self, count: usize, timeout: Option<Duration>) -> bool {
        let address = std::ptr::from_ref(self).cast::<()>().addr();
        self.permits.acquire(count, timeout.map(after), WaitReason::RwLock { address })
    }

    fn guard_if<G>(&self, is_taken: bool, guard: impl FnOnce() -> G) -> TryLockResult<G> {
        if is_taken { Ok(self.poison.check(guard())?) } else { Err(TryLockError::WouldBlock) }
    }

    fn read_guard(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, not_send: PhantomData }
    }

    fn write_guard(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, panicking: std::thread::panicking(), not_send: PhantomData }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.permits.release(READER);
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicking {
            self.lock.poison.set();
        }
        self.lock.permits.release(WRITER);
    }
}

locks!(RwLock: try_read);
guards!(RwLockReadGuard, RwLockWriteGuard);

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nothing else has the value while there is a write guard.
        unsafe { &mut *self.lock.value.get() }
    }
}
