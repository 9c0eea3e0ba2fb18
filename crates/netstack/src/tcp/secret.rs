//! Values that a blind attacker must not guess: initial sequence numbers, SYN cookies, timestamp
//! offsets, ports.
//!
//! Each is a keyed hash (SipHash) of the connection's addresses and ports, so they need no memory.
//!
//! ```text
//!   iss      hash(flow) + now / 4 µs                     RFC 6528 3
//!   cookie   31   27 26  24 23                 0         RFC 4987 3.6
//!            │ time │ mss  │ hash(flow, irs, time, mss) │
//!   its TSval 31                 6   5     4   3     0   RFC 7323 3.2
//!            │ clock, not later  │ ECN │ SACK │ scale │
//! ```

use std::net::IpAddr;
use std::time::Duration;

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

/// A connection's name: both ends' addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourTuple {
    /// Local address.
    pub local: IpAddr,
    /// Local port.
    pub local_port: u16,
    /// The peer's address.
    pub remote: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
}

/// The key of all of them: drawn at random when the shard starts, and never shown.
#[derive(Clone, Copy)]
pub struct Secret {
    key: [u8; 16],
}

/// MSS values that a cookie can hold, in place of that of the peer's SYN.
const COOKIE_MSS: [u16; 8] = [536, 1024, 1220, 1300, 1400, 1440, 1460, 8940];

/// Unit of the time in a cookie.
const COOKIE_PERIOD: Duration = Duration::from_secs(64);

/// Number of periods for which a cookie is accepted.
const COOKIE_PERIODS_MAX: u64 = 2;

const COOKIE_HASH_BITS: u32 = 24;

/// Other options of the peer's SYN. They travel in the timestamp beside the cookie, which the peer
/// echoes: only a peer with timestamps has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CookieOptions {
    /// RFC 7323 2
    pub window_scale: Option<u8>,
    /// RFC 2018
    pub has_sack: bool,
    /// RFC 3168
    pub has_ecn: bool,
}

/// The low bits of the timestamp: the window scale, of which the largest is 14, and two flags.
const STAMP_NO_SCALE: u32 = 0xf;
const STAMP_SACK: u32 = 1 << 4;
const STAMP_ECN: u32 = 1 << 5;
const STAMP_PERIOD: u32 = 1 << 6;

impl CookieOptions {
    /// The latest timestamp with these bits that is not later than `clock`: a timestamp from the
    /// future would make the peer drop what follows. RFC 7323 5.3
    pub fn stamp(self, clock: u32) -> u32 {
        let scale = self.window_scale.map_or(STAMP_NO_SCALE, u32::from);
        let sack = if self.has_sack { STAMP_SACK } else { 0 };
        let ecn = if self.has_ecn { STAMP_ECN } else { 0 };
        let bits = scale | sack | ecn;
        clock.wrapping_sub(clock.wrapping_sub(bits) % STAMP_PERIOD)
    }

    /// True if a timestamp may come from [`CookieOptions::stamp`]: it is no older than a cookie.
    pub fn may_be_in(stamp: u32, clock: u32) -> bool {
        let cookie_age_max = COOKIE_PERIOD.as_millis() as u32 * (COOKIE_PERIODS_MAX as u32 + 1);
        clock.wrapping_sub(stamp) < cookie_age_max + STAMP_PERIOD
    }

    /// Options in a timestamp of [`CookieOptions::stamp`].
    pub fn of_stamp(stamp: u32) -> CookieOptions {
        let scale = stamp & STAMP_NO_SCALE;
        CookieOptions {
            window_scale: (scale != STAMP_NO_SCALE).then_some(scale as u8),
            has_sack: stamp & STAMP_SACK != 0,
            has_ecn: stamp & STAMP_ECN != 0,
        }
    }
}

/// Purpose of a hash, so that no two purposes share one.
#[derive(Clone, Copy)]
enum Use {
    Isn,
    Cookie,
    Timestamp,
    Port,
    Table,
}

impl Secret {
    /// A secret from 16 random bytes.
    pub fn new(key: [u8; 16]) -> Secret {
        Secret { key }
    }

    /// The initial sequence number of a connection that begins now. Connections of the same four
    /// follow each other in sequence space; others are unrelated. RFC 6528 3
    pub fn isn(&self, now: Instant, tuple: &FourTuple) -> SeqNumber {
        let clock = (now.as_micros() / 4) as u32;
        SeqNumber(self.hash(Use::Isn, tuple, 0) as u32) + clock
    }

    /// Offset of the timestamp clock: it hides the uptime from the peer, and connections of the
    /// same four-tuple continue to count. RFC 7323 7.1
    pub fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        self.hash(Use::Timestamp, tuple, 0) as u32
    }

    /// Start of the search for a port between these addresses. RFC 6056 3.3.3
    pub fn port_offset(&self, tuple: &FourTuple) -> u32 {
        let tuple = FourTuple { local_port: 0, ..*tuple };
        self.hash(Use::Port, &tuple, 0) as u32
    }

    /// Hash for tables: a peer that chooses its ports cannot choose its bucket.
    pub fn table_hash(&self, tuple: &FourTuple) -> u64 {
        let (bytes, len) = bytes_of(Use::Table, tuple, 0);
        // The hash is never sent, so fewer rounds suffice.
        SipHasher13::new_with_key(&self.key).hash(&bytes[..len])
    }

    /// The initial sequence number that remembers a SYN.
    pub fn cookie(&self, now: Instant, tuple: &FourTuple, irs: SeqNumber, mss: u16) -> SeqNumber {
        let fits = COOKIE_MSS.iter().rposition(|&fits| fits <= mss);
        let index = fits.unwrap_or(0) as u64;
        SeqNumber(self.cookie_with(cookie_time(now), tuple, irs, index))
    }

    fn cookie_with(&self, time: u64, tuple: &FourTuple, irs: SeqNumber, index: u64) -> u32 {
        let about = u64::from(irs.0) << 32 | (time << 3 | index) & 0xffff_ffff;
        let hash = self.hash(Use::Cookie, tuple, about) as u32 & ((1 << COOKIE_HASH_BITS) - 1);
        let top = ((time as u32 & 0x1f) << 3) | index as u32;
        top << COOKIE_HASH_BITS | hash
    }

    /// MSS of the SYN that a cookie stands for, if the cookie is genuine and not too old.
    pub fn cookie_mss(
        &self,
        now: Instant,
        tuple: &FourTuple,
        irs: SeqNumber,
        cookie: SeqNumber,
    ) -> Option<u16> {
        let index = u64::from(cookie.0 >> COOKIE_HASH_BITS & 7);
        let time = cookie_time(now);
        (0..=COOKIE_PERIODS_MAX.min(time))
            .any(|age| self.cookie_with(time - age, tuple, irs, index) == cookie.0)
            .then(|| COOKIE_MSS[index as usize])
    }

    fn hash(&self, for_use: Use, tuple: &FourTuple, more: u64) -> u64 {
        let (bytes, len) = bytes_of(for_use, tuple, more);
        SipHasher24::new_with_key(&self.key).hash(&bytes[..len])
    }
}

/// Input of the hash, in one piece.
fn bytes_of(for_use: Use, tuple: &FourTuple, more: u64) -> ([u8; 48], usize) {
    let ports = u64::from(tuple.local_port) << 16 | u64::from(tuple.remote_port);
    let mut bytes = [0; 48];
    bytes[..8].copy_from_slice(&((for_use as u64) << 32 | ports).to_le_bytes());
    bytes[8..16].copy_from_slice(&more.to_le_bytes());
    match (tuple.local, tuple.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            bytes[16..20].copy_from_slice(&local.octets());
            bytes[20..24].copy_from_slice(&remote.octets());
            (bytes, 24)
        }
        (local, remote) => {
            let octets = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            bytes[16..32].copy_from_slice(&octets(local));
            bytes[32..].copy_from_slice(&octets(remote));
            (bytes, 48)
        }
    }
}

fn cookie_time(now: Instant) -> u64 {
    now.as_nanos() / COOKIE_PERIOD.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const TUPLE: FourTuple = FourTuple {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        local_port: 80,
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        remote_port: 1024,
    };

    fn after(seconds: u64) -> Instant {
        Instant::START + Duration::from_secs(seconds)
    }

    #[test]
    fn isn_follows_the_clock_per_connection() {
        let secret = Secret::new(*b"0123456789abcdef");
        let first = secret.isn(after(0), &TUPLE);
        assert_eq!(secret.isn(after(1), &TUPLE) - first, 250_000);
        let other = FourTuple { remote_port: 1025, ..TUPLE };
        assert!((secret.isn(after(0), &other) - first).unsigned_abs() > 1000);
        let elsewhere = Secret::new(*b"0123456789abcdeg");
        assert_ne!(elsewhere.isn(after(0), &TUPLE), first);
    }

    #[test]
    fn cookie_timestamps_carry_the_options() {
        for bits in 0..STAMP_PERIOD {
            let options = CookieOptions::of_stamp(bits);
            for clock in [0, 63, 64, 1000, u32::MAX] {
                let stamp = options.stamp(clock);
                assert_eq!(CookieOptions::of_stamp(stamp), options);
                assert!(clock.wrapping_sub(stamp) < STAMP_PERIOD, "{stamp} at {clock}");
            }
        }
    }

    #[test]
    fn cookies_carry_the_mss_for_two_minutes() {
        let secret = Secret::new([7; 16]);
        let irs = SeqNumber(99);
        for (mss, decoded) in [(100, 536), (536, 536), (1459, 1440), (1460, 1460), (65535, 8940)] {
            let cookie = secret.cookie(after(1000), &TUPLE, irs, mss);
            assert_eq!(secret.cookie_mss(after(1000), &TUPLE, irs, cookie), Some(decoded));
            assert_eq!(secret.cookie_mss(after(1128), &TUPLE, irs, cookie), Some(decoded));
            assert_eq!(secret.cookie_mss(after(1300), &TUPLE, irs, cookie), None);
            assert_eq!(secret.cookie_mss(after(1000), &TUPLE, irs, cookie + 1), None);
            let other = irs + 1;
            assert_eq!(secret.cookie_mss(after(1000), &TUPLE, other, cookie), None);
        }
    }
}
