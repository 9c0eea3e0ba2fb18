//! The header that a virtual device and its user put before a frame, to leave checksums and
//! segmentation to each other. VIRTIO 1.2, 5.1.6; `linux/virtio_net.h`
//!
//! ```text
//!   | flags 1 | gso type 1 | header length 2 | gso size 2 | sum start 2 | sum offset 2 |
//! ```
//!
//! TUN and packet sockets take it in the byte order of the machine.

use super::{Malformed, array, put, split};

/// The header's length, without the number of buffers, which only merged receives have.
pub const HEADER_LEN: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The header before a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// State of the checksum.
    pub checksum: VnetChecksum,
    /// The frame is several segments in one.
    pub gso: Option<VnetGso>,
}

/// State of the checksum in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VnetChecksum {
    /// The checksum was not verified.
    #[default]
    Unknown,
    /// The checksum was verified.
    Valid,
    /// The checksum is to be completed: the sum from `start` on, into the field at `offset` behind
    /// it.
    Needed {
        /// In the frame.
        start: u16,
        /// From there on.
        offset: u16,
    },
}

/// Segmentation of a frame that is to be cut, or was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetGso {
    /// Over IPv6, else IPv4.
    pub is_v6: bool,
    /// The congestion window was reduced: the first segment says so.
    pub has_cwr: bool,
    /// The length of all headers: those of each segment. A hint; may be 0.
    pub headers_len: u16,
    /// Payload length of each segment but the last.
    pub segment_len: u16,
}

impl VnetHeader {
    /// Parses a virtio-net header; returns it and the frame.
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`]; [`Malformed::Header`] if the frame is not cut as TCP is.
    pub fn parse(bytes: &[u8]) -> Result<(VnetHeader, &[u8]), Malformed> {
        let (header, frame) = split(bytes, HEADER_LEN)?;
        let ne16 = |at| u16::from_ne_bytes(array(header, at));
        let checksum = match header[0] {
            flags if flags & NEEDS_CHECKSUM != 0 => {
                VnetChecksum::Needed { start: ne16(6), offset: ne16(8) }
            }
            flags if flags & CHECKSUM_VALID != 0 => VnetChecksum::Valid,
            _ => VnetChecksum::Unknown,
        };
        let gso = match header[1] & !GSO_ECN {
            GSO_NONE => None,
            kind @ (GSO_TCP_V4 | GSO_TCP_V6) => Some(VnetGso {
                is_v6: kind == GSO_TCP_V6,
                has_cwr: header[1] & GSO_ECN != 0,
                headers_len: ne16(2),
                segment_len: ne16(4),
            }),
            _ => return Err(Malformed::Header),
        };
        Ok((VnetHeader { checksum, gso }, frame))
    }

    /// Writes the header to the beginning of `buffer` and returns its length.
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let (flags, start, offset) = match self.checksum {
            VnetChecksum::Unknown => (0, 0, 0),
            VnetChecksum::Valid => (CHECKSUM_VALID, 0, 0),
            VnetChecksum::Needed { start, offset } => (NEEDS_CHECKSUM, start, offset),
        };
        let (kind, headers_len, segment_len) = match self.gso {
            None => (GSO_NONE, 0, 0),
            Some(gso) => {
                let kind = if gso.is_v6 { GSO_TCP_V6 } else { GSO_TCP_V4 };
                let ecn = if gso.has_cwr { GSO_ECN } else { 0 };
                (kind | ecn, gso.headers_len, gso.segment_len)
            }
        };
        put(buffer, 0, &[flags, kind]);
        put(buffer, 2, &headers_len.to_ne_bytes());
        put(buffer, 4, &segment_len.to_ne_bytes());
        put(buffer, 6, &start.to_ne_bytes());
        put(buffer, 8, &offset.to_ne_bytes());
        HEADER_LEN
    }
}
