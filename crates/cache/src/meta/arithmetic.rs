//! `ma`: counts up and down; creates a missing item on request.

use super::{
    BAD_FLAG, Flags, WORDS_MAX, key, push_echo, push_flag, push_ttl, reply_code, words_of,
};
use crate::conversation::Context;
use crate::number::{DECIMAL_LEN_MAX, decimal, push_decimal};
use crate::service::counters::Count;
use crate::store::{
    Arithmetic, Counted, Direction, Mode, NEVER, Rule, Seconds, StoreError, StoreOutcome,
};
use crate::words::{KEY_LEN_MAX, NOT_A_NUMBER, Tokens};

/// `ma <key> <flags>*`
pub(crate) fn run(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    // memcached has one error here for all mistakes in the words.
    if let [_, key, ..] = tokens.parts()
        && (key.len() > KEY_LEN_MAX || tokens.parts().len() > WORDS_MAX)
    {
        cx.service.counters.add(Count::Meta, 1);
        return cx.out.put(BAD_FLAG);
    }
    let Some((key_word, words)) = words_of(cx, tokens) else {
        return;
    };
    let mut buffer = [0; KEY_LEN_MAX];
    let Ok((flags, key)) =
        Flags::read(words, cx).and_then(|flags| Ok((flags, key(key_word, &flags, &mut buffer)?)))
    else {
        return cx.out.put(BAD_FLAG);
    };
    let direction = match flags.mode {
        None | Some(b'I' | b'+') => Direction::Up,
        Some(b'D' | b'-') => Direction::Down,
        Some(_) => return cx.out.put(b"CLIENT_ERROR invalid mode for ma M token\r\n"),
    };
    if let Err(reply) = flags.check_opaque() {
        return cx.out.put(reply);
    }
    // `t` before `T` returns the previous time.
    let old_exptime =
        if flags.has(b't') { cx.items.peek(key).map(|item| item.exptime()) } else { None };
    match count(cx, key, words, &flags, direction) {
        Ok((Counted::Stored { number, cas }, has_begun)) => {
            if !flags.has(b'q') {
                let exptime = old_exptime.filter(|_| !has_begun).unwrap_or(NEVER);
                let new = NewNumber { number, cas, has_begun, exptime };
                reply(cx, key_word, words, &flags, &new);
            }
        }
        Ok((Counted::NotFound, _)) => reply_code(cx, b"NF", words, key_word, &flags),
        Ok((Counted::Exists, _)) => reply_code(cx, b"EX", words, key_word, &flags),
        Ok((Counted::NotANumber, _)) => cx.out.put(NOT_A_NUMBER),
        Err(error) => {
            cx.count_failed(error);
            cx.out.put(b"SERVER_ERROR out of memory\r\n");
        }
    }
}

/// Counts. Also returns whether the item was created.
fn count(
    cx: &mut Context<'_>,
    key: &[u8],
    words: &[&[u8]],
    flags: &Flags,
    direction: Direction,
) -> Result<(Counted, bool), StoreError> {
    let by = Arithmetic {
        direction,
        delta: flags.delta,
        // As in the binary protocol, 0 means no cas.
        cas: flags.cas.filter(|&cas| cas != 0),
        new_cas: flags.new_cas,
        exptime: flags.exptime,
    };
    match (cx.items.count(key, by)?, flags.vivify) {
        (Counted::NotFound, Some(_)) => begin(cx, key, words, flags, by),
        (counted, _) => Ok((counted, false)),
    }
}

/// Creates the item. The initial number is not changed by the delta.
fn begin(
    cx: &mut Context<'_>,
    key: &[u8],
    words: &[&[u8]],
    flags: &Flags,
    by: Arithmetic,
) -> Result<(Counted, bool), StoreError> {
    let rule = Rule { mode: Mode::Add, new_cas: flags.new_cas, ..Rule::default() };
    let mut buffer = [0; DECIMAL_LEN_MAX];
    let text = decimal(flags.initial, &mut buffer);
    let exptime = flags.new_exptime(words);
    match cx.items.store(key, text, 0, exptime, rule)? {
        StoreOutcome::Stored { cas } => {
            let number = flags.initial;
            Ok((Counted::Stored { number, cas }, true))
        }
        // Another client created the item meanwhile.
        _ => Ok((cx.items.count(key, by)?, false)),
    }
}

/// Result of counting, for the reply.
struct NewNumber {
    number: u64,
    cas: u64,
    has_begun: bool,
    /// Expiry time before the flags changed it.
    exptime: Seconds,
}

fn reply(cx: &mut Context<'_>, key_word: &[u8], words: &[&[u8]], flags: &Flags, new: &NewNumber) {
    let mut exptime = new.exptime;
    let mut buffer = [0; DECIMAL_LEN_MAX];
    let text = decimal(new.number, &mut buffer);
    let has_value = flags.has(b'v');
    cx.out.put_with(|to| {
        if has_value {
            to.extend_from_slice(b"VA ");
            push_decimal(text.len() as u64, to);
        } else {
            to.extend_from_slice(b"HD");
        }
        for word in words {
            exptime = flags.given_exptime(word[0], new.has_begun).unwrap_or(exptime);
            match word[0] {
                b'c' => push_flag(b'c', new.cas, to),
                b't' => push_ttl(exptime, cx.seconds, to),
                _ => push_echo(word, key_word, flags, to),
            }
        }
        to.extend_from_slice(b"\r\n");
        if has_value {
            to.extend_from_slice(text);
            to.extend_from_slice(b"\r\n");
        }
    });
}
