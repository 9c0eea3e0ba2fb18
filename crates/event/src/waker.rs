//! Waker: ends a wait from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Ends the wait of a dispatcher that watches it, from any thread.
///
/// It is a pipe and not an eventfd, because eventfds send no signals ([`RtSig`](crate::RtSig)).
/// Watch it with [`Interest::READ`](crate::Interest::READ)`.pinned()`, and call
/// [`reset`](Waker::reset) when it is reported.
#[derive(Debug)]
pub struct Waker {
    read: OwnedFd,
    write: OwnedFd,
}

impl Waker {
    /// A waker that no dispatcher watches yet.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`.
    pub fn new() -> io::Result<Waker> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Waker { read, write })
    }

    /// Makes the waker readable, and so ends the wait under way or the next one. Several wakes
    /// before a reset count as one.
    pub fn wake(&self) {
        // A full pipe is readable: EAGAIN means that the waiter has been woken already.
        while rustix::io::write(&self.write, &[1]) == Err(Errno::INTR) {}
    }

    /// Makes the waker ready for the next wake. Reset first, and look afterwards at what the wakes
    /// announce: then a wake that comes in between ends the next wait, and none is lost.
    pub fn reset(&self) {
        let mut bytes = [0; 512];
        loop {
            match rustix::io::read(&self.read, &mut bytes) {
                Ok(read) if read == bytes.len() => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}
