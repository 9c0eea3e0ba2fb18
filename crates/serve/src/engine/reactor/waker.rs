//! The part of a loop that other threads share: waker and counters.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use event::Waker;

use super::counters::LoopCounters;

/// The part of a loop, or of the accept thread, that other threads share.
pub(crate) struct LoopHandle {
    pub(crate) waker: LoopWaker,
    /// The connection limit has space, for which the loop was waiting.
    pub(crate) has_space: AtomicBool,
    /// Number of the loop's connections, including those in its inbox.
    pub(crate) open: AtomicUsize,
    pub(crate) counters: LoopCounters,
}

impl LoopHandle {
    pub(crate) fn new() -> io::Result<Arc<LoopHandle>> {
        Ok(Arc::new(LoopHandle {
            waker: LoopWaker::new()?,
            has_space: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            counters: LoopCounters::default(),
        }))
    }
}

/// Wakes a loop that may be asleep in its dispatcher. A loop that is awake checks for events before
/// it sleeps, so only sleeping loops cost the system calls of a wake.
///
/// ```text
///             sleeps                wake: written to
///  AWAKE ──────────────▶ ASLEEP ─────────────────────▶ WOKEN
///    │ ▲                    │                            │
///    │ └────────────────────┴──────── returns ───────────┤
///    └───────────────────── wake ────────────────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct LoopWaker {
    fd: Waker,
    state: AtomicU8,
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
/// Woken since the last wait returned.
const WOKEN: u8 = 2;

impl LoopWaker {
    pub(crate) fn new() -> io::Result<LoopWaker> {
        Ok(LoopWaker { fd: Waker::new()?, state: AtomicU8::new(AWAKE) })
    }

    /// Ends the loop's current wait, or the next one. From any thread.
    pub(crate) fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == ASLEEP {
            self.fd.wake();
        }
    }

    /// Waits for at most `timeout`, or not at all if woken since the last wait. The loop must check
    /// for events **afterwards**: a later wake ends the next wait. The swap makes everything
    /// visible that was done before the wake.
    pub(crate) fn wait<R>(
        &self,
        timeout: Option<Duration>,
        wait: impl FnOnce(Option<Duration>) -> R,
    ) -> R {
        const NONE: Option<Duration> = Some(Duration::ZERO);
        let set = Ordering::SeqCst;
        let fetch = Ordering::SeqCst;
        let may_sleep =
            timeout != NONE && (self.state).compare_exchange(AWAKE, ASLEEP, set, fetch).is_ok();
        let waited = wait(if may_sleep { timeout } else { NONE });
        self.state.swap(AWAKE, Ordering::SeqCst);
        waited
    }

    /// Clears the descriptor after its report. It may have been written during this wait, or during
    /// an earlier one that ended for another reason.
    pub(crate) fn reset(&self) {
        self.fd.reset();
    }

    #[cfg(test)]
    pub(crate) fn is_woken(&self) -> bool {
        self.state.load(Ordering::SeqCst) == WOKEN
    }
}

impl AsFd for LoopWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_written_to(waker: &LoopWaker) -> bool {
        let mut fds = [PollFd::new(waker, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let waker = LoopWaker::new().unwrap();
        waker.wait(None, |timeout| {
            assert_eq!(timeout, None);
            waker.wake();
            waker.wake();
        });
        assert!(is_written_to(&waker));
        waker.reset();
        assert!(!is_written_to(&waker));
    }

    #[test]
    fn an_awake_loop_costs_no_system_call() {
        let waker = LoopWaker::new().unwrap();
        waker.wake();
        assert!(!is_written_to(&waker));
        waker.wait(None, |timeout| assert_eq!(timeout, Some(Duration::ZERO)));
        // It has checked for events since.
        waker.wait(None, |timeout| assert_eq!(timeout, None));
    }
}
