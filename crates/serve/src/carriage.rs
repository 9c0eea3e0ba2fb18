//! A connection as a machine without I/O and without a clock.
//!
//! A carriage owns all that belongs to one connection except its socket: the session, input that
//! the session has not used, replies on their way out, TLS, deadlines, and the reason of the close.
//! An engine owns the socket. It asks the carriage what it [`Want`]s, does that, and tells it what
//! came of it and what time it is:
//!
//! ```text
//!          input · end_of_input · filled · sent · read · untaken · queues · finished ·
//!          failed · expired · opened · go_on · worked · drain · cut
//!  engine ─────────────────────────────────────────────────────────────────────▶ Carriage ── Session
//!         ◀─────────────────────────────────────────────────────────────────────
//!          want: Open · Receive · Fill · Send · File · Read · Untaken · Turn · Work · Nothing ·
//!                Queues · Finish · Close
//! ```
//!
//! The engine decides how bytes move and on which thread; the carriage decides everything else:
//! time-outs, the minimum rate of a slow reader, back-pressure, draining, what is logged and
//! counted, and how a connection is closed so that the peer sees its last reply. So every engine
//! behaves the same, and all of it is tested with a scripted peer in virtual time
//! (`carriage/tests.rs`).
//!
//! What it wants next follows from two fields. As long as something is on its way out, it wants
//! that sent. Then comes its stage:
//!
//! ```text
//!  Handshake ──▶ Open ──▶ Receive, Fill ◀──────┐
//!  (with TLS)               │ input             │ the session waits for more
//!                           ▼                   │
//!                        session.receive ───────┤
//!                           │                   │
//!                           ├─▶ Turn ───────────┤ it filled the outbox
//!                           ├─▶ Work ▶ Working ─┘ it must do what may block
//!                           │                  it refused the peer, which may still be sending
//!                           ├─▶ Finish ▶ Discard ─▶ Close
//!                           │     ▲         │  ▲      ▲
//!                           │     │         ▼  │      │
//!                           └─▶ Queues ─────────┴──────┘
//!                             the last reply was sent: is input there, or may it still come?
//! ```
//!
//! Asking twice gives the same answer, so an engine may ask whenever it likes. It may tell what was
//! not asked for: input while a reply waits is shown or held, a deadline that has not come changes
//! nothing. Between two requests a carriage holds no buffer: what is on its way out is lent from a
//! pool of the thread.

mod ending;
mod input;
mod linger;
mod outgoing;
mod output;
mod pool;
mod secure;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use session::{FileRange, Now, Outbox, Phase, Session, TlsFacts};

use crate::buffers::{Buffers, PIECE_LEN_MAX};
use crate::counters::Closed;
use crate::memory::Charge;
use crate::shared::Shared;
use linger::Linger;
pub(crate) use linger::Queues;
use outgoing::Outgoing;
#[cfg(test)]
use secure::SEALED_LEN_MAX;
pub(crate) use secure::Secure;

/// What a carriage wants from its engine next.
pub(crate) enum Want<'a> {
    /// A session. Then [`Carriage::opened`].
    Open { tls: Option<TlsFacts<'a>> },
    /// Input. Then [`Carriage::input`], with none at its end.
    Receive { until: Instant },
    /// Input, put at the start of this room. Then [`Carriage::filled`], 0 at its end.
    Fill { room: &'a mut [u8], until: Instant },
    /// The chunks at the front of `out` sent, as many as lie in memory. Then [`Carriage::sent`].
    Send {
        out: &'a Outbox,
        until: Instant,
        /// Nothing follows `out`. An engine may end its side of the stream together with the last
        /// byte, which saves a packet.
        is_last: bool,
    },
    /// As much as is convenient of this piece of a file sent, or read if that is on the disk. Then
    /// [`Carriage::carried`]; nothing if the file ends there.
    File(FilePiece<'a>),
    /// The beginning of this piece as bytes, to be copied or made into records of TLS; the last
    /// ones of the range only if the file has not changed after they were read. Then
    /// [`Carriage::read`], with nothing if the file ends there.
    Read(FilePiece<'a>),
    /// A look at how many bytes of what was sent the peer has not taken. Then
    /// [`Carriage::untaken`].
    Untaken(Look),
    /// A turn for the session, when others have had theirs. Then [`Carriage::go_on`].
    Turn,
    /// Work that may block, done where blocking is allowed: [`Carriage::begin_work`], then
    /// [`Carriage::worked`].
    Work,
    /// Nothing until the work is done.
    Nothing,
    /// A look at the queues of the socket, which has taken all output. Then [`Carriage::queues`].
    Queues {
        /// What is not sent counts too. Otherwise the connection has brought so little that it has
        /// left the socket: a look is a system call less.
        asks_unsent: bool,
    },
    /// The end of our side of the stream: `shutdown(2)` for writing. Then [`Carriage::finished`].
    Finish,
    /// The end. The engine closes the socket and counts the reason.
    Close(Closed),
}

/// A piece of a file that is to be sent.
pub(crate) struct FilePiece<'a> {
    /// It is the first `len` bytes of this.
    pub(crate) range: &'a FileRange,
    pub(crate) len: u64,
    /// Whether to make sure first that the file has not changed. If it has, nothing is sent.
    pub(crate) look: bool,
    /// How much is read at a time. Less than usual for a peer that is slow: the engine waits first
    /// until the socket has room, so that no buffer waits for it.
    pub(crate) share: u64,
    /// What it is read into.
    pub(crate) buffers: &'a Arc<Buffers>,
    pub(crate) until: Instant,
    /// Nothing follows this piece. An engine may end its side of the stream together with the last
    /// byte, if it sends all of it at once.
    pub(crate) is_last: bool,
}

/// How far a piece of a file has come.
pub(crate) enum Carried {
    /// So many bytes of it were sent; 0 if the file ends there, or has changed.
    Sent(u64),
    /// These bytes of it were read; none if the file ends there.
    Read(Bytes),
}

impl FilePiece<'_> {
    /// Whether the peer has left what was read for it waiting.
    pub(crate) fn is_slow(&self) -> bool {
        self.share < PIECE_LEN_MAX
    }
}

/// A look at what the peer has not taken of what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// How much later.
    pub(crate) after: Duration,
    /// Whether the socket had sent all at the look before. If not, this look is due as soon as it
    /// has.
    pub(crate) all_was_sent: bool,
    /// No further look is wanted if no more than this is untaken.
    pub(crate) enough: u64,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Untaken {
    /// Bytes that the peer's side has not taken.
    pub(crate) len: u64,
    /// Whether all of them have left the socket, so that they are taken within a round trip. Also
    /// said when they are few enough.
    pub(crate) all_is_sent: bool,
}

impl Untaken {
    /// The peer has taken all.
    pub(crate) const NONE: Untaken = Untaken {
        len: 0,
        all_is_sent: true,
    };
}

/// One connection. See the [module page](self).
pub(crate) struct Carriage<S> {
    shared: Arc<Shared>,
    /// `None` before it is opened, while it is out at work, and after the end.
    session: Option<S>,
    /// `None` without TLS, and while it opens records.
    secure: Option<Box<Secure>>,
    is_secure: bool,
    /// INVARIANT: between two calls it is `Some` only with something to send in it.
    outgoing: Option<Box<Outgoing>>,
    /// Input that the session has not used: the beginning of a request, as a rule nothing.
    held: Vec<u8>,
    held_charge: Charge,
    /// When the present wait for input ends.
    deadline: Instant,
    /// When the first byte came of the request that is to be answered next, and how much later the
    /// last input came.
    begun: Instant,
    arrived_after_us: u32,
    /// How many bytes were sent in all, as far as can be counted.
    sent_len: u32,
    stage: Stage,
    phase: Phase,
    drain: Drain,
    /// It is `Some` from the end of our side of the stream on, if the peer's is waited for.
    linger: Option<Box<Linger>>,
    /// The peer has sent all that it will.
    is_ended: bool,
    /// The peer's side of the stream has ended, so that no input is left or can come. Under TLS the
    /// peer may have said before that it sends no more.
    is_stream_ended: bool,
}

/// What comes when nothing is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Handshake,
    Open,
    Receive,
    Fill,
    Turn,
    Work { waits: bool },
    Working,
    Queues(Closed),
    Finish(Closed),
    Discard(Closed),
    Close(Closed),
}

impl Stage {
    /// Whether the end of the conversation is decided on.
    fn is_end(self) -> bool {
        matches!(
            self,
            Stage::Queues(_) | Stage::Finish(_) | Stage::Discard(_) | Stage::Close(_)
        )
    }
}

/// Whether the server drains, and whether the session knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    Untold,
    Told,
}

/// More input than this is held for no session: each has smaller limits of its own.
const HELD_LEN_MAX: usize = 1024 * 1024;

/// What an idle carriage keeps allocated for unused input.
const HELD_LEN_KEPT: usize = 512;

/// How often a handshake that waits for memory looks whether there is some.
const MEMORY_LOOK: Duration = Duration::from_millis(100);

/// How long the goodbye of TLS may wait for room in the socket's buffer, if it follows no reply. It
/// is a courtesy then: a peer that takes nothing more goes without. Behind a reply it has as long
/// as the reply, because a peer takes a reply without it for one that was cut off.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(100);

/// So many bytes leave a new connection without a wait, unless the peer has next to no room: every
/// congestion window begins with more (RFC 6928), and so does the receive window of a socket with
/// the smallest buffer that Linux allows. socket(7)
const SENT_AT_ONCE_LEN_MAX: u32 = 1024;

/// How long a drain leaves an idle connection open: longer than most round trips, so that a client
/// that has just sent a request on it gets a reply and not a reset.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(250);

/// What a carriage wants.
impl<S: Session> Carriage<S> {
    /// A connection that was accepted just now.
    pub(crate) fn new(shared: Arc<Shared>, secure: Option<Box<Secure>>, now: Now) -> Carriage<S> {
        let (stage, patience) = match secure {
            None => (Stage::Open, shared.limits.head_timeout),
            Some(_) => (Stage::Handshake, shared.limits.handshake_timeout),
        };
        Carriage {
            shared,
            session: None,
            is_secure: secure.is_some(),
            secure,
            outgoing: None,
            held: Vec::new(),
            held_charge: Charge::default(),
            deadline: now.monotonic + patience,
            begun: now.monotonic,
            arrived_after_us: 0,
            sent_len: 0,
            stage,
            phase: Phase::Idle,
            drain: Drain::No,
            linger: None,
            is_ended: false,
            is_stream_ended: false,
        }
    }

    /// What it wants next. Asking changes nothing.
    #[inline]
    pub(crate) fn want(&mut self) -> Want<'_> {
        if let Some(outgoing) = &self.outgoing {
            let ends = self.stage.is_end();
            let is_last = ends && !self.is_secure;
            return outgoing.want(self.secure.is_some(), is_last, &self.shared.buffers);
        }
        let until = self.deadline;
        match self.stage {
            Stage::Receive | Stage::Handshake | Stage::Discard(_) => Want::Receive { until },
            Stage::Fill => {
                let room = self
                    .session
                    .as_mut()
                    .map(S::body_buffer)
                    .unwrap_or_default();
                Want::Fill { room, until }
            }
            Stage::Turn => Want::Turn,
            Stage::Work { .. } => Want::Work,
            Stage::Working => Want::Nothing,
            Stage::Open => Want::Open {
                tls: self.secure.as_ref().map(|secure| secure.facts()),
            },
            Stage::Queues(_) => Want::Queues {
                asks_unsent: self.sent_len > SENT_AT_ONCE_LEN_MAX,
            },
            Stage::Finish(_) => Want::Finish,
            Stage::Close(closed) => Want::Close(closed),
        }
    }

    /// Whether it wants to know when what is on its way was sent, also if that took no time to
    /// speak of.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.outgoing
            .as_ref()
            .is_some_and(|outgoing| outgoing.out.replies() > 0)
    }

    /// Whether its next input is for a handshake of TLS, which takes long.
    #[inline]
    pub(crate) fn is_handshaking(&self) -> bool {
        self.stage == Stage::Handshake
    }

    /// Until when it wants to receive, for an engine that waits for input elsewhere than it asks.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it waits, and not for the rest of a request.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && matches!(self.stage, Stage::Receive | Stage::Handshake)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// What is on its way out, or will be.
#[inline]
fn outgoing<'a>(
    outgoing: &'a mut Option<Box<Outgoing>>,
    shared: &Shared,
    now: Now,
) -> &'a mut Outgoing {
    outgoing
        .get_or_insert_with(|| Outgoing::take(shared.log.is_some(), &shared.memory, now.monotonic))
}
