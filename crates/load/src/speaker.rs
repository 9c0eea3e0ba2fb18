//! Either protocol, as the worker sees it: what to say, and what was heard.

use crate::http;
use crate::memcached;
use crate::plan::{Expected, Plan, Workload};
use crate::random::Random;

/// Writes requests.
pub(crate) enum Speaker {
    Http {
        requests: Box<http::Requests>,
        verify: bool,
    },
    Cache {
        commands: Box<memcached::Commands>,
        keys_per_get: u32,
        verify: bool,
    },
    /// Only idle connections.
    Silent,
}

/// What was written.
pub(crate) struct Said {
    /// HTTP: the page. Cache: the number of keys.
    pub(crate) what: u32,
    /// The class, by its place in [`Plan::classes`].
    pub(crate) class: u8,
}

/// Reads replies.
pub(crate) enum Reader {
    Http(http::Reader),
    Cache(memcached::Reader),
    Silent,
}

pub(crate) enum Heard {
    /// Not a whole reply yet.
    Nothing,
    /// Not a reply of this protocol.
    Nonsense,
    Reply(Reply),
}

#[derive(Clone, Copy)]
pub(crate) struct Reply {
    /// The first digit of the status.
    pub(crate) status_class: u8,
    /// Whether the connection ends with it.
    pub(crate) closes: bool,
    /// Cache: values found, and how many of them are wrong.
    pub(crate) found: u32,
    pub(crate) wrong: u32,
    /// HTTP: the body.
    pub(crate) body: Expected,
}

impl Speaker {
    pub(crate) fn new(plan: &Plan, thread: u32) -> Speaker {
        let http = match &plan.workload {
            Workload::Http(http) => http,
            Workload::Sessions(sessions) => &sessions.http,
            Workload::Cache(cache) => {
                return Speaker::Cache {
                    commands: Box::new(memcached::Commands::new(cache, plan.seed, thread)),
                    keys_per_get: cache.keys_per_get,
                    verify: plan.verify,
                };
            }
            Workload::Idle => return Speaker::Silent,
        };
        // The threads go through the pages from different places.
        let first = http.pages.len() * thread as usize / plan.threads as usize;
        let requests = Box::new(http::Requests::new(http, first));
        Speaker::Http {
            requests,
            verify: plan.verify,
        }
    }

    /// Appends a request: for this page, or for what comes next.
    #[inline]
    pub(crate) fn say(
        &mut self,
        page: Option<u32>,
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Said {
        match self {
            Speaker::Http { requests, .. } => {
                let what = page.unwrap_or_else(|| requests.pick(random));
                out.extend_from_slice(requests.bytes(what));
                Said { what, class: 0 }
            }
            Speaker::Cache {
                commands,
                keys_per_get,
                ..
            } => {
                if commands.next_is_set() {
                    commands.set(out);
                    Said { what: 1, class: 1 }
                } else {
                    commands.get(out);
                    Said {
                        what: *keys_per_get,
                        class: 0,
                    }
                }
            }
            Speaker::Silent => unreachable!("a plan of idle connections has no requests"),
        }
    }

    /// Whether a good reply's content is what it should be, as far as it was looked at.
    #[inline]
    pub(crate) fn is_right(&mut self, what: u32, reply: &Reply) -> bool {
        match self {
            Speaker::Http {
                requests,
                verify: true,
            } if reply.status_class == 2 => requests.is_right(what, reply.body),
            Speaker::Cache { .. } => reply.wrong == 0,
            _ => true,
        }
    }

    /// Of the values asked for by a command of this class, how many were not there.
    #[inline]
    pub(crate) fn misses(&self, class: u8, what: u32, reply: &Reply) -> u32 {
        match self {
            Speaker::Cache { .. } if class == 0 && reply.status_class == 2 => {
                what.saturating_sub(reply.found)
            }
            _ => 0,
        }
    }

    /// The byte that an idle connection sends after `sent` others.
    pub(crate) fn trickle(&self, sent: usize) -> u8 {
        match self {
            Speaker::Http { requests, .. } => {
                let request = requests.bytes(0);
                request[sent % request.len()]
            }
            Speaker::Cache { .. } => b"version\r\n"[sent % 9],
            Speaker::Silent => b'\n',
        }
    }
}

impl Reader {
    pub(crate) fn new(plan: &Plan) -> Reader {
        match &plan.workload {
            Workload::Http(_) | Workload::Sessions(_) => Reader::Http(http::Reader::default()),
            Workload::Cache(cache) => Reader::Cache(memcached::Reader::new(cache)),
            Workload::Idle => Reader::Silent,
        }
    }

    /// Reads from `input`, and moves its beginning behind what it used. `what` is that of the oldest
    /// request without a reply.
    #[inline]
    pub(crate) fn read(&mut self, input: &mut &[u8], what: u32, speaker: &mut Speaker) -> Heard {
        match (self, speaker) {
            (Reader::Http(reader), Speaker::Http { requests, verify }) => {
                let is_head = requests.is_head(what);
                match reader.read(input, &mut requests.last_head, *verify, is_head) {
                    http::Read::More => Heard::Nothing,
                    http::Read::Broken => Heard::Nonsense,
                    http::Read::Reply(reply) => Heard::Reply(reply.into()),
                }
            }
            (
                Reader::Cache(reader),
                Speaker::Cache {
                    commands, verify, ..
                },
            ) => match reader.read(input, verify.then_some(&**commands)) {
                memcached::Read::More => Heard::Nothing,
                memcached::Read::Broken => Heard::Nonsense,
                memcached::Read::Reply(reply) => Heard::Reply(reply.into()),
            },
            _ => Heard::Nothing,
        }
    }

    /// How many of the next bytes nobody needs to look at.
    pub(crate) fn skippable(&self) -> u64 {
        match self {
            Reader::Http(reader) => reader.skippable(),
            Reader::Cache(reader) => reader.skippable(),
            Reader::Silent => u64::MAX,
        }
    }

    /// So many of them were dropped unread.
    pub(crate) fn skipped(&mut self, bytes: u64, speaker: &mut Speaker) -> Heard {
        match self {
            Reader::Http(reader) => match reader.skipped(bytes) {
                Some(reply) => Heard::Reply(reply.into()),
                None => Heard::Nothing,
            },
            Reader::Cache(reader) => {
                reader.skipped(bytes);
                self.read(&mut &[][..], 0, speaker)
            }
            Reader::Silent => Heard::Nothing,
        }
    }

    /// The peer closed. If that is how the reply ends, it is whole.
    pub(crate) fn closed(&mut self) -> Option<Reply> {
        match self {
            Reader::Http(reader) => reader.closed().map(Reply::from),
            Reader::Cache(_) | Reader::Silent => None,
        }
    }

    /// Forgets everything, for a new connection.
    pub(crate) fn reset(&mut self) {
        match self {
            Reader::Http(reader) => reader.reset(),
            Reader::Cache(reader) => reader.reset(),
            Reader::Silent => {}
        }
    }
}

impl From<http::Reply> for Reply {
    fn from(reply: http::Reply) -> Reply {
        Reply {
            status_class: (reply.status / 100).min(5) as u8,
            closes: reply.closes,
            found: 0,
            wrong: 0,
            body: reply.body,
        }
    }
}

impl From<memcached::Reply> for Reply {
    fn from(reply: memcached::Reply) -> Reply {
        Reply {
            status_class: reply.status_class,
            closes: false,
            found: reply.found,
            wrong: reply.wrong,
            body: Expected { bytes: 0, crc32: 0 },
        }
    }
}
