//! Time as an argument.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since one that the caller has chosen.
///
/// Not [`std::time::Instant`]: that has no constructor from a number, so a run in virtual time
/// could not be repeated; and it is twice as large, in connections that keep many of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// Zero of the caller's clock.
    pub const START: Instant = Instant { nanos: 0 };

    /// Later than whatever happens: 584 years after the start.
    pub const NEVER: Instant = Instant { nanos: u64::MAX };

    /// Instant `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant { nanos }
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Microseconds since the start.
    pub const fn as_micros(self) -> u64 {
        self.nanos / 1_000
    }

    /// Milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.nanos / 1_000_000
    }

    /// The time since `earlier`; none if that is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

/// Ends at [`Instant::NEVER`].
impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Instant { nanos: self.nanos.saturating_add(nanos) }
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Saturating difference, as [`Instant::since`].
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}
