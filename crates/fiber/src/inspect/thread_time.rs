//! Times of a thread in the kernel's scheduler: on an overloaded machine, a thread that waits for a
//! CPU is not to blame for the time that passes.

use std::fs;
use std::time::Duration;

/// The times of a thread so far, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadTime {
    /// True if it runs or waits for a CPU.
    is_runnable: bool,
    ran: Duration,
    /// Time in which it was runnable and waited for a CPU, without a present wait.
    delayed: Duration,
}

impl ThreadTime {
    /// Times of a thread of this process; `None` without /proc or without such a thread.
    pub(super) fn of(thread: i32) -> Option<ThreadTime> {
        let read = |name| fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok();
        ThreadTime::parse(&read("stat")?, &read("schedstat")?)
    }

    /// `stat` as in proc_pid_stat(5), of which the third field is the state, and the second a name
    /// that may have blanks and parentheses. `schedstat` has nanoseconds: ran, delayed; see
    /// Documentation/scheduler/sched-stats.rst of Linux.
    fn parse(stat: &str, schedstat: &str) -> Option<ThreadTime> {
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut times = schedstat.split(' ').map(str::parse);
        let mut next = || Some(Duration::from_nanos(times.next()?.ok()?));
        Some(ThreadTime { is_runnable: fields.starts_with('R'), ran: next()?, delayed: next()? })
    }

    /// Part of the time `elapsed` since `before` that the thread used: its CPU time if it is
    /// runnable; if it sleeps, all but its waits for a CPU.
    pub(super) fn taken_since(&self, before: &ThreadTime, elapsed: Duration) -> Duration {
        if self.is_runnable {
            self.ran.saturating_sub(before.ran).min(elapsed)
        } else {
            elapsed.saturating_sub(self.delayed.saturating_sub(before.delayed))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::topology::thread_id;

    fn time(state: char, ran_ms: u64, delayed_ms: u64) -> ThreadTime {
        let schedstat = format!("{} {} 7\n", ran_ms * 1_000_000, delayed_ms * 1_000_000);
        let stat = format!("4711 (a) S (b) {state} 1 4711 4711 0 -1 4194560 109");
        ThreadTime::parse(&stat, &schedstat).unwrap()
    }

    #[test]
    fn wait_for_cpu_is_not_counted() {
        let before = time('R', 100, 1000);
        let elapsed = Duration::from_millis(500);
        let taken = |now: ThreadTime| now.taken_since(&before, elapsed).as_millis();
        assert_eq!(taken(time('R', 130, 1000)), 30, "the rest was a wait for a CPU");
        assert_eq!(taken(time('R', 600, 1000)), 500);
        assert_eq!(taken(time('S', 100, 1000)), 500, "the thread blocks");
        assert_eq!(taken(time('D', 130, 1200)), 300, "the thread blocks after a wait for a CPU");
    }

    #[test]
    fn reads_times_of_live_threads() {
        let this = ThreadTime::of(thread_id()).unwrap();
        assert!(this.is_runnable);
        assert_eq!(ThreadTime::of(0), None);
        assert_eq!(ThreadTime::parse("4711 (x) R 1", "none"), None);
    }
}
