//! `get`, `gets`, `gat`, `gats`: any number of keys in bounded memory. When the outbox fills up
//! within a line, the rest of the line stays with the driver, and the conversation is in
//! [`State::Keys`].

use std::iter;

use session::{Next, Outbox, Phase};

use crate::conversation::{Context, Progress, Retrieval, State};
use crate::number::{parse_exptime, push_decimal};
use crate::store::{Item, PREFETCHED_MAX};
use crate::words::{
    BAD_EXPTIME, BAD_FORMAT, KEY_LEN_MAX, LINE_LEN_MAX, SHARED_LEN_MIN, TOO_MANY_READERS,
    without_cr,
};

impl Retrieval {
    pub(crate) const GET: Retrieval = Retrieval { with_cas: false, exptime: None };

    /// Offset of the words after the command, if the line begins with a retrieval command and a
    /// space.
    pub(crate) fn of_line(line: &[u8]) -> Option<usize> {
        let names: [&[u8]; 5] = [b"get ", b"gets ", b"gat ", b"gats ", b"bget "];
        names.into_iter().find(|name| line.starts_with(name)).map(<[u8]>::len)
    }
}

/// Handles a complete line whose first word is a retrieval command. `line` begins at `start` of the
/// input and ends before `end`.
pub(crate) fn begin(
    cx: &mut Context<'_>,
    state: &mut State,
    line: &[u8],
    start: usize,
    end: usize,
) -> Progress {
    match head(cx, line) {
        Ok((retrieval, at)) => whole_line(cx, state, retrieval, &line[at..], start + at, end),
        Err(reply) => {
            cx.out.put(reply);
            Progress::used(end + 1)
        }
    }
}

/// Handles a line too long to wait for its end. The words after the command begin at `at`.
#[cold]
pub(crate) fn begin_long(
    cx: &mut Context<'_>,
    state: &mut State,
    input: &[u8],
    at: usize,
) -> Progress {
    let start = input.iter().take_while(|&&byte| byte == b' ').count();
    match head(cx, &input[start..]) {
        Ok((retrieval, keys_at)) => {
            *state = State::Keys(retrieval);
            Progress::used(start + keys_at.max(at - start))
        }
        Err(reply) => {
            cx.out.put(reply);
            *state = State::SkipLine;
            Progress::used(at)
        }
    }
}

/// Parses the command and, for `gat`, the expiry time; returns the start of the keys.
fn head(cx: &Context<'_>, line: &[u8]) -> Result<(Retrieval, usize), &'static [u8]> {
    let (name, mut at) = word(line, 0).ok_or(BAD_FORMAT)?;
    // At least one more word is needed: a key, or the expiry time.
    let (first, after_first) = word(line, at).ok_or(BAD_FORMAT)?;
    let mut retrieval = Retrieval { with_cas: name.ends_with(b"s"), exptime: None };
    if name.starts_with(b"ga") {
        // A key must follow.
        word(line, after_first).ok_or(BAD_FORMAT)?;
        let exptime = parse_exptime(first).ok_or(BAD_EXPTIME)?;
        retrieval.exptime = Some(cx.deadline(exptime));
        at = after_first;
    }
    Ok((retrieval, at))
}

/// The next word from `at` on, and its end.
fn word(line: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let start = at + line[at..].iter().position(|&byte| byte != b' ')?;
    let len = memchr::memchr(b' ', &line[start..]).unwrap_or(line.len() - start);
    Some((&line[start..start + len], start + len))
}

/// Answers all keys of a complete line. They begin at `at` of the input; the line ends at `end`.
#[inline]
pub(crate) fn whole_line(
    cx: &mut Context<'_>,
    state: &mut State,
    retrieval: Retrieval,
    keys: &[u8],
    at: usize,
    end: usize,
) -> Progress {
    if keys.iter().all(|&byte| byte == b' ') {
        cx.out.put(BAD_FORMAT);
        return Progress::used(end + 1);
    }
    // memcached checks all keys before it replies. This function does so too, for lines short
    // enough for memcached.
    let is_long = keys.len() > KEY_LEN_MAX && end <= LINE_LEN_MAX;
    if is_long && keys.split(|&byte| byte == b' ').any(|key| key.len() > KEY_LEN_MAX) {
        cx.out.put(BAD_FORMAT);
        return Progress::used(end + 1);
    }
    match run(cx, retrieval, keys) {
        Ran::All => {
            cx.out.put(b"END\r\n");
            *state = State::Command;
            Progress::used(end + 1)
        }
        Ran::Full(len) => {
            *state = State::Keys(retrieval);
            Progress { used: at + len, next: Some(Next::Flush) }
        }
        Ran::Refused(why) => {
            cx.out.put(why);
            *state = State::Command;
            Progress::used(end + 1)
        }
    }
}

/// Continues a line whose first keys were answered.
pub(crate) fn go_on(
    cx: &mut Context<'_>,
    state: &mut State,
    retrieval: Retrieval,
    input: &[u8],
) -> Progress {
    if let Some(end) = memchr::memchr(b'\n', input) {
        let keys = match &input[..end] {
            b"\r" => &[],
            line => without_cr(line),
        };
        return rest_of_line(cx, state, retrieval, keys, end);
    }
    // Keys whose end has arrived.
    let whole = memchr::memrchr(b' ', input).map_or(0, |at| at + 1);
    match run(cx, retrieval, &input[..whole]) {
        Ran::Full(len) => Progress { used: len, next: Some(Next::Flush) },
        // A carriage return may follow the longest key.
        Ran::All if input.len() - whole <= KEY_LEN_MAX + 1 => {
            Progress { used: whole, next: Some(Next::Receive(Phase::Head)) }
        }
        ran @ (Ran::All | Ran::Refused(_)) => {
            cx.out.put(match ran {
                Ran::Refused(why) => why,
                _ => BAD_FORMAT,
            });
            *state = State::SkipLine;
            Progress::used(0)
        }
    }
}

fn rest_of_line(
    cx: &mut Context<'_>,
    state: &mut State,
    retrieval: Retrieval,
    keys: &[u8],
    end: usize,
) -> Progress {
    match run(cx, retrieval, keys) {
        Ran::Full(len) => {
            return Progress { used: len, next: Some(Next::Flush) };
        }
        Ran::All => cx.out.put(b"END\r\n"),
        Ran::Refused(why) => cx.out.put(why),
    }
    *state = State::Command;
    Progress::used(end + 1)
}

/// Result of answering keys of a line.
enum Ran {
    All,
    /// The outbox is full; this much of the line was used.
    Full(usize),
    /// The rest of the line is refused with this error.
    Refused(&'static [u8]),
}

/// Answers keys until the outbox is full.
#[inline]
fn run(cx: &mut Context<'_>, retrieval: Retrieval, keys: &[u8]) -> Ran {
    let mut at = 0;
    let mut count = 0;
    while at < keys.len() {
        if keys[at] == b' ' {
            at += 1;
            continue;
        }
        if count > 0 && (count - 1) % PREFETCHED_MAX == 0 {
            prefetch(cx, &keys[at..]);
        }
        count += 1;
        if cx.out.is_full() {
            return Ran::Full(at);
        }
        let rest = &keys[at..];
        let len = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        if len > KEY_LEN_MAX {
            return Ran::Refused(BAD_FORMAT);
        }
        if !one(cx, retrieval, &rest[..len]) {
            return Ran::Refused(TOO_MANY_READERS);
        }
        at += len;
    }
    Ran::All
}

/// Prefetches the items of the next keys.
fn prefetch(cx: &Context<'_>, keys: &[u8]) {
    let mut ends = memchr::memchr_iter(b' ', keys);
    let mut start = 0;
    let keys = iter::from_fn(|| {
        let end = ends.next()?;
        let key = &keys[start..end];
        start = end + 1;
        Some(key)
    });
    cx.items.prefetch(keys);
}

/// False if the item exists but must not be sent.
#[inline]
fn one(cx: &mut Context<'_>, retrieval: Retrieval, key: &[u8]) -> bool {
    let found = match retrieval.exptime {
        None => cx.items.get(key),
        Some(exptime) => cx.items.get_and_touch(key, exptime),
    };
    cx.observe_get(key, &found);
    match &found {
        Ok(item) => put_value(cx.out, key, item, retrieval.with_cas),
        Err(_) => true,
    }
}

/// Writes `VALUE <key> <flags> <bytes> [<cas>]` and the value. False, with nothing written, if too
/// many replies are sending the item.
#[inline]
fn put_value(out: &mut Outbox, key: &[u8], item: &Item<'_>, with_cas: bool) -> bool {
    /// Longest sum of the words and numbers of the line.
    const HEAD_LEN_MAX: usize = 80;
    let len = item.len();
    let is_shared = len >= SHARED_LEN_MIN;
    let pieces = is_shared.then(|| item.shared()).flatten();
    if is_shared && pieces.is_none() {
        return false;
    }
    out.put_with(|to| {
        to.reserve(HEAD_LEN_MAX + key.len() + if is_shared { 0 } else { len });
        to.extend_from_slice(b"VALUE ");
        to.extend_from_slice(key);
        to.push(b' ');
        push_decimal(item.flags().into(), to);
        to.push(b' ');
        push_decimal(len as u64, to);
        if with_cas {
            to.push(b' ');
            push_decimal(item.cas(), to);
        }
        to.extend_from_slice(b"\r\n");
        if !is_shared {
            item.slices().for_each(|slice| to.extend_from_slice(slice));
            to.extend_from_slice(b"\r\n");
        }
    });
    if let Some(pieces) = pieces {
        pieces.for_each(|piece| out.put_shared(piece));
        out.put(b"\r\n");
    }
    true
}
