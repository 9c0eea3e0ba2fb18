//! Neighbour discovery, as a host needs it: messages of ICMPv6. RFC 4861 4
//!
//! ```text
//!   behind ICMPv6's type, code and checksum:
//!
//!   router solicitation      | 0 4                                   | options
//!   router advertisement     | hop limit 1 | MO 1 | lifetime 2       | reachable 4 | retransmit 4 | options
//!   neighbour solicitation   | 0 4                                   | target 16 | options
//!   neighbour advertisement  | RSO 4                                 | target 16 | options
//!
//!   an option                | type 1 | length in 8 bytes 1 | …
//! ```
//!
//! Redirects are not read: a host may ignore them, and they are a way to lead traffic astray.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::ethernet::EthernetAddress;
use super::{Malformed, array, be32, put, put32, split};

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;

const IS_ROUTER: u32 = 1 << 31;
const IS_SOLICITED: u32 = 1 << 30;
const IS_OVERRIDE: u32 = 1 << 29;

/// A message of neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdpMessage {
    /// "Routers, say that you are there."
    RouterSolicitation {
        /// The asker's address on the link.
        source: Option<EthernetAddress>,
    },
    /// "I am a router."
    RouterAdvertisement(RouterAdvertisement),
    /// "Who has the target?"
    NeighborSolicitation {
        /// The address that is asked for.
        target: Ipv6Addr,
        /// The asker's address on the link; none while it checks that its own address is unique.
        source: Option<EthernetAddress>,
    },
    /// "I have the target."
    NeighborAdvertisement {
        /// The advertised address.
        target: Ipv6Addr,
        /// Ethernet address.
        link: Option<EthernetAddress>,
        /// The sender is a router.
        is_router: bool,
        /// True for the answer to a solicitation.
        is_solicited: bool,
        /// True if it replaces a known address.
        is_override: bool,
    },
}

/// Router advertisement. RFC 4861 4.2
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// Hop limit for packets that hosts send; 0 if unspecified.
    pub hop_limit: u8,
    /// Time for which it is a default router; zero if it is none.
    pub lifetime: Duration,
    /// Time for which a neighbour counts as reachable; zero if unspecified.
    pub reachable: Duration,
    /// Time between two solicitations; zero if unspecified.
    pub retransmit: Duration,
    /// Its address on the link.
    pub source: Option<EthernetAddress>,
    /// MTU of this link.
    pub mtu: Option<u32>,
    /// Prefixes of this link; the first [`RouterAdvertisement::PREFIXES_MAX`].
    pub prefixes: [Option<PrefixInformation>; RouterAdvertisement::PREFIXES_MAX],
}

impl RouterAdvertisement {
    /// Limit on prefixes; further ones are left out.
    pub const PREFIXES_MAX: usize = 4;
}

/// A prefix that a router advertises. RFC 4861 4.6.2
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixInformation {
    /// Its address.
    pub prefix: Ipv6Addr,
    /// Number of bits that count: at most 128.
    pub len: u8,
    /// Addresses of this prefix are on this link.
    pub is_on_link: bool,
    /// Hosts may make themselves addresses of it. RFC 4862
    pub is_autonomous: bool,
    /// Validity in seconds; [`u32::MAX`] forever.
    pub valid_s: u32,
    /// Time for which such addresses are preferred, in seconds.
    pub preferred_s: u32,
}

const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;

/// Limit on the options of a message that are read.
const OPTIONS_MAX: usize = 32;

impl NdpMessage {
    /// True if an ICMPv6 type is one of these.
    pub(super) fn is_kind(kind: u8) -> bool {
        (ROUTER_SOLICITATION..=NEIGHBOR_ADVERTISEMENT).contains(&kind)
    }

    pub(super) fn kind(&self) -> u8 {
        match self {
            NdpMessage::RouterSolicitation { .. } => ROUTER_SOLICITATION,
            NdpMessage::RouterAdvertisement(_) => ROUTER_ADVERTISEMENT,
            NdpMessage::NeighborSolicitation { .. } => NEIGHBOR_SOLICITATION,
            NdpMessage::NeighborAdvertisement { .. } => NEIGHBOR_ADVERTISEMENT,
        }
    }

    /// `word` are the four bytes behind the checksum, `data` what follows.
    pub(super) fn parse(
        kind: u8,
        code: u8,
        word: u32,
        data: &[u8],
    ) -> Result<NdpMessage, Malformed> {
        // RFC 4861 6.1.1, 6.1.2, 7.1.1, 7.1.2
        if code != 0 {
            return Err(Malformed::Header);
        }
        match kind {
            ROUTER_SOLICITATION => {
                Ok(NdpMessage::RouterSolicitation { source: NdpOptions::parse(data)?.source })
            }
            ROUTER_ADVERTISEMENT => {
                let (fixed, options) = split(data, 8)?;
                let options = NdpOptions::parse(options)?;
                Ok(NdpMessage::RouterAdvertisement(RouterAdvertisement {
                    hop_limit: (word >> 24) as u8,
                    lifetime: Duration::from_secs(u64::from(word & 0xffff)),
                    reachable: Duration::from_millis(u64::from(be32(fixed, 0))),
                    retransmit: Duration::from_millis(u64::from(be32(fixed, 4))),
                    source: options.source,
                    mtu: options.mtu,
                    prefixes: options.prefixes,
                }))
            }
            _ => {
                let (target, options) = split(data, 16)?;
                let target = Ipv6Addr::from(array::<16>(target, 0));
                let options = NdpOptions::parse(options)?;
                if target.is_multicast() {
                    return Err(Malformed::Header);
                }
                Ok(match kind {
                    NEIGHBOR_SOLICITATION => {
                        NdpMessage::NeighborSolicitation { target, source: options.source }
                    }
                    _ => NdpMessage::NeighborAdvertisement {
                        target,
                        link: options.target,
                        is_router: word & IS_ROUTER != 0,
                        is_solicited: word & IS_SOLICITED != 0,
                        is_override: word & IS_OVERRIDE != 0,
                    },
                })
            }
        }
    }

    /// Writes what follows ICMPv6's first eight bytes; returns the last four of these, and how much
    /// was written.
    pub(super) fn emit(&self, buffer: &mut [u8]) -> (u32, usize) {
        match *self {
            NdpMessage::RouterSolicitation { source } => {
                (0, put_link(buffer, 0, OPTION_SOURCE, source))
            }
            NdpMessage::RouterAdvertisement(router) => router.emit(buffer),
            NdpMessage::NeighborSolicitation { target, source } => {
                put(buffer, 0, &target.octets());
                (0, put_link(buffer, 16, OPTION_SOURCE, source))
            }
            NdpMessage::NeighborAdvertisement {
                target,
                link,
                is_router,
                is_solicited,
                is_override,
            } => {
                put(buffer, 0, &target.octets());
                let flag = |is_set, bit| if is_set { bit } else { 0 };
                let word = flag(is_router, IS_ROUTER)
                    | flag(is_solicited, IS_SOLICITED)
                    | flag(is_override, IS_OVERRIDE);
                (word, put_link(buffer, 16, OPTION_TARGET, link))
            }
        }
    }
}

impl RouterAdvertisement {
    fn emit(&self, buffer: &mut [u8]) -> (u32, usize) {
        let word = u32::from(self.hop_limit) << 24 | self.lifetime.as_secs() as u32 & 0xffff;
        put32(buffer, 0, self.reachable.as_millis() as u32);
        put32(buffer, 4, self.retransmit.as_millis() as u32);
        let mut at = put_link(buffer, 8, OPTION_SOURCE, self.source);
        if let Some(mtu) = self.mtu {
            put(buffer, at, &[OPTION_MTU, 1, 0, 0]);
            put32(buffer, at + 4, mtu);
            at += 8;
        }
        for prefix in self.prefixes.iter().flatten() {
            let flags = u8::from(prefix.is_on_link) << 7 | u8::from(prefix.is_autonomous) << 6;
            put(buffer, at, &[OPTION_PREFIX, 4, prefix.len, flags]);
            put32(buffer, at + 4, prefix.valid_s);
            put32(buffer, at + 8, prefix.preferred_s);
            put32(buffer, at + 12, 0);
            put(buffer, at + 16, &prefix.prefix.octets());
            at += 32;
        }
        (word, at)
    }
}

/// Writes a link address at `at`, if there is one, and returns what has been written in all.
fn put_link(buffer: &mut [u8], at: usize, kind: u8, link: Option<EthernetAddress>) -> usize {
    let Some(link) = link else {
        return at;
    };
    put(buffer, at, &[kind, 1]);
    put(buffer, at + 2, &link.0);
    at + 8
}

#[derive(Default)]
struct NdpOptions {
    source: Option<EthernetAddress>,
    target: Option<EthernetAddress>,
    mtu: Option<u32>,
    prefixes: [Option<PrefixInformation>; RouterAdvertisement::PREFIXES_MAX],
}

impl NdpOptions {
    /// Reads the options. One of length zero makes the message malformed; unknown ones are skipped.
    /// RFC 4861 4.6, 6.1.1
    fn parse(bytes: &[u8]) -> Result<NdpOptions, Malformed> {
        let mut options = NdpOptions::default();
        let mut rest = bytes;
        for _ in 0..OPTIONS_MAX {
            if rest.is_empty() {
                return Ok(options);
            }
            let len = rest.get(1).map_or(0, |&len| usize::from(len) * 8);
            if len == 0 {
                return Err(Malformed::Header);
            }
            let (option, after) = split(rest, len)?;
            options.take(option);
            rest = after;
        }
        Err(Malformed::Header)
    }

    fn take(&mut self, option: &[u8]) {
        match (option[0], option.len()) {
            (OPTION_SOURCE, 8) => self.source = Some(EthernetAddress(array(option, 2))),
            (OPTION_TARGET, 8) => self.target = Some(EthernetAddress(array(option, 2))),
            (OPTION_MTU, 8) => self.mtu = Some(be32(option, 4)),
            // RFC 4861 4.6.2: a length of more than 128 bits is invalid.
            (OPTION_PREFIX, 32) if option[2] <= 128 => {
                let free = self.prefixes.iter_mut().find(|place| place.is_none());
                if let Some(place) = free {
                    *place = Some(PrefixInformation {
                        prefix: array::<16>(option, 16).into(),
                        len: option[2],
                        is_on_link: option[3] & 0x80 != 0,
                        is_autonomous: option[3] & 0x40 != 0,
                        valid_s: be32(option, 4),
                        preferred_s: be32(option, 8),
                    });
                }
            }
            _ => {}
        }
    }
}
