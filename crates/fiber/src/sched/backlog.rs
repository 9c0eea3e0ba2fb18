//! Decides when it is worth waking another processor for the fibers in this one's run queues.
//!
//! Waking a thread takes some 16 µs, part of which the waker spends itself, and the woken thread
//! starts with a cold cache. Most runs of a server's fibers are shorter: a few requests that come
//! at once are answered sooner here, one after the other. So a processor wakes another when its run
//! queues have not been empty for [`WORTH_WAKING`], or will not be if the next fiber runs as long
//! as the earlier ones did.
//!
//! That is a guess: a step that computes for once keeps the fibers behind it waiting. So the guess
//! is made only where a monitor checks now and then if work waits while a processor sleeps.
//! Elsewhere a processor wakes another whenever more than one step waits.

use std::cell::Cell;
use std::time::Duration;

/// Time that short fibers wait in the run queues while another processor sleeps: longer than waking
/// it takes, shorter than a client notices.
pub(crate) const WORTH_WAKING: Duration = Duration::from_micros(40);

/// A mean over this many turns follows a change of the load soon, and one long turn does not stay
/// in it for long.
const TURNS_OF_MEAN: u64 = 16;

/// Run times of a processor's fibers, in ticks of the [`stamp`](crate::base::stamp).
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Start of the first turn since the run queues were empty; `None` if they are.
    since: Cell<Option<u64>>,
    /// Mean run time of a fiber, with its share of the system calls between.
    mean_run_ticks: Cell<u64>,
    /// Fibers that have run since the mean was formed.
    runs: Cell<u64>,
    worth_waking_ticks: u64,
}

impl Backlog {
    pub(crate) fn new(worth_waking_ticks: u64) -> Backlog {
        Backlog {
            since: Cell::new(None),
            mean_run_ticks: Cell::new(0),
            runs: Cell::new(0),
            worth_waking_ticks,
        }
    }

    #[inline]
    pub(crate) fn count_run(&self) {
        self.runs.set(self.runs.get() + 1);
    }

    /// Adds `ticks` that the fibers since the last call took.
    #[inline]
    pub(crate) fn note_runs(&self, ticks: u64) {
        if let Some(run) = ticks.checked_div(self.runs.replace(0)) {
            let mean = self.mean_run_ticks.get();
            self.mean_run_ticks.set(mean - mean / TURNS_OF_MEAN + run / TURNS_OF_MEAN);
        }
    }

    /// Notes that a turn begins at `now`, and that the one before took `ticks`.
    #[inline]
    pub(crate) fn begin_turn(&self, now: u64, ticks: u64) {
        self.note_runs(ticks);
        self.since.set(self.since.get().or(Some(now)));
    }

    /// Notes that a turn ends with empty run queues.
    #[inline]
    pub(crate) fn clear(&self) {
        self.since.set(None);
    }

    /// True if fibers that wait at `now` will have waited for too long when the next one has run.
    pub(crate) fn is_worth_waking(&self, now: u64) -> bool {
        let waits = self.since.get().map_or(0, |since| now.saturating_sub(since));
        waits.saturating_add(self.mean_run_ticks.get()) > self.worth_waking_ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog() -> Backlog {
        Backlog::new(1000)
    }

    fn turn(backlog: &Backlog, now: u64, took: u64, runs: u64) {
        (0..runs).for_each(|_| backlog.count_run());
        backlog.begin_turn(now, took);
    }

    #[test]
    fn short_work_wakes_late() {
        let backlog = backlog();
        turn(&backlog, 5000, 0, 0);
        assert!(!backlog.is_worth_waking(5000));
        assert!(!backlog.is_worth_waking(6000));
        assert!(backlog.is_worth_waking(6001));
        // The run queues are not empty between the turns.
        turn(&backlog, 6100, 1100, 100);
        assert!(backlog.is_worth_waking(6100));
        backlog.clear();
        turn(&backlog, 7000, 900, 100);
        assert!(!backlog.is_worth_waking(7500));
    }

    #[test]
    fn long_work_wakes_early() {
        let backlog = backlog();
        for at in 0..100 {
            backlog.clear();
            turn(&backlog, at * 10_000, 10_000, 2);
        }
        assert!(backlog.is_worth_waking(990_000));
        for at in 100..200 {
            backlog.clear();
            turn(&backlog, at * 10_000, 10_000, 200);
        }
        assert!(!backlog.is_worth_waking(1_990_000), "work is short again");
    }

    #[test]
    fn sleep_is_not_run_time() {
        let backlog = backlog();
        for at in 0..100 {
            turn(&backlog, at * 100_000, 0, 0);
            (0..2).for_each(|_| backlog.count_run());
            backlog.clear();
            // The processor sleeps.
            backlog.note_runs(10_000);
        }
        turn(&backlog, 10_000_000, 0, 0);
        assert!(backlog.is_worth_waking(10_000_000));
    }

    #[test]
    fn empty_turn_leaves_the_mean() {
        let backlog = backlog();
        turn(&backlog, 1_000_000, 1_000_000, 0);
        assert_eq!(backlog.mean_run_ticks.get(), 0);
    }
}
