//! [`Once`], [`OnceLock`] and [`LazyLock`].

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::PoisonError;

use super::const_unless_loom;
use super::mutex::Mutex;
use crate::base::atomic::{AtomicU8, Ordering};

const INCOMPLETE: u8 = 0;
const POISONED: u8 = 1;
const COMPLETE: u8 = 2;

/// Runs something once, as [`std::sync::Once`]: a caller that comes while it runs waits for its
/// end.
#[derive(Debug)]
pub struct Once {
    state: AtomicU8,
    /// Held by the one that runs it.
    running: Mutex<()>,
}

/// Argument of the closure of [`Once::call_once_force`].
#[derive(Clone, Copy, Debug)]
pub struct OnceState {
    poisoned: bool,
}

impl OnceState {
    /// True if an earlier closure panicked.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }
}

impl Once {
    const_unless_loom! {
        /// Nothing has been run.
        pub fn new() -> Once {
            Once { state: AtomicU8::new(INCOMPLETE), running: Mutex::new(()) }
        }
    }

    /// Runs `f` unless something was run before; when it returns, something has been.
    ///
    /// # Panics
    /// With `f`, and then for all after.
    #[inline]
    pub fn call_once(&self, f: impl FnOnce()) {
        if !self.is_completed() {
            self.call(|state| {
                assert!(!state.poisoned, "Once instance has previously been poisoned");
                f();
            });
        }
    }

    /// Same as [`call_once`](Once::call_once), also after a panic.
    #[inline]
    pub fn call_once_force(&self, f: impl FnOnce(&OnceState)) {
        if !self.is_completed() {
            self.call(f);
        }
    }

    /// True if a closure has run to its end.
    #[inline]
    pub fn is_completed(&self) -> bool {
        self.state.load(Ordering::Acquire) == COMPLETE
    }

    #[cold]
    fn call(&self, f: impl FnOnce(&OnceState)) {
        // Its poison says no more than the state.
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.state.load(Ordering::Acquire);
        if seen == COMPLETE {
            return;
        }
        let poisoned = seen == POISONED;
        let mut end = StateOnDrop(&self.state, POISONED);
        f(&OnceState { poisoned });
        end.1 = COMPLETE;
    }
}

/// Sets the final state, also after a panic; before the lock is free.
struct StateOnDrop<'a>(&'a AtomicU8, u8);

impl Drop for StateOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::Release);
    }
}

impl Default for Once {
    fn default() -> Once {
        Once::new()
    }
}

/// A value that is set once, as [`std::sync::OnceLock`].
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Held while the value is made. A wait for the lock of `value` would block the processor.
    setting: Mutex<()>,
}

impl<T> OnceLock<T> {
    const_unless_loom! {
        /// No value yet.
        pub fn new() -> OnceLock<T> {
            OnceLock { value: std::sync::OnceLock::new(), setting: Mutex::new(()) }
        }
    }

    /// The value, if it is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// The value, if it is set.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Sets the value, or waits for the one that sets it.
    ///
    /// # Errors
    /// The given value, if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("called once"));
        value.map_or(Ok(()), Err)
    }

    /// The value, which `f` makes if there is none yet. If `f` panics there is none, and the next
    /// may try.
    #[inline]
    pub fn get_or_init(&self, f: impl FnOnce() -> T) -> &T {
        if self.get().is_none() {
            let _setting = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
            if self.get().is_none() {
                let _ = self.value.set(f());
            }
        }
        self.get().expect("it has been set")
    }

    /// The value, if it is set.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value out.
    pub fn take(&mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => f.debug_tuple("OnceLock").field(value).finish(),
            None => f.write_str("OnceLock(<not set>)"),
        }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        let cell = OnceLock::new();
        let _ = cell.set(value);
        cell
    }
}

/// A value that is made when it is first looked at, as [`std::sync::LazyLock`].
pub struct LazyLock<T, F = fn() -> T> {
    value: OnceLock<T>,
    make: Cell<Option<F>>,
}

// SAFETY: `make` is touched only by the one that sets the value.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    const_unless_loom! {
        /// A value that `make` will make.
        pub fn new(make: F) -> LazyLock<T, F> {
            LazyLock { value: OnceLock::new(), make: Cell::new(Some(make)) }
        }
    }

    /// The value, made now if it was not before.
    ///
    /// # Panics
    /// With the closure, and then for all after.
    #[inline]
    pub fn force(this: &LazyLock<T, F>) -> &T {
        this.value.get_or_init(|| match this.make.take() {
            Some(make) => make(),
            None => panic!("LazyLock instance has previously been poisoned"),
        })
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.get() {
            Some(value) => f.debug_tuple("LazyLock").field(value).finish(),
            None => f.write_str("LazyLock(<not made>)"),
        }
    }
}
