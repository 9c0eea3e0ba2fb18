//! The trait of all mechanisms, and the values that go in and out. The crate's page states what all
//! of them promise.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::interest::{Interest, Readiness};

/// Name that the caller gives a descriptor; each report carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Report that the descriptor which was added with `token` is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Name that was given to [`Dispatcher::add`].
    pub token: Token,
    /// Operations that would not block.
    pub readiness: Readiness,
}

/// Condition under which readiness is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// In every wait, as long as it lasts.
    Level,
    /// Once when it begins, and possibly more often. The caller reads or writes until the call
    /// would block, and gets a report when it no longer would.
    Edge,
    /// Once; then the descriptor rests until [`Dispatcher::modify`].
    OneShot,
}

/// Mechanism that reports which of many descriptors are ready.
pub trait Dispatcher {
    /// Watches `fd`, which stays open until it is removed.
    ///
    /// # Errors
    ///
    /// `EEXIST` if it is watched already; `EPERM` from those mechanisms that notice at once that a
    /// file of its kind cannot be watched; `EBADF` for `AT_FDCWD`; `ENOMEM`; `ENOSPC` beyond
    /// `fs.epoll.max_user_watches`. After an error it is not watched.
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;

    /// Changes token and interest. What is ready now is reported again, also under edge.
    ///
    /// # Errors
    ///
    /// `ENOENT` if `fd` is not watched; `ENOMEM`. After an error it is watched as before.
    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()>;

    /// Stops watching `fd`. No later wait reports it.
    ///
    /// # Errors
    ///
    /// `ENOENT` if `fd` is not watched.
    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// [Removes](Dispatcher::remove) a descriptor that has no duplicate and is closed right
    /// afterwards. Saves the system call where closing it has the same effect in the kernel.
    ///
    /// # Errors
    ///
    /// Errors of [`remove`](Dispatcher::remove), from mechanisms that notice.
    fn forget(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.remove(fd)
    }

    /// Clears `ready` and fills it with a report for each ready descriptor. With nothing ready it
    /// waits for at most `timeout`, or without end if that is `None`; zero polls.
    ///
    /// # Errors
    ///
    /// Errors of the system call, except `EINTR`, which returns with nothing ready. A later wait
    /// reports the descriptors that were ready.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()>;

    /// Trigger of this dispatcher: level, edge or one-shot.
    fn trigger(&self) -> Trigger;

    /// True if a report that a socket is readable also says whether the stream has ended
    /// ([`Readiness::is_read_closed`]). A caller that sees no end there may stop after a short
    /// read. `select` and RT signals do not report it.
    fn tells_end(&self) -> bool {
        true
    }

    /// True if a report may be lost for good, so that a caller must retry its operations now and
    /// then. Level-triggered mechanisms report again, and `epoll` loses nothing. RT signals of a
    /// file go to one thread, and another process with the same file may claim them. io_uring drops
    /// completions when its queue is full and the kernel has no memory to hold them (`EBADR` in
    /// io_uring_enter(2)).
    fn may_lose_reports(&self) -> bool {
        false
    }

    /// Number of times that the kernel's queue of reports was full, so that every descriptor had to
    /// be looked at. Only RT signals have such a queue.
    fn overflows(&self) -> u64 {
        0
    }
}
