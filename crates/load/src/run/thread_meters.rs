//! Resource use of a thread.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::outcome::ThreadUse;

/// Meters of the calling thread at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Meters {
    at: Instant,
    cpu: Duration,
    run_delay: Duration,
}

impl Meters {
    pub(crate) fn read() -> Meters {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        Meters {
            at: Instant::now(),
            cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32),
            run_delay: run_delay().unwrap_or_default(),
        }
    }

    /// Time from `start` to the reading.
    pub(crate) fn time_since(&self, start: Instant) -> Duration {
        self.at.saturating_duration_since(start)
    }

    pub(crate) fn since(&self, earlier: &Meters, spun: Duration) -> ThreadUse {
        ThreadUse {
            cpu: self.cpu - earlier.cpu,
            spun,
            run_delay: self.run_delay.saturating_sub(earlier.run_delay),
            elapsed: self.at - earlier.at,
        }
    }
}

/// Second field of schedstat: nanoseconds spent waiting on a run queue (proc(5)).
fn run_delay() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}
