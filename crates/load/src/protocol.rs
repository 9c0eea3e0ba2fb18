//! Either protocol, as the worker uses it: requests to write, replies to read.

mod http;
pub(crate) mod memcached;

use crate::outcome::Errors;
use crate::plan::{Expected, Plan, Statuses, Workload};
use crate::random::Random;

/// Writes requests.
pub(crate) enum Speaker {
    Http {
        requests: Box<http::Requests>,
        expect: Statuses,
        verify: bool,
    },
    Cache {
        commands: Box<memcached::Commands>,
        keys_per_get: u32,
        verify: bool,
        /// Every key was stored for good, so that one that is not found is an error.
        has_all: bool,
    },
    /// Only idle connections.
    Silent,
}

/// The request that was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestTag {
    /// HTTP: the page. Cache: the key, if it is one.
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

pub(crate) enum ParseStep {
    /// Not a whole reply yet.
    Nothing,
    /// Not a reply of this protocol.
    Broken,
    Reply(Reply),
}

#[derive(Clone, Copy)]
pub(crate) struct Reply {
    /// Of the cache: 200, 400 or 500, for well, `CLIENT_ERROR` and `SERVER_ERROR`.
    pub(crate) status: u16,
    /// Whether the connection ends with it.
    pub(crate) closes: bool,
    /// Cache: values found, and how many of them are wrong.
    pub(crate) found: u32,
    pub(crate) wrong: u32,
    /// Cache: whether it answers a set; else a get. `None` if it says neither.
    pub(crate) answers_set: Option<bool>,
    /// HTTP: the body.
    pub(crate) body: Expected,
}

/// The verdict on a complete reply.
#[derive(Default)]
pub(crate) struct Judged {
    /// Why it is wrong.
    pub(crate) fault: Option<Fault>,
    /// How many of the keys asked for were not there.
    pub(crate) missing: u32,
    /// How many bodies or values were compared.
    pub(crate) compared: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It answers something else.
    BadReply,
    UnexpectedStatus,
    WrongBytes,
    MissingValue,
}

impl Fault {
    pub(crate) fn counter(self, errors: &mut Errors) -> &mut u64 {
        match self {
            Fault::BadReply => &mut errors.bad_reply,
            Fault::UnexpectedStatus => &mut errors.unexpected_status,
            Fault::WrongBytes => &mut errors.wrong_bytes,
            Fault::MissingValue => &mut errors.missing_value,
        }
    }
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
                    has_all: plan.verify && cache.populate && cache.exptime_s == 0,
                };
            }
            Workload::Idle => return Speaker::Silent,
        };
        // The threads go through the pages from different places.
        let first = http.pages.len() * thread as usize / plan.threads as usize;
        let requests = Box::new(http::Requests::new(http, first));
        Speaker::Http {
            requests,
            expect: plan.expect.clone(),
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
    ) -> RequestTag {
        match self {
            Speaker::Http { requests, .. } => {
                let what = page.unwrap_or_else(|| requests.pick(random));
                out.extend_from_slice(requests.bytes(what));
                RequestTag { what, class: 0 }
            }
            Speaker::Cache { commands, .. } => {
                let is_set = commands.next_is_set();
                let key = match is_set {
                    true => commands.set(out),
                    false => commands.get(out),
                };
                RequestTag {
                    what: key as u32,
                    class: u8::from(is_set),
                }
            }
            Speaker::Silent => unreachable!("a plan of idle connections has no requests"),
        }
    }

    /// Whether a reply is right, as far as it was compared.
    #[inline]
    pub(crate) fn judge(&mut self, what: u32, class: u8, reply: &Reply) -> Judged {
        match self {
            Speaker::Http { expect, .. } if !expect.has(reply.status) => Judged {
                fault: Some(Fault::UnexpectedStatus),
                ..Judged::default()
            },
            // Replies of other statuses have no body, or one that is not the page's.
            Speaker::Http {
                requests,
                verify: true,
                ..
            } if reply.status / 100 == 2 => Judged {
                fault: (!requests.is_right(what, reply.body)).then_some(Fault::WrongBytes),
                compared: 1,
                ..Judged::default()
            },
            Speaker::Cache {
                keys_per_get,
                verify,
                has_all,
                ..
            } => {
                let keys = if class == 0 { *keys_per_get } else { 0 };
                judge_of_cache(reply, class == 1, keys, *verify, *has_all)
            }
            Speaker::Http { .. } | Speaker::Silent => Judged::default(),
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

fn judge_of_cache(reply: &Reply, is_set: bool, keys: u32, verify: bool, has_all: bool) -> Judged {
    if reply.status != 200 {
        return Judged {
            fault: Some(Fault::UnexpectedStatus),
            ..Judged::default()
        };
    }
    let is_an_answer =
        reply.answers_set.is_none_or(|of_set| of_set == is_set) && reply.found <= keys;
    let missing = keys.saturating_sub(reply.found);
    let fault = match (is_an_answer, reply.wrong, missing) {
        (false, ..) => Some(Fault::BadReply),
        (_, 1.., _) => Some(Fault::WrongBytes),
        (_, _, 1..) if has_all => Some(Fault::MissingValue),
        _ => None,
    };
    Judged {
        fault,
        missing,
        compared: if verify { reply.found } else { 0 },
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

    /// Notes what was asked last, as far as its reply is compared with it.
    #[inline]
    pub(crate) fn note(&mut self, class: u8, speaker: &Speaker) {
        if let (Reader::Cache(reader), Speaker::Cache { commands, .. }, 0) = (self, speaker, class)
        {
            reader.note(commands.listed());
        }
    }

    /// Reads from `input`, and moves its beginning behind what it used. `oldest` is the oldest
    /// request without a reply.
    #[inline]
    pub(crate) fn read(
        &mut self,
        input: &mut &[u8],
        oldest: RequestTag,
        speaker: &mut Speaker,
    ) -> ParseStep {
        match (self, speaker) {
            (
                Reader::Http(reader),
                Speaker::Http {
                    requests, verify, ..
                },
            ) => {
                let is_head = requests.is_head(oldest.what);
                match reader.read(input, &mut requests.last_head, *verify, is_head) {
                    http::Read::More => ParseStep::Nothing,
                    http::Read::Broken => ParseStep::Broken,
                    http::Read::Reply(reply) => ParseStep::Reply(reply.into()),
                }
            }
            (
                Reader::Cache(reader),
                Speaker::Cache {
                    commands, verify, ..
                },
            ) => {
                let request = memcached::Request {
                    commands,
                    key: oldest.what,
                    is_get: oldest.class == 0,
                    verify: *verify,
                };
                match reader.read(input, request) {
                    memcached::Read::More => ParseStep::Nothing,
                    memcached::Read::Broken => ParseStep::Broken,
                    memcached::Read::Reply(reply) => ParseStep::Reply(reply.into()),
                }
            }
            _ => ParseStep::Nothing,
        }
    }

    /// How many of the next bytes need not be read.
    pub(crate) fn skippable(&self) -> u64 {
        match self {
            Reader::Http(reader) => reader.skippable(),
            Reader::Cache(reader) => reader.skippable(),
            Reader::Silent => u64::MAX,
        }
    }

    /// Notes that so many of them were dropped unread.
    pub(crate) fn skipped(
        &mut self,
        bytes: u64,
        oldest: RequestTag,
        speaker: &mut Speaker,
    ) -> ParseStep {
        match self {
            Reader::Http(reader) => match reader.skipped(bytes) {
                Some(reply) => ParseStep::Reply(reply.into()),
                None => ParseStep::Nothing,
            },
            Reader::Cache(reader) => {
                reader.skipped(bytes);
                self.read(&mut &[][..], oldest, speaker)
            }
            Reader::Silent => ParseStep::Nothing,
        }
    }

    /// The peer closed. If the close ends the reply, the reply is complete.
    pub(crate) fn closed(&mut self) -> Option<Reply> {
        match self {
            Reader::Http(reader) => reader.closed().map(Reply::from),
            Reader::Cache(_) | Reader::Silent => None,
        }
    }

    /// Starts afresh, for a new connection.
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
            status: reply.status,
            closes: reply.closes,
            found: 0,
            wrong: 0,
            answers_set: None,
            body: reply.body,
        }
    }
}

impl From<memcached::Reply> for Reply {
    fn from(reply: memcached::Reply) -> Reply {
        Reply {
            status: u16::from(reply.status_class) * 100,
            closes: false,
            found: reply.found,
            wrong: reply.wrong,
            answers_set: reply.answers_set,
            body: Expected { bytes: 0, crc32: 0 },
        }
    }
}
