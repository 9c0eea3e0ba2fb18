//! `stats` in text.

use crate::conversation::{Context, Dump, State};
use crate::number::parse_u32;
use crate::service::stats::{group_of, reset};
use crate::words::{BAD_FORMAT, ERROR, Tokens};

const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line\r\n";

/// `stats …`
pub(crate) fn command(cx: &mut Context<'_>, state: &mut State, tokens: &Tokens<'_>) {
    let reply: &[u8] = match tokens.parts() {
        [_, b"reset", ..] => {
            reset(cx.service);
            b"RESET\r\n"
        }
        [_, b"detail", ..] if !cx.service.settings.allows_dump => {
            b"CLIENT_ERROR stats detail not allowed\r\n"
        }
        [_, b"detail", rest @ ..] => return detail(cx, rest.first().copied().unwrap_or_default()),
        [_, b"cachedump", ..] if !cx.service.settings.allows_dump => {
            b"CLIENT_ERROR stats cachedump not allowed\r\n"
        }
        [_, b"cachedump", class, limit, ..] => match parse_u32(class).zip(parse_u32(limit)) {
            None => BAD_FORMAT,
            Some((64.., _)) => b"CLIENT_ERROR Illegal slab id\r\n",
            Some((class, limit)) => {
                *state = State::Dump(Box::new(Dump::of_class(class, limit)));
                return;
            }
        },
        [_, b"cachedump", ..] => BAD_LINE,
        [_, rest @ ..] if rest.len() <= 1 || rest[0] == b"conns" || rest[0] == b"settings" => {
            let group = rest.first().copied().unwrap_or_default();
            let (service, seconds, out) = (cx.service, cx.seconds, &mut *cx.out);
            let known = group_of(service, group, seconds, &mut |name, value| {
                out.put_with(|to| {
                    for part in ["STAT ", name, " ", value, "\r\n"] {
                        to.extend_from_slice(part.as_bytes());
                    }
                });
            });
            match group {
                // The reply to the switch is one line, the only one without END.
                b"sizes_enable" | b"sizes_disable" => b"",
                _ if known => b"END\r\n",
                _ => ERROR,
            }
        }
        _ => ERROR,
    };
    cx.out.put(reply);
}

fn detail(cx: &mut Context<'_>, what: &[u8]) {
    let reply: &[u8] = match what {
        b"on" | b"off" => {
            cx.turn_detail(what == b"on");
            b"OK\r\n"
        }
        b"dump" => {
            cx.out.put_with(|to| cx.service.detail.dump(to));
            b"END\r\n"
        }
        _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
    };
    cx.out.put(reply);
}
