use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::outbox::Outbox;

/// One protocol conversation with one peer.
///
/// `Send`, because a driver may continue it on another kernel thread.
pub trait Session: Send {
    /// Work of this protocol that may block: opening a file whose directory entry is not in memory,
    /// verifying a password. [`NoWork`] for a protocol that never blocks.
    type Work: Work;

    /// Takes input and writes replies.
    ///
    /// `input` holds every byte that was received and not yet used, oldest first; it may be empty
    /// after [`Next::Flush`] and [`Next::Duplex`]. A session that is shown the same bytes twice
    /// with more behind them must come to the same replies as if it had seen them at once.
    ///
    /// Stops and returns [`Next::Flush`] when [`Outbox::is_full`]: a peer that pipelines a million
    /// requests gets its replies in bounded memory.
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received;

    /// Hands out work, which the driver runs where blocking is allowed. Called once after
    /// [`Next::Work`], which promises some. After each [`Next::Duplex`] called until it returns
    /// `None` or the connection has as much work running as it may.
    fn take_work(&mut self) -> Option<Self::Work> {
        None
    }

    /// Takes back finished work. Several may be out at a time after [`Next::Duplex`], and come back
    /// in any order. After the end of the conversation they do not come back.
    fn handle_worked(&mut self, work: Self::Work, now: Now, out: &mut Outbox) -> Next {
        let _ = (work, now, out);
        unreachable!("this session hands out no work")
    }

    /// Takes back work that was not run because too much work of all connections is queued.
    fn handle_refused(&mut self, work: Self::Work, now: Now, out: &mut Outbox) -> Next {
        let _ = (work, now, out);
        Next::Close
    }

    /// The session's own buffer for the next bytes of a long request body, used while it waits in
    /// [`Phase::Body`]. Empty (the default) if the session takes them as input.
    fn body_buffer(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Reports that the driver put `len` bytes at the start of
    /// [`body_buffer`](Session::body_buffer).
    fn body_filled(&mut self, len: usize, now: Now, out: &mut Outbox) -> Next {
        let _ = (now, out);
        unreachable!("body_filled({len}) on a session that lends no buffer")
    }

    /// Tells the session that the driver gives up on the peer, so that it can reply in its protocol
    /// (`408 Request Timeout`, `SERVER_ERROR`, a last `GOAWAY`). The driver sends that and closes.
    fn give_up(&mut self, reason: GiveUp, now: Now, out: &mut Outbox) {
        let _ = (reason, now, out);
    }

    /// Asks the session to end the conversation at the next request boundary (HTTP/1.1: the next
    /// reply says `Connection: close`). Called at most once, when the server drains; the session
    /// may write (HTTP/2: `GOAWAY`).
    ///
    /// An event loop calls it at once. A fiber or thread that waits for input calls it when that
    /// wait ends: with the next input, or when the drain shuts down reading on an idle connection,
    /// after a quarter of a second.
    fn drain(&mut self, now: Now, out: &mut Outbox) {
        let _ = (now, out);
    }

    /// Bytes of memory that the session holds for requests and replies that are not over, beside
    /// the outbox and what the driver holds: they are charged to the bound of all connections.
    fn held_len(&self) -> usize {
        0
    }

    /// Tells the session that the connection is over. The last call, except after a panic. The
    /// driver then reads only the log and the ends of replies of `out`.
    fn closed(&mut self, now: Now, out: &mut Outbox) {
        let _ = (now, out);
    }
}

/// Work that a session hands out. It owns its inputs, and carries its result back.
pub trait Work: Send + 'static {
    /// Does the work. The only call of a session's code that may block.
    fn run(&mut self, now: Now);

    /// True if the work waits for an event without a bound (a `watch`). Engines whose threads serve
    /// many connections [begin](Work::begin) it instead of running it, so it occupies no thread.
    fn waits(&self) -> bool {
        false
    }

    /// Begins work that [waits](Work::waits). `done` gets it back, at once or on the thread of the
    /// event. By default a thread of its own runs the work.
    fn begin(mut self, now: Now, done: Box<dyn FnOnce(Self) + Send>)
    where
        Self: Sized,
    {
        std::thread::spawn(move || {
            self.run(now);
            done(self);
        });
    }
}

/// Maximum number of works of one session that a driver runs at a time.
pub const WORKS_MAX: usize = 8;

/// The work of a session that never blocks: there is none.
#[derive(Debug)]
pub enum NoWork {}

impl Work for NoWork {
    fn run(&mut self, _: Now) {
        match *self {}
    }
}

/// Runs the work of a session that returned [`Next::Work`], on the spot, and hands it back.
pub fn work_here<S: Session>(session: &mut S, now: Now, out: &mut Outbox) -> Next {
    let mut work = session.take_work().expect("a session that waits for work has handed out some");
    work.run(now);
    session.handle_worked(work, now, out)
}

/// Facts about a connection with which a session is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Time at which the connection is ready for a conversation.
    pub now: Now,
    /// The peer's address, if it has one and the server asks for it.
    pub peer: Option<SocketAddr>,
    /// Index of the listener that accepted the connection, from 0.
    pub listener: usize,
    /// Result of the TLS handshake, if TLS is in use.
    pub tls: Option<TlsFacts<'a>>,
}

/// Result of a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsFacts<'a> {
    /// Application protocol (ALPN, RFC 7301), such as `http/1.1`.
    pub alpn: Option<&'a [u8]>,
    /// Host name that the client asks for (SNI, RFC 6066 3).
    pub server_name: Option<&'a str>,
    /// Client certificate in DER, if the client sent one; it is signed by an accepted authority.
    pub client: Option<&'a [u8]>,
}

/// Result of [`Session::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of input bytes used; the rest is shown again.
    pub used: usize,
    /// The driver's next step.
    pub next: Next,
}

/// The driver's next step. See the [crate page](crate) for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for more input, within the phase's time-out.
    Receive(Phase),
    /// Send the outbox, then show the unused input again.
    Flush,
    /// Send the outbox, and show input as it comes meanwhile, within the phase's time-out. With
    /// `has_more`, show the unused input, or none, once the outbox is at most half full: the
    /// session has more output. While the outbox is more than full, no input is taken. Work of the
    /// session is run meanwhile ([`Session::take_work`]). After the peer's last input the
    /// conversation continues for work that is out or to be handed out, but not in [`Phase::Idle`].
    Duplex {
        /// Input that is waited for.
        phase: Phase,
        /// True if more output is to come without further input.
        has_more: bool,
    },
    /// Send the outbox, then run the session's work ([`Session::take_work`]). No input is shown
    /// until it is back.
    Work,
    /// Send the outbox and close: the peer has sent all that it will.
    Close,
    /// Send the outbox and close in stages: shut down the sending side, discard further input for a
    /// bounded time, then close. Used after a refusal, when the peer may still be sending: a close
    /// with unread input resets the connection, and the reset may overtake the reply. RFC 9112 9.6
    Linger,
}

/// Input that a session waits for; each phase has its own time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Between two requests: nothing of the next one has arrived.
    Idle,
    /// Inside a request's head (HTTP) or command line (memcached).
    Head,
    /// Inside a request's body.
    Body,
}

/// Reason for which a driver gives up on a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// The peer was too slow in this phase.
    TimedOut(Phase),
    /// The peer sent more than the driver holds without the session using any of it.
    TooLong,
    /// The server drains, and the peer has no request under way.
    Drained,
}

/// The time, as the driver hands it in: sessions have no clock.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For intervals.
    pub monotonic: Instant,
    /// For dates: the time since 1970-01-01 00:00 UTC.
    pub since_epoch: Duration,
}

impl Now {
    /// Reads both clocks (about 45 ns; drivers read them once a turn).
    pub fn read() -> Now {
        let wall = std::time::SystemTime::now();
        Now {
            monotonic: Instant::now(),
            // A clock before 1970 is an operator's mistake that no reply depends on.
            since_epoch: wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default(),
        }
    }
}
