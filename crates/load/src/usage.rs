//! What a thread of the generator uses, and whether that makes it the limit.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::outcome::{Tally, ThreadUse};

/// From this share of a processor on, a thread has no reserve: what it could not send is its own fault.
const BUSY_SHARE_MAX: f64 = 0.95;
/// If a thread waits this long for a processor, somebody else is using it.
const DELAY_SHARE_MAX: f64 = 0.10;
/// Requests sent later than this are no longer at their intended times.
const LAG_P99_MAX: Duration = Duration::from_millis(1);

/// The calling thread's meters at one moment.
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

    pub(crate) fn since(&self, earlier: &Meters, spun: Duration) -> ThreadUse {
        ThreadUse {
            cpu: self.cpu - earlier.cpu,
            spun,
            run_delay: self.run_delay.saturating_sub(earlier.run_delay),
            elapsed: self.at - earlier.at,
        }
    }
}

/// The second field of schedstat: nanoseconds spent waiting on a run queue (proc(5)).
fn run_delay() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace()
        .nth(1)?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

/// Says why the generator was the limit, if it was.
pub(crate) fn verdict(threads: &[ThreadUse], tally: &Tally, is_open_loop: bool) -> Option<String> {
    for (index, used) in threads.iter().enumerate() {
        let elapsed_s = used.elapsed.as_secs_f64().max(1e-9);
        let busy = used.cpu.saturating_sub(used.spun).as_secs_f64() / elapsed_s;
        let delay = used.run_delay.as_secs_f64() / elapsed_s;
        if busy >= BUSY_SHARE_MAX {
            return Some(format!(
                "generator thread {index} was busy {:.0} % of the time; use more --threads or machines",
                busy * 100.0
            ));
        }
        if delay >= DELAY_SHARE_MAX {
            return Some(format!(
                "generator thread {index} waited {:.0} % of the time for a processor; give it one of \
                 its own",
                delay * 100.0
            ));
        }
    }
    let lag_p99 = Duration::from_nanos(tally.lag_ns.value_at_quantile(0.99));
    (is_open_loop && !tally.lag_ns.is_empty() && lag_p99 > LAG_P99_MAX).then(|| {
        format!(
            "one request in a hundred was sent {:.1} ms late or more; use more --threads or machines",
            lag_p99.as_secs_f64() * 1e3
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::record;

    fn used(cpu_ms: u64, spun_ms: u64, run_delay_ms: u64) -> ThreadUse {
        ThreadUse {
            cpu: Duration::from_millis(cpu_ms),
            spun: Duration::from_millis(spun_ms),
            run_delay: Duration::from_millis(run_delay_ms),
            elapsed: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_thread_without_reserve_is_the_limit_and_one_that_only_spins_is_not() {
        let tally = Tally::new(&[]);
        assert_eq!(
            verdict(&[used(500, 0, 0), used(990, 500, 10)], &tally, true),
            None
        );
        let sentence = verdict(&[used(500, 0, 0), used(990, 5, 0)], &tally, false).unwrap();
        assert!(
            sentence.contains("thread 1 was busy 98 %") || sentence.contains("99 %"),
            "{sentence}"
        );
    }

    #[test]
    fn a_thread_that_got_no_processor_is_the_limit() {
        let sentence = verdict(&[used(500, 0, 300)], &Tally::new(&[]), false).unwrap();
        assert!(sentence.contains("waited 30 %"), "{sentence}");
    }

    #[test]
    fn late_sending_is_the_limit_in_open_loop() {
        let mut tally = Tally::new(&[]);
        (0..100).for_each(|_| record(&mut tally.lag_ns, 5_000_000));
        assert_eq!(verdict(&[used(1, 0, 0)], &tally, false), None);
        assert!(
            verdict(&[used(1, 0, 0)], &tally, true)
                .unwrap()
                .contains("5.0 ms late")
        );
    }
}
