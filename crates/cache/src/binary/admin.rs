//! Requests about the server, and authentication.

use super::wire::{Header, Kind, Status, reply, reply_status, u32_at};
use crate::conversation::Context;
use crate::service::Auth;
use crate::service::counters::Count;
use crate::service::stats;

/// The only supported SASL mechanism. RFC 4616
const MECHANISM: &[u8] = b"PLAIN";

pub(super) fn has_sasl(cx: &Context<'_>) -> bool {
    matches!(cx.service.settings.auth, Auth::Sasl(_))
}

pub(super) fn run(
    cx: &mut Context<'_>,
    header: &Header,
    may_ask: &mut bool,
    is_quiet: bool,
    [extras, key, value]: [&[u8]; 3],
) {
    match header.kind().0 {
        Kind::Flush if !cx.service.settings.allows_flush => {
            reply_status(cx.out, header, Status::Unauthorized);
        }
        Kind::Flush => {
            cx.flush(if extras.is_empty() { 0 } else { u32_at(extras, 0).into() });
            if !is_quiet {
                reply_status(cx.out, header, Status::Done);
            }
        }
        Kind::Version => {
            let version = cx.service.settings.version.as_bytes();
            reply(cx.out, header, Status::Done, &[], &[], version, 0);
        }
        Kind::Stat => stat(cx, header, key),
        Kind::SaslList => reply(cx.out, header, Status::Done, &[], &[], MECHANISM, 0),
        Kind::SaslAuth => authenticate(cx, header, may_ask, key, value),
        // PLAIN has a single step.
        Kind::SaslStep => {
            cx.service.counters.add(Count::AuthCommands, 1);
            cx.service.counters.add(Count::AuthErrors, 1);
            reply_status(cx.out, header, Status::Unauthorized);
        }
        _ => reply_status(cx.out, header, Status::Done),
    }
}

fn authenticate(
    cx: &mut Context<'_>,
    header: &Header,
    may_ask: &mut bool,
    mechanism: &[u8],
    value: &[u8],
) {
    cx.service.counters.add(Count::AuthCommands, 1);
    let knows = match &cx.service.settings.auth {
        Auth::Sasl(users) => mechanism == MECHANISM && users.knows_plain(value),
        Auth::Open | Auth::Ascii(_) => false,
    };
    *may_ask = knows;
    if knows {
        reply(cx.out, header, Status::Done, &[], &[], b"Authenticated", 0);
    } else {
        cx.service.counters.add(Count::AuthErrors, 1);
        reply_status(cx.out, header, Status::Unauthorized);
    }
}

/// One reply for each number, and an empty one at the end.
fn stat(cx: &mut Context<'_>, header: &Header, group: &[u8]) {
    // `detail dump` reveals a part of each key.
    if group.starts_with(b"detail") && !cx.service.settings.allows_dump {
        return reply_status(cx.out, header, Status::NotFound);
    }
    if let b"detail on" | b"detail off" = group {
        cx.turn_detail(group == b"detail on");
        return reply_status(cx.out, header, Status::Done);
    }
    let (service, seconds, out) = (cx.service, cx.seconds, &mut *cx.out);
    let known = match group {
        b"reset" => {
            stats::reset(service);
            true
        }
        b"detail dump" => {
            let mut dump = Vec::new();
            service.detail.dump(&mut dump);
            dump.extend_from_slice(b"END\r\n");
            reply(out, header, Status::Done, &[], b"detailed", &dump, 0);
            true
        }
        _ => stats::group_of(service, group, seconds, &mut |name, value| {
            let name = name.as_bytes();
            let value = value.as_bytes();
            reply(out, header, Status::Done, &[], name, value, 0);
        }),
    };
    reply_status(cx.out, header, if known { Status::Done } else { Status::NotFound });
}
