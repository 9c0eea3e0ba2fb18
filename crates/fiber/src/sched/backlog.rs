//! When it is worth waking another processor for what waits in this one's lanes.
//!
//! Waking a thread takes some 16 µs, part of which the waker spends itself, and what the other then
//! takes has gone cold. Most steps of a server are shorter than that: a few requests that come at
//! once are answered sooner here, one after the other. So a processor wakes another when its lanes
//! have not been empty for [`WORTH_WAKING`], or will not be if the next fiber runs as long as those
//! before did.

use std::cell::Cell;
use std::time::Duration;

use crate::base::stamp;

/// How long short fibers wait in the lanes while another processor sleeps: longer than waking it
/// takes, shorter than a client notices.
const WORTH_WAKING: Duration = Duration::from_micros(40);

/// A mean over this many turns follows a change of the load soon, and one long turn does not stay
/// in it for long.
const TURNS_OF_MEAN: u64 = 16;

/// What a processor knows of the time that its fibers take. Times are in the unit of [`stamp`].
#[derive(Debug)]
pub(crate) struct Backlog {
    /// When the lanes were last seen empty; `None` if they are.
    since: Cell<Option<u64>>,
    /// How long a fiber runs, with its share of the system calls between.
    mean_run: Cell<u64>,
    /// Fibers that have run in this turn.
    runs: Cell<u64>,
    worth_waking: u64,
}

impl Backlog {
    pub(crate) fn new() -> Backlog {
        Backlog {
            since: Cell::new(None),
            mean_run: Cell::new(0),
            runs: Cell::new(0),
            worth_waking: stamp::ticks(WORTH_WAKING),
        }
    }

    #[inline]
    pub(crate) fn count_run(&self) {
        self.runs.set(self.runs.get() + 1);
    }

    /// A turn begins at `now`, and the one before took `took`.
    #[inline]
    pub(crate) fn begin_turn(&self, now: u64, took: u64) {
        if let Some(run) = took.checked_div(self.runs.replace(0)) {
            let mean = self.mean_run.get();
            self.mean_run
                .set(mean - mean / TURNS_OF_MEAN + run / TURNS_OF_MEAN);
        }
        self.since.set(self.since.get().or(Some(now)));
    }

    /// A turn ends, and nothing waits.
    #[inline]
    pub(crate) fn clear(&self) {
        self.since.set(None);
    }

    /// Whether what waits at `now` will have waited for too long when the next fiber has run.
    pub(crate) fn is_worth_waking(&self, now: u64) -> bool {
        let waits = self
            .since
            .get()
            .map_or(0, |since| now.saturating_sub(since));
        waits.saturating_add(self.mean_run.get()) > self.worth_waking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog() -> Backlog {
        Backlog {
            worth_waking: 1000,
            ..Backlog::new()
        }
    }

    fn turn(backlog: &Backlog, now: u64, took: u64, runs: u64) {
        (0..runs).for_each(|_| backlog.count_run());
        backlog.begin_turn(now, took);
    }

    #[test]
    fn short_work_wakes_no_processor_until_it_has_lasted() {
        let backlog = backlog();
        turn(&backlog, 5000, 0, 0);
        assert!(!backlog.is_worth_waking(5000));
        assert!(!backlog.is_worth_waking(6000));
        assert!(backlog.is_worth_waking(6001));
        // The lanes are not empty between the turns.
        turn(&backlog, 6100, 1100, 100);
        assert!(backlog.is_worth_waking(6100));
        backlog.clear();
        turn(&backlog, 7000, 900, 100);
        assert!(!backlog.is_worth_waking(7500));
    }

    #[test]
    fn long_work_wakes_another_before_it_begins() {
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
    fn a_turn_without_fibers_says_nothing_of_how_long_they_take() {
        let backlog = backlog();
        turn(&backlog, 1_000_000, 1_000_000, 0);
        assert_eq!(backlog.mean_run.get(), 0);
    }
}
