//! Frames (RFC 9113 4 and 6).

/// Length of a frame's head.
pub(super) const HEAD_BYTES: usize = 9;
/// Largest payload in both directions: the initial SETTINGS_MAX_FRAME_SIZE.
pub(super) const PAYLOAD_BYTES_MAX: usize = 16_384;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const HAS_PRIORITY: u8 = 0x20;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;

pub(super) const NO_ERROR: u32 = 0;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const CANCEL: u32 = 8;

/// Head of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    /// Reads the head at the start of `bytes`, if it is whole.
    pub(super) fn of(bytes: &[u8]) -> Option<FrameHead> {
        let head: [u8; HEAD_BYTES] = *bytes.first_chunk()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        Some(FrameHead {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & !(1 << 31),
        })
    }

    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4]
            .copy_from_slice(&((self.length as u32) << 8 | u32::from(self.kind)).to_be_bytes());
        bytes[4] = self.flags;
        bytes[5..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Payload without padding and priority; `None` if they are longer than it is.
    pub(super) fn content(self, mut payload: &[u8]) -> Option<&[u8]> {
        let mut padding = 0;
        if self.has(PADDED) {
            (padding, payload) = payload.split_first().map(|(first, rest)| (*first, rest))?;
        }
        if self.has(HAS_PRIORITY) && self.kind == HEADERS {
            payload = payload.get(5..)?;
        }
        payload.get(..payload.len().checked_sub(usize::from(padding))?)
    }
}

/// Appends a frame.
pub(super) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let head = FrameHead { length: payload.len(), kind, flags, stream };
    out.extend_from_slice(&head.bytes());
    out.extend_from_slice(payload);
}

/// Appends a frame whose payload is a number.
pub(super) fn write_number(out: &mut Vec<u8>, kind: u8, stream: u32, number: u32) {
    write(out, kind, 0, stream, &number.to_be_bytes());
}

/// Number at this place of a payload.
pub(super) fn number_at(payload: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*payload.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_read_back() {
        let mut out = Vec::new();
        write(&mut out, DATA, END_STREAM, (1 << 31) - 1, &[7; 16_384]);
        assert_eq!(out[..HEAD_BYTES], [0, 64, 0, 0, 1, 0x7f, 255, 255, 255]);
        let head = FrameHead::of(&out).unwrap();
        assert_eq!((head.length, head.stream), (16_384, (1 << 31) - 1));
        assert_eq!(FrameHead::of(&out[..8]), None);
        out[5] |= 0x80; // Reserved, to be ignored (RFC 9113 4.1).
        assert_eq!(FrameHead::of(&out), Some(head));
    }

    #[test]
    fn padding_and_priority_are_cut_off() {
        let content = |kind, flags, payload| {
            let head = FrameHead { length: 0, kind, flags, stream: 1 };
            head.content(payload)
        };
        assert_eq!(content(DATA, 0, &b"abc"[..]), Some(&b"abc"[..]));
        assert_eq!(content(DATA, PADDED, b"\x02abcd"), Some(&b"ab"[..]));
        assert_eq!(content(DATA, PADDED, b"\x02ab"), Some(&b""[..]));
        assert_eq!(content(DATA, PADDED, b"\x03ab"), None);
        assert_eq!(content(DATA, PADDED, b""), None);
        let both = PADDED | HAS_PRIORITY;
        assert_eq!(content(HEADERS, both, b"\x01wwwwwa."), Some(&b"a"[..]));
        assert_eq!(content(HEADERS, HAS_PRIORITY, b"wwww"), None);
    }
}
