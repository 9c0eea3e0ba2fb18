//! Event dispatching mechanisms, one file each, behind one trait.
//!
//! A [`Dispatcher`] watches descriptors and says which are ready. It does no I/O on them, keeps no
//! buffers and starts no threads: what polling libraries and kernels have called `select`, `poll`,
//! `epoll` and so on, made exchangeable so that they can be compared under the same server.
//!
//! ```
//! use event::{Dispatcher, Interest, Mechanism, Token};
//! use std::os::fd::AsFd;
//! use std::time::Duration;
//!
//! let (mut near, far) = std::os::unix::net::UnixStream::pair()?;
//! let mut dispatcher = Mechanism::Epoll.open()?;
//! dispatcher.add(far.as_fd(), Token(7), Interest::READ)?;
//!
//! std::io::Write::write_all(&mut near, b"x")?;
//! let mut ready = Vec::new();
//! dispatcher.wait(&mut ready, Some(Duration::from_secs(1)))?;
//! assert_eq!(ready[0].token, Token(7));
//! assert!(ready[0].readiness.is_readable());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Which one
//!
//! | mechanism | cost of a wait grows with | reports | choose it |
//! |---|---|---|---|
//! | [`Select`] | the highest descriptor watched | level | to compare; on no other ground |
//! | [`Poll`] | the descriptors watched | level | for up to some hundred descriptors |
//! | [`Fdm`] | the active descriptors, if they are ready twice in a row | level | to repeat Liu and Chen's figures |
//! | [`Lap`] | the active descriptors, and a set share of one core for the idle | level | where only `poll(2)` exists |
//! | [`RtSig`] | the signals sent, ready or stale | edge | to repeat the figures of 2004 |
//! | [`Epoll`] | the ready descriptors | level, edge or one-shot | for a server |
//! | [`Uring`] | the ready descriptors | edge | beside a ring that does the I/O as well |
//!
//! # What all of them promise
//!
//! - A descriptor is added once, and removed **before it is closed**. Adding it twice fails with
//!   `EEXIST`; changing or removing an unknown one fails with `ENOENT`.
//! - Readiness that was there before `add` or `modify` is reported by a later [`Dispatcher::wait`].
//! - [`Trigger`] says how often readiness is reported. A caller that reads (or writes) until the
//!   call would block is right under level and edge; under one-shot it calls `modify` afterwards as
//!   well.
//! - A wait may end early with nothing: a signal came, or what was ready has been removed.
//! - A regular file is always ready for `select`, `poll`, FDM and LAP; `epoll` and RT signals
//!   refuse it with `EPERM`; the ring takes it, and reports it as an error once.
//! - A descriptor that is closed while it is watched is a mistake of the caller. `select`, `poll`,
//!   FDM and LAP report it as an error and forget it. `epoll` and RT signals fall silent, and the
//!   ring keeps the file open.
//! - A dispatcher belongs to the process that made it, and [`RtSig`] and [`Uring`] to the thread. A
//!   forked child may drop its copy, and makes one of its own.
//! - After `remove` no wait reports the token. A report of the *same* wait is already in the
//!   caller's hands: a caller that removes another descriptor while it works through a batch checks
//!   for that.

#![warn(missing_docs)]

mod bitmaps;
mod epoll;
mod fdm;
mod interest;
mod lap;
mod mechanism;
mod poll;
mod rtsig;
mod select;
mod set;
mod signals;
mod sys;
mod table;
mod uring;
mod waker;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use epoll::Epoll;
pub use fdm::Fdm;
pub use interest::{Interest, Readiness};
pub use lap::Lap;
pub use mechanism::{Mechanism, UnknownMechanism};
pub use poll::Poll;
pub use rtsig::{Overflow, RtSig, RtSigCounts};
pub use select::Select;
pub use uring::Uring;
pub use waker::Waker;

/// What the caller calls a descriptor; it comes back with each report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// One report: the descriptor that was added with `token` is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// As given to [`Dispatcher::add`].
    pub token: Token,
    /// For what it is ready.
    pub readiness: Readiness,
}

/// How often readiness is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// By every wait, for as long as it lasts.
    Level,
    /// When it begins: the caller reads or writes until the call would block, and is told when it
    /// would not any more. It may be reported more often.
    Edge,
    /// Once; then the descriptor rests until [`Dispatcher::modify`].
    OneShot,
}

/// A mechanism that says which of many descriptors are ready.
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

    /// As [`remove`](Dispatcher::remove), for a descriptor that has no duplicate and is closed
    /// right afterwards: what the kernel then does by itself it is not asked for.
    ///
    /// # Errors
    ///
    /// As [`remove`](Dispatcher::remove), from those mechanisms that notice.
    fn forget(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.remove(fd)
    }

    /// Clears `ready` and fills it with what is ready, each descriptor once. With nothing ready it
    /// waits for at most `timeout`, or without end if that is `None`; zero only looks.
    ///
    /// # Errors
    ///
    /// What the system call says, but not `EINTR`: then nothing is ready. What was ready is
    /// reported by a later wait.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()>;

    /// How often readiness is reported.
    fn trigger(&self) -> Trigger;

    /// Whether a report that a socket is readable also says if the end of the stream has come
    /// ([`Readiness::is_read_closed`]). If it does and has not said so, a read that brings less
    /// than there was room for need not be followed by one that brings nothing. `select` and RT
    /// signals do not tell.
    fn tells_end(&self) -> bool {
        true
    }

    /// Whether the report of something that has become ready may be lost for good, so that a caller
    /// has to try now and then what it waits for. By level what is lost is reported again, and
    /// `epoll` loses nothing. RT signals of a file go to one thread, and another process with the
    /// same file may ask for them. io_uring drops completions that its queue has no room for if the
    /// kernel has no memory for them either (`EBADR` in io_uring_enter(2)).
    fn may_lose_reports(&self) -> bool {
        false
    }
}
