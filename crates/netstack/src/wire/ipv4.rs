//! IPv4. RFC 791 3.1
//!
//! ```text
//!    0                   1                   2                   3
//!    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   +-------+-------+-----------+---+-------------------------------+
//!   |   4   | words |   DSCP    |ECN|         total length          |  0
//!   +-------+-------+-----------+---+-+-+-+-------------------------+
//!   |        identification         |0|D|M|    offset, in 8 bytes   |  4
//!   +---------------+---------------+-+-+-+-------------------------+
//!   |   hop limit   |   protocol    |        header checksum        |  8
//!   +---------------+---------------+-------------------------------+
//!   |                        source address                         | 12
//!   |                      destination address                      | 16
//!   |          options: 0 to 40 bytes, filled up to words           | 20
//!   +---------------------------------------------------------------+
//! ```

use std::net::Ipv4Addr;

use super::checksum::Sum;
use super::{Ecn, Malformed, Protocol, array, be16, dscp_of, put, put16, split};

/// A header without options: what [`Ipv4Header::emit`] writes.
pub const HEADER_LEN: usize = 20;

/// The longest packet on a wire.
pub const PACKET_LEN_MAX: usize = 0xffff;

/// The longest packet that Linux makes of segments and takes apart again (BIG TCP): `GSO_MAX_SIZE`
/// in `linux/netdevice.h`. Its length field says 0.
pub const BIG_PACKET_LEN_MAX: usize = 8 * PACKET_LEN_MAX;

const CHECKSUM_AT: usize = 10;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// The sender.
    pub src: Ipv4Addr,
    /// The receiver.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Number of routers that it may still pass.
    pub hop_limit: u8,
    /// The class of service that its sender asks for; [`DSCP_MAX`](super::DSCP_MAX) at most.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Identification that the fragments of one packet share. Meaningless in a packet that neither
    /// is a fragment nor may become one. RFC 6864 4.1
    pub identification: u16,
    /// Routers must not cut it.
    pub dont_fragment: bool,
    /// True for a fragment that is not the last.
    pub more_fragments: bool,
    /// Offset of the fragment in its packet, in bytes: a multiple of 8.
    pub fragment_offset: u16,
}

impl Ipv4Header {
    /// Parses a packet into header and payload, without options and padding.
    ///
    /// # Errors
    ///
    /// [`Malformed`] of any kind.
    // Inlined: a returned value is moved in other pieces than it was written in, and the CPU waits
    // until such stores have reached the cache: 8 % of netstack-no-wire.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<(Ipv4Header, &[u8]), Malformed> {
        Ipv4Header::parse_of(bytes, false)
    }

    /// Parses a packet that a device has merged from segments: a length of 0 stands for that of
    /// `bytes`.
    ///
    /// # Errors
    ///
    /// [`Malformed`] of any kind.
    pub fn parse_merged(bytes: &[u8]) -> Result<(Ipv4Header, &[u8]), Malformed> {
        Ipv4Header::parse_of(bytes, true)
    }

    #[inline(always)]
    fn parse_of(bytes: &[u8], is_merged: bool) -> Result<(Ipv4Header, &[u8]), Malformed> {
        let (header, header_len) = Ipv4Header::parse_quoted(bytes)?;
        let total_len = match be16(bytes, 2) {
            0 if is_merged => bytes.len(),
            len => len.into(),
        };
        if total_len < header_len {
            return Err(Malformed::Header);
        }
        let packet = bytes.get(..total_len).ok_or(Malformed::Truncated)?;
        let (header_bytes, payload) = packet.split_at(header_len);
        if !Sum::of(header_bytes).is_right() {
            return Err(Malformed::Checksum);
        }
        Ok((header, payload))
    }

    /// The header of a packet that is quoted in an ICMP message, and its length: neither what
    /// follows nor the checksum need be right.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] or [`Malformed::Header`].
    #[inline(always)]
    pub(super) fn parse_quoted(bytes: &[u8]) -> Result<(Ipv4Header, usize), Malformed> {
        let (fixed, _) = split(bytes, HEADER_LEN)?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        if fixed[0] >> 4 != 4 || header_len < HEADER_LEN {
            return Err(Malformed::Header);
        }
        if header_len > bytes.len() {
            return Err(Malformed::Truncated);
        }
        let fragment = be16(fixed, 6);
        let header = Ipv4Header {
            src: array::<4>(fixed, 12).into(),
            dst: array::<4>(fixed, 16).into(),
            protocol: Protocol(fixed[9]),
            hop_limit: fixed[8],
            dscp: dscp_of(fixed[1]),
            ecn: Ecn::of_traffic_class(fixed[1]),
            identification: be16(fixed, 4),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: fragment << 3,
        };
        Ok((header, header_len))
    }

    /// True if it is a part of a packet.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Writes the header, without options, to the beginning of `buffer`, and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter, or the packet would be longer than [`BIG_PACKET_LEN_MAX`].
    pub fn emit(&self, payload_len: usize, buffer: &mut [u8]) -> usize {
        let len = HEADER_LEN + payload_len;
        assert!(len <= BIG_PACKET_LEN_MAX, "a packet of {len} bytes, above {BIG_PACKET_LEN_MAX}");
        let total_len = u16::try_from(len).unwrap_or(0);
        let header = &mut buffer[..HEADER_LEN];
        header[0] = 4 << 4 | (HEADER_LEN / 4) as u8;
        header[1] = self.dscp << 2 | self.ecn.bits();
        put16(header, 2, total_len);
        put16(header, 4, self.identification);
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 }
            | if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        put16(header, 6, flags | self.fragment_offset >> 3);
        header[8] = self.hop_limit;
        header[9] = self.protocol.0;
        put16(header, CHECKSUM_AT, 0);
        put(header, 12, &self.src.octets());
        put(header, 16, &self.dst.octets());
        let checksum = Sum::of(header).checksum();
        put16(header, CHECKSUM_AT, checksum);
        HEADER_LEN
    }
}
