//! The blocking driver: straight-line code, a fiber or a kernel thread per connection. This page is the whole
//! server; everything else is protocol or plumbing.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use session::{Chunk, GiveUp, Next, Now, Outbox, Phase, Session};

use crate::access_log::AccessLog;
use crate::clock::Clock;
use crate::conversation::{Conversation, PooledOutbox};
use crate::counters::{Closed, Counters};
use crate::limits::Limits;
use crate::stream::{FILE_PIECE_LEN_MAX, Stream};

/// What all connections of a server share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) log: Option<std::sync::Arc<AccessLog>>,
    pub(crate) is_draining: AtomicBool,
}

/// Chunks in memory that one send carries.
const GATHERED_MAX: usize = 16;

/// A look at a file that is not older than this is as good as one now: about what sending a piece takes.
const FILE_LOOK_AGE_MAX: Duration = Duration::from_millis(1);

/// How long a peer that was refused may go on sending before the connection is closed on it, and how much.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const LINGER_LEN_MAX: usize = 1024 * 1024;

/// Carries one conversation to its end. `idle` tells those who drain the server since when the connection
/// has been waiting between two requests.
pub(crate) fn converse<S: Session, T: Stream>(
    stream: &T,
    session: S,
    shared: &Shared,
    idle: &IdleSince,
) -> Closed {
    let clock = Clock::new();
    let conversation = Conversation::new(session, clock.now(), &shared.limits);
    let mut driver = Driver {
        stream,
        conversation,
        shared,
        clock,
    };
    loop {
        if let Err(closed) = driver.serve_next(idle) {
            return closed;
        }
    }
}

struct Driver<'a, S, T> {
    stream: &'a T,
    conversation: Conversation<S>,
    shared: &'a Shared,
    clock: Clock,
}

impl<S: Session, T: Stream> Driver<'_, S, T> {
    /// Waits for input, lets the session answer it, sends the answers.
    fn serve_next(&mut self, idle: &IdleSince) -> Result<(), Closed> {
        let (next, now, mut out) = self.receive()?;
        idle.end();
        self.answer(next, now, out.get())?;
        if self.conversation.phase() == Phase::Idle {
            idle.begin(now.monotonic);
        }
        Ok(())
    }

    /// Waits for input and shows it to the session. Says when it came: reading a clock costs as much as parsing a
    /// line, so what follows at once goes by the same time.
    fn receive(&mut self) -> Result<(Next, Now, PooledOutbox), Closed> {
        let is_logged = self.shared.log.is_some();
        if !self.conversation.body_room().is_empty() {
            let mut out = PooledOutbox::take(is_logged);
            return self
                .receive_body(out.get())
                .map(|(next, now)| (next, now, out));
        }
        let Driver {
            stream,
            conversation,
            shared,
            clock,
        } = self;
        let deadline = conversation.deadline();
        let received = stream.receive(deadline, |input| {
            if input.is_empty() {
                return None;
            }
            shared.counters.received(input.len());
            let mut out = PooledOutbox::take(is_logged);
            if shared.is_draining.load(Ordering::Relaxed) {
                conversation.drain();
            }
            let (now, limits) = (clock.now(), &shared.limits);
            // Sessions do not wait, so they need not use (and keep) pages of the fiber's stack.
            let next =
                fiber::on_processor_stack(|| conversation.take(input, now, limits, out.get()));
            Some((next, now, out))
        });
        match received {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err(self.end_of_stream()),
            Err(error) => Err(self.receive_failed(&error)),
        }
    }

    /// Receives a long body where the session wants it.
    fn receive_body(&mut self, out: &mut Outbox) -> Result<(Next, Now), Closed> {
        let deadline = self.conversation.deadline();
        match self
            .stream
            .receive_into(self.conversation.body_room(), deadline)
        {
            Ok(0) => Err(self.end_of_stream()),
            Ok(len) => {
                self.shared.counters.received(len);
                let now = self.clock.now();
                let limits = &self.shared.limits;
                Ok((self.conversation.body_filled(len, now, limits, out), now))
            }
            Err(error) => Err(self.receive_failed(&error)),
        }
    }

    /// Sends what the session wrote, and does what it asks for, until it waits for input again.
    fn answer(&mut self, mut next: Next, mut now: Now, out: &mut Outbox) -> Result<(), Closed> {
        loop {
            let sent = self.flush(now, out);
            self.log(out);
            sent?;
            match next {
                Next::Receive(_) => return Ok(()),
                Next::Flush => {}
                Next::Work => {
                    self.shared.counters.worked();
                    fiber::offload(|| self.conversation.work());
                }
                Next::Close => return Err(Closed::Session),
                Next::Linger => {
                    self.linger();
                    return Err(Closed::Session);
                }
            }
            let limits = &self.shared.limits;
            now = self.clock.now();
            next = fiber::on_processor_stack(|| self.conversation.go_on(now, limits, out));
        }
    }

    /// Sends until the outbox is empty.
    fn flush(&self, now: Now, out: &mut Outbox) -> Result<(), Closed> {
        let mut pace = None;
        let mut now = now.monotonic;
        while !out.is_empty() {
            let sent = self.send_some(out, now, pace.as_ref())?;
            self.shared.counters.sent(sent as usize);
            out.consume(sent);
            if !out.is_empty() {
                pace.get_or_insert(Pace::new(now))
                    .check(sent, &self.shared.limits)?;
                now = self.clock.now().monotonic;
            }
        }
        Ok(())
    }

    /// Sends the chunks in memory up to the next file, or a piece of a file.
    fn send_some(&self, out: &Outbox, now: Instant, pace: Option<&Pace>) -> Result<u64, Closed> {
        let deadline = now + self.shared.limits.send_timeout;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => Closed::TooSlow,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Closed::Peer,
            _ => Closed::Error,
        };
        if let Some(Chunk::File(range)) = out.front() {
            // Its length has been announced: a file that ends early or was written to meanwhile can only
            // be cut off, so that nobody takes it for whole. The session looked when it made the header;
            // if that is a while ago, we do before the last piece.
            let may_be_last = range.len() <= FILE_PIECE_LEN_MAX;
            let is_stale = pace.is_some_and(|pace| now - pace.since > FILE_LOOK_AGE_MAX);
            if may_be_last && is_stale && !range.file.is_unchanged().unwrap_or(false) {
                return Err(Closed::Error);
            }
            let sent = self.stream.send_file(range, deadline).map_err(failed)?;
            return if sent > 0 {
                Ok(sent)
            } else {
                Err(Closed::Error)
            };
        }
        let mut slices = [IoSlice::new(&[]); GATHERED_MAX];
        let count = out.gather(&mut slices);
        let file_follows = matches!(out.chunks().nth(count), Some(Chunk::File(_)));
        let sent = self
            .stream
            .send(&slices[..count], file_follows, deadline)
            .map_err(failed)?;
        Ok(sent as u64)
    }

    fn log(&self, out: &mut Outbox) {
        if let Some(log) = &self.shared.log {
            out.take_log(|lines| log.write(lines));
        }
    }

    fn end_of_stream(&self) -> Closed {
        // Who drains shuts idle connections down, which looks like an end.
        let is_idle = self.conversation.phase() == Phase::Idle;
        if is_idle && self.shared.is_draining.load(Ordering::SeqCst) {
            Closed::Drained
        } else {
            Closed::Peer
        }
    }

    fn receive_failed(&mut self, error: &io::Error) -> Closed {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let phase = self.conversation.phase();
                self.say(GiveUp::TimedOut(phase));
                Closed::TimedOut(phase)
            }
            io::ErrorKind::ConnectionReset => Closed::Peer,
            _ => Closed::Error,
        }
    }

    /// Lets the session say why it ends, if the peer takes that without delay.
    fn say(&mut self, reason: GiveUp) {
        let mut out = PooledOutbox::take(self.shared.log.is_some());
        let now: Now = self.clock.now();
        self.conversation.give_up(reason, now, out.get());
        let _ = self.flush(now, out.get());
        self.log(out.get());
    }

    /// Closes in stages: our side ends, and what the peer is still sending is discarded for a while, so that
    /// it sees our reply and not a reset. RFC 9112 9.6
    fn linger(&self) {
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let deadline = self.clock.now().monotonic + LINGER_TIMEOUT;
        let mut discarded = 0;
        while discarded < LINGER_LEN_MAX {
            match self.stream.receive(deadline, <[u8]>::len) {
                Ok(0) | Err(_) => return,
                Ok(len) => discarded += len,
            }
        }
    }
}

/// Since when a connection has been idle, for those who look from other threads.
pub(crate) struct IdleSince {
    start: Instant,
    /// Milliseconds after `start`, plus one; 0 is busy.
    since_ms: AtomicU64,
}

impl IdleSince {
    /// Idle from now on: the first request is yet to come.
    pub(crate) fn new() -> IdleSince {
        IdleSince {
            start: Instant::now(),
            since_ms: AtomicU64::new(1),
        }
    }

    fn begin(&self, now: Instant) {
        let ms = now.saturating_duration_since(self.start).as_millis() as u64;
        self.since_ms.store(ms + 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.since_ms.store(0, Ordering::Relaxed);
    }

    /// Whether it is idle and has been for at least `duration`.
    pub(crate) fn has_been_idle_for(&self, duration: Duration) -> bool {
        let since = self.since_ms.load(Ordering::Relaxed);
        since != 0 && self.start.elapsed() >= duration + Duration::from_millis(since)
    }
}

/// How fast a peer takes a reply that does not fit into the socket's buffer.
struct Pace {
    since: Instant,
    taken: u64,
}

impl Pace {
    fn new(since: Instant) -> Pace {
        Pace { since, taken: 0 }
    }

    /// # Errors
    /// `TooSlow` when a whole window has brought less than the minimum rate.
    fn check(&mut self, sent: u64, limits: &Limits) -> Result<(), Closed> {
        self.taken += sent;
        let elapsed = self.since.elapsed();
        if elapsed < limits.send_rate_window {
            return Ok(());
        }
        let taken_min = (limits.send_rate_min as f64 * elapsed.as_secs_f64()) as u64;
        let is_fast_enough = self.taken >= taken_min;
        *self = Pace::new(Instant::now());
        if is_fast_enough {
            Ok(())
        } else {
            Err(Closed::TooSlow)
        }
    }
}
