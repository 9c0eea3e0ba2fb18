//! Batches of replies in a closed loop, so that a fast thread is not woken for each of them.
//!
//! A thread that is faster than the server sleeps between two replies, and a wake-up costs more
//! than reading a reply. It therefore sleeps until several have arrived, for at most a fraction of
//! the time that a reply takes. In an open loop, and where replies are quick or the thread is busy
//! anyway, each reply wakes it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Worker;
use crate::io::operation::Gather;

/// Longest wait for further replies.
const WITHIN_MAX: Duration = Duration::from_micros(100);
/// Shortest one: a timer costs a few microseconds.
const WITHIN_MIN: Duration = Duration::from_micros(10);
/// Longest wait of a batch's first reply, as a fraction of the mean reply time.
const PART_OF_REPLY: u32 = 8;
/// Fraction of the connections whose replies are awaited together; the others keep the server busy.
const PART_OF_CONNECTIONS: u32 = 2;
const COUNT_MIN: u32 = 8;
/// CPU share of a thread above which replies accumulate while it works.
const BUSY_PERCENT: u32 = 85;

/// State of a thread at the last decision.
#[derive(Clone, Copy, Default)]
pub(super) struct GatherMeter {
    /// Number of replies since then.
    pub(super) replies: u64,
    at: Duration,
    cpu: Duration,
}

impl Worker<'_> {
    /// Decides how many replies are awaited together from now on.
    pub(super) fn decide_gather(&mut self) {
        if self.is_open_loop() {
            return;
        }
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        let at = Duration::from_nanos(self.now_ns);
        let last = std::mem::replace(&mut self.gather, GatherMeter { replies: 0, at, cpu });
        let period = at.saturating_sub(last.at);
        let connections = self.in_flight_total.min(u64::from(self.active)) as u32;
        // Little's law.
        let reply = period.mul_f64(self.in_flight_total as f64 / last.replies.max(1) as f64);
        let is_busy = cpu.saturating_sub(last.cpu) * 100 > period * BUSY_PERCENT;
        self.backend.gather(gather(connections, reply, is_busy));
    }
}

fn gather(connections: u32, reply: Duration, is_busy: bool) -> Gather {
    let count = connections / PART_OF_CONNECTIONS;
    let within = WITHIN_MAX.min(reply / PART_OF_REPLY);
    // Fewer than two arrive in that time, so the timer would cost more than a wake-up.
    let is_slow = within * connections < reply * 2;
    if is_busy || is_slow || count < COUNT_MIN || within < WITHIN_MIN {
        return Gather::default();
    }
    Gather { count, within }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(connections: u32, reply_us: u64, is_busy: bool) -> (u32, u128) {
        let Gather { count, within } =
            gather(connections, Duration::from_micros(reply_us), is_busy);
        (count, within.as_micros())
    }

    #[test]
    fn replies_of_many_connections_are_gathered() {
        assert_eq!(gathered(64, 800, false), (32, 100));
        assert_eq!(gathered(1000, 10_000, false), (500, 100));
        assert_eq!(gathered(64, 320, false), (32, 40), "an eighth of a reply's time");
    }

    #[test]
    fn each_reply_wakes_where_a_batch_would_cost() {
        let each_alone = [
            (8, 800, false),
            (64, 60, false),
            (64, 800, true),
            (64, 10_000, false),
            (16, 10_000, false),
            (0, 0, false),
        ];
        for (connections, reply_us, is_busy) in each_alone {
            let none = gathered(connections, reply_us, is_busy);
            assert_eq!(none, (0, 0), "{connections} {reply_us} {is_busy}");
        }
    }
}
