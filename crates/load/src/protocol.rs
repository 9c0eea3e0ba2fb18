//! HTTP or memcached, as the worker uses it: writes requests, reads and checks replies.

mod http;
pub(crate) mod http2;
pub(crate) mod memcached;
mod udp;

use std::sync::Arc;

use crate::outcome::Errors;
use crate::plan::{Expected, Http, Plan, Statuses, Workload};
use crate::random::Random;
pub(crate) use udp::UdpRead;

/// Writer of requests and checker of replies.
pub(crate) enum Protocol {
    Http {
        requests: Box<http::Requests>,
        rendered: RenderedRequests,
        expect: Statuses,
        verify: bool,
    },
    Cache {
        commands: Box<memcached::Commands>,
        keys_per_get: u32,
        verify: bool,
        /// True if every key was stored for good, so that a miss is an error.
        has_all: bool,
    },
    /// Idle connections only.
    Silent,
}

/// Requests of a plan as bytes, which its threads share.
#[derive(Clone)]
pub(crate) enum RenderedRequests {
    Http(Arc<[http::RenderedRequest]>),
    Http2(Arc<http2::Blocks>),
    /// No HTTP requests.
    None,
}

impl RenderedRequests {
    pub(crate) fn of(plan: &Plan) -> RenderedRequests {
        match http_of(plan) {
            Some(http) if plan.http2 => {
                RenderedRequests::Http2(Arc::new(http2::Blocks::new(http, plan.tls.is_some())))
            }
            Some(http) => {
                let pages = http.pages.iter();
                RenderedRequests::Http(pages.map(|page| http::render(http, page)).collect())
            }
            None => RenderedRequests::None,
        }
    }
}

fn http_of(plan: &Plan) -> Option<&Http> {
    match &plan.workload {
        Workload::Http(http) => Some(http),
        Workload::Sessions(sessions) => Some(&sessions.http),
        Workload::Cache(_) | Workload::Idle => None,
    }
}

/// Identity of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestTag {
    /// HTTP: the page. Cache: the key, if there is one.
    pub(crate) what: u32,
    /// Class, as an index into [`Plan::classes`].
    pub(crate) class: u8,
    /// HTTP/2: the stream; UDP: the datagram's identifier. Otherwise replies come in the order of
    /// the requests.
    pub(crate) stream: u32,
}

/// Reader of replies.
pub(crate) enum Reader {
    Http(http::Reader),
    Http2(Box<http2::Http2Connection>),
    Cache(memcached::Reader),
    Udp(Box<udp::UdpReader>),
    Silent,
}

/// Result of reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Read {
    /// All input was used; the reply is incomplete.
    More,
    /// A reply is complete; the input behind it was not used.
    Reply(Reply),
    /// No reply of this protocol; the connection cannot be used any more.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reply {
    /// Status. Cache: 200 for success, 400 for `CLIENT_ERROR`, 500 for `SERVER_ERROR`.
    pub(crate) status: u16,
    /// True if the connection ends with it.
    pub(crate) closes: bool,
    /// Cache: number of values, and of wrong ones.
    pub(crate) found: u32,
    pub(crate) wrong: u32,
    /// Cache: true if it answers a set, false for a get; `None` if it tells neither.
    pub(crate) answers_set: Option<bool>,
    /// HTTP: body.
    pub(crate) body: Expected,
}

/// Result of checking a complete reply.
#[derive(Default)]
pub(crate) struct ReplyCheck {
    /// Error, if the reply is wrong.
    pub(crate) fault: Option<Fault>,
    /// Number of requested keys that were not found.
    pub(crate) missing: u32,
    /// Number of bodies or values compared.
    pub(crate) compared: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Reply to another kind of request.
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

impl Protocol {
    pub(crate) fn new(plan: &Plan, rendered: &RenderedRequests, thread: u32) -> Protocol {
        if let Some(http) = http_of(plan) {
            // Each thread starts at another page.
            let first = http.pages.len() * thread as usize / plan.threads as usize;
            return Protocol::Http {
                requests: Box::new(http::Requests::new(http, first)),
                rendered: rendered.clone(),
                expect: plan.expect.clone(),
                verify: plan.verify,
            };
        }
        match &plan.workload {
            Workload::Cache(cache) => Protocol::Cache {
                commands: Box::new(memcached::Commands::new(cache, plan.seed, thread)),
                keys_per_get: cache.keys_per_get,
                verify: plan.verify,
                has_all: plan.verify && cache.populate && cache.exptime_s == 0,
            },
            _ => Protocol::Silent,
        }
    }

    /// Appends a request for `page`, or for the next one by the plan.
    #[inline]
    pub(crate) fn write_request(
        &mut self,
        page: Option<u32>,
        random: &mut Random,
        reader: &mut Reader,
        out: &mut Vec<u8>,
    ) -> RequestTag {
        match self {
            Protocol::Http { requests, rendered, .. } => {
                let what = page.unwrap_or_else(|| requests.pick(random));
                let mut stream = 0;
                match (reader, rendered) {
                    (Reader::Http2(connection), RenderedRequests::Http2(blocks)) => {
                        stream = connection.request(blocks, what, out);
                    }
                    (_, RenderedRequests::Http(rendered)) => rendered[what as usize].write(out),
                    _ => unreachable!("requests are rendered for their reader"),
                }
                RequestTag { what, class: 0, stream }
            }
            Protocol::Cache { commands, .. } => {
                let is_set = commands.next_is_set();
                let stream = match reader {
                    Reader::Udp(reader) => u32::from(reader.begin(out)),
                    _ => 0,
                };
                let key = if is_set { commands.set(out) } else { commands.get(out) };
                RequestTag { what: key as u32, class: u8::from(is_set), stream }
            }
            Protocol::Silent => unreachable!("a plan of idle connections has no requests"),
        }
    }

    /// Checks a reply, as far as the plan demands it.
    #[inline]
    pub(crate) fn check_reply(&mut self, what: u32, class: u8, reply: &Reply) -> ReplyCheck {
        match self {
            Protocol::Http { expect, .. } if !expect.has(reply.status) => {
                ReplyCheck { fault: Some(Fault::UnexpectedStatus), ..ReplyCheck::default() }
            }
            // Replies of other statuses have no body, or another one.
            Protocol::Http { requests, verify: true, .. } if reply.status / 100 == 2 => {
                ReplyCheck {
                    fault: (!requests.matches_expected(what, reply.body))
                        .then_some(Fault::WrongBytes),
                    compared: 1,
                    ..ReplyCheck::default()
                }
            }
            Protocol::Cache { keys_per_get, verify, has_all, .. } => {
                let keys = if class == 0 { *keys_per_get } else { 0 };
                check_cache(reply, class == 1, keys, *verify, *has_all)
            }
            Protocol::Http { .. } | Protocol::Silent => ReplyCheck::default(),
        }
    }

    /// Next byte of an idle connection that has sent `sent` bytes.
    pub(crate) fn trickle(&self, sent: usize) -> u8 {
        match self {
            Protocol::Http { rendered: RenderedRequests::Http(rendered), .. } => {
                rendered[0].byte(sent)
            }
            Protocol::Http { .. } => http2::Http2Connection::trickle(sent),
            Protocol::Cache { .. } => b"version\r\n"[sent % 9],
            Protocol::Silent => b'\n',
        }
    }
}

fn check_cache(reply: &Reply, is_set: bool, keys: u32, verify: bool, has_all: bool) -> ReplyCheck {
    if reply.status != 200 {
        return ReplyCheck { fault: Some(Fault::UnexpectedStatus), ..ReplyCheck::default() };
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
    ReplyCheck { fault, missing, compared: if verify { reply.found } else { 0 } }
}

impl Reader {
    pub(crate) fn new(plan: &Plan) -> Reader {
        match &plan.workload {
            Workload::Http(_) | Workload::Sessions(_) if plan.http2 => {
                let connection = http2::Http2Connection::new(plan.verify, plan.depth);
                Reader::Http2(Box::new(connection))
            }
            Workload::Http(_) | Workload::Sessions(_) => Reader::Http(http::Reader::default()),
            Workload::Cache(cache) => {
                let reader = memcached::Reader::new(cache);
                if plan.is_udp() {
                    Reader::Udp(Box::new(udp::UdpReader::new(reader)))
                } else {
                    Reader::Cache(reader)
                }
            }
            Workload::Idle => Reader::Silent,
        }
    }

    /// Notes the keys of the last request, if its reply is compared with them.
    #[inline]
    pub(crate) fn note(&mut self, class: u8, protocol: &Protocol) {
        if let (Reader::Cache(reader), Protocol::Cache { commands, .. }, 0) =
            (self, protocol, class)
        {
            reader.note(commands.listed());
        }
    }

    /// Reads a datagram. `asked` is the request in flight.
    pub(crate) fn read_datagram(
        &mut self,
        datagram: &[u8],
        asked: Option<RequestTag>,
        protocol: &Protocol,
    ) -> UdpRead {
        let (Reader::Udp(reader), Protocol::Cache { commands, verify, .. }) = (self, protocol)
        else {
            return UdpRead::Broken;
        };
        let RequestTag { what, class, .. } = asked.unwrap_or_default();
        let request =
            memcached::Request { commands, key: what, is_get: class == 0, verify: *verify };
        reader.read(datagram, asked.map(|tag| tag.stream as u16), request)
    }

    /// Reads from `input` and advances it past the used bytes. `oldest` is the oldest unanswered
    /// request.
    #[inline]
    pub(crate) fn read(
        &mut self,
        input: &mut &[u8],
        oldest: RequestTag,
        protocol: &mut Protocol,
    ) -> Read {
        match (self, protocol) {
            (Reader::Http(reader), Protocol::Http { requests, verify, .. }) => {
                let is_head = requests.is_head(oldest.what);
                reader.read(input, &mut requests.last_head, *verify, is_head)
            }
            (Reader::Cache(reader), Protocol::Cache { commands, verify, .. }) => {
                let request = memcached::Request {
                    commands,
                    key: oldest.what,
                    is_get: oldest.class == 0,
                    verify: *verify,
                };
                reader.read(input, request)
            }
            _ => Read::More,
        }
    }

    /// Number of next bytes that need not be read.
    pub(crate) fn skippable(&self) -> u64 {
        match self {
            Reader::Http(reader) => reader.skippable(),
            Reader::Http2(_) | Reader::Udp(_) => 0,
            Reader::Cache(reader) => reader.skippable(),
            Reader::Silent => u64::MAX,
        }
    }

    /// Notes that `bytes` bytes were discarded.
    pub(crate) fn skipped(
        &mut self,
        bytes: u64,
        oldest: RequestTag,
        protocol: &mut Protocol,
    ) -> Read {
        match self {
            Reader::Http(reader) => reader.skipped(bytes).map_or(Read::More, Read::Reply),
            Reader::Cache(reader) => {
                reader.skipped(bytes);
                self.read(&mut &[][..], oldest, protocol)
            }
            Reader::Http2(_) | Reader::Udp(_) | Reader::Silent => Read::More,
        }
    }

    /// Handles a close by the peer; returns the reply that the close completes, if any.
    pub(crate) fn closed(&mut self) -> Option<Reply> {
        match self {
            Reader::Http(reader) => reader.closed(),
            Reader::Http2(_) | Reader::Cache(_) | Reader::Udp(_) | Reader::Silent => None,
        }
    }

    /// Resets the reader for a new connection.
    pub(crate) fn reset(&mut self) {
        match self {
            Reader::Http(reader) => reader.reset(),
            Reader::Http2(connection) => connection.reset(),
            Reader::Cache(reader) => reader.reset(),
            Reader::Udp(reader) => reader.reset(),
            Reader::Silent => {}
        }
    }

    /// Bytes of a request that are not written yet: the peer's window is too small.
    pub(crate) fn waiting_bytes(&self, request: RequestTag) -> usize {
        match self {
            Reader::Http2(connection) => connection.waiting_bytes(request.stream),
            _ => 0,
        }
    }

    /// Number of requests that the peer lets be in flight.
    pub(crate) fn in_flight_max(&self) -> u32 {
        match self {
            Reader::Http2(connection) => connection.streams_max(),
            _ => u32::MAX,
        }
    }

    /// True if the peer has announced the end of the connection.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self, Reader::Http2(connection) if connection.is_leaving())
    }
}

impl Reply {
    pub(crate) fn of_http(status: u16, closes: bool, body: Expected) -> Reply {
        Reply { status, closes, found: 0, wrong: 0, answers_set: None, body }
    }
}
