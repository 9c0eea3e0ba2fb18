//! Listings of all items, of any length: `lru_crawler metadump` and `mgdump`, `stats cachedump`.
//! A listing is made in pieces: the walk runs as [`Work`](session::Work), off the processor, since
//! a class may have few items and the table millions; lines found are put into the outbox between
//! pieces.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use session::Outbox;

use crate::number::{parse_u32, push_decimal};
use crate::service::Service;
use crate::store::{Cursor, Item, NEVER, Seconds};
use crate::words::{base64, push_encoded, push_plain};

/// A listing in progress.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    kind: Listing,
    /// Bit set of the requested classes.
    classes: u64,
    /// Number of items that may still be listed.
    left: u64,
    /// Position at which the walk continues; `None` at its end.
    cursor: Option<Cursor>,
    /// Lines found but not yet in the outbox.
    found: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Listing {
    #[default]
    Metadump,
    Mgdump,
    Cachedump,
}

/// Items visited in one piece of the walk: about 300 µs.
const WALK_ITEMS: usize = 4096;

/// Length of found lines at which a piece ends early.
const FOUND_LEN_ENOUGH: usize = 64 * 1024;

/// Items visited between two checks of the lines found.
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
            kind: if is_mgdump { Listing::Mgdump } else { Listing::Metadump },
            classes,
            left: u64::MAX,
            cursor: Some(Cursor::START),
            found: b"OK\r\n".to_vec(),
        }
    }

    /// `stats cachedump <class> <limit>`; 0 means no limit.
    pub(crate) fn of_class(class: u32, limit: u32) -> Dump {
        Dump {
            kind: Listing::Cachedump,
            classes: 1 << (class & 63),
            left: if limit == 0 { u64::MAX } else { limit.into() },
            cursor: Some(Cursor::START),
            found: Vec::new(),
        }
    }

    /// Continues the walk by one piece.
    pub(crate) fn walk(&mut self, service: &Service, now: Seconds) {
        let epoch = service.unix_seconds(0);
        let Dump { kind, classes, left, cursor, found } = self;
        let mut steps = 0..WALK_ITEMS / STEP;
        while let (Some(at), Some(_)) = (*cursor, steps.next())
            && found.len() < FOUND_LEN_ENOUGH
        {
            let next = service.store().crawl(at, STEP, now, |item| {
                if *classes & 1 << (item.class_id() & 63) != 0 && *left > 0 {
                    *left -= 1;
                    match kind {
                        Listing::Metadump => metadump(item, epoch, found),
                        Listing::Mgdump => mgdump(item, found),
                        Listing::Cachedump => cachedump(item, epoch, found),
                    }
                }
                ControlFlow::Continue(())
            });
            *cursor = next.filter(|_| *left > 0);
        }
    }

    /// Puts the lines found into the outbox; true after the last one and the end marker.
    pub(crate) fn put(&mut self, out: &mut Outbox) -> bool {
        out.put(&self.found);
        self.found.clear();
        if self.cursor.is_some() {
            return false;
        }
        out.put(match self.kind {
            Listing::Mgdump => b"EN\r\n",
            Listing::Metadump | Listing::Cachedump => b"END\r\n",
        });
        true
    }
}

/// `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=… `, ended by a bare line feed, as in
/// memcached.
fn metadump(item: &Item<'_>, epoch: u64, to: &mut Vec<u8>) {
    let mut line = String::from("key=");
    push_encoded(item.key(), &mut line);
    let exp = match item.exptime() {
        NEVER => -1,
        at => (epoch + u64::from(at)) as i64,
    };
    let _ = writeln!(
        line,
        " exp={exp} la={} cas={} fetch={} cls={} size={} flags={} ",
        epoch + u64::from(item.last_access()),
        item.cas(),
        if item.was_fetched() { "yes" } else { "no" },
        item.class_id(),
        item.size(),
        item.flags(),
    );
    to.extend_from_slice(line.as_bytes());
}

/// An `mg` command that fetches the item.
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
