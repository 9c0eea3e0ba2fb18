//! Limit on the total time that stores wait for readers.
//!
//! A preempted reader may hold all memory that a store could use. The store waits for it, and so do
//! all connections of the store's processor. Stores therefore wait for at most 2 ms in total of
//! each tenth of a second; further stores that would have to wait are refused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(100);

/// Waiting time of all stores in a period.
const WAIT_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Patience {
    began: Instant,
    /// The number of the period in the high 32 bits; in the low ones, the nanoseconds waited in it.
    spent: AtomicU64,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { began: Instant::now(), spent: AtomicU64::new(0) }
    }

    /// Lets other threads run. False, at once, when stores have waited long enough in this period.
    /// The store's attempts since its previous wait, which ended at `since`, failed and count as
    /// waiting.
    pub(crate) fn wait(&self, since: &mut Option<Duration>) -> bool {
        let now = self.began.elapsed();
        if self.is_over(now) {
            return false;
        }
        thread::yield_now();
        let end = self.began.elapsed();
        self.spend(end, end - since.replace(end).unwrap_or(now));
        true
    }

    fn is_over(&self, at: Duration) -> bool {
        let spent = self.spent.load(Relaxed);
        spent >> 32 == period(at) && spent as u32 >= WAIT_MAX.as_nanos() as u32
    }

    fn spend(&self, at: Duration, waited: Duration) {
        let waited = u32::try_from(waited.as_nanos()).unwrap_or(u32::MAX);
        let add = |spent: u64| {
            let before = if spent >> 32 == period(at) { spent as u32 } else { 0 };
            Some(period(at) << 32 | u64::from(before.saturating_add(waited)))
        };
        let _ = self.spent.fetch_update(Relaxed, Relaxed, add);
    }
}

fn period(at: Duration) -> u64 {
    (at.as_nanos() / PERIOD.as_nanos()) as u64 & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_wait_2_ms_of_a_period() {
        let patience = Patience::new();
        let at = |ms| Duration::from_millis(ms);
        for period in [0, 100, 300] {
            for store in 0..4 {
                assert!(!patience.is_over(at(period + store)), "{period}: {store}");
                patience.spend(at(period + store), Duration::from_micros(500));
            }
            assert!(patience.is_over(at(period + 4)) && patience.is_over(at(period + 99)));
        }
        patience.spend(at(400), WAIT_MAX - Duration::from_nanos(1));
        assert!(!patience.is_over(at(401)));
        patience.spend(at(401), Duration::from_nanos(1));
        assert!(patience.is_over(at(402)));
    }

    #[test]
    fn long_wait_counts_in_one_period() {
        let patience = Patience::new();
        patience.spend(Duration::from_secs(9), Duration::from_secs(9));
        patience.spend(Duration::from_secs(9), Duration::from_secs(9));
        assert!(patience.is_over(Duration::from_secs(9)));
        assert!(!patience.is_over(Duration::from_millis(9_100)));
    }
}
