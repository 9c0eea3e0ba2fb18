//! Values that go into a turn of a back end and come out of it.

use std::io;
use std::time::Duration;

/// Limit on how long a turn of the back end may sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SleepLimit {
    /// Submit and collect, do not sleep.
    Poll,
    /// Sleep until something completes, a wake comes, or (if any) the time is over.
    For(Option<Duration>),
}

/// Length that one entry of the ring transfers of a buffer of `len` bytes: at most that of a system
/// call. read(2)
pub(crate) fn ring_len(len: usize) -> u32 {
    const MAX: usize = 0x7fff_f000;
    len.min(MAX) as u32
}

/// End of an operation, as the ring reports it: a result or minus an errno, and flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) result: i32,
    pub(crate) flags: u32,
    /// Start of the received bytes in the lent buffer that the flags name.
    pub(crate) piece_start: u32,
}

/// One result of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Completed {
    /// The operation at this address has ended.
    Operation(*const (), Completion),
    /// The ring's accept from the listener with this number has ended.
    Accept(u64, Completion),
    /// The cancel of the ring's accept from the listener with this number found no accept.
    Missed(u64),
    /// Connections may be in the queue of the listener with this number (epoll).
    Listener(u64),
}

impl Completion {
    /// A wait that is over.
    pub(crate) const READY: Completion = Completion { result: 0, flags: 0, piece_start: 0 };

    pub(crate) fn error(errno: i32) -> Completion {
        Completion { result: -errno, flags: 0, piece_start: 0 }
    }

    /// The result as a count or an error.
    pub(crate) fn into_result(self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}
