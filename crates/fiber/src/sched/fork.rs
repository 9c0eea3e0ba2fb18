//! What happens to a runtime when its process forks: it stays with the parent.
//!
//! `fork(2)` copies one kernel thread, the calling one. Processors are other threads, and the rings are shared with the kernel under the parent's
//! name; so the child has the memory of a runtime and nothing that runs it. The rules:
//!
//! * **The parent goes on** as if nothing had happened. (Rings are `MADV_DONTFORK` and, like all descriptors of the
//!   runtime, closed on exec.)
//! * **In the child, the fiber that forked is a plain thread**: its calls block the thread. It should
//!   exec or `_exit`, as after any fork of a process with threads (fork(2)). If it returns to the runtime, that aborts
//!   the child with a message, because the other fibers are the parent's to run.
//! * **In the child, the old runtime is refused**: spawning on it, or joining a fiber that has not finished, panics with a message; dropping it
//!   or shutting it down does nothing.
//! * **What the child does to the parent's fibers has no effect**: an unpark, a request to end, closing a listener stay in the child's
//!   copy of the memory.
//! * **A new runtime may be started** in the child.
//! * **exec**, in a child or in a fiber itself, ends the runtime: nothing of it is inherited, and what was in flight is cancelled by
//!   the kernel.
//! * `process::Command` follows none of this: its children exec at once.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{MutexGuard, Once};

use crate::io::offload;
use crate::sched::processor;
use crate::switch::stack::{Slab, slabs};

/// How many forks this process descends from, since its ancestor started a runtime.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that a runtime belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Home {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: the handlers are functions without arguments that live for ever. If there is no memory for them,
            // forks are not noticed, which is no reason not to start.
            unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(in_child)) };
        });
        Home(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process is still the one that the runtime belongs to.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }

    /// # Panics
    /// If this process is a child of the one that the runtime belongs to.
    #[track_caller]
    pub(crate) fn check(self, what: &str) {
        assert!(
            self.is_here(),
            "cannot {what}: this process was forked from the one that the runtime belongs to, and its \
             processors stayed there; exec, or start a runtime of its own in the child"
        );
    }

    /// After a fiber gave the processor back: it must not do so in the child of a fork.
    #[inline]
    pub(crate) fn abort_if_left(self) {
        if !self.is_here() {
            abort_child();
        }
    }
}

#[cold]
fn abort_child() -> ! {
    let message: &[u8] =
        b"a fiber forked, and in the child came back to the runtime, which is the parent's: \
          exec or _exit in the child instead\n";
    // SAFETY: writes from a live constant. Not by std's stream, whose lock another thread may have held at the fork.
    unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
    std::process::abort();
}

/// The lock of the stacks, held across a fork, so that the child finds it free and what it guards whole.
struct Held(UnsafeCell<Option<MutexGuard<'static, HashMap<usize, Slab>>>>);

// SAFETY: written by the thread that holds the very lock, between `before` and the handler after the fork.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before() {
    let guard = slabs();
    // SAFETY: we hold the lock; see `Held`.
    unsafe { *HELD.0.get() = Some(guard) };
}

extern "C" fn after_in_parent() {
    // SAFETY: the same thread as in `before`, which holds the lock. Taken out before it is unlocked.
    let guard = unsafe { (*HELD.0.get()).take() };
    drop(guard);
}

extern "C" fn in_child() {
    // As in the parent: the child's one thread is the copy of the one that holds the lock.
    after_in_parent();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    processor::leave_after_fork();
    offload::forget_after_fork();
}
