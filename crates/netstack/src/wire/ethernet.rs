//! Ethernet II frames.
//!
//! ```text
//!   | destination 6 | source 6 | type 2 | payload
//! ```
//!
//! Frames with a VLAN tag have a type of their own (0x8100), which nothing above knows.

use std::fmt;
use std::net::Ipv6Addr;

use super::{Malformed, array, be16, put, put16, split};

/// The header's length.
pub const HEADER_LEN: usize = 14;

/// An address on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EthernetAddress(pub [u8; 6]);

impl EthernetAddress {
    /// All hosts of the link.
    pub const BROADCAST: EthernetAddress = EthernetAddress([0xff; 6]);

    /// No address: the target of an ARP request has it.
    pub const ZERO: EthernetAddress = EthernetAddress([0; 6]);

    /// True for the address of one host: neither a group's nor zero.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self != EthernetAddress::ZERO
    }

    /// Group address of an IPv6 multicast address. RFC 2464 7
    pub const fn of_multicast_v6(address: Ipv6Addr) -> EthernetAddress {
        let [.., a, b, c, d] = address.octets();
        EthernetAddress([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for EthernetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Type of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4. RFC 894
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP. RFC 826
    pub const ARP: EtherType = EtherType(0x0806);
    /// IPv6. RFC 2464
    pub const IPV6: EtherType = EtherType(0x86dd);
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Destination.
    pub dst: EthernetAddress,
    /// Source.
    pub src: EthernetAddress,
    /// Type of the payload.
    pub ethertype: EtherType,
}

impl EthernetHeader {
    /// The header and what follows it, which may be longer than the packet: short frames are
    /// filled up.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<(EthernetHeader, &[u8]), Malformed> {
        let (header, payload) = split(bytes, HEADER_LEN)?;
        let header = EthernetHeader {
            dst: EthernetAddress(array(header, 0)),
            src: EthernetAddress(array(header, 6)),
            ethertype: EtherType(be16(header, 12)),
        };
        Ok((header, payload))
    }

    /// Writes the header to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        put(buffer, 0, &self.dst.0);
        put(buffer, 6, &self.src.0);
        put16(buffer, 12, self.ethertype.0);
        HEADER_LEN
    }
}
