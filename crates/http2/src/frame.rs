//! Frames, RFC 9113 4.1 and 6: read from a slice, written to a vector.

use crate::error::{ErrorCode, Fault, frame_size, protocol};

/// Length of a frame's head in bytes.
pub(crate) const HEAD_LEN: usize = 9;

/// Longest accepted payload: the initial `SETTINGS_MAX_FRAME_SIZE`.
pub(crate) const PAYLOAD_LEN_MAX: u32 = 16_384;

/// Largest window and largest stream identifier.
pub(crate) const U31_MAX: u32 = (1 << 31) - 1;

/// The nine bytes before each payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) len: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// Frame types. RFC 9113 6, RFC 9218 7.1
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of the frames that have them.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 32;
}

/// Identifiers of settings. RFC 9113 6.5.2, RFC 9218 2.1
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub(crate) const NO_RFC7540_PRIORITIES: u16 = 9;
}

impl FrameHead {
    /// Reads a head; `None` if it is incomplete.
    pub(crate) fn read(input: &[u8]) -> Option<FrameHead> {
        let bytes: &[u8; HEAD_LEN] = input.first_chunk()?;
        Some(FrameHead {
            len: u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]),
            kind: bytes[3],
            flags: bytes[4],
            // RFC 9113 4.1: the reserved bit is ignored.
            stream: u31(&bytes[5..]),
        })
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Appends the head.
    #[inline]
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let [_, len @ ..] = self.len.to_be_bytes();
        let stream = self.stream.to_be_bytes();
        let [a, b, c] = len;
        let [d, e, f, g] = stream;
        out.extend_from_slice(&[a, b, c, self.kind, self.flags, d, e, f, g]);
    }

    /// Checks a frame head without the payload: stream and length of each type. RFC 9113 6
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.len > PAYLOAD_LEN_MAX {
            return Err(frame_size("a frame longer than SETTINGS_MAX_FRAME_SIZE"));
        }
        let is_of_connection = self.stream == 0;
        match self.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION
                if is_of_connection =>
            {
                Err(protocol("a frame of a stream on stream 0"))
            }
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE
                if !is_of_connection =>
            {
                Err(protocol("a frame of the connection on a stream"))
            }
            kind::PUSH_PROMISE => Err(protocol("PUSH_PROMISE from a client")),
            kind::RST_STREAM | kind::WINDOW_UPDATE if self.len != 4 => {
                Err(frame_size("RST_STREAM or WINDOW_UPDATE not of 4 bytes"))
            }
            kind::PRIORITY if self.len != 5 => {
                Err(Fault::Stream(ErrorCode::FRAME_SIZE_ERROR, "PRIORITY not of 5 bytes"))
            }
            kind::PING if self.len != 8 => Err(frame_size("PING not of 8 bytes")),
            kind::GOAWAY if self.len < 8 => Err(frame_size("GOAWAY below 8 bytes")),
            kind::PRIORITY_UPDATE if self.len < 4 => {
                Err(frame_size("PRIORITY_UPDATE below 4 bytes"))
            }
            kind::SETTINGS if self.has(flag::ACK) && self.len > 0 => {
                Err(frame_size("an acknowledgement of SETTINGS with a payload"))
            }
            kind::SETTINGS if !self.len.is_multiple_of(6) => {
                Err(frame_size("SETTINGS not of a multiple of 6 bytes"))
            }
            _ => Ok(()),
        }
    }
}

/// The last 31 bits of the first four bytes.
pub(crate) fn u31(bytes: &[u8]) -> u32 {
    u32_at(bytes) & U31_MAX
}

/// The first four bytes.
pub(crate) fn u32_at(bytes: &[u8]) -> u32 {
    let &[a, b, c, d, ..] = bytes else { unreachable!("the length was checked: {}", bytes.len()) };
    u32::from_be_bytes([a, b, c, d])
}

/// Payload of a padded frame without its padding. RFC 9113 6.1
pub(crate) fn without_padding(head: FrameHead, payload: &[u8]) -> Result<&[u8], Fault> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(no_padding())?;
    let len = rest.len().checked_sub(padding.into());
    Ok(&rest[..len.ok_or(protocol("padding longer than its frame"))?])
}

/// Fault of a frame with the flag PADDED that is too short for padding.
pub(crate) const fn no_padding() -> Fault {
    frame_size("a padded frame without its padding length")
}

/// Fault of HEADERS with the flag PRIORITY that are too short for a priority.
pub(crate) const fn no_priority() -> Fault {
    frame_size("HEADERS without the priority that they announce")
}

/// Identifiers and values of SETTINGS.
pub(crate) fn settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> {
    let (rows, _) = payload.as_chunks::<6>();
    rows.iter().map(|row| {
        let id = u16::from_be_bytes([row[0], row[1]]);
        (id, u32_at(&row[2..]))
    })
}

/// Appends SETTINGS.
pub(crate) fn put_settings(values: &[(u16, u32)], out: &mut Vec<u8>) {
    put_head(values.len() as u32 * 6, kind::SETTINGS, 0, 0, out);
    for (id, value) in values {
        out.extend(id.to_be_bytes());
        out.extend(value.to_be_bytes());
    }
}

/// Appends an acknowledgement of SETTINGS.
pub(crate) fn put_settings_ack(out: &mut Vec<u8>) {
    put_head(0, kind::SETTINGS, flag::ACK, 0, out);
}

/// Appends PING.
pub(crate) fn put_ping(flags: u8, data: [u8; 8], out: &mut Vec<u8>) {
    put_head(8, kind::PING, flags, 0, out);
    out.extend(data);
}

/// Appends GOAWAY; `why` is its debug data, for people.
pub(crate) fn put_goaway(last_id: u32, code: ErrorCode, why: &str, out: &mut Vec<u8>) {
    put_head(8 + why.len() as u32, kind::GOAWAY, 0, 0, out);
    out.extend(last_id.to_be_bytes());
    out.extend(code.0.to_be_bytes());
    out.extend(why.as_bytes());
}

/// Appends RST_STREAM.
pub(crate) fn put_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    put_head(4, kind::RST_STREAM, 0, stream, out);
    out.extend(code.0.to_be_bytes());
}

/// Appends WINDOW_UPDATE.
pub(crate) fn put_window(stream: u32, increment: u32, out: &mut Vec<u8>) {
    put_head(4, kind::WINDOW_UPDATE, 0, stream, out);
    out.extend(increment.to_be_bytes());
}

/// Appends a frame's head.
#[inline]
pub(crate) fn put_head(len: u32, kind: u8, flags: u8, stream: u32, out: &mut Vec<u8>) {
    let head = FrameHead { len, kind, flags, stream };
    head.write(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_as_written() {
        let head = FrameHead { len: 0x01_02_03, kind: kind::PING, flags: 0xa5, stream: U31_MAX };
        let mut out = Vec::new();
        head.write(&mut out);
        assert_eq!(out, [1, 2, 3, 6, 0xa5, 0x7f, 255, 255, 255]);
        assert_eq!(FrameHead::read(&out), Some(head));
        out[5] = 255;
        assert_eq!(FrameHead::read(&out), Some(head), "the reserved bit");
        assert_eq!(FrameHead::read(&out[..8]), None);
    }

    #[test]
    fn padding_is_cut_off() {
        let padded = FrameHead { len: 0, kind: kind::HEADERS, flags: flag::PADDED, stream: 1 };
        assert_eq!(without_padding(padded, b"\x02ab\0\0"), Ok(&b"ab"[..]));
        assert_eq!(without_padding(padded, b"\x04ab\0\0"), Ok(&b""[..]));
        let too_long = protocol("padding longer than its frame");
        assert_eq!(without_padding(padded, b"\x05ab\0\0"), Err(too_long));
        assert!(without_padding(padded, b"").is_err());
        let plain = FrameHead { flags: 0, ..padded };
        assert_eq!(without_padding(plain, b"\x02a"), Ok(&b"\x02a"[..]));
    }
}
