//! A lock for a few instructions: what it guards is a queue of waiters, and no holder waits,
//! allocates much or runs code of others while holding it. It spins, then lets the kernel run
//! another thread, because a kernel thread that holds it may have been interrupted.

use super::const_unless_loom;
use crate::base::atomic::UnsafeCell;
use crate::base::atomic::{AtomicBool, Ordering, spin_loop};
#[cfg(loom)]
use loom::thread::yield_now;
#[cfg(not(loom))]
use std::thread::yield_now;

/// The lock of the wait queues.
#[cfg(not(loom))]
pub(crate) type ShortLock<T> = SpinLock<T>;

/// Attempts before the kernel is asked to run another thread.
const SPINS: u32 = 64;

/// A value that one thread at a time has.
#[derive(Debug)]
pub(crate) struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives the value to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: it owns the value.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    const_unless_loom! {
        pub(crate) fn new(value: T) -> SpinLock<T> {
            SpinLock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }
    }

    /// Calls `f` with the value, alone.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        /// Also after a panic, so that others get the message instead of spinning forever.
        struct Unlock<'a>(&'a AtomicBool);
        impl Drop for Unlock<'_> {
            #[inline]
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        if !self.try_lock() {
            self.lock_slow();
        }
        let _unlock = Unlock(&self.locked);
        // SAFETY: the lock is held.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slow(&self) {
        let mut looks = 0;
        loop {
            // A load keeps the cache line shared between the threads that spin.
            if !self.locked.load(Ordering::Relaxed) && self.try_lock() {
                return;
            }
            looks += 1;
            if looks % SPINS == 0 {
                yield_now();
            } else {
                spin_loop();
            }
        }
    }
}

/// In the models of what is built on it the lock is loom's own, which has fewer interleavings to
/// try; that the spin lock is one has a model of its own.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct ShortLock<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> ShortLock<T> {
    pub(crate) fn new(value: T) -> ShortLock<T> {
        ShortLock(loom::sync::Mutex::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
}
