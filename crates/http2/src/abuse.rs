//! Limits on frames that cost a server and are of no use to a client.
//!
//! Each kind has a budget that fills again over time, so that a connection may live for days.
//! Useful frames give some budget back, and save some for frames that come late.

use std::fmt;
use std::time::Instant;

use crate::error::{ErrorCode, Fault};

/// Budget of one [`Abuse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbuseLimit {
    /// Largest burst.
    pub burst: u32,
    /// Number a second in the long run.
    pub per_s: u32,
}

macro_rules! abuses {
    ($($(#[$doc:meta])* $name:ident $text:literal $burst:literal $per_s:literal;)*) => {
        /// Kinds of frames and events that are useless in great numbers. Each has a budget.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Abuse {
            $($(#[$doc])* $name,)*
        }

        /// Number of kinds of [`Abuse`].
        pub const ABUSES: usize = [$(stringify!($name)),*].len();

        /// Budgets that no honest client was seen to exceed. Those of resets are nghttp2's.
        pub(crate) const LIMITS: [AbuseLimit; ABUSES] =
            [$(AbuseLimit { burst: $burst, per_s: $per_s }),*];

        impl Abuse {
            /// Every kind, in order.
            pub const ALL: [Abuse; ABUSES] = [$(Abuse::$name),*];

            fn text(self) -> &'static str {
                [$($text),*][self as usize]
            }
        }
    };
}

// Text, number at once, number a second.
abuses! {
    /// Streams that are reset before they have ended, by the peer (rapid reset, CVE-2023-44487) or
    /// because of its faults ("MadeYouReset", CVE-2025-8671), or refused.
    Resets "too many streams were reset" 1000 33; // a page left by a browser: some hundred
    /// SETTINGS and their acknowledgements.
    Settings "too many SETTINGS" 100 10; // one or two a connection
    /// PING and its acknowledgements.
    Pings "too many PINGs" 1000 100; // gRPC measures the bandwidth with one each round trip
    /// PRIORITY and PRIORITY_UPDATE.
    Priorities "too many changes of priorities" 1000 100; // a few for each request
    /// WINDOW_UPDATE.
    Windows "too many WINDOW_UPDATEs" 4000 400; // two for each DATA frame, or each 4 KiB of it
    /// Windows that are opened by a few bytes at a time.
    TinyWindows "too many tiny windows" 1000 33;
    /// DATA without bytes, and without an end.
    EmptyData "too many DATA frames without data" 100 10;
    /// Frames of streams that have ended.
    LateFrames "too many frames on closed streams" 1000 100; // a body whose request is refused
    /// Frames of an unknown type, and GOAWAY.
    OtherFrames "too many frames of unknown types" 100 10; // Chromium: one a request (GREASE)
}

/// Maximum that useful frames save. A client may read late: some 100 MB of older bytes, in steps of
/// 4 KiB.
const SAVED_MAX: i32 = 1 << 16;

impl Abuse {
    /// The kind of abuse whose fault has this text.
    pub(crate) fn of(text: &str) -> Option<Abuse> {
        Abuse::ALL.into_iter().find(|kind| kind.text() == text)
    }
}

impl fmt::Display for Abuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Use of the budgets by one connection.
#[derive(Debug)]
pub(crate) struct AbuseMeter {
    /// Number of each kind that was charged and not given back; saved if it is negative.
    used: [i32; ABUSES],
    /// Time up to which the budgets were filled again.
    filled: Instant,
}

impl AbuseMeter {
    pub(crate) fn new(now: Instant) -> AbuseMeter {
        AbuseMeter { used: [0; ABUSES], filled: now }
    }

    /// Charges one of a kind.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        kind: Abuse,
        limits: &[AbuseLimit; ABUSES],
        now: Instant,
    ) -> Result<(), Fault> {
        let burst = i32::try_from(limits[kind as usize].burst).unwrap_or(i32::MAX);
        let used = &mut self.used[kind as usize];
        *used = used.saturating_add(1);
        if *used <= burst {
            return Ok(());
        }
        self.fill(limits, now);
        if self.used[kind as usize] <= burst {
            return Ok(());
        }
        Err(Fault::Connection(ErrorCode::ENHANCE_YOUR_CALM, kind.text()))
    }

    /// Gives some of a kind back.
    #[inline]
    pub(crate) fn give_back(&mut self, kind: Abuse, count: u32) {
        let used = &mut self.used[kind as usize];
        *used = used.saturating_sub_unsigned(count).max(-SAVED_MAX);
    }

    #[cold]
    fn fill(&mut self, limits: &[AbuseLimit; ABUSES], now: Instant) {
        let elapsed_s = now.saturating_duration_since(self.filled).as_secs();
        if elapsed_s > 0 {
            let elapsed_s = u32::try_from(elapsed_s).unwrap_or(u32::MAX);
            for (used, limit) in self.used.iter_mut().zip(limits) {
                let filled = limit.per_s.saturating_mul(elapsed_s);
                // Saved budget is kept.
                *used = used.saturating_sub_unsigned(filled).max((*used).min(0));
            }
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn budget_fills_again() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut meter = AbuseMeter::new(begin);
        let mut charge = |ms| meter.charge(Abuse::Settings, &LIMITS, at(ms)).is_ok();
        assert!((0..100).all(|_| charge(0)));
        assert!(!charge(999));
        // The refused frame was charged as well, so 9 of 10 are left.
        assert!((0..9).all(|_| charge(1000)));
        assert!(!charge(1999));
        assert!((0..100).all(|_| charge(3_600_000)));
    }

    #[test]
    fn useful_frames_give_back() {
        let now = Instant::now();
        let mut meter = AbuseMeter::new(now);
        for _ in 0..1_000_000 {
            meter.give_back(Abuse::Windows, 4);
            for _ in 0..4 {
                meter.charge(Abuse::Windows, &LIMITS, now).unwrap();
            }
        }
    }
}
