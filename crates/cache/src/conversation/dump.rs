//! Listings of all items, as long as they may be: `lru_crawler metadump` and `mgdump`, `stats cachedump`. Written as the
//! outbox takes them; between two pieces other commands of other clients go on.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use super::context::Context;
use crate::number::{parse_u32, push_decimal};
use crate::store::{Cursor, Item, NEVER, Seconds};
use crate::words::{base64, push_encoded, push_plain};

/// A listing on its way out.
#[derive(Debug)]
pub(crate) struct Dump {
    kind: Kind,
    /// Bits of the classes wanted.
    classes: u64,
    /// How many items may still be listed.
    left: u64,
    cursor: Cursor,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Metadump,
    Mgdump,
    Cachedump,
}

/// How many items are looked at between two looks at the outbox.
const STEP: usize = 128;

impl Dump {
    /// `lru_crawler metadump|mgdump <classes>`
    pub(crate) fn of_items(is_mgdump: bool, classes: &[u8]) -> Dump {
        let classes = match classes {
            b"all" | b"hash" => u64::MAX,
            list => list
                .split(|&byte| byte == b',')
                .filter_map(parse_u32)
                .fold(0, |all, class| all | 1 << (class & 63)),
        };
        Dump {
            kind: if is_mgdump {
                Kind::Mgdump
            } else {
                Kind::Metadump
            },
            classes,
            left: u64::MAX,
            cursor: Cursor::START,
        }
    }

    /// `stats cachedump <class> <limit>`; 0 is no limit.
    pub(crate) fn of_class(class: u32, limit: u32) -> Dump {
        Dump {
            kind: Kind::Cachedump,
            classes: 1 << (class & 63),
            left: if limit == 0 { u64::MAX } else { limit.into() },
            cursor: Cursor::START,
        }
    }

    /// Writes the next items; returns whether that was all, with the end said.
    pub(crate) fn go_on(&mut self, cx: &mut Context<'_>) -> bool {
        let (store, seconds) = (cx.service.store(), cx.seconds);
        let epoch = cx.service.unix_seconds(0);
        let Dump {
            kind,
            classes,
            left,
            cursor,
        } = self;
        let mut text = Vec::new();
        let next = store.crawl(*cursor, STEP, seconds, |item| {
            if *classes & 1 << (item.class_id() & 63) != 0 && *left > 0 {
                *left -= 1;
                match kind {
                    Kind::Metadump => metadump(item, epoch, &mut text),
                    Kind::Mgdump => mgdump(item, &mut text),
                    Kind::Cachedump => cachedump(item, epoch, &mut text),
                }
            }
            ControlFlow::Continue(())
        });
        cx.out.put(&text);
        match next {
            Some(next) if *left > 0 => {
                *cursor = next;
                false
            }
            _ => {
                cx.out.put(match kind {
                    Kind::Mgdump => b"EN\r\n",
                    Kind::Metadump | Kind::Cachedump => b"END\r\n",
                });
                true
            }
        }
    }
}

/// `key=… exp=… la=… cas=… fetch=… cls=… size=…`, with a line feed alone, as memcached has it.
fn metadump(item: &Item<'_>, epoch: u64, to: &mut Vec<u8>) {
    let mut line = String::from("key=");
    push_encoded(item.key(), &mut line);
    let exp = match item.exptime() {
        NEVER => -1,
        at => (epoch + u64::from(at)) as i64,
    };
    let _ = writeln!(
        line,
        " exp={exp} la={} cas={} fetch={} cls={} size={}",
        epoch + u64::from(item.last_access()),
        item.cas(),
        if item.was_fetched() { "yes" } else { "no" },
        item.class_id(),
        item.size(),
    );
    to.extend_from_slice(line.as_bytes());
}

/// A command that gets the item.
fn mgdump(item: &Item<'_>, to: &mut Vec<u8>) {
    let key = item.key();
    to.extend_from_slice(b"mg ");
    if key.iter().any(|&byte| byte <= b' ' || byte >= 0x7f) {
        base64::push(key, to);
        to.extend_from_slice(b" b");
    } else {
        to.extend_from_slice(key);
    }
    to.extend_from_slice(b"\r\n");
}

/// `ITEM <key> [<bytes> b; <exptime> s]`
fn cachedump(item: &Item<'_>, epoch: u64, to: &mut Vec<u8>) {
    let exptime: Seconds = item.exptime();
    to.extend_from_slice(b"ITEM ");
    push_plain(item.key(), to);
    to.extend_from_slice(b" [");
    push_decimal(item.len() as u64, to);
    to.extend_from_slice(b" b; ");
    push_decimal(
        match exptime {
            NEVER => 0,
            at => epoch + u64::from(at),
        },
        to,
    );
    to.extend_from_slice(b" s]\r\n");
}
