//! Actions that a machine requests from its engine, and the results that the engine reports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use session::{FileRange, Outbox, TlsFacts};

use crate::buffers::{Buffers, PIECE_LEN_MAX};
use crate::counters::Closed;

/// The next thing to do for a connection. Each variant names the method that takes the result.
pub(crate) enum Action<'a> {
    /// Create the session: [`handle_opened`](super::Machine::handle_opened).
    Open(Facts<'a>),
    /// Receive: [`handle_input`](super::Machine::handle_input), with an empty slice at the end of
    /// the stream.
    Receive { until: Instant },
    /// Receive into `space`: [`handle_filled`](super::Machine::handle_filled), 0 at the end.
    Fill { space: &'a mut [u8], until: Instant },
    /// Send the chunks at the front of `out` that are in memory:
    /// [`handle_sent`](super::Machine::handle_sent).
    Send {
        out: &'a Outbox,
        until: Instant,
        /// Nothing follows `out`. An engine may delay the last packet until the end of the stream,
        /// which saves a packet.
        is_last: bool,
    },
    /// Send part of this piece of a file from the page cache, or read it if it is on the disk:
    /// [`handle_file_progress`](super::Machine::handle_file_progress).
    SendFile(FilePiece<'a>),
    /// Read the beginning of this piece, to be copied or encrypted; the last bytes of the range
    /// only if the file is unchanged after the read:
    /// [`handle_read`](super::Machine::handle_read), with no bytes if the file ends there.
    ReadFile(FilePiece<'a>),
    /// Count the bytes that the peer has not acknowledged:
    /// [`handle_unacked`](super::Machine::handle_unacked).
    CheckUnacked(UnackedCheck),
    /// Give other connections a turn, then call:
    /// [`handle_turn`](super::Machine::handle_turn).
    Turn,
    /// Run work where blocking is allowed: [`take_work`](super::Machine::take_work); if it returns
    /// some, then [`handle_worked`](super::Machine::handle_worked), or
    /// [`handle_refused`](super::Machine::handle_refused) if there is no space for it.
    Work,
    /// Wait until work is done.
    Nothing,
    /// Count the bytes in the queues of the socket, which has taken all output:
    /// [`handle_queues`](super::Machine::handle_queues).
    CheckQueues {
        /// Unsent bytes count too, after the server's side of the stream has ended. False after so
        /// little output that it leaves the socket at once, which saves system calls.
        asks_unsent: bool,
    },
    /// End the server's side of the stream, `shutdown(2)` for writing:
    /// [`handle_finished`](super::Machine::handle_finished).
    Finish,
    /// Close the socket and count the reason.
    Close(Closed),
}

/// Facts about a connection whose session is to be created.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) tls: Option<TlsFacts<'a>>,
    /// The client's address, if a setting needed it earlier: the socket may be a proxy's.
    pub(crate) client: Option<SocketAddr>,
}

/// A piece of a file to send.
pub(crate) struct FilePiece<'a> {
    /// The range at whose beginning the piece is.
    pub(crate) range: &'a FileRange,
    /// Length of the piece in bytes.
    pub(crate) len: u64,
    /// Check first that the file has not changed. If it has, send nothing.
    pub(crate) checks_file: bool,
    /// Bytes to read at a time. Less than usual for a slow peer: the engine then waits until the
    /// socket is writable before it reads, so that no buffer is held meanwhile.
    pub(crate) share: u64,
    /// Source of the buffer to read into.
    pub(crate) buffers: &'a Arc<Buffers>,
    pub(crate) until: Instant,
    /// Nothing follows this piece. An engine may delay its last packet until the end of the
    /// stream, if it sends all of the piece at once.
    pub(crate) is_last: bool,
}

impl FilePiece<'_> {
    /// True if the peer was slow to take earlier pieces.
    pub(crate) fn is_slow(&self) -> bool {
        self.share < PIECE_LEN_MAX
    }
}

/// Progress of a piece of a file.
pub(crate) enum FileProgress {
    /// Number of bytes sent; 0 if the file ends there, or has changed.
    Sent(u64),
    /// Bytes that were read; none if the file ends there.
    Read(Bytes),
}

/// A check of unacknowledged bytes (SIOCOUTQ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnackedCheck {
    /// Delay before the check.
    pub(crate) after: Duration,
    /// The socket had sent everything at the previous check. If not, check as soon as it has.
    pub(crate) all_was_sent: bool,
    /// Number of unacknowledged bytes at which no further check is needed.
    pub(crate) enough: u64,
}

/// Bytes that the peer's side has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacked {
    pub(crate) len: u64,
    /// All of them have left the socket, so they are acknowledged within a round trip. Also true if
    /// they are few enough.
    pub(crate) all_is_sent: bool,
}

#[cfg(feature = "netstack")]
impl Unacked {
    /// The peer has acknowledged all.
    pub(crate) const NONE: Unacked = Unacked { len: 0, all_is_sent: true };
}

/// Bytes in the queues of a socket whose stream this side ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queues {
    /// Received, but not read.
    pub(crate) unread: u64,
    /// Not sent, because the peer's window is full.
    pub(crate) unsent: u64,
}
