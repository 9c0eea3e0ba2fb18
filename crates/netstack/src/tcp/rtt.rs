//! Round-trip time, and the retransmission time-out that follows from it. RFC 6298
//!
//! The estimator is the RFC's, with its constants. `acknowledge.rs` chooses the samples;
//! retransmitted segments give none (Karn).

use std::time::Duration;

use crate::time::Instant;

/// Validity of the smallest round-trip time. A route may have changed since.
const MIN_RTT_AGE_MAX: Duration = Duration::from_secs(300);

/// Least contribution of the variation: the tick of the timers. Without it the time-out of a
/// constant round trip just misses the next acknowledgement. RFC 6298 4
const GRANULARITY: Duration = Duration::from_millis(1);

/// The estimator's state.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    // Nanoseconds: there is a sample for nearly every acknowledgement, and a `Duration` is slow to
    // divide.
    /// Smoothed; zero before the first sample.
    srtt: u64,
    rttvar: u64,
    /// The time-out before backing off.
    base: u64,
    /// Number of doublings since the last sample. RFC 6298 5.5
    backoff: u8,
    min_rtt: u64,
    min_rtt_at: Instant,
}

/// The limits of the time-out.
#[derive(Clone, Copy, Debug)]
pub struct RtoLimits {
    /// Time-out before the first sample. RFC 6298 2.1: one second.
    pub initial: Duration,
    /// RFC 6298 2.4 has one second; common stacks use 200 ms.
    pub min: Duration,
    /// RFC 6298 2.5: at least 60 seconds.
    pub max: Duration,
}

impl RoundTrip {
    /// An estimator without samples.
    pub fn new(limits: &RtoLimits) -> RoundTrip {
        RoundTrip {
            srtt: 0,
            rttvar: 0,
            base: nanos(limits.initial),
            backoff: 0,
            min_rtt: 0,
            min_rtt_at: Instant::START,
        }
    }

    /// Takes a sample. The backing off ends with it: RFC 6298 5.7.
    pub fn sample(&mut self, now: Instant, rtt: Duration, limits: &RtoLimits) {
        // A clock that stood still between a segment and its acknowledgement is a short time.
        let rtt = nanos(rtt).max(1_000);
        if self.srtt == 0 {
            // RFC 6298 2.2
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            // RFC 6298 2.3, with alpha = 1/8 and beta = 1/4
            let difference = self.srtt.abs_diff(rtt);
            self.rttvar = self.rttvar * 3 / 4 + difference / 4;
            self.srtt = self.srtt * 7 / 8 + rtt / 8;
        }
        let base = self.srtt + (self.rttvar * 4).max(nanos(GRANULARITY));
        self.base = base.clamp(nanos(limits.min), nanos(limits.max));
        self.backoff = 0;
        let is_old = now.since(self.min_rtt_at) > MIN_RTT_AGE_MAX;
        if self.min_rtt == 0 || rtt <= self.min_rtt || is_old {
            self.min_rtt = rtt;
            self.min_rtt_at = now;
        }
    }

    /// The time-out, doubled for each expiry since the last sample.
    pub fn rto(&self, limits: &RtoLimits) -> Duration {
        let factor = 1 << self.backoff.min(16);
        Duration::from_nanos(self.base.saturating_mul(factor)).min(limits.max)
    }

    /// Doubles the time-out. RFC 6298 5.5
    pub fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Number of doublings since the last sample.
    pub fn back_offs(&self) -> u8 {
        self.backoff
    }

    /// Ends the backing off without a sample: acknowledgements arrive again.
    pub fn end_back_off(&mut self) {
        self.backoff = 0;
    }

    /// Sets the data's time-out to three seconds: a handshake with a lost SYN gives no sample. RFC
    /// 6298 5.7
    pub fn restart_after_lost_syn(&mut self) {
        self.base = nanos(Duration::from_secs(3));
        self.backoff = 0;
    }

    /// Smoothed; none before the first sample.
    pub fn srtt(&self) -> Option<Duration> {
        (self.srtt > 0).then(|| Duration::from_nanos(self.srtt))
    }

    /// The variation.
    pub fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar)
    }

    /// Smallest round-trip time of the last minutes; zero before the first sample.
    pub fn min_rtt(&self) -> Duration {
        Duration::from_nanos(self.min_rtt)
    }
}

/// Converts to nanoseconds, limited to hours, so that sums stay far from overflow.
fn nanos(duration: Duration) -> u64 {
    const MAX: Duration = Duration::from_secs(1 << 16);
    duration.min(MAX).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RtoLimits = RtoLimits {
        initial: Duration::from_secs(1),
        min: Duration::from_millis(200),
        max: Duration::from_secs(60),
    };

    #[test]
    fn the_first_sample_sets_rttvar_to_half() {
        let mut trip = RoundTrip::new(&LIMITS);
        assert_eq!(trip.rto(&LIMITS), Duration::from_secs(1));
        trip.sample(Instant::START, Duration::from_millis(300), &LIMITS);
        assert_eq!(trip.srtt(), Some(Duration::from_millis(300)));
        assert_eq!(trip.rto(&LIMITS), Duration::from_millis(900));
    }

    #[test]
    fn later_samples_weigh_an_eighth() {
        let mut trip = RoundTrip::new(&LIMITS);
        trip.sample(Instant::START, Duration::from_millis(800), &LIMITS);
        trip.sample(Instant::START, Duration::from_millis(400), &LIMITS);
        assert_eq!(trip.srtt(), Some(Duration::from_millis(750)));
        assert_eq!(trip.rttvar(), Duration::from_millis(400));
        assert_eq!(trip.rto(&LIMITS), Duration::from_millis(2350));
    }

    #[test]
    fn back_off_doubles_until_a_sample() {
        let mut trip = RoundTrip::new(&LIMITS);
        for expected_s in [2, 4, 8, 16, 32, 60, 60] {
            trip.back_off();
            assert_eq!(trip.rto(&LIMITS), Duration::from_secs(expected_s));
        }
        trip.sample(Instant::START, Duration::from_millis(1), &LIMITS);
        assert_eq!(trip.rto(&LIMITS), Duration::from_millis(200));
    }

    /// Seen: after thirty equal round trips of 300 ms the time-out was 300 ms as well, so the next
    /// segment was sent again in the instant in which its acknowledgement came. Cause: the
    /// variation was nothing. Cure: a tick at least, as the RFC has it.
    #[test]
    fn a_steady_round_trip_leaves_a_tick() {
        let mut trip = RoundTrip::new(&LIMITS);
        for _ in 0..100 {
            trip.sample(Instant::START, Duration::from_millis(300), &LIMITS);
        }
        assert_eq!(trip.srtt(), Some(Duration::from_millis(300)));
        assert_eq!(trip.rto(&LIMITS), Duration::from_millis(301));
    }

    #[test]
    fn the_least_round_trip_expires() {
        let mut trip = RoundTrip::new(&LIMITS);
        let at = |s| Instant::START + Duration::from_secs(s);
        trip.sample(at(0), Duration::from_millis(5), &LIMITS);
        trip.sample(at(200), Duration::from_millis(9), &LIMITS);
        assert_eq!(trip.min_rtt(), Duration::from_millis(5));
        trip.sample(at(301), Duration::from_millis(9), &LIMITS);
        assert_eq!(trip.min_rtt(), Duration::from_millis(9));
    }
}
