//! The binary protocol: a header of 24 bytes, then extras, key and value, by the lengths that the header gives.
//! Deprecated for years, and what several client libraries speak all the same.
//!
//! ```text
//!  0       1        2 3        4          5          6 7               8 .. 11    12 .. 15  16 .. 23
//!  ┌───────┬────────┬──────────┬──────────┬──────────┬─────────────────┬──────────┬─────────┬─────┐
//!  │ magic │ opcode │ key len  │ ext. len │ (0)      │ vbucket, status │ body len │ opaque  │ cas │
//!  └───────┴────────┴──────────┴──────────┴──────────┴─────────────────┴──────────┴─────────┴─────┘
//! ```
//!
//! memcached's wiki, "BinaryProtocolRevamped"; the words of the errors are memcached 1.6's.

mod admin;
pub(crate) mod storage;

use session::{Next, Outbox, Phase};

use crate::number::DECIMAL_LEN_MAX;
use crate::session::{Context, State, Step, Swallow};
use crate::store::{
    Arithmetic, Counted, DeleteRule, Deleted, Direction, Item, Mode, Outcome, Rule, StoreError,
};
use crate::text::KEY_LEN_MAX;
use crate::text::retrieval::SHARED_LEN_MIN;

/// The first byte of a request.
pub(crate) const REQUEST_MAGIC: u8 = 0x80;
const RESPONSE_MAGIC: u8 = 0x81;
const HEADER_LEN: usize = 24;

/// An expiry time that stands for "do not make it" in arithmetic.
const NO_INITIAL: u32 = u32::MAX;

/// A request's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    opcode: u8,
    key_len: usize,
    extras_len: usize,
    body_len: usize,
    opaque: [u8; 4],
    cas: u64,
}

/// The kinds of requests; a quiet one and its loud twin are the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
pub(crate) enum Status {
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
    fn read(bytes: &[u8; HEADER_LEN]) -> Header {
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
    fn kind(&self) -> (Kind, bool) {
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
    fn is_well_formed(&self, kind: Kind) -> bool {
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

/// The longest answer to a SASL challenge that is read.
const SASL_LEN_MAX: usize = 2048;

/// Takes one request, if it is whole, or a store request, if its value is all that is missing.
pub(crate) fn step(
    cx: &mut Context<'_>,
    state: &mut State,
    may_ask: &mut bool,
    input: &[u8],
) -> Step {
    if input[0] != REQUEST_MAGIC {
        *state = State::Refused;
        return Step::used(0);
    }
    let Some((bytes, body)) = input.split_first_chunk::<HEADER_LEN>() else {
        return Step::wait(Phase::Head);
    };
    let header = Header::read(bytes);
    if header.key_len + header.extras_len > header.body_len {
        return refuse(cx, state, &header, Status::Unknown);
    }
    let (kind, is_quiet) = header.kind();
    let is_sasl = matches!(kind, Kind::SaslList | Kind::SaslAuth | Kind::SaslStep);
    if !*may_ask && !is_sasl && kind != Kind::Version {
        return refuse(cx, state, &header, Status::Unauthorized);
    }
    let is_well_formed = header.is_well_formed(kind) && header.key_len <= KEY_LEN_MAX;
    if kind != Kind::Unknown && !is_well_formed {
        return refuse(cx, state, &header, Status::Invalid);
    }
    if kind == Kind::Unknown || (is_sasl && !admin::has_sasl(cx)) {
        return swallow(state, &header, HEADER_LEN, header.body_len, Status::Unknown);
    }
    if let Kind::Store(mode) = kind {
        return storage::begin(cx, state, &header, mode, is_quiet, input);
    }
    if header.body_len > KEY_LEN_MAX + SASL_LEN_MAX {
        return refuse(cx, state, &header, Status::Invalid);
    }
    let Some(body) = body.get(..header.body_len) else {
        return Step::wait(Phase::Body);
    };
    let (extras, rest) = body.split_at(header.extras_len);
    let (key, value) = rest.split_at(header.key_len);
    match kind {
        Kind::Get { with_key, touches } => {
            let exptime = touches.then(|| u32_at(extras, 0));
            get(cx, &header, key, with_key, exptime, is_quiet);
        }
        Kind::Touch => touch(cx, &header, key, u32_at(extras, 0)),
        Kind::Delete => delete(cx, &header, key, is_quiet),
        Kind::Count(direction) => count(cx, &header, key, extras, direction, is_quiet),
        Kind::Quit => {
            if !is_quiet {
                reply(cx.out, &header, Status::Done, &[], &[], &[], 0);
            }
            *state = State::Closed;
            return Step::then(Next::Close);
        }
        _ => admin::run(cx, &header, may_ask, is_quiet, [extras, key, value]),
    }
    Step::used(HEADER_LEN + header.body_len)
}

/// Says what is wrong, and closes: after a header that makes no sense nobody knows where the next one is.
#[cold]
fn refuse(cx: &mut Context<'_>, state: &mut State, header: &Header, status: Status) -> Step {
    say(cx.out, header, status);
    *state = State::Refused;
    Step::used(0)
}

/// Says what is wrong after the rest of the request, which is that long, is gone by.
#[cold]
fn swallow(state: &mut State, header: &Header, used: usize, left: usize, status: Status) -> Step {
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

fn get(
    cx: &mut Context<'_>,
    header: &Header,
    key: &[u8],
    with_key: bool,
    exptime: Option<u32>,
    is_quiet: bool,
) {
    let found = match exptime {
        None => cx.items.get(key),
        Some(exptime) => cx.items.get_and_touch(key, cx.deadline(exptime.into())),
    };
    cx.saw_get(key, &found);
    let key_back = if with_key { key } else { b"" };
    match &found {
        Ok(item) => put_item(cx.out, header, key_back, item),
        Err(_) if is_quiet => {}
        // The key takes the place of the words.
        Err(_) if with_key => reply(cx.out, header, Status::NotFound, &[], key, &[], 0),
        Err(_) => say(cx.out, header, Status::NotFound),
    }
}

/// Flags, perhaps the key, and the value.
fn put_item(out: &mut Outbox, header: &Header, key: &[u8], item: &Item<'_>) {
    let len = item.len();
    let is_shared = len >= SHARED_LEN_MIN;
    let pieces = is_shared.then(|| item.shared()).flatten();
    if is_shared && pieces.is_none() {
        return say(out, header, Status::NoMemory);
    }
    out.put_with(|to| {
        to.reserve(HEADER_LEN + 4 + key.len() + if is_shared { 0 } else { len });
        to.extend_from_slice(&head(header, Status::Done, 4, key.len(), len, item.cas()));
        to.extend_from_slice(&item.flags().to_be_bytes());
        to.extend_from_slice(key);
        if !is_shared {
            item.slices().for_each(|slice| to.extend_from_slice(slice));
        }
    });
    if let Some(pieces) = pieces {
        pieces.for_each(|piece| out.put_shared(piece));
    }
}

fn touch(cx: &mut Context<'_>, header: &Header, key: &[u8], exptime: u32) {
    let exptime = cx.deadline(exptime.into());
    match cx.items.touch(key, exptime) {
        Ok(()) => {
            let item = cx.items.peek(key);
            let (flags, cas) = item.map_or((0, 0), |item| (item.flags(), item.cas()));
            let flags = flags.to_be_bytes();
            reply(cx.out, header, Status::Done, &flags, &[], &[], cas);
        }
        Err(_) => say(cx.out, header, Status::NotFound),
    }
}

fn delete(cx: &mut Context<'_>, header: &Header, key: &[u8], is_quiet: bool) {
    let rule = DeleteRule {
        cas: cas_of(header),
        ..DeleteRule::default()
    };
    cx.saw_delete(key);
    match cx.items.delete(key, rule) {
        Deleted::Deleted if is_quiet => {}
        Deleted::Deleted => say(cx.out, header, Status::Done),
        Deleted::NotFound => say(cx.out, header, Status::NotFound),
        Deleted::Exists => say(cx.out, header, Status::Exists),
    }
}

/// Extras: the delta, the number to begin with, and the expiry time of what begins.
fn count(
    cx: &mut Context<'_>,
    header: &Header,
    key: &[u8],
    extras: &[u8],
    direction: Direction,
    is_quiet: bool,
) {
    let by = Arithmetic {
        direction,
        delta: u64_at(extras, 0),
        cas: cas_of(header),
        new_cas: None,
        exptime: None,
    };
    let (initial, exptime) = (u64_at(extras, 8), u32_at(extras, 16));
    let counted = cx.items.count(key, by).and_then(|counted| match counted {
        Counted::NotFound if exptime != NO_INITIAL => begin_count(cx, key, initial, exptime),
        counted => Ok(counted),
    });
    match counted {
        Ok(Counted::Stored { .. }) if is_quiet => {}
        Ok(Counted::Stored { number, cas }) => {
            let number = number.to_be_bytes();
            reply(cx.out, header, Status::Done, &[], &[], &number, cas);
        }
        Ok(Counted::NotFound) => say(cx.out, header, Status::NotFound),
        Ok(Counted::Exists) => say(cx.out, header, Status::Exists),
        Ok(Counted::NotANumber) => say(cx.out, header, Status::NotANumber),
        Err(error) => {
            cx.count_failed(error);
            say(cx.out, header, status_of(error));
        }
    }
}

fn begin_count(
    cx: &mut Context<'_>,
    key: &[u8],
    initial: u64,
    exptime: u32,
) -> Result<Counted, StoreError> {
    let exptime = cx.deadline(exptime.into());
    let mut room = [0; DECIMAL_LEN_MAX];
    let text = crate::number::decimal(initial, &mut room);
    let rule = Rule::from(Mode::Add);
    Ok(match cx.items.store(key, text, 0, exptime, rule)? {
        Outcome::Stored { cas } => Counted::Stored {
            number: initial,
            cas,
        },
        // Somebody else began in between.
        _ => Counted::Exists,
    })
}

/// A cas of 0 is none.
fn cas_of(header: &Header) -> Option<u64> {
    Some(header.cas).filter(|&cas| cas != 0)
}

pub(crate) fn status_of(error: StoreError) -> Status {
    match error {
        StoreError::TooLarge => Status::TooLarge,
        StoreError::OutOfMemory => Status::NoMemory,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Says a status in words.
fn say(out: &mut Outbox, header: &Header, status: Status) {
    reply(out, header, status, &[], &[], status.text(), 0);
}

fn reply(
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

fn head(
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
