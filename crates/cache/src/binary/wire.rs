//! Packet format: a header of 24 bytes, then extras, key and value, by the lengths in the header.
//!
//! ```text
//!  0       1        2 3        4          5          6 7               8 .. 11    12 .. 15  16 .. 23
//!  ┌───────┬────────┬──────────┬──────────┬──────────┬─────────────────┬──────────┬─────────┬─────┐
//!  │ magic │ opcode │ key len  │ ext. len │ (0)      │ vbucket, status │ body len │ opaque  │ cas │
//!  └───────┴────────┴──────────┴──────────┴──────────┴─────────────────┴──────────┴─────────┴─────┘
//! ```
//!
//! memcached's wiki, "BinaryProtocolRevamped"; error texts are those of memcached 1.6.

use session::Outbox;

use crate::conversation::{Progress, State, Swallow};
use crate::store::{Direction, Mode, StoreError};

/// The first byte of a request.
pub(crate) const REQUEST_MAGIC: u8 = 0x80;
const RESPONSE_MAGIC: u8 = 0x81;
pub(super) const HEADER_LEN: usize = 24;

/// A request's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) opcode: u8,
    pub(super) key_len: usize,
    pub(super) extras_len: usize,
    pub(super) body_len: usize,
    opaque: [u8; 4],
    pub(super) cas: u64,
}

/// Kinds of requests; a quiet request and its loud counterpart are the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get { with_key: bool, touches: bool },
    Touch,
    Store(Mode),
    Delete,
    Count(Direction),
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    SaslList,
    SaslAuth,
    SaslStep,
    Unknown,
}

/// The status of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Status {
    Done = 0,
    NotFound = 1,
    Exists = 2,
    TooLarge = 3,
    Invalid = 4,
    NotStored = 5,
    NotANumber = 6,
    Unauthorized = 0x20,
    Unknown = 0x81,
    NoMemory = 0x82,
}

impl Status {
    fn text(self) -> &'static [u8] {
        match self {
            Status::Done => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::NotANumber => b"Non-numeric server-side value for incr or decr",
            Status::Unauthorized => b"Auth failure.",
            Status::Unknown => b"Unknown command",
            Status::NoMemory => b"Out of memory",
        }
    }
}

impl Header {
    pub(super) fn read(bytes: &[u8; HEADER_LEN]) -> Header {
        let [_, opcode, k0, k1, extras_len, _, _, _, b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] =
            *bytes;
        Header {
            opcode,
            key_len: u16::from_be_bytes([k0, k1]).into(),
            extras_len: extras_len.into(),
            body_len: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            opaque: [o0, o1, o2, o3],
            cas: u64::from_be_bytes(cas),
        }
    }

    /// The request's kind, and whether it is quiet.
    pub(super) fn kind(&self) -> (Kind, bool) {
        let get = |with_key, touches| Kind::Get { with_key, touches };
        let kind = match self.opcode {
            0x00 | 0x09 => get(false, false),
            0x0c | 0x0d => get(true, false),
            0x1d | 0x1e => get(false, true),
            0x23 | 0x24 => get(true, true),
            0x1c => Kind::Touch,
            0x01 | 0x11 => Kind::Store(Mode::Set),
            0x02 | 0x12 => Kind::Store(Mode::Add),
            0x03 | 0x13 => Kind::Store(Mode::Replace),
            0x0e | 0x19 => Kind::Store(Mode::Append),
            0x0f | 0x1a => Kind::Store(Mode::Prepend),
            0x04 | 0x14 => Kind::Delete,
            0x05 | 0x15 => Kind::Count(Direction::Up),
            0x06 | 0x16 => Kind::Count(Direction::Down),
            0x07 | 0x17 => Kind::Quit,
            0x08 | 0x18 => Kind::Flush,
            0x0a => Kind::Noop,
            0x0b => Kind::Version,
            0x10 => Kind::Stat,
            0x20 => Kind::SaslList,
            0x21 => Kind::SaslAuth,
            0x22 => Kind::SaslStep,
            _ => Kind::Unknown,
        };
        (kind, matches!(self.opcode, 0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24))
    }

    /// True if the three lengths are valid for the kind.
    pub(super) fn is_well_formed(&self, kind: Kind) -> bool {
        let value_len = self.body_len - self.key_len - self.extras_len;
        let has_key = self.key_len > 0;
        match kind {
            Kind::Get { touches: false, .. } => self.extras_len == 0 && has_key && value_len == 0,
            Kind::Get { touches: true, .. } | Kind::Touch => self.extras_len == 4 && has_key,
            Kind::Store(Mode::Append | Mode::Prepend) => self.extras_len == 0 && has_key,
            Kind::Store(_) => self.extras_len == 8 && has_key,
            Kind::Delete => self.extras_len == 0 && has_key && value_len == 0,
            Kind::Count(_) => self.extras_len == 20 && has_key && value_len == 0,
            Kind::Flush => self.key_len == 0 && value_len == 0 && matches!(self.extras_len, 0 | 4),
            Kind::Quit | Kind::Noop | Kind::Version | Kind::SaslList => self.body_len == 0,
            Kind::Stat => self.extras_len == 0 && value_len == 0,
            Kind::SaslAuth | Kind::SaslStep => self.extras_len == 0 && has_key,
            Kind::Unknown => false,
        }
    }
}

/// Replies with an error once the rest of the request, of this length, has been skipped.
#[cold]
pub(super) fn swallow(
    state: &mut State,
    header: &Header,
    used: usize,
    left: usize,
    status: Status,
) -> Progress {
    let text = status.text();
    let head = head(header, status, 0, 0, text.len(), 0);
    *state =
        State::Swallow(Box::new(Swallow { left: left as u64, reply: [&head[..], text].concat() }));
    Progress::used(used)
}

/// The cas of a request; 0 means none.
pub(super) fn cas_of(header: &Header) -> Option<u64> {
    Some(header.cas).filter(|&cas| cas != 0)
}

pub(super) fn status_of(error: StoreError) -> Status {
    match error {
        StoreError::TooLarge => Status::TooLarge,
        StoreError::OutOfMemory => Status::NoMemory,
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Replies with a status and its text.
pub(super) fn reply_status(out: &mut Outbox, header: &Header, status: Status) {
    reply(out, header, status, &[], &[], status.text(), 0);
}

pub(super) fn reply(
    out: &mut Outbox,
    header: &Header,
    status: Status,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    cas: u64,
) {
    let head = head(header, status, extras.len(), key.len(), value.len(), cas);
    out.put_with(|to| {
        for part in [&head[..], extras, key, value] {
            to.extend_from_slice(part);
        }
    });
}

pub(super) fn head(
    header: &Header,
    status: Status,
    extras_len: usize,
    key_len: usize,
    value_len: usize,
    cas: u64,
) -> [u8; HEADER_LEN] {
    let mut head = [0; HEADER_LEN];
    let body_len = (extras_len + key_len + value_len) as u32;
    head[0] = RESPONSE_MAGIC;
    head[1] = header.opcode;
    head[2..4].copy_from_slice(&(key_len as u16).to_be_bytes());
    head[4] = extras_len as u8;
    head[6..8].copy_from_slice(&(status as u16).to_be_bytes());
    head[8..12].copy_from_slice(&body_len.to_be_bytes());
    head[12..16].copy_from_slice(&header.opaque);
    head[16..].copy_from_slice(&cas.to_be_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u8, [key_len, extras_len, value_len]: [usize; 3]) -> Header {
        Header {
            opcode,
            key_len,
            extras_len,
            body_len: key_len + extras_len + value_len,
            opaque: [0; 4],
            cas: 0,
        }
    }

    #[test]
    fn opcodes_are_memcacheds() {
        let get = |with_key, touches| Kind::Get { with_key, touches };
        let store = Kind::Store;
        // By number, loud (protocol_binary.h of memcached 1.6), then the loud number of each quiet
        // opcode.
        let loud = [
            (0x00, get(false, false)),
            (0x01, store(Mode::Set)),
            (0x02, store(Mode::Add)),
            (0x03, store(Mode::Replace)),
            (0x04, Kind::Delete),
            (0x05, Kind::Count(Direction::Up)),
            (0x06, Kind::Count(Direction::Down)),
            (0x07, Kind::Quit),
            (0x08, Kind::Flush),
            (0x0a, Kind::Noop),
            (0x0b, Kind::Version),
            (0x0c, get(true, false)),
            (0x0e, store(Mode::Append)),
            (0x0f, store(Mode::Prepend)),
            (0x10, Kind::Stat),
            (0x1c, Kind::Touch),
            (0x1d, get(false, true)),
            (0x20, Kind::SaslList),
            (0x21, Kind::SaslAuth),
            (0x22, Kind::SaslStep),
            (0x23, get(true, true)),
        ];
        let quiet = [
            (0x09, 0x00),
            (0x0d, 0x0c),
            (0x11, 0x01),
            (0x12, 0x02),
            (0x13, 0x03),
            (0x14, 0x04),
            (0x15, 0x05),
            (0x16, 0x06),
            (0x17, 0x07),
            (0x18, 0x08),
            (0x19, 0x0e),
            (0x1a, 0x0f),
            (0x1e, 0x1d),
            (0x24, 0x23),
        ];
        let kind_of = |opcode| loud.iter().find(|(at, _)| *at == opcode).map(|(_, kind)| *kind);
        for opcode in 0..=255 {
            let twin = quiet.iter().find(|(at, _)| *at == opcode);
            let expected = match twin {
                Some((_, loud)) => (kind_of(*loud).unwrap(), true),
                None => (kind_of(opcode).unwrap_or(Kind::Unknown), false),
            };
            assert_eq!(header(opcode, [0; 3]).kind(), expected, "{opcode:#x}");
        }
    }

    #[test]
    fn kinds_have_their_lengths() {
        // Opcode; valid lengths of key, extras and value; permitted variations.
        for (opcode, right, may_have_value, may_lack_key) in [
            (0x00, [3, 0, 0], false, false),
            (0x0c, [3, 0, 0], false, false),
            (0x1d, [3, 4, 0], true, false),
            (0x1c, [3, 4, 0], true, false),
            (0x01, [3, 8, 0], true, false),
            (0x03, [3, 8, 0], true, false),
            (0x0e, [3, 0, 0], true, false),
            (0x0f, [3, 0, 0], true, false),
            (0x04, [3, 0, 0], false, false),
            (0x05, [3, 20, 0], false, false),
            (0x06, [3, 20, 0], false, false),
            (0x08, [0, 0, 0], false, true),
            (0x08, [0, 4, 0], false, true),
            (0x07, [0, 0, 0], false, true),
            (0x0a, [0, 0, 0], false, true),
            (0x0b, [0, 0, 0], false, true),
            (0x20, [0, 0, 0], false, true),
            (0x10, [0, 0, 0], false, true),
            (0x10, [5, 0, 0], false, true),
            (0x21, [5, 0, 0], true, false),
            (0x22, [5, 0, 0], true, false),
        ] {
            let is_good = |lens| {
                let header = header(opcode, lens);
                header.is_well_formed(header.kind().0)
            };
            let [key, extras, value] = right;
            assert!(is_good(right), "{opcode:#x} {right:?}");
            assert_eq!(is_good([key, extras, value + 1]), may_have_value, "{opcode:#x}");
            assert!(!is_good([key, extras + 1, value]), "{opcode:#x}");
            assert_eq!(is_good([0, extras, value]), may_lack_key, "{opcode:#x}");
        }
        assert!(!header(0x08, [1, 0, 0]).is_well_formed(Kind::Flush));
        assert!(!header(0x0a, [1, 0, 0]).is_well_formed(Kind::Noop));
        assert!(!header(0x99, [0, 0, 0]).is_well_formed(Kind::Unknown));
    }

    #[test]
    fn header_round_trip() {
        let mut bytes = [0; HEADER_LEN];
        (0..).zip(&mut bytes).for_each(|(at, byte)| *byte = at);
        let header = Header::read(&bytes);
        let lens = (header.key_len, header.extras_len, header.body_len);
        assert_eq!(lens, (0x0203, 4, 0x0809_0a0b));
        assert_eq!((header.opcode, header.opaque), (1, [12, 13, 14, 15]));
        assert_eq!(header.cas, 0x1011_1213_1415_1617);
        let mut expected = [0; HEADER_LEN];
        expected[..8].copy_from_slice(&[0x81, 1, 0x01, 0x02, 5, 0, 0, 0x86 - 4]);
        expected[8..12].copy_from_slice(&(5_u32 + 0x0102 + 70_000).to_be_bytes());
        expected[12..16].copy_from_slice(&[12, 13, 14, 15]);
        expected[16..].copy_from_slice(&9_u64.to_be_bytes());
        assert_eq!(head(&header, Status::NoMemory, 5, 0x0102, 70_000, 9), expected);
        assert_eq!((u32_at(&bytes, 4), u64_at(&bytes, 2)), (0x0405_0607, 0x0203_0405_0607_0809));
    }

    #[test]
    fn statuses_have_number_and_text() {
        for (status, number, words) in [
            (Status::Done, 0, ""),
            (Status::NotFound, 1, "Not found"),
            (Status::Exists, 2, "Data exists for key."),
            (Status::TooLarge, 3, "Too large."),
            (Status::Invalid, 4, "Invalid arguments"),
            (Status::NotStored, 5, "Not stored."),
            (Status::NotANumber, 6, "Non-numeric server-side value for incr or decr"),
            (Status::Unauthorized, 0x20, "Auth failure."),
            (Status::Unknown, 0x81, "Unknown command"),
            (Status::NoMemory, 0x82, "Out of memory"),
        ] {
            assert_eq!((status as u16, status.text()), (number, words.as_bytes()));
        }
        assert_eq!(status_of(StoreError::TooLarge), Status::TooLarge);
        assert_eq!(status_of(StoreError::OutOfMemory), Status::NoMemory);
        let of_cas = |cas| cas_of(&Header { cas, ..header(0, [0; 3]) });
        assert_eq!((of_cas(0), of_cas(7)), (None, Some(7)));
    }
}
