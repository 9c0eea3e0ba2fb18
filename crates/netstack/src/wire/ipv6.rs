//! IPv6 and its extension headers. RFC 8200
//!
//! ```text
//!    0                   1                   2                   3
//!    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   +-------+-----------+---+---------------------------------------+
//!   |   6   |   DSCP    |ECN|              flow label               |  0
//!   +-------+-----------+---+-------+---------------+---------------+
//!   |        payload length         |  next header  |   hop limit   |  4
//!   +-------------------------------+---------------+---------------+
//!   |                        source address                         |  8
//!   |                      destination address                      | 24
//!   +---------------------------------------------------------------+
//!   | next header | length | …    extension headers, if any         | 40
//! ```

use std::net::Ipv6Addr;

use super::{Ecn, Malformed, Protocol, array, be16, dscp_of, put, put16, put32, split};

/// The header's length.
pub const HEADER_LEN: usize = 40;

/// The longest payload.
pub const PAYLOAD_LEN_MAX: usize = 0xffff;

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// The sender.
    pub src: Ipv6Addr,
    /// The receiver.
    pub dst: Ipv6Addr,
    /// Protocol of the payload: the upper layer, or the first extension header.
    pub next_header: Protocol,
    /// Number of routers that it may still pass.
    pub hop_limit: u8,
    /// The class of service that its sender asks for; [`DSCP_MAX`](super::DSCP_MAX) at most.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// The same for all packets of a flow; 20 bits. RFC 6437
    pub flow_label: u32,
}

impl Ipv6Header {
    /// Parses a packet into header and payload, without padding.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] or [`Malformed::Header`].
    pub fn parse(bytes: &[u8]) -> Result<(Ipv6Header, &[u8]), Malformed> {
        let (header, rest) = Ipv6Header::parse_quoted(bytes)?;
        let payload_len = usize::from(be16(bytes, 4));
        let payload = rest.get(..payload_len).ok_or(Malformed::Truncated)?;
        Ok((header, payload))
    }

    /// The header of a packet that is quoted in an ICMP message, and what there is of the rest.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] or [`Malformed::Header`].
    pub(super) fn parse_quoted(bytes: &[u8]) -> Result<(Ipv6Header, &[u8]), Malformed> {
        let (fixed, rest) = split(bytes, HEADER_LEN)?;
        let word = u32::from_be_bytes(array(fixed, 0));
        if word >> 28 != 6 {
            return Err(Malformed::Header);
        }
        let header = Ipv6Header {
            src: array::<16>(fixed, 8).into(),
            dst: array::<16>(fixed, 24).into(),
            next_header: Protocol(fixed[6]),
            hop_limit: fixed[7],
            dscp: dscp_of((word >> 20) as u8),
            ecn: Ecn::of_traffic_class((word >> 20) as u8),
            flow_label: word & FLOW_LABEL_MAX,
        };
        Ok((header, rest))
    }

    /// Writes the header to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter, or the payload longer than [`PAYLOAD_LEN_MAX`].
    pub fn emit(&self, payload_len: usize, buffer: &mut [u8]) -> usize {
        let payload_len = u16::try_from(payload_len).expect("the payload fits into a packet");
        let class = u32::from(self.dscp << 2 | self.ecn.bits());
        put32(buffer, 0, 6 << 28 | class << 20 | (self.flow_label & FLOW_LABEL_MAX));
        put16(buffer, 4, payload_len);
        buffer[6] = self.next_header.0;
        buffer[7] = self.hop_limit;
        put(buffer, 8, &self.src.octets());
        put(buffer, 24, &self.dst.octets());
        HEADER_LEN
    }
}

const FLOW_LABEL_MAX: u32 = 0xf_ffff;

/// Payload behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    /// Protocol of `payload`.
    pub protocol: Protocol,
    /// Behind the last extension header.
    pub payload: &'a [u8],
    /// The packet is one of several fragments. One that is alone, offset 0 and no more to come, is
    /// none: RFC 6946 4.
    pub is_fragment: bool,
    /// Offset in the packet of the byte that names `protocol`: for
    /// [`ExtensionError::ParameterProblem`].
    pub next_header_at: usize,
}

/// Reason to drop a packet because of its extension headers. RFC 8200 4
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionError {
    /// The packet is dropped silently.
    Malformed(Malformed),
    /// An option said so, or there were more than [`EXTENSIONS_MAX`] headers.
    Dropped,
    /// The packet is dropped, and the sender told.
    ParameterProblem {
        /// Code of the ICMP message.
        code: u8,
        /// Offset in the packet.
        pointer: u32,
        /// True if the sender is told even if the packet was sent to a group.
        even_of_group: bool,
    },
}

impl From<Malformed> for ExtensionError {
    fn from(malformed: Malformed) -> ExtensionError {
        ExtensionError::Malformed(malformed)
    }
}

/// Limit on extension headers. The RFC has each at most once, and the one for options twice; longer
/// chains only cost time. RFC 8504 5.3
pub const EXTENSIONS_MAX: usize = 8;

/// Limit on their options in all, padding included. RFC 8504 5.3
pub const EXTENSION_OPTIONS_MAX: usize = 64;

const HOP_BY_HOP: Protocol = Protocol::HOP_BY_HOP;
const ROUTING: Protocol = Protocol(43);
const FRAGMENT: Protocol = Protocol(44);
const DESTINATION_OPTIONS: Protocol = Protocol(60);

const ERRONEOUS_FIELD: u8 = 0;
const UNKNOWN_NEXT_HEADER: u8 = 1;
const UNKNOWN_OPTION: u8 = 2;

/// Offset of the next-header field in the fixed header.
const NEXT_HEADER_AT: usize = 6;

/// Walks through the extension headers of a packet's payload.
///
/// # Errors
///
/// [`ExtensionError`].
pub fn upper_layer(
    next_header: Protocol,
    payload: &[u8],
) -> Result<UpperLayer<'_>, ExtensionError> {
    let mut here = UpperLayer {
        protocol: next_header,
        payload,
        is_fragment: false,
        next_header_at: NEXT_HEADER_AT,
    };
    // The usual case.
    if matches!(next_header, Protocol::TCP | Protocol::ICMPV6) {
        return Ok(here);
    }
    let mut options_left = EXTENSION_OPTIONS_MAX;
    for index in 0..=EXTENSIONS_MAX {
        let at = HEADER_LEN + (payload.len() - here.payload.len());
        let kind = here.protocol;
        if !matches!(kind, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
            return Ok(here);
        }
        // Directly behind the fixed header, or nowhere. RFC 8200 4.1
        if kind == HOP_BY_HOP && index > 0 {
            return Err(problem(UNKNOWN_NEXT_HEADER, here.next_header_at));
        }
        let (start, _) = split(here.payload, 8)?;
        let len = match kind {
            FRAGMENT => 8,
            _ => 8 + usize::from(start[1]) * 8,
        };
        let (header, rest) = split(here.payload, len)?;
        match kind {
            HOP_BY_HOP | DESTINATION_OPTIONS => check_options(header, at, &mut options_left)?,
            // There is no routing type that a host follows: type 0 is forbidden (RFC 5095 3), and
            // one that has been followed to its end is passed over. RFC 8200 4.4
            ROUTING if header[3] != 0 => return Err(problem(ERRONEOUS_FIELD, at + 2)),
            FRAGMENT if be16(header, 2) & !0b110 != 0 => here.is_fragment = true,
            _ => {}
        }
        here.protocol = Protocol(header[0]);
        here.next_header_at = at;
        here.payload = rest;
        // The rest of a fragment is read when the packet has been reassembled.
        if here.is_fragment {
            return Ok(here);
        }
    }
    Err(ExtensionError::Dropped)
}

const fn problem(code: u8, pointer: usize) -> ExtensionError {
    ExtensionError::ParameterProblem { code, pointer: pointer as u32, even_of_group: false }
}

/// Checks the options of a header at offset `at` of the packet. Only padding is known, so each
/// other option is treated as its type demands of unknown ones. RFC 8200 4.2
fn check_options(header: &[u8], at: usize, left: &mut usize) -> Result<(), ExtensionError> {
    const PAD_1: u8 = 0;
    const PAD_N: u8 = 1;
    let mut offset = 2;
    while let Some(&kind) = header.get(offset) {
        *left = left.checked_sub(1).ok_or(ExtensionError::Dropped)?;
        if kind == PAD_1 {
            offset += 1;
            continue;
        }
        let len = header.get(offset + 1).ok_or(Malformed::Truncated)?;
        let end = offset + 2 + usize::from(*len);
        if end > header.len() {
            return Err(Malformed::Truncated.into());
        }
        match kind >> 6 {
            _ if kind == PAD_N => {}
            0b00 => {}
            0b01 => return Err(ExtensionError::Dropped),
            action => {
                return Err(ExtensionError::ParameterProblem {
                    code: UNKNOWN_OPTION,
                    pointer: (at + offset) as u32,
                    even_of_group: action == 0b10,
                });
            }
        }
        offset = end;
    }
    Ok(())
}
