//! Event dispatching mechanisms, one file each, behind one trait.
//!
//! A [`Dispatcher`] watches descriptors and reports which are ready. It does no I/O on them, keeps
//! no buffers and starts no threads. The mechanisms are exchangeable, so that they can be compared
//! under the same server.
//!
//! ```
//! use weftwork_event::{Dispatcher, Interest, Mechanism, Token};
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
//! # Choosing a mechanism
//!
//! | mechanism | cost of a wait grows with | reports | choose it |
//! |---|---|---|---|
//! | [`Select`] | the highest descriptor watched | level | for comparisons only |
//! | [`Poll`] | the descriptors watched | level | for up to some hundred descriptors |
//! | [`Fdm`] | the active descriptors, if they are ready twice in a row | level | to repeat Liu and Chen's figures |
//! | [`Lap`] | the active descriptors, and each idle one once in a delay | level | where only `poll(2)` exists |
//! | [`RtSig`] | the signals sent, ready or stale | edge | to repeat the figures of 2004 |
//! | [`Epoll`] | the ready descriptors | level, edge or one-shot | for a server |
//! | [`Uring`] | the ready descriptors | edge | beside a ring that does the I/O as well |
//!
//! # Contract of all mechanisms
//!
//! - A descriptor is added once, and removed **before it is closed**. Adding it twice fails with
//!   `EEXIST`; changing or removing an unknown one fails with `ENOENT`.
//! - Readiness that was there before `add` or `modify` is reported by a later [`Dispatcher::wait`].
//! - [`Trigger`] says how often readiness is reported. A caller that reads (or writes) until the
//!   call would block is right under level and edge; under one-shot it also calls `modify`
//!   afterwards.
//! - A wait may end early with nothing: a signal came, or a ready descriptor was removed.
//! - A regular file is always ready for `select`, `poll`, FDM and LAP; `epoll` and RT signals
//!   refuse it with `EPERM`; the ring takes it, and reports it as an error once.
//! - A descriptor that is closed while it is watched is a bug of the caller. `select`, `poll`,
//!   FDM and LAP report it as an error and forget it. `epoll` and RT signals fall silent, and the
//!   ring keeps the file open.
//! - A dispatcher belongs to the process that made it, and [`RtSig`] and [`Uring`] to the thread. A
//!   forked child may drop its copy, and makes one of its own.
//! - After `remove` no wait reports the token. A report of the *same* wait is already in the
//!   caller's hands: a caller that removes another descriptor while it works through a batch checks
//!   for that.

#![warn(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!("weftwork runs on Linux only: it stands on epoll and io_uring");

mod bitmaps;
mod dispatcher;
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

pub use dispatcher::{Dispatcher, Ready, Token, Trigger};
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
