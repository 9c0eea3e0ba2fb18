//! Reasons for the end of a connection, and for a failure of accept(2).

use std::io;

use rustix::io::Errno;
use session::Phase;

use super::cells::Cell;

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer closed it, between two requests or within one.
    Peer,
    /// The session closed it after its last reply (`Connection: close`, HTTP/1.0, a bad request).
    Session,
    /// The time-out of this phase expired.
    TimedOut(Phase),
    /// The peer received too slowly, or not at all.
    TooSlow,
    /// The peer sent more than the driver buffers, and the session used none of it.
    TooLong,
    /// The memory bound of all connections was reached, and this one held much.
    NoMemory,
    /// The connection limit was reached.
    Refused,
    /// The limit of its address was reached.
    AddressLimit,
    /// Its PROXY header was malformed, or missing.
    ProxyHeader,
    /// The server drained: the connection was idle, or cut at the deadline.
    Drained,
    /// The connection failed: reset, or a local error.
    Error,
}

impl Closed {
    /// Every reason.
    pub const ALL: [Closed; 13] = [
        Closed::Peer,
        Closed::Session,
        Closed::TimedOut(Phase::Idle),
        Closed::TimedOut(Phase::Head),
        Closed::TimedOut(Phase::Body),
        Closed::TooSlow,
        Closed::TooLong,
        Closed::NoMemory,
        Closed::Refused,
        Closed::AddressLimit,
        Closed::ProxyHeader,
        Closed::Drained,
        Closed::Error,
    ];

    /// The reason as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Closed::Peer => "peer",
            Closed::Session => "session",
            Closed::TimedOut(Phase::Idle) => "timeout_idle",
            Closed::TimedOut(Phase::Head) => "timeout_head",
            Closed::TimedOut(Phase::Body) => "timeout_body",
            Closed::TooSlow => "too_slow",
            Closed::TooLong => "too_long",
            Closed::NoMemory => "no_memory",
            Closed::Refused => "refused",
            Closed::AddressLimit => "address_limit",
            Closed::ProxyHeader => "proxy_header",
            Closed::Drained => "drained",
            Closed::Error => "error",
        }
    }

    pub(super) fn cell(self) -> Cell {
        match self {
            Closed::Peer => Cell::ClosedPeer,
            Closed::Session => Cell::ClosedSession,
            Closed::TimedOut(Phase::Idle) => Cell::ClosedIdle,
            Closed::TimedOut(Phase::Head) => Cell::ClosedHead,
            Closed::TimedOut(Phase::Body) => Cell::ClosedBody,
            Closed::TooSlow => Cell::ClosedTooSlow,
            Closed::TooLong => Cell::ClosedTooLong,
            Closed::NoMemory => Cell::ClosedNoMemory,
            Closed::Refused => Cell::ClosedRefused,
            Closed::AddressLimit => Cell::ClosedAddressLimit,
            Closed::ProxyHeader => Cell::ClosedProxyHeader,
            Closed::Drained => Cell::ClosedDrained,
            Closed::Error => Cell::ClosedError,
        }
    }
}

/// Class of an error of accept(2), by what a driver does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// No descriptors are left (`EMFILE`, `ENFILE`). The connection stays in the listen queue, and
    /// accept fails again at once: pause.
    Descriptors,
    /// The connection was gone before it was accepted (`ECONNABORTED` and the network errors that
    /// accept(2) passes on). Go on.
    Aborted,
    /// The kernel has no memory for it (`ENOBUFS`, `ENOMEM`): pause.
    Memory,
    /// Anything else.
    Other,
}

impl AcceptError {
    /// Every class.
    pub const ALL: [AcceptError; 4] =
        [AcceptError::Descriptors, AcceptError::Aborted, AcceptError::Memory, AcceptError::Other];

    /// The class of an error of accept(2).
    pub fn of(error: &io::Error) -> AcceptError {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => AcceptError::Descriptors,
            Some(Errno::NOBUFS | Errno::NOMEM) => AcceptError::Memory,
            // "Linux accept() passes already-pending network errors on the new socket": the
            // connection is gone. accept(2)
            Some(
                Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::NONET
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::TIMEDOUT,
            ) => AcceptError::Aborted,
            _ => AcceptError::Other,
        }
    }

    /// The class as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            AcceptError::Descriptors => "emfile",
            AcceptError::Aborted => "aborted",
            AcceptError::Memory => "nobufs",
            AcceptError::Other => "other",
        }
    }

    pub(super) fn cell(self) -> Cell {
        match self {
            AcceptError::Descriptors => Cell::AcceptDescriptors,
            AcceptError::Aborted => Cell::AcceptAborted,
            AcceptError::Memory => Cell::AcceptMemory,
            AcceptError::Other => Cell::AcceptOther,
        }
    }
}
