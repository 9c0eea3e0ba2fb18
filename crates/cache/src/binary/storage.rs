//! Store requests: the value may come in pieces, and a long one is received straight into its item.

use session::{Next, Phase};

use super::wire::{
    HEADER_LEN, Header, Kind, Status, cas_of, reply, reply_status, status_of, swallow, u32_at,
};
use crate::conversation::observe::Stored;
use crate::conversation::{Context, Pending, Progress, State};
use crate::store::{Mode, NEVER, Rule, Seconds, StoreError, StoreOutcome};

/// Longer values are refused without asking the store.
const VALUE_LEN_MAX: usize = i32::MAX as usize;

/// A store request without its value.
struct StoreRequest<'a> {
    header: Header,
    key: &'a [u8],
    flags: u32,
    exptime: Seconds,
    rule: Rule,
    is_quiet: bool,
}

fn read<'a>(
    cx: &Context<'_>,
    header: &Header,
    mode: Mode,
    is_quiet: bool,
    head: &'a [u8],
) -> StoreRequest<'a> {
    let extras = &head[HEADER_LEN..HEADER_LEN + header.extras_len];
    let (flags, exptime) = match header.extras_len {
        8 => (u32_at(extras, 0), cx.deadline(u32_at(extras, 4).into())),
        _ => (0, NEVER),
    };
    StoreRequest {
        header: *header,
        key: &head[HEADER_LEN + header.extras_len..],
        flags,
        exptime,
        rule: Rule {
            // With a cas the item must exist, so add and replace are the same.
            mode: match (cas_of(header), mode) {
                (Some(_), Mode::Add | Mode::Replace) => Mode::Set,
                (_, mode) => mode,
            },
            cas: cas_of(header),
            ..Rule::default()
        },
        is_quiet,
    }
}

/// Begins to store, once header, extras and key are there.
pub(super) fn begin(
    cx: &mut Context<'_>,
    state: &mut State,
    header: &Header,
    mode: Mode,
    is_quiet: bool,
    input: &[u8],
) -> Progress {
    let head_len = HEADER_LEN + header.extras_len + header.key_len;
    let whole_len = HEADER_LEN + header.body_len;
    if input.len() < head_len {
        return Progress::wait(Phase::Head);
    }
    let (head, rest) = input.split_at(head_len);
    let wanted = read(cx, header, mode, is_quiet, head);
    let (key, flags, exptime) = (wanted.key, wanted.flags, wanted.exptime);
    let value_len = whole_len - head_len;
    if let Some(value) = rest.get(..value_len) {
        let result = cx.items.store(key, value, flags, exptime, wanted.rule);
        finish_with(cx, &wanted, value_len, result);
        return Progress::used(whole_len);
    }
    let reserved = match value_len {
        ..=VALUE_LEN_MAX => cx.items.reserve(key, value_len, flags, exptime),
        _ => Err(StoreError::TooLarge),
    };
    match reserved {
        Ok(reservation) => {
            *state = State::Value(Box::new(Pending { head: head.into(), reservation }));
            Progress::used(head_len)
        }
        Err(error) => {
            failed(cx, &wanted, value_len, error);
            swallow(state, header, head_len, value_len, status_of(error))
        }
    }
}

/// The next bytes of a value.
pub(crate) fn go_on(cx: &mut Context<'_>, state: &mut State, input: &[u8]) -> Progress {
    let State::Value(pending) = state else { unreachable!("called in Value") };
    let missing = pending.reservation.missing();
    match pending.reservation.fill(input) {
        Ok(used) if pending.reservation.is_full() => {
            finish(cx, state);
            Progress::used(used)
        }
        Ok(used) => Progress { used, next: Some(Next::Receive(Phase::Body)) },
        Err(error) => {
            let head = std::mem::take(&mut pending.head);
            let value_len = pending.reservation.value_len();
            let wanted = read_again(cx, &head);
            failed(cx, &wanted, value_len, error);
            swallow(state, &wanted.header, 0, missing, status_of(error))
        }
    }
}

/// The value is whole.
pub(crate) fn finish(cx: &mut Context<'_>, state: &mut State) {
    let State::Value(pending) = std::mem::replace(state, State::Command) else {
        unreachable!("finished outside of Value")
    };
    let Pending { head, reservation } = *pending;
    let value_len = reservation.value_len();
    let wanted = read_again(cx, &head);
    let result = cx.items.commit(reservation, wanted.rule);
    finish_with(cx, &wanted, value_len, result);
}

fn read_again<'a>(cx: &Context<'_>, head: &'a [u8]) -> StoreRequest<'a> {
    let bytes = head.first_chunk().expect("a header was kept");
    let header = Header::read(bytes);
    match header.kind() {
        (Kind::Store(mode), is_quiet) => read(cx, &header, mode, is_quiet, head),
        (other, _) => unreachable!("{other:?} was kept with a value"),
    }
}

fn finish_with(
    cx: &mut Context<'_>,
    wanted: &StoreRequest<'_>,
    value_len: usize,
    result: Result<StoreOutcome, StoreError>,
) {
    let header = &wanted.header;
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => {
            failed(cx, wanted, value_len, error);
            // The earlier value stays, and memcached's reply is "not stored".
            let is_joined = matches!(wanted.rule.mode, Mode::Append | Mode::Prepend);
            let status = if is_joined { Status::NotStored } else { status_of(error) };
            return reply_status(cx.out, header, status);
        }
    };
    observe(cx, wanted, value_len, result);
    match (outcome, wanted.rule.mode) {
        (StoreOutcome::Stored { .. }, _) if wanted.is_quiet => {}
        (StoreOutcome::Stored { cas }, _) => {
            reply(cx.out, header, Status::Done, &[], &[], &[], cas)
        }
        (StoreOutcome::NotStored, Mode::Add) => reply_status(cx.out, header, Status::Exists),
        (StoreOutcome::NotStored, Mode::Replace) => reply_status(cx.out, header, Status::NotFound),
        (StoreOutcome::NotStored, _) => reply_status(cx.out, header, Status::NotStored),
        (StoreOutcome::Exists, _) => reply_status(cx.out, header, Status::Exists),
        (StoreOutcome::NotFound, _) => reply_status(cx.out, header, Status::NotFound),
    }
}

/// Common part of all failures to store.
#[cold]
fn failed(cx: &mut Context<'_>, wanted: &StoreRequest<'_>, value_len: usize, error: StoreError) {
    cx.count_failed(error);
    if wanted.rule.mode == Mode::Set {
        cx.discard(wanted.key);
    }
    observe(cx, wanted, value_len, Err(error));
}

fn observe(
    cx: &Context<'_>,
    wanted: &StoreRequest<'_>,
    value_len: usize,
    result: Result<StoreOutcome, StoreError>,
) {
    cx.observe_store(&Stored {
        key: wanted.key,
        command: match (wanted.rule.cas, wanted.rule.mode) {
            (Some(_), Mode::Set) => "cas",
            (None, Mode::Set) => "set",
            (_, Mode::Add) => "add",
            (_, Mode::Replace) => "replace",
            (_, Mode::Append) => "append",
            (_, Mode::Prepend) => "prepend",
        },
        exptime: wanted.exptime,
        value_len,
        result,
    });
}
