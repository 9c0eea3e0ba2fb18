//! `set`, `add`, `replace`, `append`, `prepend`, `cas`, and `ms`: a line followed by a value.
//!
//! A value that is complete in the input is stored from there. For a longer one the item is
//! reserved at once, and the driver receives into it. A refused value is skipped, and the reply
//! then gives the reason.

use session::{Next, Phase};

use crate::conversation::{Bad, Context, Pending, Progress, State, Storage, Swallow};
use crate::meta;
use crate::number::{parse_exptime, parse_flags, parse_u64};
use crate::store::{Mode, Rule, StoreError, StoreOutcome};
use crate::words::{
    BAD_CHUNK, BAD_FORMAT, KEY_LEN_MAX, NO_MEMORY, TOO_LARGE, Tokens, parse_value_len,
};

/// A store command, and the style of its reply.
struct StoreCommand<'a> {
    storage: Storage<'a>,
    style: Style<'a>,
}

enum Style<'a> {
    Classic { is_quiet: bool },
    Meta(meta::set::Reply<'a>),
}

/// Store commands, by first word.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    /// `ms`, whose flags select one of the others.
    Meta,
}

impl Verb {
    pub(crate) fn of(word: &[u8]) -> Option<Verb> {
        Some(match word {
            b"set" => Verb::Set,
            b"add" => Verb::Add,
            b"replace" => Verb::Replace,
            b"append" => Verb::Append,
            b"prepend" => Verb::Prepend,
            b"cas" => Verb::Cas,
            b"ms" => Verb::Meta,
            _ => return None,
        })
    }
}

/// Begins a store command whose line ends before `after`.
#[inline]
pub(crate) fn begin(
    cx: &mut Context<'_>,
    state: &mut State,
    verb: Verb,
    tokens: &Tokens<'_>,
    input: &[u8],
    after: usize,
) -> Progress {
    let mut key_buffer = [0; KEY_LEN_MAX];
    match read(cx, verb, tokens, &mut key_buffer) {
        Ok(asked) => value(cx, state, &asked, tokens.line(), input, after),
        Err(Bad::Line(reply)) => {
            cx.answer(reply, false);
            Progress::used(after)
        }
        Err(Bad::Swallow(reply, len)) => {
            *state = swallow(len + 2, reply);
            Progress::used(after)
        }
    }
}

#[inline]
fn read<'a>(
    cx: &Context<'_>,
    verb: Verb,
    tokens: &Tokens<'a>,
    key_buffer: &'a mut [u8; KEY_LEN_MAX],
) -> Result<StoreCommand<'a>, Bad> {
    let (name, mode) = match verb {
        Verb::Set => ("set", Mode::Set),
        Verb::Add => ("add", Mode::Add),
        Verb::Replace => ("replace", Mode::Replace),
        Verb::Append => ("append", Mode::Append),
        Verb::Prepend => ("prepend", Mode::Prepend),
        Verb::Cas => ("cas", Mode::Set),
        Verb::Meta => {
            let (storage, reply) = meta::set::read(cx, tokens, key_buffer)?;
            let style = Style::Meta(reply);
            return Ok(StoreCommand { storage, style });
        }
    };
    // A line without the length of its value is answered even with `noreply`, as in memcached: the
    // value's bytes are then taken for commands.
    let [_, key, flags, exptime, len, rest @ ..] = tokens.parts() else {
        return Err(Bad::Line(BAD_FORMAT));
    };
    let value_len = parse_value_len(len).ok_or(Bad::Line(BAD_FORMAT))?;
    let is_quiet = tokens.is_noreply();
    // After any other mistake the value is skipped: it must not be parsed as commands.
    let bad = || Bad::Swallow(if is_quiet { b"" } else { BAD_FORMAT }, value_len);
    if key.len() > KEY_LEN_MAX {
        return Err(bad());
    }
    let flags = parse_flags(flags).ok_or_else(bad)?;
    let exptime = parse_exptime(exptime).ok_or_else(bad)?;
    let cas = match verb {
        Verb::Cas => {
            let word = rest.first().ok_or_else(bad)?;
            Some(parse_u64(word).ok_or_else(bad)?)
        }
        _ => None,
    };
    let storage = Storage {
        key,
        flags,
        exptime: cx.deadline(exptime),
        value_len,
        rule: Rule { mode, cas, ..Rule::default() },
        // Not a cas, which might not have been for this version of the item.
        forgets: matches!(verb, Verb::Set),
        name,
    };
    let style = Style::Classic { is_quiet };
    Ok(StoreCommand { storage, style })
}

/// Takes the value, or its first part.
#[inline]
fn value(
    cx: &mut Context<'_>,
    state: &mut State,
    asked: &StoreCommand<'_>,
    line: &[u8],
    input: &[u8],
    after: usize,
) -> Progress {
    let len = asked.storage.value_len;
    match input[after..].get(..len + 2) {
        Some([value @ .., b'\r', b'\n']) => {
            let Storage { key, flags, exptime, rule, .. } = asked.storage;
            let result = cx.items.store(key, value, flags, exptime, rule);
            reply(cx, asked, result);
            Progress::used(after + len + 2)
        }
        _ => begin_long(cx, state, asked, line, after),
    }
}

/// Handles a value that is incomplete, or does not end with CR LF.
#[cold]
fn begin_long(
    cx: &mut Context<'_>,
    state: &mut State,
    asked: &StoreCommand<'_>,
    line: &[u8],
    after: usize,
) -> Progress {
    let Storage { key, value_len, flags, exptime, .. } = asked.storage;
    *state = match cx.items.reserve(key, value_len, flags, exptime) {
        Ok(reservation) => State::Value(Box::new(Pending { head: line.into(), reservation })),
        Err(error) => refuse(cx, asked, error, value_len),
    };
    Progress::used(after)
}

/// Takes the next bytes of a value that is received into its item.
pub(crate) fn go_on(cx: &mut Context<'_>, state: &mut State, input: &[u8]) -> Progress {
    let State::Value(pending) = state else { unreachable!("called in Value") };
    let missing = pending.reservation.missing();
    let filled = match pending.reservation.fill(input) {
        Ok(filled) => filled,
        Err(error) => {
            let head = std::mem::take(&mut pending.head);
            return with_line(cx, &head, |cx, asked| {
                *state = refuse(cx, asked, error, missing);
                Progress::used(0)
            });
        }
    };
    if !pending.reservation.is_full() || input.len() < filled + 2 {
        return Progress { used: filled, next: Some(Next::Receive(Phase::Body)) };
    }
    let is_ended = &input[filled..filled + 2] == b"\r\n";
    let State::Value(pending) = std::mem::replace(state, State::Command) else {
        unreachable!("matched above")
    };
    let Pending { head, reservation } = *pending;
    with_line(cx, &head, |cx, asked| {
        if is_ended {
            let result = cx.items.commit(reservation, asked.storage.rule);
            reply(cx, asked, result);
        } else {
            let is_quiet = matches!(asked.style, Style::Classic { is_quiet: true });
            cx.answer(BAD_CHUNK, is_quiet);
        }
    });
    Progress::used(filled + 2)
}

/// Parses a kept line, which was valid, again.
fn with_line<T>(
    cx: &mut Context<'_>,
    line: &[u8],
    then: impl FnOnce(&mut Context<'_>, &StoreCommand<'_>) -> T,
) -> T {
    let mut key_buffer = [0; KEY_LEN_MAX];
    let tokens = Tokens::split(line);
    let verb = Verb::of(tokens.command()).expect("a store command was kept");
    match read(cx, verb, &tokens, &mut key_buffer) {
        Ok(asked) => then(cx, &asked),
        Err(_) => unreachable!("{:?} was valid before", line.escape_ascii().to_string()),
    }
}

/// The error for an item that could not be stored, sent once its `missing` bytes have been skipped.
#[cold]
fn refuse(
    cx: &mut Context<'_>,
    asked: &StoreCommand<'_>,
    error: StoreError,
    missing: usize,
) -> State {
    cx.store_failed(&asked.storage, error);
    let is_quiet = matches!(asked.style, Style::Classic { is_quiet: true });
    swallow(missing + 2, if is_quiet { b"" } else { words(error) })
}

pub(crate) fn swallow(len: usize, reply: &[u8]) -> State {
    State::Swallow(Box::new(Swallow { left: len as u64, reply: reply.into() }))
}

pub(super) fn words(error: StoreError) -> &'static [u8] {
    match error {
        StoreError::TooLarge => TOO_LARGE,
        StoreError::OutOfMemory => NO_MEMORY,
    }
}

/// Appends the reply for this outcome.
#[inline]
fn reply(cx: &mut Context<'_>, asked: &StoreCommand<'_>, result: Result<StoreOutcome, StoreError>) {
    match result {
        Ok(outcome) => {
            cx.observe_store(&asked.storage, result);
            match &asked.style {
                Style::Meta(reply) => meta::set::reply(cx, &asked.storage, reply, outcome),
                Style::Classic { is_quiet: true } => {}
                Style::Classic { is_quiet: false } => cx.out.put(match outcome {
                    StoreOutcome::Stored { .. } => b"STORED\r\n",
                    StoreOutcome::NotStored => b"NOT_STORED\r\n",
                    StoreOutcome::Exists => b"EXISTS\r\n",
                    StoreOutcome::NotFound => b"NOT_FOUND\r\n",
                }),
            }
        }
        Err(error) => reply_failed(cx, asked, error),
    }
}

#[cold]
fn reply_failed(cx: &mut Context<'_>, asked: &StoreCommand<'_>, error: StoreError) {
    cx.store_failed(&asked.storage, error);
    let is_joined = cx.is_join_failed(&asked.storage);
    match &asked.style {
        Style::Classic { is_quiet: true } => {}
        Style::Classic { .. } if is_joined => cx.out.put(b"NOT_STORED\r\n"),
        Style::Meta(reply) if is_joined => {
            meta::set::reply(cx, &asked.storage, reply, StoreOutcome::NotStored);
        }
        _ => cx.out.put(words(error)),
    }
}
