//! The segment that an ICMP error is about: the error quotes the beginning of the packet that was
//! dropped. RFC 792, RFC 4443 2.4 (c)
//!
//! Only the fields for the checks of RFC 5927 4 are read: addresses, ports, sequence number. They
//! lie in the 8 bytes behind the IP header that every router quotes. Anyone can send such an error,
//! so none of it is true before the connection has found the sequence number in its window.

use std::net::SocketAddr;

use super::ipv4::Ipv4Header;
use super::ipv6::{self, Ipv6Header};
use super::tcp::SeqNumber;
use super::{Malformed, Protocol, be16, be32, split};

/// A segment that this host is said to have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedSegment {
    /// Source.
    pub src: SocketAddr,
    /// Destination.
    pub dst: SocketAddr,
    /// Its sequence number.
    pub seq: SeqNumber,
    /// The length of its packet, from the IP header on.
    pub packet_len: usize,
}

impl QuotedSegment {
    /// Parses the packet that an ICMP error quotes.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] if it is too little; [`Malformed::Header`] if it is no TCP segment.
    pub fn parse_v4(bytes: &[u8]) -> Result<QuotedSegment, Malformed> {
        let (header, header_len) = Ipv4Header::parse_quoted(bytes)?;
        // Only a packet's first fragment has ports.
        if header.protocol != Protocol::TCP || header.fragment_offset != 0 {
            return Err(Malformed::Header);
        }
        let (ports, seq) = ports_and_seq(&bytes[header_len..])?;
        Ok(QuotedSegment {
            src: (header.src, ports[0]).into(),
            dst: (header.dst, ports[1]).into(),
            seq,
            packet_len: be16(bytes, 2).into(),
        })
    }

    /// Parses the packet that an ICMPv6 error quotes. TCP follows the fixed header: this host sends
    /// no others.
    ///
    /// # Errors
    ///
    /// Like [`QuotedSegment::parse_v4`].
    pub fn parse_v6(bytes: &[u8]) -> Result<QuotedSegment, Malformed> {
        let (header, rest) = Ipv6Header::parse_quoted(bytes)?;
        if header.next_header != Protocol::TCP {
            return Err(Malformed::Header);
        }
        let (ports, seq) = ports_and_seq(rest)?;
        Ok(QuotedSegment {
            src: (header.src, ports[0]).into(),
            dst: (header.dst, ports[1]).into(),
            seq,
            packet_len: ipv6::HEADER_LEN + usize::from(be16(bytes, 4)),
        })
    }
}

fn ports_and_seq(bytes: &[u8]) -> Result<([u16; 2], SeqNumber), Malformed> {
    let (bytes, _) = split(bytes, 8)?;
    let ports = [be16(bytes, 0), be16(bytes, 2)];
    Ok((ports, SeqNumber(be32(bytes, 4))))
}
