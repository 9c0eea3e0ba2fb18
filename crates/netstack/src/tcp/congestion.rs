//! The congestion window.
//!
//! [`Congestion`] receives acknowledgements and losses, and keeps `cwnd` and `ssthresh`, in bytes.
//! Growth is one of two algorithms. [`RateReduction`] spreads the reduction after a loss, so that
//! about one segment leaves for each that arrives.
//!
//! ```text
//!   cwnd     ssthresh ─────────────╮   loss: ssthresh = beta · flight
//!    │     ╱ slow start            ╰─▶ recovery: PRR brings cwnd down to ssthresh
//!    │    ╱  cwnd += acknowledged      avoidance: NewReno a segment a round trip,
//!    │   ╱                                        CUBIC along C·(t−K)³ + w_max
//!    └────────────────────────────▶ t
//! ```

use std::time::Duration;

use super::config::CongestionControl;
use super::slow_start::SlowStart;
use crate::time::Instant;

/// The smallest threshold, in segments. RFC 5681 3.1 (4)
const SSTHRESH_SEGMENTS_MIN: u64 = 2;

/// Limit above any scaled window; keeps sums far from overflow.
const CWND_MAX: u64 = 1 << 31;

/// RFC 9438 4.2 and 4.6
const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;

/// The window and its growth.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    control: CongestionControl,
    mss: u16,
    cwnd: u64,
    /// Not beyond CWND_MAX.
    ssthresh: u32,
    /// Part of a byte or of a segment that the window has grown by in avoidance.
    credit: f64,
    algorithm: Algorithm,
}

/// State of the algorithm; a connection has memory for one of the two.
#[derive(Clone, Copy, Debug)]
enum Algorithm {
    /// Nothing was lost yet.
    Start(SlowStart),
    Later(Cubic),
}

/// The window as it was: [`Congestion::undo`].
#[derive(Clone, Copy, Debug)]
pub struct BeforeLoss {
    // Neither is beyond CWND_MAX.
    cwnd: u32,
    ssthresh: u32,
    /// Single precision: every connection has space for it.
    w_max: f32,
}

/// RFC 9438 4.1, in segments.
#[derive(Clone, Copy, Debug)]
struct Cubic {
    w_max: f64,
    k: f64,
    /// The window of Reno in the same place. RFC 9438 4.3
    w_est: f64,
    cwnd_prior: f64,
    /// Time at which avoidance began; never if it has not.
    epoch: Instant,
}

impl Congestion {
    /// A window of `initial_segments` segments. RFC 6928 2
    pub fn new(control: CongestionControl, mss: u16, initial_segments: u16) -> Congestion {
        Congestion {
            control,
            mss,
            cwnd: initial_window(mss, initial_segments),
            ssthresh: CWND_MAX as u32,
            credit: 0.0,
            algorithm: Algorithm::Start(SlowStart::default()),
        }
    }

    /// Congestion window: bytes that may be in flight.
    pub fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Below it the window doubles in a round trip.
    pub fn ssthresh(&self) -> u64 {
        self.ssthresh.into()
    }

    /// True below ssthresh. RFC 5681 3.1
    pub fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh()
    }

    /// Handles an acknowledgement of all before `una`, which may carry a round-trip time. It can
    /// end the first slow start, if the window was full. RFC 9406
    pub fn on_round_trip(
        &mut self,
        una: u64,
        snd_nxt: u64,
        rtt: Option<Duration>,
        was_limited: bool,
    ) {
        if let Algorithm::Start(start) = &mut self.algorithm
            && start.on_ack(una, snd_nxt, rtt, was_limited)
        {
            self.ssthresh = self.cwnd as u32;
            self.algorithm = Algorithm::Later(Cubic::UNKNOWN);
        }
    }

    /// Lowers the MSS to that of the path. The window keeps its length in bytes, but is at least
    /// one segment. RFC 5681 4.1 has nothing on this.
    pub fn set_mss(&mut self, mss: u16) {
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss.into());
    }

    /// Sets the MSS as [`Congestion::set_mss`] before anything was sent. The initial window is at
    /// most that many segments. RFC 6928 2
    pub fn start_with_mss(&mut self, mss: u16, initial_segments: u16) {
        self.cwnd = self.cwnd.min(initial_window(mss, initial_segments));
        self.set_mss(mss);
    }

    /// Sets the first window to one segment, because a SYN was lost. RFC 5681 3.1
    pub fn syn_was_lost(&mut self) {
        self.cwnd = self.mss.into();
    }

    /// Grows the window: `acked` more bytes are acknowledged, and it was full.
    pub fn on_ack(&mut self, now: Instant, acked: u64, srtt: Option<Duration>) {
        let mut acked = acked;
        if self.is_slow_start() {
            // RFC 3465 without its limit of two segments: a peer that merges segments
            // acknowledges many with one.
            let len = match &self.algorithm {
                Algorithm::Start(start) => start.growth(acked),
                Algorithm::Later(_) => acked,
            };
            let grown = (self.cwnd + len).min(self.ssthresh());
            acked -= acked.min(grown - self.cwnd);
            let is_reached = grown == self.ssthresh();
            self.cwnd = grown.min(CWND_MAX);
            if acked == 0 || !is_reached {
                return;
            }
        }
        let grown = match self.control {
            CongestionControl::NewReno => self.reno_growth(acked),
            CongestionControl::Cubic => self.cubic_growth(now, acked, srtt),
        };
        self.credit += grown;
        let whole = self.credit.floor().max(0.0);
        self.credit -= whole;
        self.cwnd = (self.cwnd + whole as u64).min(CWND_MAX);
    }

    /// A segment for each window. RFC 5681 3.1 (3), RFC 3465 2.1
    fn reno_growth(&self, acked: u64) -> f64 {
        f64::from(self.mss) * acked.min(self.cwnd) as f64 / self.cwnd as f64
    }

    /// RFC 9438 4.2 to 4.5, in bytes.
    fn cubic_growth(&mut self, now: Instant, acked: u64, srtt: Option<Duration>) -> f64 {
        let mss = f64::from(self.mss);
        let cwnd = self.cwnd as f64 / mss;
        let acked = acked as f64 / mss;
        let cubic = self.algorithm.cubic();
        if cubic.epoch == Instant::NEVER {
            cubic.epoch = now;
            cubic.w_est = cwnd;
            if cubic.w_max > cwnd {
                cubic.k = cube_root((cubic.w_max - cwnd) / CUBIC_C);
            } else {
                cubic.w_max = cwnd;
                cubic.k = 0.0;
            }
        }
        let window_at = |seconds: f64| {
            let from_k = seconds - cubic.k;
            CUBIC_C * from_k * from_k * from_k + cubic.w_max
        };
        let t = now.since(cubic.epoch).as_secs_f64();
        let srtt = srtt.unwrap_or_default().as_secs_f64();
        // RFC 9438 4.3: as fast as Reno with the same reduction, then as Reno.
        let alpha = if cubic.w_est < cubic.cwnd_prior {
            3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA)
        } else {
            1.0
        };
        cubic.w_est += alpha * acked / cwnd;
        if window_at(t) < cubic.w_est {
            return (cubic.w_est - cwnd).max(0.0) * mss;
        }
        let target = window_at(t + srtt).clamp(cwnd, 1.5 * cwnd);
        (target - cwnd) / cwnd * acked * mss
    }

    /// Stops CUBIC's clock while the window is not full: the curve must not run ahead. RFC 9438 5.8
    pub fn on_ack_while_limited_elsewhere(&mut self) {
        self.algorithm.end_epoch();
    }

    /// Lowers the threshold after a loss with `flight` bytes in flight; the caller brings the
    /// window down to it.
    pub fn on_loss(&mut self, flight: u64) {
        let mss = f64::from(self.mss);
        // Excludes data sent because of duplicates and SACK blocks before the loss was found. RFC
        // 5681 3.2 (2)
        let flight = flight.min(self.cwnd);
        let ssthresh = match self.control {
            CongestionControl::NewReno => flight / 2,
            CongestionControl::Cubic => (flight as f64 * CUBIC_BETA) as u64,
        };
        let cwnd = self.cwnd as f64 / mss;
        // RFC 9438 4.7: a flow that did not come back to its last maximum leaves room for others.
        let cubic = self.algorithm.cubic();
        cubic.cwnd_prior = cwnd;
        cubic.w_max = if cwnd < cubic.w_max { cwnd * (1.0 + CUBIC_BETA) / 2.0 } else { cwnd };
        cubic.epoch = Instant::NEVER;
        self.credit = 0.0;
        self.ssthresh = ssthresh.max(SSTHRESH_SEGMENTS_MIN * u64::from(self.mss)) as u32;
    }

    /// Restarts from one segment after a retransmission time-out. RFC 5681 3.1 (4)
    pub fn on_timeout(&mut self) {
        self.cwnd = self.mss.into();
        self.credit = 0.0;
        // The curve begins with avoidance, and not below the previous window. RFC 9438 4.8
        self.algorithm.cubic().w_max = 0.0;
    }

    /// Ends recovery. RFC 6937 3
    pub fn end_recovery(&mut self) {
        self.cwnd = self.ssthresh();
    }

    /// Sets the window that rate reduction has computed.
    pub fn set_cwnd(&mut self, cwnd: u64) {
        self.cwnd = cwnd.clamp(self.mss.into(), CWND_MAX);
    }

    /// State that a loss is about to change.
    pub fn before_loss(&self) -> BeforeLoss {
        BeforeLoss {
            cwnd: self.cwnd as u32,
            ssthresh: self.ssthresh,
            w_max: match &self.algorithm {
                Algorithm::Start(_) => 0.0,
                Algorithm::Later(cubic) => cubic.w_max as f32,
            },
        }
    }

    /// Undoes a reduction: there was no loss. RFC 4015 3
    pub fn undo(&mut self, before: &BeforeLoss) {
        self.cwnd = self.cwnd.max(before.cwnd.into());
        self.ssthresh = before.ssthresh;
        let cubic = self.algorithm.cubic();
        cubic.w_max = before.w_max.into();
        cubic.epoch = Instant::NEVER;
    }

    /// Restarts after an idle time-out: the estimates of the path are old. RFC 5681 4.1
    pub fn restart_after_idle(&mut self, initial_segments: u16) {
        self.cwnd = self.cwnd.min(initial_window(self.mss, initial_segments));
        self.algorithm.end_epoch();
    }
}

impl Algorithm {
    /// Ends the first slow start, if it continues, and returns CUBIC's state.
    fn cubic(&mut self) -> &mut Cubic {
        if let Algorithm::Start(_) = self {
            *self = Algorithm::Later(Cubic::UNKNOWN);
        }
        match self {
            Algorithm::Later(cubic) => cubic,
            Algorithm::Start(_) => unreachable!("it was replaced"),
        }
    }

    fn end_epoch(&mut self) {
        if let Algorithm::Later(cubic) = self {
            cubic.epoch = Instant::NEVER;
        }
    }
}

impl Cubic {
    /// Nothing was lost yet.
    const UNKNOWN: Cubic =
        Cubic { w_max: 0.0, k: 0.0, w_est: 0.0, cwnd_prior: 0.0, epoch: Instant::NEVER };
}

/// RFC 6928 2, formula (1), with ten in the place of the number asked for.
fn initial_window(mss: u16, segments: u16) -> u64 {
    let mss = u64::from(mss);
    let segments = u64::from(segments);
    (segments * mss).min((2 * mss).max(segments * 1460))
}

/// By Newton's iteration: only sums, products and quotients, which are the same bits on every
/// machine, where the `cbrt` of a system's library need not be.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A power of two near the root: a third of the exponent.
    let exponent = ((x.to_bits() >> 52) as i64 - 1023) / 3;
    let mut root = f64::from_bits(((exponent + 1023) as u64) << 52);
    for _ in 0..8 {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}

/// Proportional rate reduction: for each byte delivered in recovery, ssthresh / flight bytes leave.
/// RFC 6937 3, with the slow-start reduction bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateReduction {
    delivered: u64,
    out: u64,
    /// Bytes under way when recovery began (RecoverFS).
    flight: u64,
}

impl RateReduction {
    /// Recovery begins with `flight` bytes under way.
    pub fn new(flight: u64) -> RateReduction {
        RateReduction { delivered: 0, out: 0, flight: flight.max(1) }
    }

    /// Returns the window until the next acknowledgement: `delivered` more bytes have arrived, and
    /// `pipe` are in flight.
    pub fn on_delivered(&mut self, delivered: u64, pipe: u64, ssthresh: u64, mss: u64) -> u64 {
        self.delivered += delivered;
        let may_send = if pipe > ssthresh {
            let due = (u128::from(self.delivered) * u128::from(ssthresh))
                .div_ceil(u128::from(self.flight)) as u64;
            due.saturating_sub(self.out)
        } else {
            let limit = self.delivered.saturating_sub(self.out).max(delivered) + mss;
            limit.min(ssthresh - pipe)
        };
        pipe + may_send
    }

    /// Counts `len` bytes that have left.
    pub fn on_sent(&mut self, len: u64) {
        self.out += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u16 = 1000;

    #[test]
    fn initial_window_of_ten_segments() {
        let initial = |mss| Congestion::new(CongestionControl::NewReno, mss, 10).cwnd();
        assert_eq!(initial(536), 5360);
        assert_eq!(initial(1460), 14600);
        assert_eq!(initial(8960), 17920);
    }

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one() {
        let mut window = Congestion::new(CongestionControl::NewReno, MSS, 10);
        for _ in 0..10 {
            window.on_ack(Instant::START, 1000, None);
        }
        assert_eq!(window.cwnd(), 20_000);
        window.on_loss(20_000);
        window.end_recovery();
        assert_eq!((window.cwnd(), window.ssthresh()), (10_000, 10_000));
        for _ in 0..10 {
            window.on_ack(Instant::START, 1000, None);
        }
        assert!((10_900..=11_000).contains(&window.cwnd()), "{}", window.cwnd());
    }

    #[test]
    fn time_outs_leave_a_window_of_one_segment() {
        let mut window = Congestion::new(CongestionControl::NewReno, MSS, 10);
        window.on_loss(1000);
        window.on_timeout();
        assert_eq!((window.cwnd(), window.ssthresh()), (1000, 2000));
    }

    #[test]
    fn cubic_is_back_at_its_maximum_after_k() {
        let mut window = Congestion::new(CongestionControl::Cubic, MSS, 1000);
        window.on_loss(1_000_000);
        window.end_recovery();
        assert_eq!(window.cwnd(), 700_000);
        // K = cbrt(300 / 0.4) = 9.086 s; acknowledgements of a whole window each 100 ms.
        let srtt = Some(Duration::from_millis(100));
        let mut now = Instant::START;
        let mut cwnd_before = window.cwnd();
        for _ in 0..91 {
            window.on_ack(now, window.cwnd(), srtt);
            assert!(window.cwnd() >= cwnd_before);
            cwnd_before = window.cwnd();
            now += Duration::from_millis(100);
        }
        let near = 980_000..1_020_000;
        assert!(near.contains(&window.cwnd()), "{}", window.cwnd());
    }

    const ROUND_TRIP: Duration = Duration::from_millis(100);

    #[test]
    fn cubic_fast_convergence() {
        let mut window = Congestion::new(CongestionControl::Cubic, MSS, 1000);
        for flight in [1_000_000, 700_000] {
            window.on_loss(flight);
            window.end_recovery();
        }
        // RFC 9438 4.7: w_max is 0.85 of 700 segments, so K = cbrt((595 - 490) / 0.4) = 6.4 s. With
        // a w_max of 700 the window would be 698 by then.
        let mut now = Instant::START;
        for _ in 0..65 {
            window.on_ack(now, window.cwnd(), Some(ROUND_TRIP));
            now += ROUND_TRIP;
        }
        let near = 590_000..600_000;
        assert!(near.contains(&window.cwnd()), "{}", window.cwnd());
    }

    /// CUBIC after its first loss: of 1,000 segments 700 were left, and a second later it is 789.
    fn a_second_after_a_loss() -> (Congestion, Instant) {
        let mut window = Congestion::new(CongestionControl::Cubic, MSS, 1000);
        window.on_loss(1_000_000);
        window.end_recovery();
        let mut now = Instant::START;
        for _ in 0..10 {
            window.on_ack(now, window.cwnd(), Some(ROUND_TRIP));
            now += ROUND_TRIP;
        }
        (window, now)
    }

    /// The curve begins at the window that there is, so the first round trip adds what Reno's
    /// would: 3 (1 - 0.7) / (1 + 0.7) of a segment. RFC 9438 4.3
    fn assert_curve_begins(window: &mut Congestion, now: Instant) {
        let before = window.cwnd();
        window.on_ack(now, before, Some(ROUND_TRIP));
        let grown = window.cwnd() - before;
        assert!((529..=530).contains(&grown), "{grown} bytes from {before}");
    }

    #[test]
    fn cubic_restarts_after_a_loss() {
        // On the old curve it would be a second from there: 154 segments more at once.
        let (mut window, now) = a_second_after_a_loss();
        window.on_loss(window.cwnd());
        window.end_recovery();
        assert_curve_begins(&mut window, now);
    }

    #[test]
    fn cubic_restarts_after_idle_time() {
        // RFC 9438 4.2 counts from when avoidance begins. With the minute it would grow by half.
        let (mut window, mut now) = a_second_after_a_loss();
        now += Duration::from_secs(60);
        window.restart_after_idle(10);
        window.on_ack(now, 690_000, Some(ROUND_TRIP));
        assert_eq!(window.cwnd(), 700_000, "slow start up to the threshold");
        assert_curve_begins(&mut window, now);
    }

    #[test]
    fn cubic_restarts_when_the_window_fills() {
        // RFC 9438 5.8: time in which the window was not full does not count.
        let (mut window, mut now) = a_second_after_a_loss();
        window.on_ack_while_limited_elsewhere();
        now += Duration::from_secs(60);
        assert_curve_begins(&mut window, now);
    }

    #[test]
    fn cubic_is_reno_friendly() {
        let mut window = Congestion::new(CongestionControl::Cubic, MSS, 10);
        window.on_loss(10_000);
        window.end_recovery();
        let mut now = Instant::START;
        for _ in 0..200 {
            window.on_ack(now, window.cwnd(), Some(Duration::from_millis(1)));
            now += Duration::from_millis(1);
        }
        assert!(window.cwnd() > 100_000, "{}", window.cwnd());
    }

    #[test]
    fn cube_root_is_exact() {
        for x in [1e-9, 0.001, 0.5, 1.0, 2.0, 7.0, 27.0, 750.0, 1e6, 1e15] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-12, "{x}: {root}");
        }
        assert_eq!(cube_root(0.0), 0.0);
    }

    #[test]
    fn rate_reduction_is_proportional() {
        let mut reduction = RateReduction::new(20_000);
        let mut pipe = 19_000;
        let mut sent = 0;
        for _ in 0..10 {
            pipe -= 1000;
            let cwnd = reduction.on_delivered(1000, pipe, 10_000, 1000);
            while cwnd - pipe >= 1000 {
                pipe += 1000;
                sent += 1000;
                reduction.on_sent(1000);
            }
        }
        assert_eq!(sent, 5000, "half of the delivered bytes");
    }
}
