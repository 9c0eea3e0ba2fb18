//! Store requests: the value may arrive in pieces; a long one is received straight into its item.

use session::{Next, Phase};

use super::wire::{
    HEADER_LEN, Header, Kind, Status, cas_of, reply, reply_status, status_of, swallow, u32_at,
};
use crate::conversation::{Context, Pending, Progress, State, Storage};
use crate::store::{Mode, NEVER, Rule, StoreError, StoreOutcome};

/// Longer values are refused without asking the store.
const VALUE_LEN_MAX: usize = i32::MAX as usize;

/// A store request without its value.
struct StoreRequest<'a> {
    header: Header,
    storage: Storage<'a>,
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
    let cas = cas_of(header);
    let forgets = mode == Mode::Set;
    let (name, mode) = match (cas, mode) {
        // With a cas the item must exist, so add and replace are the same.
        (Some(_), Mode::Set | Mode::Add | Mode::Replace) => ("cas", Mode::Set),
        (None, Mode::Set) => ("set", mode),
        (None, Mode::Add) => ("add", mode),
        (None, Mode::Replace) => ("replace", mode),
        (_, Mode::Append) => ("append", mode),
        (_, Mode::Prepend) => ("prepend", mode),
    };
    let storage = Storage {
        key: &head[HEADER_LEN + header.extras_len..],
        flags,
        exptime,
        value_len: header.body_len - header.extras_len - header.key_len,
        rule: Rule { mode, cas, ..Rule::default() },
        forgets,
        name,
    };
    StoreRequest { header: *header, storage, is_quiet }
}

/// Begins to store, once header, extras and key have arrived.
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
    let Storage { key, value_len, flags, exptime, rule, .. } = wanted.storage;
    if let Some(value) = rest.get(..value_len) {
        let result = cx.items.store(key, value, flags, exptime, rule);
        finish_with(cx, &wanted, result);
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
            cx.store_failed(&wanted.storage, error);
            swallow(state, header, head_len, value_len, status_of(error))
        }
    }
}

/// Takes the next bytes of a value.
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
            let wanted = read_again(cx, &head);
            cx.store_failed(&wanted.storage, error);
            swallow(state, &wanted.header, 0, missing, status_of(error))
        }
    }
}

/// Finishes a store whose value is complete.
pub(crate) fn finish(cx: &mut Context<'_>, state: &mut State) {
    let State::Value(pending) = std::mem::replace(state, State::Command) else {
        unreachable!("finished outside of Value")
    };
    let Pending { head, reservation } = *pending;
    let wanted = read_again(cx, &head);
    let result = cx.items.commit(reservation, wanted.storage.rule);
    finish_with(cx, &wanted, result);
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
    result: Result<StoreOutcome, StoreError>,
) {
    let StoreRequest { header, storage, is_quiet } = wanted;
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) => {
            cx.store_failed(storage, error);
            let is_joined = cx.is_join_failed(storage);
            let status = if is_joined { Status::NotStored } else { status_of(error) };
            return reply_status(cx.out, header, status);
        }
    };
    cx.observe_store(storage, result);
    match (outcome, storage.rule.mode) {
        (StoreOutcome::Stored { .. }, _) if *is_quiet => {}
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
