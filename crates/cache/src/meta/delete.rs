//! `md`: deletes an item, or keeps it marked as stale.

use super::{Flags, key, reply_code, words_of};
use crate::conversation::{Context, Deletion};
use crate::store::{DeleteRule, Deleted};
use crate::words::{KEY_LEN_MAX, Tokens};

/// `md <key> <flags>*`
pub(crate) fn run(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let Some((key_word, words)) = words_of(cx, tokens) else {
        return;
    };
    let mut buffer = [0; KEY_LEN_MAX];
    let read = Flags::read(words, cx).and_then(|flags| {
        flags.check_opaque()?;
        Ok((flags, key(key_word, &flags, &mut buffer)?))
    });
    let (flags, key) = match read {
        Ok(read) => read,
        Err(reply) => return cx.out.put(reply),
    };
    let rule = DeleteRule {
        cas: flags.cas,
        new_cas: flags.new_cas,
        invalidate: flags.has(b'I'),
        clear_value: flags.has(b'x'),
        exptime: flags.exptime,
    };
    cx.observe_delete(key);
    let deletion = cx.watched_deletion(key);
    let deleted = cx.items.delete(key, rule);
    // As in memcached, an item that is marked as stale is not a deleted one.
    if deleted == Deleted::Deleted && !rule.invalidate {
        let deletion = if rule.clear_value { deletion.map(Deletion::of_value) } else { deletion };
        cx.observe_deletion(key, "md", deletion);
    }
    let code = match deleted {
        Deleted::Deleted if flags.has(b'q') => return,
        Deleted::Deleted => b"HD",
        Deleted::NotFound => b"NF",
        Deleted::Exists => b"EX",
    };
    reply_code(cx, code, words, key_word, &flags);
}
