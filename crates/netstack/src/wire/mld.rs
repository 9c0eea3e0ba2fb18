//! Multicast listener discovery, as a listener needs it: the groups to which a host listens. RFC
//! 3810 5 for version 2, RFC 2710 3 for version 1.
//!
//! ```text
//!   behind ICMPv6's type, code and checksum:
//!
//!   version 1's query  | delay 2 | 0 2   | group 16, or 0 for all
//!   version 2's query  | delay 2 | 0 2   | the same | flags 1 | interval 1 | sources 2 | …
//!   version 1's report | 0 2     | 0 2   | group 16
//!   version 2's report | 0 2 | records 2 | record 20 | …
//!
//!   a record           | type 1 | 0 1 | sources 2: none is excepted | group 16
//! ```
//!
//! A report stands behind a hop-by-hop header, which tells routers to look at it.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::checksum::Sum;
use super::icmpv6;
use super::{Protocol, array, put, put16, put32};

/// ICMPv6's type of a query.
pub const QUERY: u8 = 130;

const REPORT_V1: u8 = 131;
const REPORT_V2: u8 = 143;

/// Queries and reports pass no router.
pub const HOP_LIMIT: u8 = 1;

/// Destination of version 2 reports.
const ALL_MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Limit on the groups of a report: it fits into any MTU of IPv6.
pub const REPORT_GROUPS_MAX: usize = 60;

/// The hop-by-hop header: one option that says what follows, and one that fills it up. RFC 2711
const ROUTER_ALERT: [u8; 8] = [Protocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];

const RECORD_LEN: usize = 20;

const _: () = assert!(
    40 + ROUTER_ALERT.len() + icmpv6::HEADER_LEN + REPORT_GROUPS_MAX * RECORD_LEN <= 1280,
    "a report fits into the smallest MTU"
);

/// "Who listens?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MldQuery {
    /// Longest delay of an answer.
    pub delay_max: Duration,
    /// Queried group; [`Ipv6Addr::UNSPECIFIED`] for all.
    pub group: Ipv6Addr,
    /// True for version 1, which is answered in version 1. RFC 3810 8.2.1
    pub is_v1: bool,
}

impl MldQuery {
    /// Reads a message of type [`QUERY`]: `word` are the four bytes behind its checksum, `data`
    /// what follows. `None` if it is of no version: RFC 3810 8.1.
    pub fn of(word: u32, data: &[u8]) -> Option<MldQuery> {
        let code = (word >> 16) as u16;
        let (is_v1, delay_ms) = match data.len() {
            16 => (true, u64::from(code)),
            20.. => (false, delay_ms_of(code)),
            _ => return None,
        };
        Some(MldQuery {
            delay_max: Duration::from_millis(delay_ms),
            group: array::<16>(data, 0).into(),
            is_v1,
        })
    }
}

/// From 32,768 on the field of version 2 has an exponent. RFC 3810 5.1.3
fn delay_ms_of(code: u16) -> u64 {
    match code {
        0..0x8000 => code.into(),
        _ => u64::from(code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
    }
}

/// "I listen."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MldReport<'a> {
    /// Listens to that group: an answer to a query of version 1.
    V1(Ipv6Addr),
    /// Listens to these groups: an answer to a query of version 2; [`REPORT_GROUPS_MAX`] at most.
    Listens(&'a [Ipv6Addr]),
    /// Listens to these groups from now on.
    BeginsToListen(&'a [Ipv6Addr]),
}

impl MldReport<'_> {
    /// Destination address.
    pub fn dst(&self) -> Ipv6Addr {
        match *self {
            MldReport::V1(group) => group,
            _ => ALL_MLD_ROUTERS,
        }
    }

    /// Writes what follows IPv6's header, from the hop-by-hop header on, and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter, or if there are too many groups.
    pub fn emit(&self, src: Ipv6Addr, buffer: &mut [u8]) -> usize {
        put(buffer, 0, &ROUTER_ALERT);
        let message = &mut buffer[ROUTER_ALERT.len()..];
        // A record lists the sources that are not listened to: none. RFC 3810 5.2.12
        let len = match *self {
            MldReport::V1(group) => {
                put(message, 0, &[REPORT_V1, 0, 0, 0, 0, 0, 0, 0]);
                put(message, icmpv6::HEADER_LEN, &group.octets());
                icmpv6::HEADER_LEN + 16
            }
            MldReport::Listens(groups) => emit_records(2, groups, message),
            MldReport::BeginsToListen(groups) => emit_records(4, groups, message),
        };
        let pseudo_header = Sum::pseudo_header_v6(src, self.dst(), Protocol::ICMPV6.0, len as u32);
        let sum = pseudo_header + Sum::of(&message[..len]);
        put16(message, 2, sum.checksum());
        ROUTER_ALERT.len() + len
    }
}

fn emit_records(kind: u8, groups: &[Ipv6Addr], message: &mut [u8]) -> usize {
    let count = groups.len();
    assert!(count <= REPORT_GROUPS_MAX, "{count} groups above {REPORT_GROUPS_MAX}");
    put(message, 0, &[REPORT_V2, 0, 0, 0]);
    put32(message, 4, count as u32);
    let mut len = icmpv6::HEADER_LEN;
    for group in groups {
        put(message, len, &[kind, 0, 0, 0]);
        put(message, len + 4, &group.octets());
        len += RECORD_LEN;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_delays_have_an_exponent() {
        assert_eq!([0, 1000, 0x7fff].map(delay_ms_of), [0, 1000, 0x7fff], "milliseconds");
        // (mantissa | 0x1000) << (exponent + 3)
        assert_eq!([0x8000, 0x8fff, 0xffff].map(delay_ms_of), [0x8000, 0xfff8, 8_387_584]);
    }

    #[test]
    fn query_length_follows_the_version() {
        let group: Ipv6Addr = "ff02::1:ff00:7".parse().unwrap();
        let mut data = group.octets().to_vec();
        data.extend([2, 125, 0, 0]);
        let query = MldQuery { delay_max: Duration::from_secs(1), group, is_v1: false };
        assert_eq!(MldQuery::of(1000 << 16, &data), Some(query));
        let older = MldQuery { is_v1: true, ..query };
        assert_eq!(MldQuery::of(1000 << 16, &data[..16]), Some(older));
        for len in (0..16).chain(17..20) {
            assert_eq!(MldQuery::of(1000 << 16, &data[..len]), None, "{len}");
        }
    }
}
