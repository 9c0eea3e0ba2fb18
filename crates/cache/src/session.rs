use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use session::{GiveUp, Next, Now, Outbox, Phase, Received};

use crate::conversation::{Context, Dump, Progress, State};
use crate::service::connections::Connection;
use crate::service::counters::Count;
use crate::service::watch::Watcher;
use crate::service::{Auth, Binding, ConnEvent, Peer, Service};
use crate::store::{Cursor, Seconds};
use crate::{binary, text};

/// One conversation with a client, in any of memcached's protocols.
///
/// ```text
///            whole command in the input: answered where it lies
///           ┌─────────┐
///           ▼         │
///   ──▶ Command ── long value ──────▶ Value ────── its last byte ──▶ Command
///           │   ── refused value ───▶ Swallow ──── its last byte ──▶ Command
///           │   ── full outbox ─────▶ Keys, Dump ─ the last item ──▶ Command
///           └── watch ──▶ Watch
///
///   quit, a line that is no command line, wrong password ──▶ Closed
/// ```
///
/// All complete commands of one input are answered in one call, until the outbox is full. The
/// common command allocates nothing: it is parsed in place, looked up, and its reply written into
/// the outbox.
#[derive(Debug)]
pub struct Session {
    service: Arc<Service>,
    connection: Arc<Connection>,
    state: State,
    dialect: Dialect,
    may_ask: bool,
    is_draining: bool,
    /// Reason for which the driver ended the conversation, if it did.
    gave_up: Option<GiveUp>,
}

/// The protocol of a conversation. Its first byte decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Unknown,
    Text,
    Binary,
}

// Ten thousand idle connections must cost little memory.
const _: () = assert!(size_of::<Session>() <= 128);

/// Length from which a value is received straight into its item. Below it, receiving with the
/// input costs less CPU.
const BODY_BUFFER_LEN_MIN: usize = 16 * 1024;

/// Time for which a watcher with a thread of its own waits before it checks for the end.
const WATCH_WAIT: Duration = Duration::from_millis(500);

/// Items visited in one step of a crawl.
const CRAWL_STEP: usize = 4096;

impl Session {
    /// A new conversation with `peer`.
    pub fn new(service: Arc<Service>, peer: Peer, now: Now) -> Session {
        Session::begin(service, peer, None, now)
    }

    /// A new conversation with `peer`, accepted by listener number `listener`: the index of its
    /// [`listens_at`](Service::listens_at) call, from 0.
    pub fn accepted(service: Arc<Service>, peer: Peer, listener: usize, now: Now) -> Session {
        Session::begin(service, peer, Some(listener), now)
    }

    fn begin(service: Arc<Service>, peer: Peer, listener: Option<usize>, now: Now) -> Session {
        let seconds = service.seconds(now);
        let connection = service.connections.open(peer, listener, seconds);
        service.log_connection(ConnEvent::New, peer, connection.id, now);
        Session {
            may_ask: matches!(service.settings.auth, Auth::Open),
            dialect: Dialect::Unknown,
            state: State::Command,
            is_draining: false,
            gave_up: None,
            connection,
            service,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.service.connections.close(&self.connection);
        if let State::Watch { watcher, .. } = &self.state {
            self.service.watchers.remove(watcher);
        }
    }
}

impl session::Session for Session {
    type Work = Work;

    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        let mut cx = Context::new(&self.service, &self.connection, now, out);
        let mut used = 0;
        // End of the input already searched for the next command.
        let mut seen = 0;
        loop {
            let rest = &input[used..];
            if cx.out.is_full() && (!rest.is_empty() || self.state.has_output()) {
                self.service.counters.add(Count::Yields, 1);
                return Received { used, next: Next::Flush };
            }
            if used > seen && matches!(self.state, State::Command) {
                seen = used + text::prefetch(&cx, rest);
            }
            let mut conversation = Conversation {
                state: &mut self.state,
                dialect: &mut self.dialect,
                may_ask: &mut self.may_ask,
                is_draining: self.is_draining,
            };
            let step = conversation.step(&mut cx, rest);
            used += step.used;
            match step.next {
                None => {}
                Some(next) => {
                    if next == Next::Flush {
                        self.service.counters.add(Count::Yields, 1);
                    }
                    return Received { used, next };
                }
            }
        }
    }

    fn take_work(&mut self) -> Option<Work> {
        let service = || Arc::clone(&self.service);
        Some(Work(match &mut self.state {
            State::Watch { watcher, waits: waits @ false } => {
                *waits = true;
                Job::Watch(Arc::clone(watcher))
            }
            State::Dump(dump) => Job::Dump(service(), mem::take(dump)),
            State::Crawl => Job::Crawl(service(), BUSY),
            _ => return None,
        }))
    }

    fn handle_worked(&mut self, work: Work, _: Now, _: &mut Outbox) -> Next {
        match work.0 {
            Job::Watch(_) => {
                if let State::Watch { waits, .. } = &mut self.state {
                    *waits = false;
                }
            }
            Job::Dump(_, dump) => self.state = State::Dump(dump),
            Job::Crawl(_, reply) => self.state = State::Crawled(reply),
        }
        Next::Flush
    }

    fn handle_refused(&mut self, work: Work, now: Now, out: &mut Outbox) -> Next {
        match work.0 {
            Job::Crawl(..) => self.handle_worked(work, now, out),
            // An incomplete listing must not look complete.
            Job::Watch(_) | Job::Dump(..) => Next::Close,
        }
    }

    fn body_buffer(&mut self) -> &mut [u8] {
        match &mut self.state {
            State::Value(pending) if pending.reservation.missing() >= BODY_BUFFER_LEN_MIN => {
                // Without memory for the rest, the next bytes arrive as input and fail likewise.
                pending.reservation.space().unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    fn body_filled(&mut self, len: usize, now: Now, out: &mut Outbox) -> Next {
        let State::Value(pending) = &mut self.state else {
            unreachable!("{len} bytes of a value outside of Value")
        };
        pending.reservation.filled(len);
        if !pending.reservation.is_full() || self.dialect == Dialect::Text {
            return Next::Receive(Phase::Body);
        }
        let mut cx = Context::new(&self.service, &self.connection, now, out);
        binary::storage::finish(&mut cx, &mut self.state);
        Next::Receive(Phase::Idle)
    }

    /// Closes without a reply, as memcached does for a slow client.
    fn give_up(&mut self, reason: GiveUp, _: Now, _: &mut Outbox) {
        self.state = State::Closed;
        self.gave_up = Some(reason);
    }

    fn drain(&mut self, _: Now, _: &mut Outbox) {
        self.is_draining = true;
    }

    fn closed(&mut self, now: Now, _: &mut Outbox) {
        let reason = match self.gave_up {
            Some(GiveUp::TimedOut(_)) => "idle_timeout",
            Some(GiveUp::TooLong) => "error",
            Some(GiveUp::Drained) => "shutdown",
            None if self.is_draining => "shutdown",
            None => "normal",
        };
        let Connection { peer, id, .. } = *self.connection;
        self.service.log_connection(ConnEvent::Close(reason), peer, id, now);
    }
}

/// Work of a conversation that would occupy a processor for long, or that waits.
#[derive(Debug)]
pub struct Work(Job);

#[derive(Debug)]
enum Job {
    /// Waiting for event lines.
    Watch(Arc<Watcher>),
    /// The next piece of a listing.
    Dump(Arc<Service>, Box<Dump>),
    /// A crawl, with its reply.
    Crawl(Arc<Service>, &'static [u8]),
}

impl session::Work for Work {
    fn run(&mut self, now: Now) {
        match &mut self.0 {
            Job::Watch(watcher) => watcher.wait(WATCH_WAIT),
            Job::Dump(service, dump) => dump.walk(service, service.seconds(now)),
            Job::Crawl(service, reply) => {
                if let Some(crawl) = Crawl::begin(service) {
                    *reply = crawl.run(service.seconds(now));
                }
            }
        }
    }

    fn waits(&self) -> bool {
        matches!(self.0, Job::Watch(_))
    }

    fn begin(self, _: Now, done: Box<dyn FnOnce(Self) + Send>) {
        match &self.0 {
            Job::Watch(watcher) => {
                let watcher = Arc::clone(watcher);
                watcher.wake_by(Box::new(|| done(self)));
            }
            Job::Dump(..) | Job::Crawl(..) => done(self),
        }
    }
}

/// Reply to a client that requests a crawl during another one.
const BUSY: &[u8] = b"BUSY currently processing crawler request\r\n";

/// A crawl over all items, for a client. Only one runs at a time, as in memcached: each keeps a
/// processor busy, and a second one finds nothing left to remove.
struct Crawl<'a> {
    service: &'a Service,
}

impl<'a> Crawl<'a> {
    /// `None` while another one runs.
    fn begin(service: &'a Service) -> Option<Crawl<'a>> {
        let is_busy = service.tuning.has_client_crawl.swap(true, Ordering::AcqRel);
        (!is_busy).then(|| Crawl { service })
    }

    fn run(self, seconds: Seconds) -> &'static [u8] {
        let mut cursor = Some(Cursor::START);
        while let Some(at) = cursor {
            cursor = self
                .service
                .store()
                .crawl(at, CRAWL_STEP, seconds, |_| std::ops::ControlFlow::Continue(()));
        }
        b"OK\r\n"
    }
}

impl Drop for Crawl<'_> {
    fn drop(&mut self) {
        let crawls = &self.service.tuning.has_client_crawl;
        crawls.store(false, Ordering::Release);
    }
}

/// State of one conversation, without the parts shared with others.
struct Conversation<'a> {
    state: &'a mut State,
    dialect: &'a mut Dialect,
    may_ask: &'a mut bool,
    is_draining: bool,
}

impl Conversation<'_> {
    #[inline]
    fn step(&mut self, cx: &mut Context<'_>, input: &[u8]) -> Progress {
        match self.state {
            State::Command => self.step_command(cx, input),
            State::Keys(retrieval) => {
                let retrieval = *retrieval;
                text::retrieval::go_on(cx, self.state, retrieval, input)
            }
            State::SkipLine => self.step_skip_line(input),
            State::Value(_) if *self.dialect == Dialect::Binary => {
                binary::storage::go_on(cx, self.state, input)
            }
            State::Value(_) => text::storage::go_on(cx, self.state, input),
            State::Swallow(swallow) => {
                let len = swallow.left.min(input.len() as u64);
                swallow.left -= len;
                if swallow.left > 0 {
                    return Progress { used: input.len(), next: Some(Next::Receive(Phase::Body)) };
                }
                cx.out.put(&swallow.reply);
                *self.state = State::Command;
                Progress::used(len as usize)
            }
            State::Dump(dump) => {
                if dump.put(cx.out) {
                    *self.state = State::Command;
                } else if !cx.out.is_full() {
                    return Progress::then(Next::Work);
                }
                Progress::used(0)
            }
            State::Crawl => Progress::then(Next::Work),
            State::Crawled(reply) => {
                cx.out.put(reply);
                *self.state = State::Command;
                Progress::used(0)
            }
            State::Watch { watcher, .. } => {
                let watchers = &cx.service.watchers;
                let mut lines = Vec::new();
                let count = watcher.take(&mut lines);
                watchers.sent.fetch_add(count, Ordering::Relaxed);
                cx.out.put(&lines);
                let next = if watcher.is_ended() || self.is_draining {
                    Next::Close
                } else {
                    Next::Duplex { phase: Phase::Idle, has_more: false }
                };
                // A watcher's further input is ignored, except for its end.
                Progress { used: input.len(), next: Some(next) }
            }
            State::Closed => Progress::then(Next::Close),
            State::Refused => Progress::then(Next::Linger),
        }
    }

    #[inline]
    fn step_command(&mut self, cx: &mut Context<'_>, input: &[u8]) -> Progress {
        let Some(&first) = input.first() else {
            return if self.is_draining {
                Progress::then(Next::Close)
            } else {
                Progress::wait(Phase::Idle)
            };
        };
        if *self.dialect == Dialect::Unknown {
            *self.dialect = dialect_of(first, cx.service);
        }
        if *self.dialect == Dialect::Binary {
            return binary::step(cx, self.state, self.may_ask, input);
        }
        if !*self.may_ask {
            return text::authenticate(cx, self.state, self.may_ask, input);
        }
        text::step(cx, self.state, input)
    }

    fn step_skip_line(&mut self, input: &[u8]) -> Progress {
        match memchr::memchr(b'\n', input) {
            Some(end) => {
                *self.state = State::Command;
                Progress::used(end + 1)
            }
            None => Progress { used: input.len(), next: Some(Next::Receive(Phase::Head)) },
        }
    }
}

fn dialect_of(first: u8, service: &Service) -> Dialect {
    let settings = &service.settings;
    match (&settings.auth, settings.binding) {
        (Auth::Ascii(_), _) | (_, Binding::Ascii) => Dialect::Text,
        (Auth::Sasl(_), _) | (_, Binding::Binary) => Dialect::Binary,
        (Auth::Open, Binding::Auto) if first == binary::REQUEST_MAGIC => Dialect::Binary,
        (Auth::Open, Binding::Auto) => Dialect::Text,
    }
}

#[cfg(test)]
mod tests {
    use session::replay::{queued, test_now};
    use session::{Session as _, work_here};

    use super::*;
    use crate::store::{Config, Store};
    use crate::{NoHost, Settings};

    /// Seen: 32 clients that requested crawls kept 32 threads busy, and others waited. memcached
    /// runs one crawl at a time, and refuses others.
    #[test]
    fn clients_crawl_one_at_a_time() {
        let store = Store::new(Config::default()).expect("a store");
        let service = Service::new(store, Settings::default(), NoHost, test_now());
        let service = Arc::new(service);
        let crawl = || {
            let mut session = Session::new(Arc::clone(&service), Peer::Unix, test_now());
            let mut out = Outbox::new();
            let asked = session.receive(b"lru_crawler crawl all\r\n", test_now(), &mut out);
            assert_eq!(asked.next, Next::Work);
            assert_eq!(work_here(&mut session, test_now(), &mut out), Next::Flush);
            let answered = session.receive(b"", test_now(), &mut out);
            assert_eq!(answered.next, Next::Receive(Phase::Idle));
            String::from_utf8(queued(&out)).unwrap()
        };
        assert_eq!(crawl(), "OK\r\n");
        let other = Crawl::begin(&service).expect("no other crawl runs");
        assert!(crawl().starts_with("BUSY"));
        drop(other);
        assert_eq!(crawl(), "OK\r\n");
    }
}
