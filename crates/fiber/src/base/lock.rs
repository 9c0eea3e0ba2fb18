//! One way to lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic while holding one of these locks leaves no broken state behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
