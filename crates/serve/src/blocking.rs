//! The blocking driver: straight-line code, a fiber or a kernel thread per connection. This page is the whole
//! server; everything else is protocol or plumbing.
//!
//! What happens when input has come is one [`Driver::arrived`]: it shows the input to the session and sends what the
//! session answers, blocking where it must. A kernel thread waits for input in a loop around it ([`converse`]). A fiber
//! has it as its step, and needs no stack while it waits for the next.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use session::{Chunk, FileRange, GiveUp, Next, Now, Outbox, Phase, Session};

use crate::access_log::AccessLog;
use crate::clock;
use crate::conversation::{Conversation, PooledOutbox};
use crate::counters::{Closed, Counters};
use crate::limits::Limits;
use crate::stream::Stream;

/// What all connections of a server share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) log: Option<Arc<AccessLog>>,
    pub(crate) is_draining: AtomicBool,
}

/// Chunks in memory that one send carries.
const GATHERED_MAX: usize = 16;

/// How much of a file's end is held back until the peer has taken the rest.
const HELD_BACK_LEN: u64 = 16 * 1024;

/// How often to look whether it has.
const TAKEN_LOOK_MIN: Duration = Duration::from_micros(100);
const TAKEN_LOOK_MAX: Duration = Duration::from_millis(20);

/// How long a peer that was refused may go on sending before the connection is closed on it, and how much.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const LINGER_LEN_MAX: usize = 1024 * 1024;

/// A stream, and since when it has been waiting between two requests: what those see of it who drain the server.
pub(crate) struct Connection<T> {
    pub(crate) stream: T,
    pub(crate) idle: IdleSince,
}

/// Carries one conversation to its end.
pub(crate) fn converse<S: Session, T: Stream>(driver: &mut Driver<S, T>) -> Closed {
    let connection = Arc::clone(&driver.connection);
    loop {
        let deadline = driver.deadline();
        let taken = connection
            .stream
            .receive(deadline, |input| driver.take(input));
        if let Err(closed) = driver.arrived(taken) {
            return closed;
        }
    }
}

/// One conversation and the stream that it is carried on.
pub(crate) struct Driver<S, T> {
    connection: Arc<Connection<T>>,
    conversation: Conversation<S>,
    shared: Arc<Shared>,
}

/// What the session made of an input: what comes next, when the input came, and the replies. Reading a clock costs
/// as much as parsing a line, so what follows at once goes by the same time.
pub(crate) struct Taken {
    next: Next,
    now: Now,
    out: PooledOutbox,
}

impl<S: Session, T: Stream> Driver<S, T> {
    pub(crate) fn new(connection: Arc<Connection<T>>, session: S, shared: Arc<Shared>) -> Self {
        Driver {
            connection,
            conversation: Conversation::new(session, clock::now(), &shared.limits),
            shared,
        }
    }

    pub(crate) fn stream(&self) -> &T {
        &self.connection.stream
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Until when to wait for the next input.
    pub(crate) fn deadline(&self) -> Instant {
        self.conversation.deadline()
    }

    /// Shows an input to the session; `None` at the end of the stream.
    pub(crate) fn take(&mut self, input: &[u8]) -> Option<Taken> {
        if input.is_empty() {
            return None;
        }
        self.shared.counters.received(input.len());
        let mut out = PooledOutbox::take(self.shared.log.is_some());
        if self.shared.is_draining.load(Ordering::Relaxed) {
            self.conversation.drain();
        }
        let now = clock::now();
        let (conversation, limits) = (&mut self.conversation, &self.shared.limits);
        // Sessions do not wait, so they need not use (and keep) pages of the fiber's stack.
        let next = fiber::on_processor_stack(|| conversation.take(input, now, limits, out.get()));
        Some(Taken { next, now, out })
    }

    /// Sends what the session made of the input, and whatever follows from it, until it waits for input again.
    ///
    /// # Errors
    /// How the conversation ended.
    pub(crate) fn arrived(&mut self, taken: io::Result<Option<Taken>>) -> Result<(), Closed> {
        let mut taken = match taken {
            Ok(Some(taken)) => taken,
            Ok(None) => return Err(self.end_of_stream()),
            Err(error) => return Err(self.receive_failed(&error)),
        };
        self.connection.idle.end();
        loop {
            let now = self.answer(taken.next, taken.now, taken.out.get())?;
            if self.conversation.body_room().is_empty() {
                if self.conversation.phase() == Phase::Idle {
                    self.connection.idle.begin(now);
                }
                return Ok(());
            }
            (taken.next, taken.now) = self.receive_body(taken.out.get())?;
        }
    }

    /// Receives a long body where the session wants it.
    fn receive_body(&mut self, out: &mut Outbox) -> Result<(Next, Now), Closed> {
        let deadline = self.deadline();
        let room = self.conversation.body_room();
        match self.connection.stream.receive_into(room, deadline) {
            Ok(0) => Err(self.end_of_stream()),
            Ok(len) => {
                self.shared.counters.received(len);
                let now = clock::now();
                let limits = &self.shared.limits;
                Ok((self.conversation.body_filled(len, now, limits, out), now))
            }
            Err(error) => Err(self.receive_failed(&error)),
        }
    }

    /// Sends what the session wrote, and does what it asks for, until it waits for input again. Says when.
    fn answer(
        &mut self,
        mut next: Next,
        mut now: Now,
        out: &mut Outbox,
    ) -> Result<Instant, Closed> {
        loop {
            let sent = self.flush(now, out);
            self.account(out);
            let sent_at = sent?;
            match next {
                Next::Receive(_) => return Ok(sent_at),
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
            now = clock::now();
            next = fiber::on_processor_stack(|| self.conversation.go_on(now, limits, out));
        }
    }

    /// Sends until the outbox is empty. Says when that was, roughly.
    fn flush(&self, now: Now, out: &mut Outbox) -> Result<Instant, Closed> {
        let mut pace = None;
        let mut now = now.monotonic;
        while !out.is_empty() {
            let sent = self.send_some(out, now, pace.as_mut())?;
            self.shared.counters.sent(sent as usize);
            out.consume(sent);
            if !out.is_empty() {
                pace.get_or_insert(Pace::new(now))
                    .check(sent, &self.shared.limits)?;
                now = clock::now().monotonic;
            }
        }
        Ok(now)
    }

    /// Sends the chunks in memory up to the next file, or a piece of a file.
    fn send_some(
        &self,
        out: &Outbox,
        now: Instant,
        pace: Option<&mut Pace>,
    ) -> Result<u64, Closed> {
        let deadline = now + self.shared.limits.send_timeout;
        if let Some(Chunk::File(range)) = out.front() {
            return self.send_file(range, deadline, pace);
        }
        let mut slices = [IoSlice::new(&[]); GATHERED_MAX];
        let count = out.gather(&mut slices);
        let file_follows = matches!(out.chunks().nth(count), Some(Chunk::File(_)));
        let sent = self
            .stream()
            .send(&slices[..count], file_follows, deadline)
            .map_err(|error| send_failed(&error))?;
        Ok(sent as u64)
    }

    /// Sends a piece of a file. Its length has been announced: a file that ends early or was written to meanwhile can
    /// only be cut off, so that it is not taken for whole.
    ///
    /// What `sendfile(2)` queues are the page cache's own pages, so a write changes bytes that were sent but not yet
    /// taken. A write into a settled file shows in its stamp: once a reply has been too much for the socket
    /// (`pace`), its end is held back until the rest was taken and the stamp is still the same. Where that cannot be
    /// told, every piece is a copy. docs/serve.md says what is left.
    fn send_file(
        &self,
        range: &FileRange,
        deadline: Instant,
        pace: Option<&mut Pace>,
    ) -> Result<u64, Closed> {
        let stream = self.stream();
        let sent = match pace {
            _ if !range.settled => stream.send_file_copy(range, deadline),
            None => stream.send_file(range, deadline),
            Some(_) if !range.file.is_unchanged().unwrap_or(false) => return Err(Closed::Error),
            Some(_) if range.len() > HELD_BACK_LEN => {
                let mut before = range.clone();
                before.range.end -= HELD_BACK_LEN;
                stream.send_file(&before, deadline)
            }
            Some(pace) => {
                self.wait_until_taken(pace)?;
                stream.send_file_copy(range, deadline)
            }
        };
        match sent {
            Ok(0) => Err(Closed::Error),
            Ok(sent) => Ok(sent),
            Err(error) => Err(send_failed(&error)),
        }
    }

    /// Waits until the peer's system has acknowledged everything. There is no event for that; but the peer has just been
    /// slow, so it may as well wait for our next look.
    fn wait_until_taken(&self, pace: &mut Pace) -> Result<(), Closed> {
        let limits = &self.shared.limits;
        let mut deadline = Instant::now() + limits.send_timeout;
        let mut left = u64::MAX;
        let mut look_after = TAKEN_LOOK_MIN;
        loop {
            let now_left = self
                .stream()
                .untaken_len()
                .map_err(|error| send_failed(&error))?;
            if now_left == 0 {
                return Ok(());
            }
            if now_left < left {
                let taken = if left == u64::MAX { 0 } else { left - now_left };
                pace.check(taken, limits)?;
                deadline = Instant::now() + limits.send_timeout;
                left = now_left;
            } else if Instant::now() > deadline {
                return Err(Closed::TooSlow);
            }
            fiber::sleep(look_after);
            look_after = (look_after * 2).min(TAKEN_LOOK_MAX);
        }
    }

    /// Counts and logs the replies that have just been sent, or could not be, with the time from the first byte of the
    /// request to the last of the reply. That is one more look at the clock for each send, not for each reply.
    fn account(&mut self, out: &mut Outbox) {
        let replies = out.take_replies();
        if replies == 0 {
            return;
        }
        let now = clock::now().monotonic;
        let (first, others) = self.conversation.asked_since();
        let [first, others] = [first, others].map(|asked| now.saturating_duration_since(asked));
        self.shared.counters.replied(1, first);
        if replies > 1 {
            self.shared.counters.replied(replies as u64 - 1, others);
        }
        if let Some(log) = &self.shared.log {
            let took = |nth| if nth == 0 { first } else { others };
            out.take_log(took, |lines| log.write(lines));
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
        let now: Now = clock::now();
        self.conversation.give_up(reason, now, out.get());
        let _ = self.flush(now, out.get());
        self.account(out.get());
    }

    /// Closes in stages: our side ends, and what the peer is still sending is discarded for a while, so that
    /// it sees our reply and not a reset. RFC 9112 9.6
    fn linger(&self) {
        if self.stream().shutdown(Shutdown::Write).is_err() {
            return;
        }
        let deadline = clock::now().monotonic + LINGER_TIMEOUT;
        let mut discarded = 0;
        while discarded < LINGER_LEN_MAX {
            match self.stream().receive(deadline, <[u8]>::len) {
                Ok(0) | Err(_) => return,
                Ok(len) => discarded += len,
            }
        }
    }
}

fn send_failed(error: &io::Error) -> Closed {
    match error.kind() {
        io::ErrorKind::TimedOut => Closed::TooSlow,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Closed::Peer,
        _ => Closed::Error,
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
