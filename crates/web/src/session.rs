mod multiplexed;

use std::fmt;
use std::sync::Arc;

use http2::{PREFACE, StreamKey};
use session::{GiveUp, Next, Now, Outbox, Phase, Received};

use crate::answer::{Answer, Attempt, answer, load};
use crate::client::Client;
use crate::config::RequestLimits;
use crate::handle::{Handle, Service};
use crate::log::Peer;
use crate::password::Verification;
use crate::rate::RateVerdict;
use crate::reply::{Replier, RequestFacts, Transport};
use crate::request::body::{BodyProgress, Expectation};
use crate::request::{
    BodyReader, Framing, Head, Method, Name, Refusal, has_control, parse, parse_stream,
};
use crate::site::{Found, Readers};
use crate::status::Status;
use multiplexed::{Multiplexed, PieceRead};

/// One HTTP connection: requests in, replies out.
///
/// ```text
///           whole head without a body: answered where it lies
///          ┌──────────────────────────┐
///          ▼                          │
///   ──▶ Between ── head with body ──▶ Body ── its end ──▶ Answering ── reply ──▶ Between
///          │                                               ▲     │
///          └─── the site would block ──────────────────────┘     └─ Working, and again
///
///   `Connection: close`, drain ──▶ Closed            any refusal ──▶ Refused
/// ```
///
/// A connection that begins with HTTP/2 is multiplexed from then on.
///
/// All complete requests of one input are answered in one call, until the outbox is full. The
/// common request allocates nothing: it is parsed in place, looked up, and its reply copied into
/// the outbox.
#[derive(Debug)]
pub struct Session {
    handle: Arc<Handle>,
    peer: Peer,
    transport: Transport,
    /// Subject of the client's certificate, for the log.
    subject: Option<Box<str>>,
    state: State,
    is_draining: bool,
    /// Buffer for paths that need decoding.
    path_buffer: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// At the start of a connection.
    Fresh {
        /// HTTP/2 was agreed on (ALPN).
        agreed: Option<Covers>,
    },
    Multiplexed(Box<Multiplexed>),
    /// Before a request, or inside its head.
    Between {
        /// Bytes at the start of the unused input that contain no end of a head.
        seen: usize,
        /// Empty lines so far.
        blank_lines: usize,
    },
    /// Inside a request's body. Boxed, like the kept request: few connections are in this state at
    /// a time, and every connection pays for the largest state.
    Body(Box<KeptRequest>, Box<BodyReader>),
    /// A whole request was taken; its reply is still to be written.
    Answering(Box<KeptRequest>),
    /// The same, while blocking work runs for it.
    Working,
    /// After the last reply, with the peer's request fully received.
    Closed,
    /// After the last reply, with more of the peer's request possibly in flight.
    Refused,
}

impl State {
    const BETWEEN: State = State::Between { seen: 0, blank_lines: 0 };

    /// True if the next step may write a reply into the outbox.
    #[cold]
    fn has_reply_to_come(&self, input: &[u8]) -> bool {
        match self {
            State::Closed | State::Refused | State::Multiplexed(_) => false,
            State::Answering(_) => true,
            _ => !input.is_empty(),
        }
    }

    /// The state after the reply to a fully received request.
    fn after(persists: bool) -> State {
        if persists { State::BETWEEN } else { State::Closed }
    }
}

/// Tells for which hosts, named as in a `Host` field, a connection's certificate is valid.
#[derive(Default)]
pub struct Covers(Option<Box<IsCovered>>);

type IsCovered = dyn Fn(&[u8]) -> bool + Send + Sync;

impl Covers {
    /// Hosts for which `covers` returns true; by default all.
    pub fn new(covers: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Covers {
        Covers(Some(Box::new(covers)))
    }

    fn has(&self, host: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|covers| covers(host))
    }
}

impl fmt::Debug for Covers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Covers").field(&self.0.is_some()).finish()
    }
}

/// Work of a web session: a request that needs the disk or a password check, or a part of a file to
/// read.
#[derive(Debug)]
pub struct Work(Task);

#[derive(Debug)]
enum Task {
    Answer(Box<KeptRequest>),
    Read(Box<PieceRead>),
}

impl session::Work for Work {
    fn run(&mut self, _: Now) {
        match &mut self.0 {
            Task::Answer(kept) => kept.run(),
            Task::Read(read) => read.run(),
        }
    }
}

/// A request whose bytes were consumed before it could be answered.
#[derive(Debug)]
struct KeptRequest {
    handle: Arc<Handle>,
    /// The head as received. It is parsed again when needed, which is rare.
    head: Box<[u8]>,
    /// The HTTP/2 stream of the request.
    stream: Option<StreamKey>,
    /// Time of arrival.
    now: Now,
    /// Limit on its body; a reload does not change it.
    body_len_max: u64,
    /// Number of the service that requested or did the work.
    service: u64,
    /// Result of the work.
    found: Option<Box<Found>>,
    /// A verification to run first.
    verification: Option<Verification>,
    attempt: Attempt,
    /// Its work was refused.
    is_refused: bool,
    /// Its body stays unread.
    leaves_body: bool,
}

impl KeptRequest {
    fn run(&mut self) {
        if let Some(verification) = self.verification.take() {
            if !verification.run() {
                self.attempt = Attempt::Refused;
            }
            return;
        }
        let service = self.handle.service();
        self.service = service.number;
        let found = load(&service, &self.head(), self.now, &mut Vec::new());
        self.found = found.map(Box::new);
    }

    fn head(&self) -> Head<'_> {
        kept_head(&self.head, self.stream.is_some())
    }

    /// Stores the work that an answer of this service needs.
    fn want(&mut self, answer: Answer, service: &Service) {
        self.service = service.number;
        if self.attempt == Attempt::First {
            self.attempt = Attempt::Again;
        }
        if let Answer::Verify(verification) = answer {
            self.verification = Some(verification);
        }
    }
}

// Ten thousand idle connections must cost little memory.
const _: () = assert!(size_of::<Session>() <= 112);

/// Bytes of path buffer that a connection keeps between requests.
const PATH_BUFFER_KEPT: usize = 512;

/// Bytes of an unparsable request that go into the log.
const LOGGED_LINE_LEN_MAX: usize = 1024;

impl Session {
    /// A new connection from `peer`.
    pub fn new(handle: Arc<Handle>, peer: impl Into<Peer>) -> Session {
        let peer = peer.into();
        Session {
            handle,
            peer,
            transport: Transport::default(),
            subject: None,
            state: State::Fresh { agreed: None },
            is_draining: false,
            path_buffer: Vec::new(),
        }
    }

    /// The same over TLS: replies carry the host's `Strict-Transport-Security`, and the log shows
    /// the subject of the client's certificate.
    pub fn over_tls(mut self, subject: Option<String>) -> Session {
        self.transport = Transport::Tls;
        self.subject = subject.map(String::into_boxed_str);
        self
    }

    /// The same with HTTP/2 agreed on (ALPN). Requests for hosts that the certificate does not
    /// cover are misdirected (421).
    pub fn speaking_http2(mut self, covers: Covers) -> Session {
        let agreed = Some(covers);
        self.state = State::Fresh { agreed };
        self
    }

    /// The same for a plain connection whose requests are redirected to HTTPS at `port`, except
    /// challenges of ACME (RFC 8555 8.3).
    pub fn redirecting_to_https(mut self, port: u16) -> Session {
        self.transport = Transport::ToHttps(port);
        self
    }

    pub(crate) fn redirects_to_https(&self) -> bool {
        matches!(self.transport, Transport::ToHttps(_))
    }
}

impl Session {
    /// Context of a call, with the state beside it.
    #[inline]
    fn call<'a>(
        &'a mut self,
        service: &'a Service,
        now: Now,
        out: &'a mut Outbox,
    ) -> (Call<'a>, &'a mut State) {
        let call = Call {
            replier: Replier {
                handle: &self.handle,
                service,
                transport: self.transport,
                subject: self.subject.as_deref(),
                host: service.sole(),
                client: self.peer,
                now,
                readers: Readers::Own,
                out,
                stream: None,
            },
            handle: &self.handle,
            peer: &self.peer,
            transport: self.transport,
            is_draining: self.is_draining,
            path_buffer: &mut self.path_buffer,
        };
        (call, &mut self.state)
    }
}

impl session::Session for Session {
    type Work = Work;

    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        let service = self.handle.service();
        let (mut call, state) = self.call(&service, now, out);
        let mut used = 0;
        loop {
            let rest = &input[used..];
            if call.replier.out.is_full() && state.has_reply_to_come(rest) {
                return Received { used, next: Next::Flush };
            }
            let step = call.step(state, rest);
            used += step.used;
            match step.next {
                None => {}
                Some(next) => {
                    call.shrink();
                    return Received { used, next };
                }
            }
        }
    }

    fn take_work(&mut self) -> Option<Work> {
        let task = match &mut self.state {
            State::Multiplexed(connection) => connection.take_work()?,
            State::Answering(_) => match std::mem::replace(&mut self.state, State::Working) {
                State::Answering(kept) => Task::Answer(kept),
                _ => unreachable!("matched above"),
            },
            _ => return None,
        };
        Some(Work(task))
    }

    fn handle_worked(&mut self, work: Work, now: Now, out: &mut Outbox) -> Next {
        match (work.0, &mut self.state) {
            (Task::Answer(kept), State::Working) => {
                self.state = State::Answering(kept);
                Next::Flush
            }
            (task, State::Multiplexed(_)) => {
                let service = self.handle.service();
                let (mut call, state) = self.call(&service, now, out);
                let State::Multiplexed(connection) = state else { unreachable!("matched above") };
                let next = connection.handle_worked(&mut call, task);
                call.shrink();
                next
            }
            // No request waits for this result.
            _ => Next::Close,
        }
    }

    fn handle_refused(&mut self, mut work: Work, now: Now, out: &mut Outbox) -> Next {
        if let Task::Answer(kept) = &mut work.0 {
            kept.is_refused = true;
        }
        self.handle_worked(work, now, out)
    }

    fn give_up(&mut self, reason: GiveUp, now: Now, out: &mut Outbox) {
        let service = self.handle.service();
        let status = match reason {
            GiveUp::TimedOut(Phase::Idle) | GiveUp::Drained => {
                if let State::Multiplexed(connection) = &mut self.state {
                    connection.give_up(reason, out);
                }
                return;
            }
            GiveUp::TimedOut(Phase::Head | Phase::Body) => Status::RequestTimeout,
            GiveUp::TooLong => Status::FieldsTooLarge,
        };
        let (Call { mut replier, peer, .. }, state) = self.call(&service, now, out);
        match std::mem::replace(state, State::Closed) {
            State::Multiplexed(mut connection) => connection.give_up(reason, replier.out),
            State::Fresh { .. } | State::Between { .. } => {
                replier.page_anywhere(status, RequestFacts::unparsed(b""), &[], None);
            }
            State::Body(kept, _) | State::Answering(kept) => {
                let head = kept.head();
                replier.client = client_of(&service, *peer, &head).peer;
                replier.refuse(status, &head, false, &[], None);
            }
            State::Working | State::Closed | State::Refused => {}
        }
    }

    fn drain(&mut self, _: Now, out: &mut Outbox) {
        self.is_draining = true;
        if let State::Multiplexed(connection) = &mut self.state {
            connection.drain(out);
        }
    }

    #[inline]
    fn held_len(&self) -> usize {
        match &self.state {
            State::Multiplexed(connection) => connection.held_len(),
            _ => 0,
        }
    }

    fn closed(&mut self, _: Now, out: &mut Outbox) {
        if let State::Multiplexed(connection) = &mut self.state {
            connection.end_replies(out);
        }
    }
}

/// Result of one step of the conversation.
struct Progress {
    used: usize,
    /// `None`: continue with the next step.
    next: Option<Next>,
}

impl Progress {
    fn used(used: usize) -> Progress {
        Progress { used, next: None }
    }

    fn wait(next: Next) -> Progress {
        Progress { used: 0, next: Some(next) }
    }
}

/// Context of one call of `receive`; the state is passed beside it.
struct Call<'a> {
    replier: Replier<'a>,
    handle: &'a Arc<Handle>,
    peer: &'a Peer,
    transport: Transport,
    is_draining: bool,
    path_buffer: &'a mut Vec<u8>,
}

impl Call<'_> {
    /// Clears the facts of the previous request.
    fn forget(&mut self) {
        self.replier.host = self.replier.service.sole();
        self.replier.readers = Readers::Own;
        self.replier.client = *self.peer;
        self.replier.transport = self.transport;
        if let Some(reply) = &mut self.replier.stream {
            reply.clear();
        }
    }

    /// Frees excess memory at the end of a call.
    #[inline]
    fn shrink(&mut self) {
        self.path_buffer.clear();
        self.path_buffer.shrink_to(PATH_BUFFER_KEPT);
    }

    #[inline]
    fn step(&mut self, state: &mut State, input: &[u8]) -> Progress {
        self.replier.host = self.replier.service.sole();
        match state {
            State::Between { .. } => self.step_between(state, input),
            State::Multiplexed(connection) => {
                let Received { used, next } = connection.receive(self, input);
                let next = Some(next);
                Progress { used, next }
            }
            State::Fresh { .. } => self.step_fresh(state, input),
            State::Body(..) => self.step_body(state, input),
            State::Answering(_) => self.step_answering(state),
            State::Working => unreachable!("a turn while the request is being worked on"),
            State::Closed => Progress::wait(Next::Close),
            State::Refused => Progress::wait(Next::Linger),
        }
    }

    /// Detects the protocol version. RFC 9113 3.3
    #[cold]
    fn step_fresh(&mut self, state: &mut State, input: &[u8]) -> Progress {
        let State::Fresh { agreed } = state else { unreachable!("called in Fresh") };
        if input.is_empty() {
            return Progress::wait(Next::Receive(Phase::Idle));
        }
        let may_begin = self.transport != Transport::Tls && self.replier.service.config.http2;
        let begins = may_begin && PREFACE.starts_with(&input[..input.len().min(PREFACE.len())]);
        if begins && input.len() < PREFACE.len() {
            return Progress::wait(Next::Receive(Phase::Head));
        }
        let agreed = agreed.take();
        *state = if begins || agreed.is_some() {
            let covers = agreed.unwrap_or_default();
            State::Multiplexed(Box::new(Multiplexed::new(self, covers)))
        } else {
            State::BETWEEN
        };
        Progress::used(0)
    }

    #[inline]
    fn step_between(&mut self, state: &mut State, input: &[u8]) -> Progress {
        let State::Between { seen, blank_lines } = state else { unreachable!("called in Between") };
        if input.is_empty() {
            return Progress::wait(Next::Receive(Phase::Idle));
        }
        let limits = &self.replier.service.config.limits;
        // RFC 9112 2.2: empty lines before a request are skipped.
        if input.starts_with(b"\r\n") {
            (*seen, *blank_lines) = (0, *blank_lines + 1);
            return if *blank_lines <= limits.blank_lines_max {
                Progress::used(2)
            } else {
                self.refuse(state, Refusal::BlankLines, input)
            };
        }
        // Without a new control byte the result cannot change, unless a limit is near. Without this
        // check, a head that arrives byte by byte would take quadratic time. The last byte is
        // checked again: it may be a CR, which the next byte decides about.
        let is_short = input.len() <= limits.request_line_len_max;
        let new = input.get(seen.saturating_sub(1)..).unwrap_or(input);
        if *seen > 0 && is_short && !has_control(new) {
            *seen = input.len();
            return Progress::wait(Next::Receive(Phase::Head));
        }
        match parse(input, limits) {
            Ok(Some(head)) => self.begin(state, &head, input),
            Err(refusal) => self.refuse(state, refusal, input),
            Ok(None) => {
                *seen = input.len();
                Progress::wait(Next::Receive(Phase::Head))
            }
        }
    }

    /// Takes a whole head.
    #[inline]
    fn begin(&mut self, state: &mut State, head: &Head<'_>, input: &[u8]) -> Progress {
        if self.replier.service.asks_for_clients()
            && let Some(refused) = self.begin_for_client(state, head)
        {
            return refused;
        }
        if head.framing != Framing::None || head.fields.has(Name::Expect) {
            return self.begin_with_body(state, head, input);
        }
        let persists = self.persists(head);
        match answer(&mut self.replier, head, persists, None, Attempt::First, self.path_buffer) {
            Answer::Sent => {
                match state {
                    // In place: no old state is dropped.
                    State::Between { seen, blank_lines } if persists => {
                        (*seen, *blank_lines) = (0, 0);
                    }
                    _ => *state = State::after(persists),
                }
                Progress::used(head.len)
            }
            other => {
                let mut kept = self.keep(head, input);
                kept.want(other, self.replier.service);
                *state = State::Answering(kept);
                Progress { used: head.len, next: Some(Next::Work) }
            }
        }
    }

    /// Finds the client of a request. A request that reached its proxy by https is not redirected.
    #[inline]
    fn identify(&mut self, head: &Head<'_>) -> Client {
        let client = client_of(self.replier.service, *self.peer, head);
        self.replier.client = client.peer;
        self.replier.transport = if client.is_https { Transport::Tls } else { self.transport };
        client
    }

    /// Finds the client of a request. Refuses the request if its address has sent too many.
    #[cold]
    fn begin_for_client(&mut self, state: &mut State, head: &Head<'_>) -> Option<Progress> {
        let persists = self.persists(head) && head.framing == Framing::None;
        if !self.refuse_by_rate(head, persists) {
            return None;
        }
        *state = match head.framing {
            Framing::None if persists => State::BETWEEN,
            Framing::None => State::Closed,
            _ => State::Refused, // Its body is not read.
        };
        Some(Progress::used(head.len))
    }

    /// Finds the client of a request, and refuses the request if the client's address has sent too
    /// many.
    fn refuse_by_rate(&mut self, head: &Head<'_>, persists: bool) -> bool {
        let Replier { service, now, .. } = self.replier;
        let client = self.identify(head);
        let (Some((limiter, host)), Peer::Tcp(address)) =
            (service.limiter(head.host()), client.peer)
        else {
            return false;
        };
        // Proxies are exempt; clients that hide behind one count as one client.
        let verdict = if client.is_hidden {
            limiter.count(address.ip(), host, now.monotonic)
        } else {
            limiter.check(address.ip(), host, now.monotonic)
        };
        let wait = match verdict {
            RateVerdict::Passes { evicts: false } => return false,
            RateVerdict::Passes { evicts: true } => {
                self.replier.handle.counts().rate_evicted();
                return false;
            }
            RateVerdict::Refused(wait) => wait,
        };
        let line = format!("Retry-After: {}\r\n", wait.as_secs_f64().ceil().max(1.0));
        self.replier.refuse(Status::TooManyRequests, head, persists, line.as_bytes(), None);
        true
    }

    /// Takes a head with a body behind it, or with an `Expect` field.
    #[cold]
    fn begin_with_body(&mut self, state: &mut State, head: &Head<'_>, input: &[u8]) -> Progress {
        let limit = self.replier.service.body_len_max(head.host());
        if matches!(head.framing, Framing::Length(len) if len > limit) {
            return self.refuse_head(state, Refusal::BodyTooLong, head);
        }
        let has_body = head.framing != Framing::None;
        match Expectation::of(&head.fields, head.version) {
            Expectation::Unknown => {
                // Whether the body follows such a reply is unknown.
                let persists = self.persists(head) && !has_body;
                let status = Status::ExpectationFailed;
                self.replier.refuse(status, head, persists, &[], None);
                *state = if persists { State::BETWEEN } else { State::Refused };
                return Progress::used(head.len);
            }
            Expectation::Continue if has_body => match head.method {
                Method::Get | Method::Head | Method::Options => self.replier.go_on(),
                // RFC 9110 10.1.1: the final reply is sent at once. The client may or may not send
                // its body afterwards, so nothing after it can be interpreted.
                Method::Forbidden | Method::Unknown => {
                    let buffer = &mut *self.path_buffer;
                    let replier = &mut self.replier;
                    let answer = answer(replier, head, false, None, Attempt::First, buffer);
                    if let Answer::Sent = answer {
                        *state = State::Refused;
                        return Progress::used(head.len);
                    }
                    let mut kept = self.keep(head, input);
                    kept.leaves_body = true;
                    kept.want(answer, self.replier.service);
                    *state = State::Answering(kept);
                    return Progress { used: head.len, next: Some(Next::Work) };
                }
            },
            Expectation::Continue | Expectation::None => {}
        }
        let mut kept = self.keep(head, input);
        kept.body_len_max = limit;
        *state = match BodyReader::new(head.framing) {
            Some(body) => State::Body(kept, Box::new(body)),
            None => State::Answering(kept),
        };
        Progress::used(head.len)
    }

    fn step_body(&mut self, state: &mut State, input: &[u8]) -> Progress {
        let State::Body(kept, body) = state else { unreachable!("called in Body") };
        let limits =
            RequestLimits { body_len_max: kept.body_len_max, ..self.replier.service.config.limits };
        match body.discard(input, &limits) {
            Ok((used, BodyProgress::More)) => {
                self.replier.handle.counts().discarded(used);
                Progress { used, next: Some(Next::Receive(Phase::Body)) }
            }
            Ok((used, BodyProgress::Whole)) => {
                self.replier.handle.counts().discarded(used);
                let State::Body(kept, _) = std::mem::replace(state, State::Closed) else {
                    unreachable!("matched above")
                };
                *state = State::Answering(kept);
                Progress::used(used)
            }
            Err(refusal) => {
                let bytes = std::mem::take(&mut kept.head);
                let head = kept_head(&bytes, false);
                self.identify(&head);
                self.refuse_head(state, refusal, &head)
            }
        }
    }

    fn step_answering(&mut self, state: &mut State) -> Progress {
        let State::Answering(kept) = state else { unreachable!("called in Answering") };
        let (answer, persists) = self.answer_kept(kept);
        if let Answer::Sent = answer {
            *state = if kept.leaves_body { State::Refused } else { State::after(persists) };
            return Progress::used(0);
        }
        kept.want(answer, self.replier.service);
        Progress::wait(Next::Work)
    }

    /// Answers a kept request. Also tells whether the connection persists.
    fn answer_kept(&mut self, kept: &mut KeptRequest) -> (Answer, bool) {
        let mut found = kept.found.take().map(|found| *found);
        if kept.service != self.replier.service.number {
            // Another service: the entry has slots in its site's lists, and the password was
            // checked against the old file.
            (found, kept.attempt) = (None, Attempt::Again);
        }
        let head = kept.head();
        self.identify(&head);
        let persists = kept.stream.is_some() || (!kept.leaves_body && self.persists(&head));
        if kept.is_refused {
            let why = Some("too much waits for the disk");
            let status = Status::ServiceUnavailable;
            self.replier.refuse(status, &head, persists, &[], why);
            return (Answer::Sent, persists);
        }
        let buffer = &mut *self.path_buffer;
        let replier = &mut self.replier;
        let answer = answer(replier, &head, persists, found, kept.attempt, buffer);
        (answer, persists)
    }

    /// Refuses unparsable input; the connection closes.
    #[cold]
    fn refuse(&mut self, state: &mut State, refusal: Refusal, input: &[u8]) -> Progress {
        self.forget();
        let facts = RequestFacts::unparsed(first_line(input));
        self.replier.handle.counts().refused(refusal);
        self.replier.page_anywhere(refusal.status(), facts, &[], Some(refusal.name()));
        *state = State::Refused;
        Progress::wait(Next::Linger)
    }

    /// Refuses a request with a valid head; the connection closes.
    fn refuse_head(&mut self, state: &mut State, refusal: Refusal, head: &Head<'_>) -> Progress {
        self.replier.handle.counts().refused(refusal);
        self.replier.refuse(refusal.status(), head, false, &[], Some(refusal.name()));
        *state = State::Refused;
        Progress::wait(Next::Linger)
    }

    #[inline]
    fn persists(&self, head: &Head<'_>) -> bool {
        !self.is_draining && head.is_persistent()
    }

    fn keep(&self, head: &Head<'_>, input: &[u8]) -> Box<KeptRequest> {
        Box::new(KeptRequest {
            handle: Arc::clone(self.handle),
            head: input[..head.len].into(),
            stream: None,
            now: self.replier.now,
            body_len_max: u64::MAX,
            service: self.replier.service.number,
            found: None,
            verification: None,
            attempt: Attempt::First,
            is_refused: false,
            leaves_body: false,
        })
    }
}

/// The client of a request: the peer, unless that is a proxy that names another.
#[inline]
fn client_of(service: &Service, peer: Peer, head: &Head<'_>) -> Client {
    match &service.config.proxies {
        Some(proxies) => proxies.client(peer, &head.fields),
        None => Client::unnamed(peer),
    }
}

/// The head of a kept request. It was valid on arrival, so only limits could refuse it now, and a
/// reload may have changed them.
fn kept_head(bytes: &[u8], is_http2: bool) -> Head<'_> {
    let parsed = if is_http2 {
        parse_stream(bytes, &RequestLimits::NONE)
    } else {
        parse(bytes, &RequestLimits::NONE)
    };
    match parsed {
        Ok(Some(head)) => head,
        other => unreachable!("{other:?} for a head that was valid before"),
    }
}

/// The part of the first line that the log shows.
fn first_line(input: &[u8]) -> &[u8] {
    let shown = &input[..input.len().min(LOGGED_LINE_LEN_MAX)];
    let len = shown.iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(shown.len());
    &shown[..len]
}
