//! The process that a runtime belongs to: see [`fork`](crate::io::fork).

use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between this process and the one that started the first runtime.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that a runtime belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    /// This process. Forks are seen after [`notice_forks`](crate::io::fork::notice_forks) only.
    pub(crate) fn here() -> Home {
        Home(GENERATION.load(Ordering::Relaxed))
    }

    /// True if the runtime belongs to this process and not to one that it was forked from.
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
}

/// Aborts the child of a fork in which a fiber has ended: there is no processor to return to.
#[cold]
pub(crate) fn abort_child() -> ! {
    let message: &[u8] =
        b"a fiber forked, and in the child came back to the runtime, which is the parent's: \
          exec or _exit in the child instead\n";
    // SAFETY: writes from a live constant. Not by std's stream, whose lock another thread may have
    // held at the fork.
    unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
    std::process::abort();
}

/// Notes a fork, in its child: resources of the parent are not valid there.
pub(crate) fn leave() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
