//! Current time for sessions.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use session::Now;

/// Monotonic and wall-clock time, for the cost of reading one clock.
///
/// The monotonic clock is read at every call. The wall clock is accurate to a millisecond: it is
/// the monotonic clock plus an offset, which is measured at least once a second. A step of the
/// system clock is thus visible within a second.
///
/// A clock belongs to one thread or fiber at a time (it is `Send` and not `Sync`).
#[derive(Debug)]
struct Clock {
    /// Both clocks at one moment.
    base: Cell<Base>,
    /// The wall clock, and the end of its validity.
    wall: Cell<(Duration, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Base {
    monotonic: Instant,
    since_epoch: Duration,
}

/// Maximum age of the base.
const BASE_AGE_MAX: Duration = Duration::from_secs(1);

/// Resolution of the wall clock.
const TICK: Duration = Duration::from_millis(1);

impl Clock {
    /// Returns a clock whose base is the current time of both.
    fn new() -> Clock {
        Clock::from(Base { monotonic: Instant::now(), since_epoch: wall() })
    }

    fn from(base: Base) -> Clock {
        Clock { base: Cell::new(base), wall: Cell::new((base.since_epoch, base.monotonic)) }
    }

    /// Returns the current time.
    #[inline]
    fn now(&self) -> Now {
        self.at(Instant::now(), wall)
    }

    #[inline]
    fn at(&self, monotonic: Instant, wall: impl FnOnce() -> Duration) -> Now {
        let (since_epoch, until) = self.wall.get();
        let since_epoch = if monotonic < until { since_epoch } else { self.tick(monotonic, wall) };
        Now { monotonic, since_epoch }
    }

    fn tick(&self, monotonic: Instant, wall: impl FnOnce() -> Duration) -> Duration {
        let mut base = self.base.get();
        if monotonic.saturating_duration_since(base.monotonic) >= BASE_AGE_MAX {
            base = Base { monotonic, since_epoch: wall() };
            self.base.set(base);
        }
        let age = monotonic.saturating_duration_since(base.monotonic);
        let since_epoch = base.since_epoch + age;
        self.wall.set((since_epoch, monotonic + TICK));
        since_epoch
    }
}

/// Returns the current time, from this thread's clock.
pub(crate) fn now() -> Now {
    thread_local! {
        static CLOCK: Clock = Clock::new();
    }
    CLOCK.with(Clock::now)
}

fn wall() -> Duration {
    // A clock before 1970 is a misconfiguration on which no reply depends.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Duration = Duration::from_secs(1_795_176_000);

    fn clock_at_noon() -> (Clock, Instant) {
        let monotonic = Instant::now();
        let base = Base { monotonic, since_epoch: NOON };
        (Clock::from(base), monotonic)
    }

    #[test]
    fn the_wall_moves_with_the_monotonic_clock() {
        let (clock, start) = clock_at_noon();
        let half = Duration::from_millis(500);
        let now = clock.at(start + half, || panic!("read too early"));
        assert_eq!((now.monotonic, now.since_epoch), (start + half, NOON + half));
    }

    #[test]
    fn the_wall_stands_still_for_a_millisecond() {
        let (clock, start) = clock_at_noon();
        let wall = |us| {
            let at = start + Duration::from_micros(us);
            clock.at(at, || panic!("read too early")).since_epoch - NOON
        };
        assert_eq!([10, 900, 1009].map(wall), [10; 3].map(Duration::from_micros));
        assert_eq!(wall(1010), Duration::from_micros(1010));
    }

    #[test]
    fn a_step_of_the_system_clock_is_seen_within_a_second() {
        let (clock, start) = clock_at_noon();
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let stepped_back = NOON - hour;
        assert_eq!(clock.at(start + second, || stepped_back).since_epoch, stepped_back);
        let now = clock.at(start + second * 3 / 2, || panic!("read too early"));
        assert_eq!(now.since_epoch, stepped_back + second / 2);
    }

    #[test]
    fn both_clocks_are_the_systems() {
        let (before, now, after) = (Now::read(), Clock::new().now(), Now::read());
        assert!(before.monotonic <= now.monotonic && now.monotonic <= after.monotonic);
        let off = now.since_epoch.abs_diff(after.since_epoch);
        assert!(off < Duration::from_secs(5), "off by {off:?}");
    }
}
