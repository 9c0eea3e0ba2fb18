//! Locks, channels and the like, for fibers and plain threads alike.
//!
//! The names, the poisoning and the errors are those of [`std::sync`]. A fiber that has to wait
//! suspends and its processor runs others; a plain thread that has to wait sleeps. Both may stand
//! in the same line: a fiber can send to a thread and a thread can wake a fiber. With `std`'s own,
//! a fiber that waits holds up all fibers of its processor, and if one of those has the lock, for
//! ever.
//!
//! | | what it is | which goes first |
//! |---|---|---|
//! | [`Mutex`] | one at a time | first in line, or the one that comes while it wakes up; overtaken once, then handed over |
//! | [`RwLock`] | many readers or one writer | first come, first served |
//! | [`Condvar`] | a notification under a mutex | the longest waiter |
//! | [`Semaphore`] | so many at a time | first come, first served |
//! | [`Barrier`] | a meeting of `n` | all at once |
//! | [`Event`] | a gate that stays open | all at once |
//! | [`Once`], [`OnceLock`], [`LazyLock`] | made once | |
//! | [`mpsc`], [`mpmc`] | channels: with a limit, without, from hand to hand | the longest waiter |
//! | [`select!`](crate::select), [`Select`] | the first of several channel operations | each that can go, by lot |
//!
//! # Time-outs
//! A time-out and a hand-over may come in the same moment; exactly one of them counts. So the
//! result of a call with a time-out is exact: `Ok` has the lock or the message, and after an error
//! nothing was taken and nothing was lost. Fibers wait in whole milliseconds, rounded up.
//!
//! # What to know
//! * A guard belongs to the fiber that took it. It may be held across anything that suspends:
//!   other fibers that need the lock suspend too.
//! * When the fiber is [cancelled](crate::Fiber::cancel), and at the deadline of
//!   [`fiber::timeout`](crate::timeout), waits with a time-out end as if their own time were over,
//!   and those for channels as if the other side were gone, so a loop over a receiver ends.
//!   [`fiber::checkpoint`](crate::checkpoint) then returns the reason. Waits that cannot fail
//!   (`lock`, `acquire`, `Condvar::wait`, `Event::wait`, `Barrier::wait`) last until the grant.
//!
//! # Code that cannot suspend
//! A fiber does not suspend while it unwinds from a panic, nor in
//! [`on_processor_stack`](crate::on_processor_stack). A destructor that waits then blocks the
//! thread, and with it all fibers of its processor. So:
//!
//! * Such code goes before all waiters that can suspend, and takes a lock or permits that were
//!   handed over to a fiber which has not run yet. A lock that is held only while its owner runs
//!   (for a counter, a map) may be taken in any destructor.
//! * A lock that a fiber of the same processor holds while it waits for something else cannot be
//!   had: the fiber cannot run before this wait is over. [`Mutex::lock`] panics then, which in a
//!   destructor that runs because of a panic ends the process; other primitives wait forever. In
//!   destructors, do not take a lock that is held across waits, or take it with a time-out.
//! * The same holds for messages, notifications and fibers that such code waits for. It may start
//!   fibers, which run on other processors if there are any. [`join`](crate::JoinHandle::join) and
//!   [`Scope::spawn`](crate::Scope::spawn) panic where the awaited fiber could never run.
//!
//! # Inside
//! One wait queue (`wait`) under all of them, guarded by a lock for a few instructions (`short`).
//! Both, and every primitive, are checked over all interleavings (`models`).

mod barrier;
mod blocks;
mod channel;
mod condvar;
mod endpoints;
mod event;
#[cfg(all(test, loom))]
mod models;
pub mod mpmc;
pub mod mpsc;
mod mutex;
mod once;
mod rwlock;
mod select;
mod semaphore;
mod short;
pub(crate) mod wait;

use std::sync::{LockResult, PoisonError};

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::Event;
pub use mutex::{Mutex, MutexGuard};
pub use once::{LazyLock, Once, OnceLock, OnceState};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use select::{Receiving, Select, Sending};
pub use semaphore::{Permit, Semaphore};

use crate::base::atomic::{AtomicBool, Ordering};

/// A function that makes something, `const` so that it can make a `static`. Loom's atomics cannot
/// be in one.
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),*) -> $made:ty $body:block) => {
        $(#[$attribute])*
        #[cfg(not(loom))]
        $visibility const fn $name($($argument: $type),*) -> $made $body

        $(#[$attribute])*
        #[cfg(loom)]
        $visibility fn $name($($argument: $type),*) -> $made $body
    };
}
use const_unless_loom;

/// Implements what locks share: their value for its owner, poisoning, printing, a default.
macro_rules! locks {
    ($($lock:ident: $try_lock:ident),+) => {$(
        impl<T> $lock<T> {
            /// The value.
            ///
            /// # Errors
            /// The value too, if the lock is poisoned.
            pub fn into_inner(self) -> LockResult<T> {
                self.poison.check(self.value.into_inner())
            }
        }

        impl<T: ?Sized> $lock<T> {
            /// True if a panic poisoned it.
            pub fn is_poisoned(&self) -> bool {
                self.poison.is_set()
            }

            /// Clears the poison.
            pub fn clear_poison(&self) {
                self.poison.clear();
            }

            /// The value, which nothing else can have.
            ///
            /// # Errors
            /// The value too, if the lock is poisoned.
            pub fn get_mut(&mut self) -> LockResult<&mut T> {
                self.poison.check(self.value.get_mut())
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $lock<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut out = f.debug_struct(stringify!($lock));
                match self.$try_lock() {
                    Ok(guard) => out.field("value", &&*guard),
                    Err(TryLockError::Poisoned(error)) => out.field("value", &&**error.get_ref()),
                    Err(TryLockError::WouldBlock) => out.field("value", &format_args!("<locked>")),
                };
                out.field("poisoned", &self.is_poisoned()).finish()
            }
        }

        impl<T: Default> Default for $lock<T> {
            fn default() -> $lock<T> {
                $lock::new(T::default())
            }
        }
    )+};
}
use locks;

/// Implements guards: access to the value, and printing as the value.
macro_rules! guards {
    ($($guard:ident),+) => {$(
        impl<T: ?Sized> std::ops::Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                // SAFETY: nothing changes the value while there is a guard, but by way of it.
                unsafe { &*self.lock.value.get() }
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: ?Sized + fmt::Display> fmt::Display for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    )+};
}
use guards;

/// Set if a panic has left a value half changed.
#[derive(Debug)]
struct Poison(AtomicBool);

impl Poison {
    const_unless_loom! {
        fn new() -> Poison {
            Poison(AtomicBool::new(false))
        }
    }

    // Relaxed: the lock orders it, as it does the value.
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn check<G>(&self, guard: G) -> LockResult<G> {
        if self.is_set() { Err(PoisonError::new(guard)) } else { Ok(guard) }
    }
}
