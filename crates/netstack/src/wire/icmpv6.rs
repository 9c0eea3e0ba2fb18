//! ICMP for IPv6. RFC 4443
//!
//! ```text
//!   | type 1 | code 1 | checksum 2 | depends on the type 4 | data, or what is quoted
//! ```
//!
//! Types below 128 are errors. The checksum includes the pseudo header, so that a packet that has
//! come to the wrong host is noticed: IPv6 has no checksum of its own.

use std::net::Ipv6Addr;

use super::checksum::Sum;
use super::icmpv4::IcmpEcho;
use super::ndp::NdpMessage;
use super::{Malformed, Protocol, be32, put, put16, put32, split};

/// Length of the part that all messages share.
pub const HEADER_LEN: usize = 8;

const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// Code of [`Icmpv6Message::Unreachable`]: nothing listens at that port.
pub const PORT_UNREACHABLE: u8 = 4;
/// Code of [`Icmpv6Message::ParameterProblem`]: nothing here knows that next header.
pub const UNKNOWN_NEXT_HEADER: u8 = 1;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6Message<'a> {
    /// A packet was dropped because its destination cannot be reached.
    Unreachable {
        /// Reason.
        code: u8,
        /// The beginning of the packet.
        quoted: &'a [u8],
    },
    /// A packet was dropped because it was too long.
    PacketTooBig {
        /// MTU of the link that the packet did not fit.
        mtu: u32,
        /// The beginning of the packet.
        quoted: &'a [u8],
    },
    /// A packet was dropped because it took too many hops, or its fragments too long.
    TimeExceeded {
        /// Reason.
        code: u8,
        /// The beginning of the packet.
        quoted: &'a [u8],
    },
    /// A packet was dropped because of an invalid header field.
    ParameterProblem {
        /// Reason.
        code: u8,
        /// Offset of the offending byte.
        pointer: u32,
        /// The beginning of the packet.
        quoted: &'a [u8],
    },
    /// Are you there?
    EchoRequest(IcmpEcho<'a>),
    /// Yes.
    EchoReply(IcmpEcho<'a>),
    /// Neighbour discovery.
    Ndp(NdpMessage),
    /// Something else.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
        /// The four bytes behind the checksum.
        word: u32,
        /// Remaining bytes.
        data: &'a [u8],
    },
}

impl<'a> Icmpv6Message<'a> {
    /// Parses the payload of an IPv6 packet.
    ///
    /// # Errors
    ///
    /// [`Malformed`] of any kind.
    pub fn parse(
        src: Ipv6Addr,
        dst: Ipv6Addr,
        bytes: &'a [u8],
    ) -> Result<Icmpv6Message<'a>, Malformed> {
        let (header, data) = split(bytes, HEADER_LEN)?;
        if !(pseudo_header(src, dst, bytes.len()) + Sum::of(bytes)).is_right() {
            return Err(Malformed::Checksum);
        }
        let (kind, code, word) = (header[0], header[1], be32(header, 4));
        if NdpMessage::is_kind(kind) {
            return NdpMessage::parse(kind, code, word, data).map(Icmpv6Message::Ndp);
        }
        Ok(match (kind, code) {
            (UNREACHABLE, _) => Icmpv6Message::Unreachable { code, quoted: data },
            (PACKET_TOO_BIG, 0) => Icmpv6Message::PacketTooBig { mtu: word, quoted: data },
            (TIME_EXCEEDED, _) => Icmpv6Message::TimeExceeded { code, quoted: data },
            (PARAMETER_PROBLEM, _) => {
                Icmpv6Message::ParameterProblem { code, pointer: word, quoted: data }
            }
            (ECHO_REQUEST, 0) => Icmpv6Message::EchoRequest(IcmpEcho::of(word, data)),
            (ECHO_REPLY, 0) => Icmpv6Message::EchoReply(IcmpEcho::of(word, data)),
            _ => Icmpv6Message::Other { kind, code, word, data },
        })
    }

    /// True for reports of a dropped packet: no such message is answered by another. RFC 4443 2.4
    /// (e)
    pub fn is_error(&self) -> bool {
        match self {
            Icmpv6Message::Unreachable { .. }
            | Icmpv6Message::PacketTooBig { .. }
            | Icmpv6Message::TimeExceeded { .. }
            | Icmpv6Message::ParameterProblem { .. } => true,
            Icmpv6Message::Other { kind, .. } => *kind < 128,
            _ => false,
        }
    }

    /// Writes the whole message to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, buffer: &mut [u8]) -> usize {
        let body = &mut buffer[HEADER_LEN..];
        let (kind, code, word, data_len) = match *self {
            Icmpv6Message::Unreachable { code, quoted } => {
                (UNREACHABLE, code, 0, copy(quoted, body))
            }
            Icmpv6Message::PacketTooBig { mtu, quoted } => {
                (PACKET_TOO_BIG, 0, mtu, copy(quoted, body))
            }
            Icmpv6Message::TimeExceeded { code, quoted } => {
                (TIME_EXCEEDED, code, 0, copy(quoted, body))
            }
            Icmpv6Message::ParameterProblem { code, pointer, quoted } => {
                (PARAMETER_PROBLEM, code, pointer, copy(quoted, body))
            }
            Icmpv6Message::EchoRequest(echo) => {
                (ECHO_REQUEST, 0, echo.word(), copy(echo.data, body))
            }
            Icmpv6Message::EchoReply(echo) => (ECHO_REPLY, 0, echo.word(), copy(echo.data, body)),
            Icmpv6Message::Ndp(message) => {
                let (word, len) = message.emit(body);
                (message.kind(), 0, word, len)
            }
            Icmpv6Message::Other { kind, code, word, data } => (kind, code, word, copy(data, body)),
        };
        put(buffer, 0, &[kind, code, 0, 0]);
        put32(buffer, 4, word);
        let len = HEADER_LEN + data_len;
        let sum = pseudo_header(src, dst, len) + Sum::of(&buffer[..len]);
        put16(buffer, 2, sum.checksum());
        len
    }
}

fn copy(data: &[u8], buffer: &mut [u8]) -> usize {
    put(buffer, 0, data);
    data.len()
}

fn pseudo_header(src: Ipv6Addr, dst: Ipv6Addr, len: usize) -> Sum {
    Sum::pseudo_header_v6(src, dst, Protocol::ICMPV6.0, len as u32)
}
