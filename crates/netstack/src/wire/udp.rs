//! UDP's header, needed to reject datagrams: nothing listens here. RFC 768
//!
//! ```text
//!   | source port 2 | destination port 2 | length 2 | checksum 2 | payload
//! ```

use super::{Malformed, be16, put16, split};

/// The header's length.
pub const HEADER_LEN: usize = 8;

/// A datagram's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// Zero if the sender has made none, which only IPv4 allows.
    pub checksum: u16,
}

impl UdpHeader {
    /// Parses a datagram into header and payload.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] or [`Malformed::Header`].
    pub fn parse(bytes: &[u8]) -> Result<(UdpHeader, &[u8]), Malformed> {
        let (header, _) = split(bytes, HEADER_LEN)?;
        let len = usize::from(be16(header, 4));
        if len < HEADER_LEN {
            return Err(Malformed::Header);
        }
        let datagram = bytes.get(..len).ok_or(Malformed::Truncated)?;
        let parsed = UdpHeader {
            src_port: be16(header, 0),
            dst_port: be16(header, 2),
            checksum: be16(header, 6),
        };
        Ok((parsed, &datagram[HEADER_LEN..]))
    }

    /// Writes the header to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter, or the payload longer than a datagram's.
    pub fn emit(&self, payload_len: usize, buffer: &mut [u8]) -> usize {
        let len = u16::try_from(HEADER_LEN + payload_len);
        put16(buffer, 0, self.src_port);
        put16(buffer, 2, self.dst_port);
        put16(buffer, 4, len.expect("the payload fits into a datagram"));
        put16(buffer, 6, self.checksum);
        HEADER_LEN
    }
}
