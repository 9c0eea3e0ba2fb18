//! The classic text protocol of memcached's doc/protocol.txt. Where that is silent, memcached 1.6
//! is the model.

mod admin;
mod arithmetic;
pub(crate) mod retrieval;
mod stats;
pub(crate) mod storage;

use std::iter;

use session::{Next, Phase};

use crate::conversation::{Context, Progress, Retrieval, State};
use crate::meta;
use crate::number::{parse_exptime, parse_i32};
use crate::service::Auth;
use crate::service::counters::Count;
use crate::store::{DeleteRule, Deleted};
use crate::words::{BAD_EXPTIME, BAD_FORMAT, KEY_LEN_MAX, LINE_LEN_MAX, Tokens, without_cr};
use storage::Verb;

/// Longest accepted `user password`.
const PASSWORD_LEN_MAX: usize = 2048;

/// Length of the shortest line that may be a command, including its end; shorter lines get another
/// error.
const LINE_LEN_MIN: usize = 4;

const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
const STORED: &[u8] = b"STORED\r\n";
const BAD_PASSWORD_FORMAT: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";

/// Takes one command, if its line is complete. The most frequent commands are recognised by their
/// first bytes, so that a line of `get` need not be split into words.
#[inline]
pub(crate) fn step(cx: &mut Context<'_>, state: &mut State, input: &[u8]) -> Progress {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return unfinished(cx, state, input);
    };
    let line = without_cr(&input[..end]);
    let start = line.iter().take_while(|&&byte| byte == b' ').count();
    let line = &line[start..];
    let after = end + 1;
    if end > LINE_LEN_MAX {
        return long_line(cx, state, line, start, end);
    }
    match line {
        [b'g', b'e', b't', b' ', keys @ ..] => {
            retrieval::whole_line(cx, state, Retrieval::GET, keys, start + 4, end)
        }
        [b'm', b'g'] | [b'm', b'g', b' ', ..] => {
            meta::get::run(cx, &Tokens::split(line));
            Progress::used(after)
        }
        [b's', b'e', b't'] | [b's', b'e', b't', b' ', ..] => {
            storage::begin(cx, state, Verb::Set, &Tokens::split(line), input, after)
        }
        _ => dispatch(cx, state, &Tokens::split(line), start, input, end),
    }
}

/// Prefetches the items of the retrievals at the start of the input, before they are served one by
/// one. Returns the start of the last of their lines.
#[inline]
pub(crate) fn prefetch(cx: &Context<'_>, input: &[u8]) -> usize {
    let mut start = 0;
    let mut end = 0;
    let keys = iter::from_fn(|| {
        let (key, len) = next_retrieval(&input[end..])?;
        start = end;
        end += len;
        Some(key)
    });
    cx.items.prefetch(keys);
    start
}

/// The first key of a retrieval at the start of the input, and the length of its line. A line of
/// many keys is not scanned to its end here: `retrieval` does that.
#[inline]
fn next_retrieval(input: &[u8]) -> Option<(&[u8], usize)> {
    let key_at = match input {
        [b'g', b'e', b't', b' ', ..] => 4,
        [b'm', b'g', b' ', ..] => 3,
        _ => return None,
    };
    let near = &input[key_at..input.len().min(key_at + KEY_LEN_MAX + 2)];
    let len = memchr::memchr(b'\n', near)?;
    let words = without_cr(&near[..len]);
    let key_len = memchr::memchr(b' ', words).unwrap_or(words.len());
    Some((&words[..key_len], key_at + len + 1))
}

/// Handles a line whose end has not arrived.
#[cold]
fn unfinished(cx: &mut Context<'_>, state: &mut State, input: &[u8]) -> Progress {
    if input.len() <= LINE_LEN_MAX {
        return Progress::wait(Phase::Head);
    }
    let start = input.iter().take_while(|&&byte| byte == b' ').count();
    match Retrieval::of_line(&input[start..]) {
        Some(at) => retrieval::begin_long(cx, state, input, start + at),
        None => too_long(cx, state),
    }
}

/// Handles a complete line longer than the limit: a retrieval of many keys, or an error.
#[cold]
fn long_line(
    cx: &mut Context<'_>,
    state: &mut State,
    line: &[u8],
    start: usize,
    end: usize,
) -> Progress {
    match Retrieval::of_line(line) {
        Some(_) => retrieval::begin(cx, state, line, start, end),
        None => too_long(cx, state),
    }
}

#[cold]
fn too_long(cx: &mut Context<'_>, state: &mut State) -> Progress {
    cx.out.put(LINE_TOO_LONG);
    *state = State::Refused;
    Progress::used(0)
}

/// Handles all commands that [`step`] does not recognise by their first bytes.
fn dispatch(
    cx: &mut Context<'_>,
    state: &mut State,
    tokens: &Tokens<'_>,
    start: usize,
    input: &[u8],
    end: usize,
) -> Progress {
    let after = end + 1;
    if let Some(verb) = Verb::of(tokens.command()) {
        return storage::begin(cx, state, verb, tokens, input, after);
    }
    match tokens.command() {
        b"get" | b"gets" | b"gat" | b"gats" | b"bget" => {
            return retrieval::begin(cx, state, tokens.line(), start, end);
        }
        b"md" => meta::delete::run(cx, tokens),
        b"ma" => meta::arithmetic::run(cx, tokens),
        b"me" => meta::debug::run(cx, tokens),
        b"mn" => cx.out.put(b"MN\r\n"),
        b"incr" | b"decr" => arithmetic::run(cx, tokens),
        b"delete" => delete(cx, tokens),
        b"touch" => touch(cx, tokens),
        b"quit" => {
            *state = State::Closed;
            return Progress::then(Next::Close);
        }
        // The client took this for a web server: close the connection without a reply.
        _ if tokens.last().starts_with(b"HTTP/") => {
            *state = State::Closed;
            return Progress::then(Next::Close);
        }
        _ if after < LINE_LEN_MIN => cx.out.put(BAD_FORMAT),
        _ => admin::run(cx, state, tokens),
    }
    Progress::used(after)
}

/// Authenticates a client under `-Y`, which must first store `user password`.
pub(crate) fn authenticate(
    cx: &mut Context<'_>,
    state: &mut State,
    may_ask: &mut bool,
    input: &[u8],
) -> Progress {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() <= LINE_LEN_MAX {
            Progress::wait(Phase::Head)
        } else {
            cx.out.put(UNAUTHENTICATED);
            *state = State::Refused;
            Progress::used(0)
        };
    };
    let tokens = Tokens::split(without_cr(&input[..end]));
    let len = match tokens.parts() {
        [b"set", _, _, _, len, ..] => parse_i32(len),
        _ => None,
    };
    let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
        cx.out.put(UNAUTHENTICATED);
        return Progress::used(end + 1);
    };
    if len > PASSWORD_LEN_MAX {
        *state = storage::swallow(len + 2, BAD_PASSWORD_FORMAT);
        return Progress::used(end + 1);
    }
    let rest = &input[end + 1..];
    if rest.len() < len + 2 {
        return Progress::wait(Phase::Body);
    }
    let reply = log_in(cx, &rest[..len], &rest[len..len + 2]);
    *may_ask = reply == STORED;
    cx.out.put(reply);
    Progress::used(end + 1 + len + 2)
}

/// Checks a password. A refused client may try again: memcached does not close.
fn log_in(cx: &Context<'_>, password: &[u8], line_end: &[u8]) -> &'static [u8] {
    if line_end != b"\r\n" {
        return UNAUTHENTICATED;
    }
    cx.service.counters.add(Count::AuthCommands, 1);
    match &cx.service.settings.auth {
        Auth::Ascii(users) if users.knows_text(password) => return STORED,
        _ => cx.service.counters.add(Count::AuthErrors, 1),
    }
    if password.contains(&b' ') {
        b"CLIENT_ERROR authentication failure\r\n"
    } else {
        BAD_PASSWORD_FORMAT
    }
}

/// `delete <key> [noreply]`. Other words after the key are ignored: old clients send a time.
fn delete(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let [_, key, ..] = tokens.parts() else {
        return cx.out.put(BAD_FORMAT);
    };
    let reply: &[u8] = if key.len() > KEY_LEN_MAX {
        BAD_FORMAT
    } else {
        cx.observe_delete(key);
        let deletion = cx.watched_deletion(key);
        match cx.items.delete(key, DeleteRule::default()) {
            Deleted::Deleted => {
                cx.observe_deletion(key, "delete", deletion);
                b"DELETED\r\n"
            }
            Deleted::NotFound | Deleted::Exists => b"NOT_FOUND\r\n",
        }
    };
    cx.answer(reply, tokens.is_noreply());
}

/// `touch <key> <exptime> [noreply]`
fn touch(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let [_, key, exptime, ..] = tokens.parts() else {
        return cx.out.put(BAD_FORMAT);
    };
    let reply: &[u8] = match parse_exptime(exptime) {
        _ if key.len() > KEY_LEN_MAX => BAD_FORMAT,
        None => BAD_EXPTIME,
        Some(exptime) => match cx.items.touch(key, cx.deadline(exptime)) {
            Ok(()) => b"TOUCHED\r\n",
            Err(_) => b"NOT_FOUND\r\n",
        },
    };
    cx.answer(reply, tokens.is_noreply());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_retrieval_finds_the_key() {
        let check = |input: &str, expected| {
            let expected: Option<(&str, usize)> = expected;
            let expected = expected.map(|(key, len)| (key.as_bytes(), len));
            assert_eq!(next_retrieval(input.as_bytes()), expected, "{input:?}");
        };
        check("get apple\r\nget pear\r\n", Some(("apple", 11)));
        check("get apple\n", Some(("apple", 10)));
        check("get apple pear\r\n", Some(("apple", 16)));
        check("mg apple v t\r\n", Some(("apple", 14)));
        check("get apple\r", None);
        check("set apple 0 0 1\r\nx\r\n", None);
        check("", None);
        let longest = "k".repeat(KEY_LEN_MAX);
        check(&format!("get {longest}\r\n"), Some((&longest, 4 + KEY_LEN_MAX + 2)));
        check(&format!("get {longest}k\r\n"), None);
    }
}
