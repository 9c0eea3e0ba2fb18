//! Reasons for the end of a connection, and for a failure of accept(2).

use std::io;

use rustix::io::Errno;
use session::Phase;

use super::cells::Cell;

/// List, labels and counters of an enum.
macro_rules! counted {
    ($kind:ident $($variant:ident $(($phase:ident))? $label:literal $cell:ident)*) => {
        impl $kind {
            /// All of them.
            pub const ALL: [$kind; [$($label),*].len()] =
                [$($kind::$variant $((Phase::$phase))?),*];

            /// Value of the metric's label.
            pub fn label(self) -> &'static str {
                match self {
                    $($kind::$variant $((Phase::$phase))? => $label,)*
                }
            }

            pub(super) fn cell(self) -> Cell {
                match self {
                    $($kind::$variant $((Phase::$phase))? => Cell::$cell,)*
                }
            }
        }
    };
}

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
    /// The memory limit of all connections was reached, and this one held much.
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

counted! { Closed
    Peer "peer" ClosedPeer
    Session "session" ClosedSession
    TimedOut(Idle) "timeout_idle" ClosedIdle
    TimedOut(Head) "timeout_head" ClosedHead
    TimedOut(Body) "timeout_body" ClosedBody
    TooSlow "too_slow" ClosedTooSlow
    TooLong "too_long" ClosedTooLong
    NoMemory "no_memory" ClosedNoMemory
    Refused "refused" ClosedRefused
    AddressLimit "address_limit" ClosedAddressLimit
    ProxyHeader "proxy_header" ClosedProxyHeader
    Drained "drained" ClosedDrained
    Error "error" ClosedError
}

/// Class of an error of accept(2), by the driver's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// No descriptors are left (`EMFILE`, `ENFILE`). The connection stays in the listen queue, and
    /// accept would fail again at once: pause.
    Descriptors,
    /// The connection was gone before it was accepted (`ECONNABORTED` and the network errors that
    /// accept(2) passes on). Continue.
    Aborted,
    /// The kernel has no memory for it (`ENOBUFS`, `ENOMEM`): pause.
    Memory,
    /// Anything else.
    Other,
}

counted! { AcceptError
    Descriptors "emfile" AcceptDescriptors
    Aborted "aborted" AcceptAborted
    Memory "nobufs" AcceptMemory
    Other "other" AcceptOther
}

impl AcceptError {
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
}
