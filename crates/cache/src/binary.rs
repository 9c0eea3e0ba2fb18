//! The binary protocol: long deprecated, but still used by several client libraries.

mod admin;
pub(crate) mod storage;
mod wire;

use session::{Next, Outbox, Phase};

use crate::conversation::{Context, Progress, State};
use crate::number::{DECIMAL_LEN_MAX, decimal};
use crate::store::{
    Arithmetic, Counted, DeleteRule, Deleted, Direction, Item, Mode, Rule, StoreError, StoreOutcome,
};
use crate::words::{KEY_LEN_MAX, SHARED_LEN_MIN};
pub(crate) use wire::REQUEST_MAGIC;
use wire::{
    HEADER_LEN, Header, Kind, Status, cas_of, head, reply, reply_status, status_of, swallow,
    u32_at, u64_at,
};

/// An expiry time that means "do not create the item" in arithmetic.
const NO_INITIAL: u32 = u32::MAX;

/// Longest accepted answer to a SASL challenge.
const SASL_LEN_MAX: usize = 2048;

/// Takes one complete request, or a store request that lacks only its value.
pub(crate) fn step(
    cx: &mut Context<'_>,
    state: &mut State,
    may_ask: &mut bool,
    input: &[u8],
) -> Progress {
    if input[0] != REQUEST_MAGIC {
        *state = State::Refused;
        return Progress::used(0);
    }
    let Some((bytes, body)) = input.split_first_chunk::<HEADER_LEN>() else {
        return Progress::wait(Phase::Head);
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
        return Progress::wait(Phase::Body);
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
            return Progress::then(Next::Close);
        }
        _ => admin::run(cx, &header, may_ask, is_quiet, [extras, key, value]),
    }
    Progress::used(HEADER_LEN + header.body_len)
}

/// Replies with the error and closes: after an invalid header the next one cannot be located.
#[cold]
fn refuse(cx: &mut Context<'_>, state: &mut State, header: &Header, status: Status) -> Progress {
    reply_status(cx.out, header, status);
    *state = State::Refused;
    Progress::used(0)
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
    cx.observe_get(key, &found);
    let key_back = if with_key { key } else { b"" };
    match &found {
        Ok(item) => put_item(cx.out, header, key_back, item),
        Err(_) if is_quiet => {}
        // The key takes the place of an error's text.
        Err(_) if with_key => reply(cx.out, header, Status::NotFound, &[], key, &[], 0),
        Err(_) => reply_status(cx.out, header, Status::NotFound),
    }
}

/// Writes flags, the key if requested, and the value.
fn put_item(out: &mut Outbox, header: &Header, key: &[u8], item: &Item<'_>) {
    let len = item.len();
    let is_shared = len >= SHARED_LEN_MIN;
    let pieces = is_shared.then(|| item.shared()).flatten();
    if is_shared && pieces.is_none() {
        return reply_status(out, header, Status::NoMemory);
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
        Err(_) => reply_status(cx.out, header, Status::NotFound),
    }
}

fn delete(cx: &mut Context<'_>, header: &Header, key: &[u8], is_quiet: bool) {
    let rule = DeleteRule { cas: cas_of(header), ..DeleteRule::default() };
    cx.observe_delete(key);
    match cx.items.delete(key, rule) {
        Deleted::Deleted if is_quiet => {}
        Deleted::Deleted => reply_status(cx.out, header, Status::Done),
        Deleted::NotFound => reply_status(cx.out, header, Status::NotFound),
        Deleted::Exists => reply_status(cx.out, header, Status::Exists),
    }
}

/// Extras: the delta, the initial number, and the expiry time of a new item.
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
    let initial = u64_at(extras, 8);
    let exptime = u32_at(extras, 16);
    let counted = cx.items.count(key, by).and_then(|counted| match counted {
        Counted::NotFound if exptime != NO_INITIAL => begin_count(cx, key, by, initial, exptime),
        counted => Ok(counted),
    });
    match counted {
        Ok(Counted::Stored { .. }) if is_quiet => {}
        Ok(Counted::Stored { number, cas }) => {
            let number = number.to_be_bytes();
            reply(cx.out, header, Status::Done, &[], &[], &number, cas);
        }
        Ok(Counted::NotFound) => reply_status(cx.out, header, Status::NotFound),
        Ok(Counted::Exists) => reply_status(cx.out, header, Status::Exists),
        Ok(Counted::NotANumber) => reply_status(cx.out, header, Status::NotANumber),
        Err(error) => {
            cx.count_failed(error);
            reply_status(cx.out, header, status_of(error));
        }
    }
}

fn begin_count(
    cx: &mut Context<'_>,
    key: &[u8],
    by: Arithmetic,
    initial: u64,
    exptime: u32,
) -> Result<Counted, StoreError> {
    let exptime = cx.deadline(exptime.into());
    let mut buffer = [0; DECIMAL_LEN_MAX];
    let text = decimal(initial, &mut buffer);
    let rule = Rule::from(Mode::Add);
    Ok(match cx.items.store(key, text, 0, exptime, rule)? {
        StoreOutcome::Stored { cas } => Counted::Stored { number: initial, cas },
        // Another client created the item meanwhile: count it, as `ma` does.
        _ => cx.items.count(key, by)?,
    })
}
