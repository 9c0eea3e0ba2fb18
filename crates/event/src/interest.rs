//! Interest in a descriptor, and its readiness.

use std::fmt;
use std::ops::BitOrAssign;

/// Operations on a descriptor that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    reads: bool,
    writes: bool,
    pinned: bool,
}

impl Interest {
    /// Reads that would not block.
    pub const READ: Interest = Interest { reads: true, writes: false, pinned: false };
    /// Writes that would not block.
    pub const WRITE: Interest = Interest { reads: false, writes: true, pinned: false };
    /// Both.
    pub const BOTH: Interest = Interest { reads: true, writes: true, pinned: false };

    /// The same interest for a descriptor that every wait polls, however seldom it is ready: a
    /// listener, a [`Waker`](crate::Waker). Only [`Fdm`](crate::Fdm) and [`Lap`](crate::Lap) poll
    /// some descriptors less often than others.
    #[must_use]
    pub const fn pinned(self) -> Interest {
        Interest { pinned: true, ..self }
    }

    /// True if it includes reads.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.reads
    }

    /// True if it includes writes.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.writes
    }

    pub(crate) const fn is_pinned(self) -> bool {
        self.pinned
    }

    /// Event bits of `poll(2)`. epoll and io_uring give these bits the same values.
    pub(crate) const fn poll_events(self) -> i16 {
        let reads = if self.reads { libc::POLLIN | libc::POLLRDHUP } else { 0 };
        let writes = if self.writes { libc::POLLOUT } else { 0 };
        reads | writes
    }
}

/// Operations for which a descriptor is ready.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness(u8);

impl Readiness {
    pub(crate) const READABLE: Readiness = Readiness(1);
    pub(crate) const WRITABLE: Readiness = Readiness(2);
    pub(crate) const HANGUP: Readiness = Readiness(4);
    pub(crate) const ERROR: Readiness = Readiness(8);
    pub(crate) const TIMED_OUT: Readiness = Readiness(16);
    pub(crate) const READ_CLOSED: Readiness = Readiness(32);

    /// A read will not block: it gives bytes, the end of the stream, or the error.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        self.has(Readiness::READABLE) || self.is_hangup() || self.is_error()
    }

    /// A write will not block: it takes bytes, or gives the error.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.has(Readiness::WRITABLE) || self.is_hangup() || self.is_error()
    }

    /// The peer will send no more: the end follows the readable bytes. Reported with
    /// [`Interest::READ`], by mechanisms that [can tell](crate::Dispatcher::tells_end).
    #[must_use]
    pub const fn is_read_closed(self) -> bool {
        self.has(Readiness::READ_CLOSED) || self.is_hangup() || self.is_error()
    }

    /// Both directions are closed. [`Select`](crate::Select) cannot tell, and reports readable.
    #[must_use]
    pub const fn is_hangup(self) -> bool {
        self.has(Readiness::HANGUP)
    }

    /// The descriptor has an error, or was closed while it was watched. [`Select`](crate::Select)
    /// tells only the second.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.has(Readiness::ERROR)
    }

    /// The time given to [`Fdm::set_deadline`](crate::Fdm::set_deadline) has come.
    #[must_use]
    pub const fn is_timed_out(self) -> bool {
        self.has(Readiness::TIMED_OUT)
    }

    const fn has(self, bit: Readiness) -> bool {
        self.0 & bit.0 != 0
    }

    pub(crate) const fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Readiness from the bits of `poll(2)`; epoll and io_uring share those that matter here.
    pub(crate) fn from_poll(events: u32) -> Readiness {
        let mut readiness = Readiness::default();
        for (bits, means) in [
            (libc::POLLIN | libc::POLLPRI, Readiness::READABLE),
            (libc::POLLOUT, Readiness::WRITABLE),
            (libc::POLLRDHUP, Readiness::READ_CLOSED),
            (libc::POLLHUP, Readiness::HANGUP),
            (libc::POLLERR | libc::POLLNVAL, Readiness::ERROR),
        ] {
            if events & bits as u32 != 0 {
                readiness |= means;
            }
        }
        readiness
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Readiness) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Readiness::READABLE, "readable"),
            (Readiness::WRITABLE, "writable"),
            (Readiness::HANGUP, "hangup"),
            (Readiness::ERROR, "error"),
            (Readiness::TIMED_OUT, "timed out"),
            (Readiness::READ_CLOSED, "read closed"),
        ];
        let held = names.iter().filter(|(bit, _)| self.has(*bit));
        out.debug_set().entries(held.map(|(_, name)| name)).finish()
    }
}
