use super::storage::words;
use crate::conversation::Context;
use crate::number::{parse_u64, push_decimal};
use crate::store::{Arithmetic, Counted, Direction};
use crate::words::{BAD_FORMAT, KEY_LEN_MAX, NOT_A_NUMBER, Tokens};

/// `incr|decr <key> <delta> [noreply]`
pub(crate) fn run(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let [command, key, delta, ..] = tokens.parts() else {
        return cx.out.put(BAD_FORMAT);
    };
    let is_quiet = tokens.is_noreply();
    if key.len() > KEY_LEN_MAX {
        return cx.answer(BAD_FORMAT, is_quiet);
    }
    let Some(delta) = parse_u64(delta) else {
        let reply = b"CLIENT_ERROR invalid numeric delta argument\r\n";
        return cx.answer(reply, is_quiet);
    };
    let by = Arithmetic {
        direction: match *command {
            b"incr" => Direction::Up,
            _ => Direction::Down,
        },
        delta,
        cas: None,
        new_cas: None,
        exptime: None,
    };
    match cx.items.count(key, by) {
        Ok(Counted::Stored { number, .. }) if !is_quiet => answer_number(cx, number),
        Ok(Counted::Stored { .. }) => {}
        Ok(Counted::NotFound | Counted::Exists) => cx.answer(b"NOT_FOUND\r\n", is_quiet),
        Ok(Counted::NotANumber) => cx.answer(NOT_A_NUMBER, is_quiet),
        Err(error) => {
            cx.count_failed(error);
            cx.answer(words(error), is_quiet);
        }
    }
}

/// Appends a number on a line of its own.
fn answer_number(cx: &mut Context<'_>, number: u64) {
    cx.out.put_with(|to| {
        push_decimal(number, to);
        to.extend_from_slice(b"\r\n");
    });
}
