//! Signals, waited for in a fiber.
//!
//! ```no_run
//! use fiber::signal::{SIGHUP, SIGTERM, Signals};
//!
//! fiber::run(|| {
//!     let signals = Signals::new([SIGTERM, SIGHUP]).unwrap();
//!     loop {
//!         match signals.wait() {
//!             Ok(SIGHUP) => println!("reload"),
//!             Ok(_) => return println!("drain"),
//!             Err(error) => panic!("{error}"),
//!         }
//!     }
//! });
//! ```

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use signal_hook::SigId;
use signal_hook::low_level;

pub use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGWINCH,
};

use crate::base::atomic::{AtomicU64, Ordering};
use crate::net::UnixStream;

/// Waits for signals. From when it is made until it is dropped, these signals do nothing by
/// themselves any more; other handlers that the process registered through `signal-hook` are called
/// as well.
///
/// A signal that comes twice before a wait is told once, as the kernel does with signals that are
/// blocked.
pub struct Signals {
    arrivals: Arc<Arrivals>,
    doorbell: UnixStream,
    ids: Vec<SigId>,
}

/// What the handler touches: it may only do what is safe at any moment (signal-safety(7)).
struct Arrivals {
    pending: Pending,
    bell: StdUnixStream,
}

impl Signals {
    /// Waits for these from now on.
    ///
    /// # Errors
    /// `InvalidInput` for a signal that cannot be caught; else what `sigaction(2)` or
    /// `socketpair(2)` reports.
    pub fn new(signals: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        let (bell, doorbell) = StdUnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let pending = Pending(AtomicU64::new(0));
        let mut waiting = Signals {
            arrivals: Arc::new(Arrivals { pending, bell }),
            doorbell: OwnedFd::from(doorbell).into(),
            ids: Vec::new(),
        };
        for signal in signals {
            // If one fails, dropping `waiting` takes the others back.
            waiting.add(signal)?;
        }
        Ok(waiting)
    }

    fn add(&mut self, signal: i32) -> io::Result<()> {
        if signal_hook::consts::FORBIDDEN.contains(&signal) || !(1..=64).contains(&signal) {
            let message = format!("signal {signal} cannot be caught");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let arrivals = Arc::clone(&self.arrivals);
        // SAFETY: the action is an atomic operation and a system call that does not wait, both of
        // which are allowed in handlers; it neither allocates nor locks nor panics.
        let id = unsafe { low_level::register(signal, move || arrivals.arrived(signal)) }?;
        self.ids.push(id);
        Ok(())
    }

    /// Waits until one of the signals has come, and returns its number. One waits at a time.
    ///
    /// # Errors
    /// `TimedOut` past the deadline of [`timeout`](crate::timeout); else what `recv(2)` reports.
    pub fn wait(&self) -> io::Result<i32> {
        loop {
            if let Some(signal) = self.arrivals.pending.take() {
                return Ok(signal);
            }
            // As many rings as there are: each rang after its bit was set.
            if (&self.doorbell).read(&mut [0; 64])? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A signal that has come and was not told, if there is one. Does not wait.
    pub fn take(&self) -> Option<i32> {
        self.arrivals.pending.take()
    }
}

/// One bit for each signal that has come and was not told.
struct Pending(AtomicU64);

impl Pending {
    /// `false` if it has come before.
    fn add(&self, signal: i32) -> bool {
        let bit = 1 << (signal - 1);
        self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    fn take(&self) -> Option<i32> {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let without_first = |pending: u64| (pending != 0).then(|| pending & (pending - 1));
        let before = self.0.fetch_update(set, fetch, without_first).ok()?;
        Some(before.trailing_zeros() as i32 + 1)
    }
}

impl Arrivals {
    fn arrived(&self, signal: i32) {
        if !self.pending.add(signal) {
            return; // The bell has been rung for it.
        }
        // When the socket is full it has been rung often enough.
        // SAFETY: sends one byte of a live local through a descriptor that lives as long as `self`.
        // The interrupted code finds the errno that it had.
        unsafe {
            let errno = *libc::__errno_location();
            libc::send(self.bell.as_raw_fd(), [1u8].as_ptr().cast(), 1, BELL_FLAGS);
            *libc::__errno_location() = errno;
        }
    }
}

const BELL_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Seen (in review): `wait` went to sleep over a signal that had come. Cause: it met a call of
    /// `take` that was faster with another one, and took that for the last. Cure: it takes the
    /// other one.
    #[test]
    fn of_as_many_takers_as_signals_none_goes_empty() {
        loom::model(|| {
            let pending = Arc::new(Pending(AtomicU64::new(0)));
            assert!(pending.add(7) && pending.add(9) && !pending.add(9));
            let other = Arc::clone(&pending);
            let taker = thread::spawn(move || other.take().unwrap());
            let taken = pending.take().unwrap();
            assert_eq!(taken + taker.join().unwrap(), 7 + 9);
            assert_eq!(pending.take(), None);
        });
    }
}
