//! `ms`: all store commands in one.

use super::{FLAGS_TOO_LONG, Flags, WORDS_MAX, key, push_echo, push_flag};
use crate::conversation::{Bad, Context, Storage};
use crate::service::counters::Count;
use crate::store::{Mode, NEVER, Rule, StoreOutcome};
use crate::words::{BAD_FORMAT, KEY_LEN_MAX, Tokens, parse_value_len};

/// Parts of the reply.
pub(crate) struct Reply<'a> {
    key_word: &'a [u8],
    flags: Flags,
    /// The rest of the line after the length.
    words: &'a [u8],
}

/// `ms <key> <datalen> <flags>*`
pub(crate) fn read<'a>(
    cx: &Context<'_>,
    tokens: &Tokens<'a>,
    key_buffer: &'a mut [u8; KEY_LEN_MAX],
) -> Result<(Storage<'a>, Reply<'a>), Bad> {
    let [_, key_word, len, words @ ..] = tokens.parts() else {
        return Err(Bad::Line(BAD_FORMAT));
    };
    let value_len = parse_value_len(len).ok_or(Bad::Line(BAD_FORMAT))?;
    // After any other mistake the value is skipped: it must not be parsed as commands.
    let bad = |reply| Bad::Swallow(reply, value_len);
    if key_word.len() > KEY_LEN_MAX {
        return Err(bad(BAD_FORMAT));
    }
    if tokens.parts().len() > WORDS_MAX {
        return Err(bad(FLAGS_TOO_LONG));
    }
    let flags = Flags::read(words, cx).map_err(bad)?;
    let key = key(key_word, &flags, key_buffer).map_err(bad)?;
    let (name, mode) = mode(&flags).ok_or(bad(b"CLIENT_ERROR invalid mode for ms M token\r\n"))?;
    flags.check_opaque().map_err(bad)?;
    let reply = Reply { key_word, flags, words: tokens.after(3) };
    let is_joined = matches!(mode, Mode::Append | Mode::Prepend);
    let vivify = flags.vivify.filter(|_| is_joined);
    let storage = Storage {
        key,
        flags: flags.client_flags,
        exptime: vivify.or(flags.exptime).unwrap_or(NEVER),
        value_len,
        rule: Rule {
            mode,
            // For append and prepend a cas of 0 means none.
            cas: flags.cas.filter(|&cas| cas != 0 || !is_joined),
            invalidate: flags.has(b'I') && flags.cas != Some(0),
            new_cas: flags.new_cas,
            vivify: vivify.is_some(),
            win_taken: false,
        },
        forgets: mode == Mode::Set,
        name,
    };
    Ok((storage, reply))
}

fn mode(flags: &Flags) -> Option<(&'static str, Mode)> {
    Some(match flags.mode {
        None | Some(b'S') => ("set", Mode::Set),
        Some(b'E') => ("add", Mode::Add),
        Some(b'R') => ("replace", Mode::Replace),
        Some(b'A') => ("append", Mode::Append),
        Some(b'P') => ("prepend", Mode::Prepend),
        Some(_) => return None,
    })
}

/// Appends the reply for this outcome. `q` suppresses `HD`.
pub(crate) fn reply(
    cx: &mut Context<'_>,
    storage: &Storage<'_>,
    reply: &Reply<'_>,
    outcome: StoreOutcome,
) {
    cx.service.counters.add(Count::Meta, 1);
    let flags = &reply.flags;
    let (code, cas) = match outcome {
        StoreOutcome::Stored { .. } if flags.has(b'q') => return,
        StoreOutcome::Stored { cas } => (b"HD", cas),
        StoreOutcome::NotStored => (b"NS", 0),
        StoreOutcome::Exists => (b"EX", 0),
        StoreOutcome::NotFound => (b"NF", 0),
    };
    let size = flags.has(b's').then(|| match cas {
        0 => storage.value_len,
        _ => cx.items.peek(storage.key).map_or(storage.value_len, |item| item.len()),
    });
    cx.out.put_with(|to| {
        to.extend_from_slice(code);
        let words = reply.words.split(|&byte| byte == b' ');
        for word in words.filter(|word| !word.is_empty()) {
            match (word[0], size) {
                (b'c', _) => push_flag(b'c', cas, to),
                (b's', Some(size)) => push_flag(b's', size as u64, to),
                _ => push_echo(word, reply.key_word, flags, to),
            }
        }
        to.extend_from_slice(b"\r\n");
    });
}
