//! `mg`: an item's value and metadata. It also protects the database from stampedes: of all clients
//! that miss, or find a stale item, one *wins* (`W`) and should store a new value; the others are
//! told that another client has won (`Z`).

use super::{Flags, idle_s, key, push_echo, push_flag, push_ttl, reply_code, words_of};
use crate::conversation::Context;
use crate::number::push_decimal;
use crate::service::Service;
use crate::service::counters::Count;
use crate::store::{Guard, Item, Miss, Mode, NEVER, Rule, Seconds, StoreOutcome};
use crate::words::{KEY_LEN_MAX, SHARED_LEN_MIN, TOO_MANY_READERS, Tokens};

/// `mg <key> <flags>*`
#[inline]
pub(crate) fn run(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let Some((key_word, words)) = words_of(cx, tokens) else {
        return;
    };
    let mut buffer = [0; KEY_LEN_MAX];
    let read = Flags::read(words, cx).and_then(|flags| {
        flags.check_opaque()?;
        Ok((flags, key(key_word, &flags, &mut buffer)?))
    });
    match read {
        Ok((flags, key)) => find(cx, key, key_word, words, &flags),
        Err(reply) => cx.out.put(reply),
    }
}

#[inline]
fn find(cx: &mut Context<'_>, key: &[u8], key_word: &[u8], words: &[&[u8]], flags: &Flags) {
    let asked = GetCommand {
        key_word,
        words,
        flags,
        // `t` before `T` returns the previous time.
        old_exptime: flags.exptime.and_then(|_| cx.items.peek(key).map(|item| item.exptime())),
    };
    let found = lookup(&cx.items, cx.service, key, flags);
    cx.observe_get(key, &found);
    match (&found, flags.vivify) {
        (Ok(item), _) => hit(cx.out, item, &asked, cx.seconds, false),
        (Err(_), Some(_)) => vivify(cx, key, &asked),
        (Err(_), None) => miss(cx, &asked),
    }
}

/// The request.
struct GetCommand<'a> {
    key_word: &'a [u8],
    words: &'a [&'a [u8]],
    flags: &'a Flags,
    old_exptime: Option<Seconds>,
}

#[inline]
fn lookup<'i>(
    items: &'i Guard<'_>,
    service: &Service,
    key: &[u8],
    flags: &Flags,
) -> Result<Item<'i>, Miss> {
    if flags.has(b'u') {
        let found = match flags.exptime {
            None => items.peek(key),
            Some(exptime) => items.peek_and_touch(key, exptime),
        };
        let found = found.ok_or(Miss::NotFound);
        let count = match found {
            Ok(_) => Count::PeekHits,
            Err(_) => Count::PeekMisses,
        };
        service.counters.add(count, 1);
        return found;
    }
    match flags.exptime {
        None => items.get(key),
        Some(exptime) => items.get_and_touch(key, exptime),
    }
}

fn miss(cx: &mut Context<'_>, asked: &GetCommand<'_>) {
    if !asked.flags.has(b'q') {
        reply_code(cx, b"EN", asked.words, asked.key_word, asked.flags);
    }
}

/// Creates an empty item; the client that creates it wins.
#[cold]
fn vivify(cx: &mut Context<'_>, key: &[u8], asked: &GetCommand<'_>) {
    let exptime = asked.flags.new_exptime(asked.words);
    let rule =
        Rule { mode: Mode::Add, new_cas: asked.flags.new_cas, win_taken: true, ..Rule::default() };
    let stored = cx.items.store(key, b"", 0, exptime, rule);
    let is_ours = match stored {
        Ok(StoreOutcome::Stored { .. }) => true,
        Ok(_) => false,
        Err(error) => {
            cx.count_failed(error);
            return cx.out.put(b"SERVER_ERROR out of memory\r\n");
        }
    };
    let item = cx.items.peek(key);
    match &item {
        Some(item) => hit(cx.out, item, asked, cx.seconds, is_ours),
        // The new item is gone already: it was flushed, or its expiry time has passed.
        None => {
            let mut shown = NEVER;
            cx.out.put_with(|to| {
                let code: &[u8] = if asked.flags.has(b'v') { b"VA 0" } else { b"HD" };
                to.extend_from_slice(code);
                for word in asked.words {
                    shown = asked.flags.given_exptime(word[0], true).unwrap_or(shown);
                    match word[0] {
                        b's' | b'f' | b'c' | b'h' | b'l' => push_flag(word[0], 0, to),
                        b't' => push_ttl(shown, cx.seconds, to),
                        _ => push_echo(word, asked.key_word, asked.flags, to),
                    }
                }
                to.extend_from_slice(b" W\r\n");
                if asked.flags.has(b'v') {
                    to.extend_from_slice(b"\r\n");
                }
            });
        }
    }
}

/// Replies `VA` or `HD`, the data that the flags request, and the value.
#[inline]
fn hit(
    out: &mut session::Outbox,
    item: &Item<'_>,
    asked: &GetCommand<'_>,
    now: Seconds,
    is_made: bool,
) {
    // `C`: the client has this version, and wants the value only if it differs.
    let is_known = asked.flags.cas == Some(item.cas());
    let has_value = asked.flags.has(b'v') && !is_known;
    let len = item.len();
    let is_shared = has_value && len >= SHARED_LEN_MIN;
    let pieces = is_shared.then(|| item.shared()).flatten();
    if is_shared && pieces.is_none() {
        return out.put(TOO_MANY_READERS);
    }
    out.put_with(|to| {
        if has_value {
            to.reserve(len.min(SHARED_LEN_MIN) + 128);
            to.extend_from_slice(b"VA ");
            push_decimal(len as u64, to);
        } else {
            to.extend_from_slice(b"HD");
        }
        let wins = push_flags(item, asked, now, is_made, to);
        push_marks(item, wins, is_made, to);
        to.extend_from_slice(b"\r\n");
        if has_value && !is_shared {
            item.slices().for_each(|slice| to.extend_from_slice(slice));
            to.extend_from_slice(b"\r\n");
        }
    });
    if let Some(pieces) = pieces {
        pieces.for_each(|piece| out.put_shared(piece));
        out.put(b"\r\n");
    }
}

/// Appends the data that each flag requests, in order. Returns whether the item is due to be
/// recached (`R`).
#[inline]
fn push_flags(
    item: &Item<'_>,
    asked: &GetCommand<'_>,
    now: Seconds,
    is_made: bool,
    to: &mut Vec<u8>,
) -> bool {
    let mut exptime =
        if is_made { NEVER } else { asked.old_exptime.unwrap_or_else(|| item.exptime()) };
    let mut is_due = false;
    for word in asked.words {
        match word[0] {
            b'T' | b'N' => {
                let given = asked.flags.given_exptime(word[0], is_made);
                exptime = given.unwrap_or(exptime);
            }
            b'R' => {
                let recache = asked.flags.recache.unwrap_or(NEVER);
                is_due = exptime != NEVER && exptime < recache;
            }
            b's' => push_flag(b's', item.len() as u64, to),
            b't' => push_ttl(exptime, now, to),
            b'c' => push_flag(b'c', item.cas(), to),
            b'f' => push_flag(b'f', item.flags().into(), to),
            b'l' => push_flag(b'l', idle_s(item, now), to),
            b'h' => push_flag(b'h', (item.was_fetched() && !is_made).into(), to),
            _ => push_echo(word, asked.key_word, asked.flags, to),
        }
    }
    is_due
}

/// Appends `W`, `X` and `Z`.
#[inline]
fn push_marks(item: &Item<'_>, is_due: bool, is_made: bool, to: &mut Vec<u8>) {
    if is_made {
        return to.extend_from_slice(b" W");
    }
    let is_stale = item.is_stale();
    let mut is_taken = item.is_win_taken();
    let mut wins = false;
    if (is_due || is_stale) && !is_taken {
        wins = item.take_win();
        // Another client won first.
        is_taken = !wins;
    }
    if is_taken {
        to.extend_from_slice(b" Z");
    }
    if is_stale {
        to.extend_from_slice(b" X");
    }
    if wins {
        to.extend_from_slice(b" W");
    }
}
