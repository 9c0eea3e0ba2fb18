//! The classic text protocol. memcached's doc/protocol.txt; where that is silent, what memcached 1.6 does.

pub(crate) mod admin;
pub(crate) mod arithmetic;
pub(crate) mod retrieval;
pub(crate) mod storage;

use session::{Next, Phase};

use crate::counters::Count;
use crate::meta;
use crate::number::{parse_exptime, parse_i32, push_decimal};
use crate::service::Access;
use crate::session::{Context, State, Step};
use retrieval::Retrieval;

/// The longest key, in bytes; protocol.txt, "Keys".
pub(crate) const KEY_LEN_MAX: usize = 250;

/// The longest command line; only retrievals of many keys may be longer. memcached holds 2 KiB to 16 KiB,
/// depending on how the line arrives; ours must not depend on that.
pub(crate) const LINE_LEN_MAX: usize = 8192;

/// The longest `user password` that is read.
const PASSWORD_LEN_MAX: usize = 2048;

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
const STORED: &[u8] = b"STORED\r\n";
const BAD_PASSWORD_FORMAT: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";

/// Takes one command, if its line is whole.
#[inline]
pub(crate) fn step(cx: &mut Context<'_>, state: &mut State, input: &[u8]) -> Step {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return unfinished(cx, state, input);
    };
    let line = without_cr(&input[..end]);
    let start = line.iter().take_while(|&&byte| byte == b' ').count();
    let line = &line[start..];
    match line {
        [b'g', b'e', b't', b' ', keys @ ..] => {
            let at = start + 4;
            return retrieval::whole_line(cx, state, Retrieval::GET, keys, at, end);
        }
        [b'm', b'g', b' ', ..] if end <= LINE_LEN_MAX => {
            meta::get::run(cx, &Tokens::split(line));
            return Step::used(end + 1);
        }
        [b's', b'e', b't', b' ', ..] if end <= LINE_LEN_MAX => {
            return storage::begin(cx, state, line, input, end + 1);
        }
        _ => {}
    }
    if end > LINE_LEN_MAX && Retrieval::of_line(line).is_none() {
        return too_long(cx, state);
    }
    dispatch(cx, state, line, start, input, end)
}

/// The line without the carriage return at its end. As in memcached, one that stands alone stays.
#[inline]
fn without_cr(line: &[u8]) -> &[u8] {
    match line {
        [head @ .., b'\r'] if !head.is_empty() => head,
        _ => line,
    }
}

/// A line whose end has not come.
#[cold]
fn unfinished(cx: &mut Context<'_>, state: &mut State, input: &[u8]) -> Step {
    if input.len() <= LINE_LEN_MAX {
        return Step::wait(Phase::Head);
    }
    let start = input.iter().take_while(|&&byte| byte == b' ').count();
    match Retrieval::of_line(&input[start..]) {
        Some(at) => retrieval::begin_long(cx, state, input, start + at),
        None => too_long(cx, state),
    }
}

#[cold]
fn too_long(cx: &mut Context<'_>, state: &mut State) -> Step {
    cx.out.put(LINE_TOO_LONG);
    *state = State::Refused;
    Step::used(0)
}

/// All commands but the most frequent.
fn dispatch(
    cx: &mut Context<'_>,
    state: &mut State,
    line: &[u8],
    start: usize,
    input: &[u8],
    end: usize,
) -> Step {
    let tokens = Tokens::split(line);
    let after = end + 1;
    match tokens.command() {
        b"get" | b"gets" | b"gat" | b"gats" | b"bget" => {
            return retrieval::begin(cx, state, line, start, end);
        }
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"ms" => {
            return storage::begin(cx, state, line, input, after);
        }
        b"mg" => meta::get::run(cx, &tokens),
        b"md" => meta::delete::run(cx, &tokens),
        b"ma" => meta::arithmetic::run(cx, &tokens),
        b"me" => meta::debug::run(cx, &tokens),
        b"mn" => cx.out.put(b"MN\r\n"),
        b"incr" | b"decr" => arithmetic::run(cx, &tokens),
        b"delete" => delete(cx, &tokens),
        b"touch" => touch(cx, &tokens),
        b"quit" => {
            *state = State::Closed;
            return Step::then(Next::Close);
        }
        // Somebody took us for a web server: not a word more.
        _ if tokens.last().starts_with(b"HTTP/") => {
            *state = State::Closed;
            return Step::then(Next::Close);
        }
        _ => admin::run(cx, state, &tokens),
    }
    Step::used(after)
}

/// Before anything else, a client behind `-Y` stores `user password`.
pub(crate) fn authenticate(
    cx: &mut Context<'_>,
    state: &mut State,
    may_ask: &mut bool,
    input: &[u8],
) -> Step {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return match input.len() <= LINE_LEN_MAX {
            true => Step::wait(Phase::Head),
            false => {
                cx.out.put(UNAUTHENTICATED);
                *state = State::Refused;
                Step::used(0)
            }
        };
    };
    let tokens = Tokens::split(without_cr(&input[..end]));
    let len = match tokens.parts() {
        [b"set", _, _, _, len, ..] => parse_i32(len),
        _ => None,
    };
    let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
        cx.out.put(UNAUTHENTICATED);
        return Step::used(end + 1);
    };
    if len > PASSWORD_LEN_MAX {
        *state = storage::swallow(len + 2, BAD_PASSWORD_FORMAT);
        return Step::used(end + 1);
    }
    let rest = &input[end + 1..];
    if rest.len() < len + 2 {
        return Step::wait(Phase::Body);
    }
    let reply = log_in(cx, &rest[..len], &rest[len..len + 2]);
    *may_ask = reply == STORED;
    cx.out.put(reply);
    Step::used(end + 1 + len + 2)
}

/// A refused client may try again: memcached does not close.
fn log_in(cx: &Context<'_>, password: &[u8], line_end: &[u8]) -> &'static [u8] {
    if line_end != b"\r\n" {
        return UNAUTHENTICATED;
    }
    cx.service.counters.add(Count::AuthCommands, 1);
    match &cx.service.settings.access {
        Access::Ascii(users) if users.knows_text(password) => return STORED,
        _ => cx.service.counters.add(Count::AuthErrors, 1),
    }
    match password.contains(&b' ') {
        true => b"CLIENT_ERROR authentication failure\r\n",
        false => BAD_PASSWORD_FORMAT,
    }
}

/// `delete <key> [0] [noreply]`
fn delete(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    const USAGE: &[u8] =
        b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
    use crate::store::{DeleteRule, Deleted};
    let is_quiet = tokens.is_noreply();
    let reply: &[u8] = match tokens.parts() {
        [_, key] | [_, key, b"0" | b"noreply"] | [_, key, b"0", b"noreply"] => {
            if key.len() > KEY_LEN_MAX {
                BAD_FORMAT
            } else {
                cx.saw_delete(key);
                match cx.items.delete(key, DeleteRule::default()) {
                    Deleted::Deleted => b"DELETED\r\n",
                    Deleted::NotFound | Deleted::Exists => b"NOT_FOUND\r\n",
                }
            }
        }
        [_, _, _] | [_, _, _, _] => USAGE,
        _ => return cx.out.put(ERROR),
    };
    answer(cx, reply, is_quiet);
}

/// `touch <key> <exptime> [noreply]`
fn touch(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let (key, exptime) = match tokens.parts() {
        [_, key, exptime] | [_, key, exptime, _] => (key, exptime),
        _ => return cx.out.put(ERROR),
    };
    let reply: &[u8] = match parse_exptime(exptime) {
        _ if key.len() > KEY_LEN_MAX => BAD_FORMAT,
        None => BAD_EXPTIME,
        Some(exptime) => match cx.items.touch(key, cx.deadline(exptime)) {
            Ok(()) => b"TOUCHED\r\n",
            Err(_) => b"NOT_FOUND\r\n",
        },
    };
    answer(cx, reply, tokens.is_noreply());
}

/// Says a line, unless the client asked for none.
#[inline]
pub(crate) fn answer(cx: &mut Context<'_>, reply: &[u8], is_quiet: bool) {
    if !is_quiet {
        cx.out.put(reply);
    }
}

/// The words of a line. As in memcached, the 24th and what follows are not looked at.
pub(crate) struct Tokens<'a> {
    line: &'a [u8],
    parts: [&'a [u8]; TOKENS_MAX],
    count: usize,
}

/// How many words of a line are looked at.
const TOKENS_MAX: usize = 23;

impl<'a> Tokens<'a> {
    #[inline]
    pub(crate) fn split(line: &'a [u8]) -> Tokens<'a> {
        let mut tokens = Tokens {
            line,
            parts: [&[]; TOKENS_MAX],
            count: 0,
        };
        let mut start = 0;
        for (at, &byte) in line.iter().enumerate() {
            if byte == b' ' {
                if at > start {
                    tokens.push(&line[start..at]);
                    if tokens.count == TOKENS_MAX {
                        return tokens;
                    }
                }
                start = at + 1;
            }
        }
        if start < line.len() {
            tokens.push(&line[start..]);
        }
        tokens
    }

    #[inline]
    fn push(&mut self, token: &'a [u8]) {
        self.parts[self.count] = token;
        self.count += 1;
    }

    /// The first word; empty for an empty line.
    #[inline]
    pub(crate) fn command(&self) -> &'a [u8] {
        self.parts[0]
    }

    /// All words, the command's name first.
    #[inline]
    pub(crate) fn parts(&self) -> &[&'a [u8]] {
        &self.parts[..self.count]
    }

    /// What stands behind the first `count` words.
    pub(crate) fn after(&self, count: usize) -> &'a [u8] {
        let mut rest = self.line;
        for _ in 0..count {
            let start = rest.iter().position(|&byte| byte != b' ');
            rest = &rest[start.unwrap_or(rest.len())..];
            let len = memchr::memchr(b' ', rest);
            rest = &rest[len.unwrap_or(rest.len())..];
        }
        rest
    }

    fn last(&self) -> &'a [u8] {
        self.parts().last().copied().unwrap_or_default()
    }

    /// Whether the client wants no reply.
    pub(crate) fn is_noreply(&self) -> bool {
        self.last() == b"noreply"
    }
}

/// Says a number on a line of its own.
pub(crate) fn answer_number(cx: &mut Context<'_>, number: u64) {
    cx.out.put_with(|to| {
        push_decimal(number, to);
        to.extend_from_slice(b"\r\n");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_at_any_number_of_spaces() {
        let tokens = Tokens::split(b"set  a 0  0 1 noreply ");
        let expected: [&[u8]; 6] = [b"set", b"a", b"0", b"0", b"1", b"noreply"];
        assert_eq!(tokens.parts(), expected);
        assert!(tokens.is_noreply());
        assert_eq!(tokens.after(3), b"  0 1 noreply ");
        assert_eq!(Tokens::split(b"").command(), b"");
    }

    #[test]
    fn the_24th_word_is_not_looked_at() {
        let line = b"x ".repeat(30);
        assert_eq!(Tokens::split(&line).parts().len(), TOKENS_MAX);
    }
}
