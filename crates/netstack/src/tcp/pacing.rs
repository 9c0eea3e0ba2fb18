//! Pacing: spreads a window over its round trip, because queues on a path drop bursts. RFC 9002 7.7
//!
//! ```text
//!            allowance: a burst of BURST_LEN, or of a tick, is not held back
//!          ◀───────────▶
//!   ───────┼───────────┼──────────────▶ t     `at` is when all that was sent would have left at the
//!         now          at ≤ now + allowance   rate: factor × cwnd / srtt. Beyond it new data waits.
//! ```
//!
//! The factor lets the window grow: 2 in slow start, otherwise 1.2. Round trips not much longer
//! than the tick of the timers are not paced.

use std::time::Duration;

use crate::time::Instant;

/// Bytes that leave at once even if the rate is less: an initial window. RFC 6928 2
const BURST_LEN: u64 = 10 * 1460;

/// The shortest round trip that is spread, and what leaves in one piece: timers tick each
/// millisecond.
const SRTT_MIN: Duration = Duration::from_millis(5);
const TICK: Duration = Duration::from_millis(1);

/// Rate: `bytes` in `time`.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    bytes: u64,
    nanos: u64,
}

impl Rate {
    /// Rate for a window and a round trip; `None` if segments leave without pacing.
    pub fn of(cwnd: u64, srtt: Option<Duration>, is_slow_start: bool) -> Option<Rate> {
        let srtt = srtt.filter(|&srtt| srtt >= SRTT_MIN)?;
        let tenths = if is_slow_start { 20 } else { 12 };
        Some(Rate { bytes: cwnd * tenths / 10, nanos: srtt.as_nanos() as u64 })
    }

    /// Duration of `len` bytes at this rate.
    fn time_of(self, len: u64) -> Duration {
        Duration::from_nanos(len.saturating_mul(self.nanos) / self.bytes.max(1))
    }

    /// Bytes for each timer: at least two segments, so that not every segment needs one.
    pub fn quantum(self, mss: u64) -> u64 {
        let tick = TICK.as_nanos() as u64;
        (self.bytes.saturating_mul(tick) / self.nanos / mss).max(2) * mss
    }

    /// Time until which new data waits; `at` is when the sent data would have left at this rate.
    pub fn waits_until(self, at: Instant) -> Instant {
        // A timer may be late by a tick, which must not cost rate.
        let allowance = self.time_of(BURST_LEN).max(TICK).as_nanos() as u64;
        Instant::from_nanos(at.as_nanos().saturating_sub(allowance))
    }

    /// Time at which `len` more bytes, sent now, would have left.
    pub fn after(self, now: Instant, at: Instant, len: u64) -> Instant {
        at.max(now) + self.time_of(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_window_is_spread_over_its_round_trip() {
        let rate =
            |is_slow_start| Rate::of(100_000, Some(Duration::from_millis(60)), is_slow_start);
        let leaves = |is_slow_start| rate(is_slow_start).unwrap().after(at(0), at(0), 100_000);
        assert_eq!((leaves(true), leaves(false)), (at(30), at(50)));
    }

    #[test]
    fn initial_windows_and_short_trips_burst() {
        let rate = Rate::of(14_600, Some(Duration::from_millis(100)), true).unwrap();
        let sent = rate.after(at(7), at(0), BURST_LEN);
        assert_eq!(rate.waits_until(sent), at(7));
        assert!(Rate::of(14_600, Some(Duration::from_millis(4)), true).is_none());
        assert!(Rate::of(14_600, None, true).is_none());
    }

    /// Seen: above 117 Mbit/s a connection had half of its rate. Cause: the allowance was less than
    /// a tick there, so the lateness of timers was lost. Cure: a tick at least.
    #[test]
    fn late_timers_cost_no_rate() {
        const WINDOW: u64 = 2_000_000;
        let rate = Rate::of(WINDOW, Some(Duration::from_millis(20)), true).unwrap();
        let late = Duration::from_micros(100);
        let (mut now, mut spread_until, mut sent) = (at(0) + late, at(0), 0);
        while now < at(100) {
            while rate.waits_until(spread_until) <= now {
                spread_until = rate.after(now, spread_until, rate.quantum(1000));
                sent += rate.quantum(1000);
            }
            let tick = rate.waits_until(spread_until).as_nanos().div_ceil(1_000_000);
            now = at(tick) + late;
        }
        assert!(sent >= 10 * WINDOW, "{sent} of {}", 10 * WINDOW);
    }

    #[test]
    fn a_timer_releases_a_tick_or_two_segments() {
        let rate = |cwnd| Rate::of(cwnd, Some(Duration::from_millis(20)), true).unwrap();
        assert_eq!(rate(100_000).quantum(1000), 10_000);
        assert_eq!(rate(10_000).quantum(1000), 2_000);
    }
}
