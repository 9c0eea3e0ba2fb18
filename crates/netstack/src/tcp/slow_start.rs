//! HyStart++: ends slow start when the round trip grows, before the queues on the path overflow.
//! RFC 9406
//!
//! ```text
//!                 a round's least is beyond that of the one before
//!   slow start ─────────────────────────────────────────────────────▶ conservative: a quarter of
//!       ▲                                                             the growth
//!       │         a round's least is below that which began it            │
//!       └─────────────────────────────────────────────────────────────────┤
//!                                                        five rounds ─────┴──▶ avoidance
//! ```
//!
//! A round lasts until the data in flight at its beginning is acknowledged. A round with an
//! unfilled window fills no queue, so it neither begins the conservative part nor counts as one of
//! its rounds. Peers that acknowledge many segments at once give too few samples; then slow start
//! ends with a loss or a mark, as without HyStart++.

use std::time::Duration;

/// RFC 9406 4.3, in microseconds.
const THRESHOLD_MIN: u32 = 4_000;
const THRESHOLD_MAX: u32 = 16_000;
const THRESHOLD_DIVISOR: u32 = 8;
const SAMPLES_MIN: u8 = 8;
const CONSERVATIVE_DIVISOR: u64 = 4;
const CONSERVATIVE_ROUNDS: u8 = 5;

/// HyStart++ of one connection, until its first slow start is over.
#[derive(Clone, Copy, Debug)]
pub struct SlowStart {
    /// snd_nxt when the round began.
    round_end: u64,
    /// The least round-trip time of this round and of the one before, in microseconds.
    least: u32,
    least_before: u32,
    samples: u8,
    /// The window was full in this round.
    is_limited: bool,
    /// Rounds that the conservative part has left; none before it begins.
    rounds_left: u8,
    /// The least of the round in which the conservative part began.
    baseline: u32,
}

impl Default for SlowStart {
    /// At the beginning of a connection.
    fn default() -> SlowStart {
        SlowStart {
            round_end: 0,
            least: u32::MAX,
            least_before: u32::MAX,
            samples: 0,
            is_limited: false,
            rounds_left: 0,
            baseline: u32::MAX,
        }
    }
}

impl SlowStart {
    /// Takes an acknowledgement of all before `una` with its round trip; returns true if slow start
    /// is over.
    pub fn on_ack(
        &mut self,
        una: u64,
        snd_nxt: u64,
        rtt: Option<Duration>,
        was_limited: bool,
    ) -> bool {
        self.is_limited |= was_limited;
        if let Some(rtt) = rtt {
            self.least = self.least.min(rtt.as_micros().min(1 << 30) as u32);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES_MIN {
            self.look();
        }
        if una < self.round_end {
            return false;
        }
        self.round_end = snd_nxt;
        self.least_before = self.least;
        (self.least, self.samples) = (u32::MAX, 0);
        let was_limited = std::mem::take(&mut self.is_limited);
        if self.rounds_left == 0 || !was_limited {
            return false;
        }
        self.rounds_left -= 1;
        self.rounds_left == 0
    }

    fn look(&mut self) {
        if self.rounds_left > 0 {
            if self.least < self.baseline {
                self.rounds_left = 0;
            }
            return;
        }
        let threshold = (self.least_before / THRESHOLD_DIVISOR).clamp(THRESHOLD_MIN, THRESHOLD_MAX);
        if self.is_limited
            && self.least_before < u32::MAX
            && self.least >= self.least_before + threshold
        {
            self.baseline = self.least;
            self.rounds_left = CONSERVATIVE_ROUNDS;
        }
    }

    /// Growth of the window for `acked` bytes.
    pub fn growth(&self, acked: u64) -> u64 {
        match self.rounds_left {
            0 => acked,
            _ => acked / CONSERVATIVE_DIVISOR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round in which each of eight acknowledgements says how long the round trip was.
    fn round(start: &mut SlowStart, number: u64, rtt_ms: u64) -> bool {
        round_of(start, number, rtt_ms, true)
    }

    fn round_of(start: &mut SlowStart, number: u64, rtt_ms: u64, was_limited: bool) -> bool {
        let rtt = Some(Duration::from_millis(rtt_ms));
        let una = |sample: u64| number * 100 + sample;
        let is_over = (1..8).any(|sample| start.on_ack(una(sample), u64::MAX, rtt, was_limited));
        is_over || start.on_ack(una(100), una(200), rtt, was_limited)
    }

    fn begun() -> SlowStart {
        let mut start = SlowStart::default();
        assert!(!start.on_ack(1, 100, None, true));
        start
    }

    #[test]
    fn growing_round_trips_end_slow_start() {
        let mut start = begun();
        assert!(!round(&mut start, 0, 40));
        assert_eq!(start.growth(1000), 1000);
        // An eighth more.
        assert!(!round(&mut start, 1, 45));
        assert_eq!(start.growth(1000), 250);
        let ends: Vec<bool> = (2..6).map(|number| round(&mut start, number, 46)).collect();
        assert_eq!(ends, [false, false, false, true]);
    }

    #[test]
    fn a_shorter_round_trip_resumes_slow_start() {
        let mut start = begun();
        for (number, rtt_ms) in [40, 45, 41].into_iter().enumerate() {
            assert!(!round(&mut start, number as u64, rtt_ms));
        }
        assert_eq!(start.growth(1000), 1000);
    }

    #[test]
    fn small_growth_and_few_samples_are_ignored() {
        let mut start = begun();
        for (number, rtt_ms) in [10, 13, 16, 19].into_iter().enumerate() {
            assert!(!round(&mut start, number as u64, rtt_ms));
        }
        assert!(!start.on_ack(500, 600, Some(Duration::from_millis(90)), true));
        assert_eq!(start.growth(1000), 1000);
    }

    /// Seen: a connection that never filled its window left slow start when a path's round trip
    /// rose by 4 ms. Cause: its rounds counted. Cure: only those in which the window was full do.
    #[test]
    fn unfilled_rounds_are_ignored() {
        let mut start = begun();
        assert!(!round(&mut start, 0, 40));
        assert!(!round_of(&mut start, 1, 45, false));
        assert_eq!(start.growth(1000), 1000);
        assert!(!round(&mut start, 2, 51));
        assert_eq!(start.growth(1000), 250);
        let ends = (3..12).any(|number| round_of(&mut start, number, 51, false));
        assert!(!ends, "its rounds were not full");
    }
}
