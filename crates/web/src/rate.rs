//! Limit on the requests of each address, in memory of a fixed size.
//!
//! An address in debt has a slot: a tag of its hash, and the time at which its debt is paid (GCRA,
//! the generic cell rate algorithm: a token bucket stored as one number). An expired slot is free.
//! Eight slots form a set, one cache line; a new address takes a free slot, or evicts the address
//! with the least debt.
//!
//! ```text
//!   63      40 39                    0
//!  ┌──────────┬───────────────────────┐   time in 64ths of the interval between two requests,
//!  │   tag    │ time of the last debt │   modulo 2^40
//!  └──────────┴───────────────────────┘
//! ```
//!
//! Errors: an address that lost its slot starts again, so it may exceed its rate, but is never
//! refused wrongly; addresses near their limit are evicted last. Two addresses with the same tag in
//! one set count as one: one address in two million, with a full table.
//!
//! Hosts with equal limits of their own share a limiter: an address has one slot per host.
//!
//! Processors share the table without a lock. A refused request only reads.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use session::{Networks, PrefixLen};

/// Limit on the requests of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests in [`per`](RateLimit::per), in the long run; at least 1.
    pub requests: u32,
    /// Period, at least a millisecond.
    pub per: Duration,
    /// Requests allowed at once after a pause; at least 1.
    pub burst: u32,
    /// Addresses that count as one.
    pub prefix: PrefixLen,
    /// Addresses without a limit.
    pub exempt: Networks,
}

/// 65,536 addresses in debt at a time, in 512 KiB.
const SET_COUNT: usize = 8192;
const SET_LEN: usize = 8;

const UNITS: u64 = 64;
const TIME_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Clock skew between processors: each reads its clock only once per turn.
const CLOCK_SKEW: Duration = Duration::from_secs(10);

/// Attempts to write a contended slot. After them the request passes uncounted.
const ATTEMPTS_MAX: usize = 16;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; SET_LEN]);

/// The addresses in debt.
#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) limit: RateLimit,
    sets: Box<[Set]>,
    /// Hashes unpredictably for clients, so that none can aim at another's slot.
    seed: RandomState,
    /// Time of the first request.
    start: OnceLock<Instant>,
    units_per_s: f64,
    /// Most debt of one address.
    debt_max: u64,
}

/// The host whose requests are counted; the default counts all hosts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LimitedHost(u64);

impl LimitedHost {
    /// The host of this name, the same in every configuration.
    pub(crate) fn named(name: &str) -> LimitedHost {
        LimitedHost(BuildHasherDefault::<DefaultHasher>::new().hash_one(name))
    }
}

/// Verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateVerdict {
    Passes {
        /// An address in debt lost its slot.
        evicts: bool,
    },
    /// Refused; the next request passes after this time.
    Refused(Duration),
}

impl Limiter {
    pub(crate) fn new(limit: RateLimit) -> Limiter {
        let units = f64::from(limit.requests) * UNITS as f64;
        Limiter {
            sets: (0..SET_COUNT).map(|_| Set::default()).collect(),
            seed: RandomState::new(),
            start: OnceLock::new(),
            units_per_s: units / limit.per.as_secs_f64(),
            debt_max: u64::from(limit.burst) * UNITS,
            limit,
        }
    }

    /// Counts a request of this address, unless it is exempt.
    pub(crate) fn check(&self, address: IpAddr, host: LimitedHost, now: Instant) -> RateVerdict {
        if self.limit.exempt.contains_address(address) {
            return RateVerdict::Passes { evicts: false };
        }
        self.count(address, host, now)
    }

    /// Counts a request of this address, exempt or not.
    pub(crate) fn count(&self, address: IpAddr, host: LimitedHost, now: Instant) -> RateVerdict {
        let hash = self.seed.hash_one((host, self.limit.prefix.prefix_of(address)));
        self.check_hash(hash, now)
    }

    fn check_hash(&self, hash: u64, now: Instant) -> RateVerdict {
        let slots = &self.sets[hash as usize % SET_COUNT].0;
        let tag = hash >> TIME_BITS;
        let time =
            self.units(now.saturating_duration_since(*self.start.get_or_init(|| now))) & TIME_MASK;
        for _ in 0..ATTEMPTS_MAX {
            let values = slots.each_ref().map(|slot| slot.load(Ordering::Relaxed));
            let debts = values.map(|value| self.debt(value, time));
            let own = (0..SET_LEN).find(|&at| values[at] >> TIME_BITS == tag && debts[at] > 0);
            let least = || (0..SET_LEN).min_by_key(|&at| debts[at]).unwrap_or_default();
            let at = own.unwrap_or_else(least);
            let debt = if own.is_some() { debts[at] } else { 0 };
            if debt + UNITS > self.debt_max {
                let wait_s = (debt + UNITS - self.debt_max) as f64 / self.units_per_s;
                return RateVerdict::Refused(Duration::from_secs_f64(wait_s));
            }
            let value = tag << TIME_BITS | (time + debt + UNITS) & TIME_MASK;
            let written =
                slots[at].compare_exchange(values[at], value, Ordering::Relaxed, Ordering::Relaxed);
            if written.is_ok() {
                return RateVerdict::Passes { evicts: own.is_none() && debts[at] > 0 };
            }
        }
        RateVerdict::Passes { evicts: false }
    }

    /// Debt of an address at this time. A time too far ahead is taken as long past; after 2^40
    /// units a stale slot looks like a debt for some seconds.
    fn debt(&self, value: u64, time: u64) -> u64 {
        let ahead = value.wrapping_sub(time) & TIME_MASK;
        if ahead <= self.debt_max + self.units(CLOCK_SKEW) { ahead } else { 0 }
    }

    fn units(&self, duration: Duration) -> u64 {
        (duration.as_secs_f64() * self.units_per_s) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSES: RateVerdict = RateVerdict::Passes { evicts: false };

    fn limiter(requests: u32, per: Duration, burst: u32) -> (Limiter, Instant) {
        let limit = RateLimit {
            requests,
            per,
            burst,
            prefix: PrefixLen::default(),
            exempt: Networks { list: vec!["10.0.0.0/8".parse().unwrap()], has_unix: false },
        };
        let (limiter, now) = (Limiter::new(limit), Instant::now());
        limiter.check(IpAddr::from([203, 0, 113, 1]), LimitedHost::default(), now);
        (limiter, now)
    }

    fn address(nth: u32) -> IpAddr {
        IpAddr::from((0xc000_0000 + nth).to_be_bytes())
    }

    #[test]
    fn burst_passes_and_then_the_rate() {
        for (requests, per_s, burst) in [(10, 1, 20), (600, 60, 1), (1, 3600, 3), (50_000, 1, 7)] {
            let per = Duration::from_secs(per_s);
            let interval = per / requests;
            let (limiter, start) = limiter(requests, per, burst);
            let at = |passed| limiter.check(address(1), LimitedHost::default(), start + passed);
            for nth in 0..burst {
                assert_eq!(at(Duration::ZERO), PASSES, "{nth} of {burst}");
            }
            for part in 0..10 {
                let passed = interval * part / 10;
                let RateVerdict::Refused(wait) = at(passed) else {
                    panic!("{part} tenths of the interval")
                };
                let off = wait.abs_diff(interval - passed);
                assert!(off <= interval / 32, "{wait:?} at {passed:?}");
            }
            // In the long run requests pass at the configured rate, however many arrive.
            let later = Duration::from_secs(100);
            let tries = (0..20 * requests).map(|nth| later + per * 2 * nth / (20 * requests));
            let passed = tries.filter(|&when| at(when) == PASSES).count() as u32;
            let expected = burst + 2 * requests;
            if per <= later {
                assert!(passed.abs_diff(expected) <= 1 + expected / 50, "{passed}");
            }
        }
    }

    #[test]
    fn addresses_have_limits_of_their_own() {
        let (limiter, now) = limiter(1, Duration::from_secs(1), 1);
        let passes = |text: &str| {
            limiter.check(text.parse().unwrap(), LimitedHost::default(), now) == PASSES
        };
        assert!(passes("192.0.2.7") && !passes("::ffff:192.0.2.7") && passes("192.0.2.8"));
        assert!(passes("2001:db8::1") && !passes("2001:db8::2") && passes("2001:db8:0:1::"));
        assert!(passes("10.1.2.3") && passes("10.1.2.3"));
        let host = LimitedHost::named("a.org");
        let at_host = |nth| limiter.check(address(nth), host, now) == PASSES;
        assert!(at_host(1) && !at_host(1) && passes("192.0.0.1"));
    }

    #[test]
    fn ten_thousand_addresses_share_no_debt() {
        let (limiter, now) = limiter(10, Duration::from_secs(1), 10);
        let is_refused = |nth| {
            matches!(
                limiter.check(address(nth), LimitedHost::default(), now),
                RateVerdict::Refused(_)
            )
        };
        let mut refused = 0;
        for _ in 0..10 {
            for nth in 0..10_000 {
                refused += u32::from(is_refused(nth));
            }
        }
        // About one pair of addresses in two million shares a tag.
        assert!(refused <= 20, "{refused} below the limit");
        // Eight slots of a set hold 1.2 addresses on average.
        let refused = (0..10_000).filter(|&nth| is_refused(nth)).count();
        assert!(refused > 9_900, "{refused} beyond the limit");
    }

    /// A million addresses with one request each do not clear the debt of an address that sends
    /// many.
    #[test]
    fn a_million_addresses_evict_the_least_in_debt() {
        let (limiter, now) = limiter(10, Duration::from_secs(1), 10);
        let mut evictions = 0;
        for nth in 0..1_000_000 {
            match limiter.check(address(nth + 1), LimitedHost::default(), now) {
                RateVerdict::Passes { evicts } => evictions += u32::from(evicts),
                // Two million to one, for each; 7 slots have a tag.
                RateVerdict::Refused(_) => {}
            }
            if nth % 100 == 0 {
                limiter.check(address(0), LimitedHost::default(), now);
            }
        }
        assert!(evictions > 900_000, "{evictions}");
        assert!(matches!(
            limiter.check(address(0), LimitedHost::default(), now),
            RateVerdict::Refused(_)
        ));
        assert_eq!(size_of_val(&*limiter.sets), 512 << 10);
    }

    #[test]
    fn threads_count_together() {
        let (limiter, now) = limiter(1, Duration::from_secs(3600), 500);
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        if limiter.check(address(1), LimitedHost::default(), now) == PASSES {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 500);
    }

    #[test]
    fn clocks_may_lag_and_time_may_wrap() {
        let (limiter, start) = limiter(1_000, Duration::from_secs(1), 3);
        let late = start + Duration::from_secs(5);
        for _ in 0..3 {
            assert_eq!(limiter.check(address(1), LimitedHost::default(), late), PASSES);
        }
        let behind = late - Duration::from_secs(4);
        assert!(limiter.check(address(1), LimitedHost::default(), behind) != PASSES);
        // Before, at and after the wrap-around of 40 bits, some half a year.
        let end_s = (1_u64 << TIME_BITS) as f64 / limiter.units_per_s;
        for off_ms in [-5000, -2, -1, 0, 1, 2, 5000] {
            let when = start + Duration::from_secs_f64(end_s + f64::from(off_ms) / 1e3);
            let passes = |when| {
                let verdict =
                    limiter.check(address((10_000 + off_ms) as u32), LimitedHost::default(), when);
                matches!(verdict, RateVerdict::Passes { .. })
            };
            let passed = [(); 4].map(|()| passes(when));
            assert_eq!(passed, [true, true, true, false], "{off_ms}");
            assert!(passes(when + Duration::from_millis(3)), "{off_ms}");
        }
    }
}
