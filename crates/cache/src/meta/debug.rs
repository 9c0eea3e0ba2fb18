//! `me`: an item's metadata, for people.

use super::idle_s;
use crate::conversation::Context;
use crate::service::counters::Count;
use crate::store::NEVER;
use crate::words::{BAD_FORMAT, KEY_LEN_MAX, Tokens, base64};

/// `me <key> [b]`
pub(crate) fn run(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    cx.service.counters.add(Count::Meta, 1);
    let (key_word, is_encoded) = match tokens.parts() {
        [_, key] => (*key, false),
        [_, key, flags @ ..] => (*key, flags.iter().any(|flag| flag.starts_with(b"b"))),
        _ => return cx.out.put(BAD_FORMAT),
    };
    let mut buffer = [0; KEY_LEN_MAX];
    let key = if is_encoded {
        base64::decode(key_word, &mut buffer).map(|len| &buffer[..len])
    } else {
        Some(key_word)
    };
    let Some(key) = key.filter(|_| key_word.len() <= KEY_LEN_MAX) else {
        return cx.out.put(BAD_FORMAT);
    };
    let Some(item) = cx.items.peek(key) else {
        return cx.out.put(b"EN\r\n");
    };
    let exptime = match item.exptime() {
        NEVER => "-1".to_owned(),
        at => at.saturating_sub(cx.seconds).to_string(),
    };
    let text = format!(
        " exp={exptime} la={} cas={} fetch={} cls={} size={}\r\n",
        idle_s(&item, cx.seconds),
        item.cas(),
        if item.was_fetched() { "yes" } else { "no" },
        item.class_id(),
        item.size(),
    );
    cx.out.put_with(|to| {
        to.extend_from_slice(b"ME ");
        if is_encoded {
            base64::push(key, to)
        } else {
            to.extend_from_slice(key)
        }
        to.extend_from_slice(text.as_bytes());
    });
}
