use super::{BAD_FORMAT, ERROR, KEY_LEN_MAX, NO_MEMORY, TOO_LARGE, Tokens, answer, answer_number};
use crate::number::parse_u64;
use crate::session::Context;
use crate::store::{Arithmetic, Counted, Direction, StoreError};

pub(crate) const NOT_A_NUMBER: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// `incr|decr <key> <delta> [noreply]`
pub(crate) fn run(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let (command, key, delta) = match tokens.parts() {
        [command, key, delta] | [command, key, delta, _] => (command, key, delta),
        _ => return cx.out.put(ERROR),
    };
    let is_quiet = tokens.is_noreply();
    if key.len() > KEY_LEN_MAX {
        return answer(cx, BAD_FORMAT, is_quiet);
    }
    let Some(delta) = parse_u64(delta) else {
        let reply = b"CLIENT_ERROR invalid numeric delta argument\r\n";
        return answer(cx, reply, is_quiet);
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
        Ok(Counted::NotFound | Counted::Exists) => answer(cx, b"NOT_FOUND\r\n", is_quiet),
        Ok(Counted::NotANumber) => answer(cx, NOT_A_NUMBER, is_quiet),
        Err(error) => {
            cx.count_failed(error);
            let reply = match error {
                StoreError::TooLarge => TOO_LARGE,
                StoreError::OutOfMemory => NO_MEMORY,
            };
            answer(cx, reply, is_quiet);
        }
    }
}
