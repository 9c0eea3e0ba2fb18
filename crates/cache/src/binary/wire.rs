//! What goes over the wire: a header of 24 bytes, then extras, key and value, by the lengths that the header gives.
//!
//! ```text
//!  0       1        2 3        4          5          6 7               8 .. 11    12 .. 15  16 .. 23
//!  ┌───────┬────────┬──────────┬──────────┬──────────┬─────────────────┬──────────┬─────────┬─────┐
//!  │ magic │ opcode │ key len  │ ext. len │ (0)      │ vbucket, status │ body len │ opaque  │ cas │
//!  └───────┴────────┴──────────┴──────────┴──────────┴─────────────────┴──────────┴─────────┴─────┘
//! ```
//!
//! memcached's wiki, "BinaryProtocolRevamped"; the words of the errors are memcached 1.6's.

use session::Outbox;

use crate::conversation::{State, Step, Swallow};
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

/// The kinds of requests; a quiet one and its loud twin are the same kind.
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

/// What is said of a request.
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
        let [
            _,
            opcode,
            k0,
            k1,
            extras_len,
            _,
            _,
            _,
            b0,
            b1,
            b2,
            b3,
            o0,
            o1,
            o2,
            o3,
            cas @ ..,
        ] = *bytes;
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
        match self.opcode {
            0x00 => (get(false, false), false),
            0x09 => (get(false, false), true),
            0x0c => (get(true, false), false),
            0x0d => (get(true, false), true),
            0x1d => (get(false, true), false),
            0x1e => (get(false, true), true),
            0x23 => (get(true, true), false),
            0x24 => (get(true, true), true),
            0x1c => (Kind::Touch, false),
            0x01 => (Kind::Store(Mode::Set), false),
            0x11 => (Kind::Store(Mode::Set), true),
            0x02 => (Kind::Store(Mode::Add), false),
            0x12 => (Kind::Store(Mode::Add), true),
            0x03 => (Kind::Store(Mode::Replace), false),
            0x13 => (Kind::Store(Mode::Replace), true),
            0x0e => (Kind::Store(Mode::Append), false),
            0x19 => (Kind::Store(Mode::Append), true),
            0x0f => (Kind::Store(Mode::Prepend), false),
            0x1a => (Kind::Store(Mode::Prepend), true),
            0x04 => (Kind::Delete, false),
            0x14 => (Kind::Delete, true),
            0x05 => (Kind::Count(Direction::Up), false),
            0x15 => (Kind::Count(Direction::Up), true),
            0x06 => (Kind::Count(Direction::Down), false),
            0x16 => (Kind::Count(Direction::Down), true),
            0x07 => (Kind::Quit, false),
            0x17 => (Kind::Quit, true),
            0x08 => (Kind::Flush, false),
            0x18 => (Kind::Flush, true),
            0x0a => (Kind::Noop, false),
            0x0b => (Kind::Version, false),
            0x10 => (Kind::Stat, false),
            0x20 => (Kind::SaslList, false),
            0x21 => (Kind::SaslAuth, false),
            0x22 => (Kind::SaslStep, false),
            _ => (Kind::Unknown, false),
        }
    }

    /// Whether the three lengths are what the kind demands.
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

/// Says what is wrong after the rest of the request, which is that long, is gone by.
#[cold]
pub(super) fn swallow(
    state: &mut State,
    header: &Header,
    used: usize,
    left: usize,
    status: Status,
) -> Step {
    let mut out = Outbox::new();
    say(&mut out, header, status);
    let mut slices = [std::io::IoSlice::new(&[])];
    out.gather(&mut slices);
    *state = State::Swallow(Box::new(Swallow {
        left: left as u64,
        reply: slices[0].to_vec(),
    }));
    Step::used(used)
}

/// A cas of 0 is none.
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

/// Says a status in words.
pub(super) fn say(out: &mut Outbox, header: &Header, status: Status) {
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
