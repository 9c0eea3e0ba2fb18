//! Forks: a runtime stays with the parent process.
//!
//! `fork(2)` copies one kernel thread, the calling one. Processors are other threads, and the rings
//! are shared with the kernel under the parent's name; so the child has the memory of a runtime and
//! nothing that runs it. The rules:
//!
//! * **The parent continues** as if nothing had happened. (Rings are `MADV_DONTFORK` and, like all
//!   descriptors of the runtime, closed on exec.)
//! * **In the child, the fiber that forked is a plain thread**: its calls block the thread. It
//!   should exec or `_exit`, as after any fork of a process with threads (fork(2)). If it returns
//!   to the runtime, that aborts the child with a message, because the other fibers are the
//!   parent's to run.
//! * **In the child, the old runtime is refused**: spawning on it, or joining a fiber that has not
//!   finished, panics with a message; dropping it or shutting it down does nothing.
//! * **What the child does to the parent's fibers has no effect**: an unpark, a request to end,
//!   closing a listener stay in the child's copy of the memory.
//! * **A new runtime may be started** in the child.
//! * **exec**, in a child or in a fiber itself, ends the runtime: nothing of it is inherited, and
//!   the kernel cancels operations in flight.
//! * `process::Command` follows none of this: its children exec at once.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::{MutexGuard, Once};

use crate::base::home;
use crate::io::offload;
use crate::sched::processor;
use crate::switch::stack::{Slab, slabs};

/// Registers the handlers that notice forks of this process.
pub(crate) fn notice_forks() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handlers are functions without arguments that live forever. If there is no
        // memory for them, forks are not noticed, which is no reason not to start.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(in_child)) };
    });
}

/// The lock of the stacks, held across a fork, so that the child finds it free and what it guards
/// whole.
struct Held(UnsafeCell<Option<MutexGuard<'static, HashMap<usize, Slab>>>>);

// SAFETY: written by the thread that holds the very lock, between `before` and the handler after
// the fork.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before() {
    let guard = slabs();
    // SAFETY: this thread holds the lock; see `Held`.
    unsafe { *HELD.0.get() = Some(guard) };
}

extern "C" fn after_in_parent() {
    // SAFETY: the same thread as in `before`, which holds the lock. Taken out before it is
    // unlocked.
    let guard = unsafe { (*HELD.0.get()).take() };
    drop(guard);
}

extern "C" fn in_child() {
    // As in the parent: the child's one thread is the copy of the one that holds the lock.
    after_in_parent();
    home::leave();
    processor::leave_after_fork();
    offload::forget_after_fork();
}
