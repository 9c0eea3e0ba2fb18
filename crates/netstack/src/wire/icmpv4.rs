//! ICMP for IPv4. RFC 792
//!
//! ```text
//!   | type 1 | code 1 | checksum 2 | depends on the type 4 | data, or what is quoted
//! ```

use super::checksum::Sum;
use super::{Malformed, be16, be32, put, put16, put32, split};

/// Length of the part that all messages share.
pub const HEADER_LEN: usize = 8;

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// Code of [`Icmpv4Message::Unreachable`]: nothing here speaks that protocol.
pub const PROTOCOL_UNREACHABLE: u8 = 2;
/// Code of [`Icmpv4Message::Unreachable`]: nothing listens at that port.
pub const PORT_UNREACHABLE: u8 = 3;
/// Code of [`Icmpv4Message::Unreachable`]: the packet is too long, and must not be cut. RFC 1191 3
pub const FRAGMENTATION_NEEDED: u8 = 4;

/// A question whether a host is there, or the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpEcho<'a> {
    /// Tells one program's questions from those of others.
    pub identifier: u16,
    /// Counts that program's questions.
    pub sequence: u16,
    /// Comes back in the answer.
    pub data: &'a [u8],
}

impl<'a> IcmpEcho<'a> {
    pub(super) fn of(word: u32, data: &'a [u8]) -> IcmpEcho<'a> {
        IcmpEcho { identifier: (word >> 16) as u16, sequence: word as u16, data }
    }

    pub(super) fn word(&self) -> u32 {
        u32::from(self.identifier) << 16 | u32::from(self.sequence)
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv4Message<'a> {
    /// Are you there?
    EchoRequest(IcmpEcho<'a>),
    /// Yes.
    EchoReply(IcmpEcho<'a>),
    /// A packet was dropped because its destination cannot be reached.
    Unreachable {
        /// Reason.
        code: u8,
        /// With [`FRAGMENTATION_NEEDED`]: MTU that the packet exceeds; 0 from very old routers.
        mtu: u16,
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
        pointer: u8,
        /// The beginning of the packet.
        quoted: &'a [u8],
    },
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

impl<'a> Icmpv4Message<'a> {
    /// Parses the payload of an IPv4 packet.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] or [`Malformed::Checksum`].
    pub fn parse(bytes: &'a [u8]) -> Result<Icmpv4Message<'a>, Malformed> {
        let (header, data) = split(bytes, HEADER_LEN)?;
        if !Sum::of(bytes).is_right() {
            return Err(Malformed::Checksum);
        }
        let (kind, code, word) = (header[0], header[1], be32(header, 4));
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => Icmpv4Message::EchoRequest(IcmpEcho::of(word, data)),
            (ECHO_REPLY, 0) => Icmpv4Message::EchoReply(IcmpEcho::of(word, data)),
            (UNREACHABLE, _) => {
                Icmpv4Message::Unreachable { code, mtu: be16(header, 6), quoted: data }
            }
            (TIME_EXCEEDED, _) => Icmpv4Message::TimeExceeded { code, quoted: data },
            (PARAMETER_PROBLEM, _) => {
                Icmpv4Message::ParameterProblem { code, pointer: header[4], quoted: data }
            }
            _ => Icmpv4Message::Other { kind, code, word, data },
        })
    }

    /// Writes the whole message to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let (kind, code, word, data) = self.parts();
        put(buffer, 0, &[kind, code, 0, 0]);
        put32(buffer, 4, word);
        put(buffer, HEADER_LEN, data);
        let len = HEADER_LEN + data.len();
        let checksum = Sum::of(&buffer[..len]).checksum();
        put16(buffer, 2, checksum);
        len
    }

    fn parts(&self) -> (u8, u8, u32, &'a [u8]) {
        match *self {
            Icmpv4Message::EchoRequest(echo) => (ECHO_REQUEST, 0, echo.word(), echo.data),
            Icmpv4Message::EchoReply(echo) => (ECHO_REPLY, 0, echo.word(), echo.data),
            Icmpv4Message::Unreachable { code, mtu, quoted } => {
                (UNREACHABLE, code, u32::from(mtu), quoted)
            }
            Icmpv4Message::TimeExceeded { code, quoted } => (TIME_EXCEEDED, code, 0, quoted),
            Icmpv4Message::ParameterProblem { code, pointer, quoted } => {
                (PARAMETER_PROBLEM, code, u32::from(pointer) << 24, quoted)
            }
            Icmpv4Message::Other { kind, code, word, data } => (kind, code, word, data),
        }
    }
}
