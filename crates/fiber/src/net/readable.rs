//! Waiting for a descriptor that other code reads.

use std::io;
use std::time::Instant;

use super::descriptor;
use super::socket::Socket;
use crate::backend::Interest;

/// A descriptor that other code reads, by calls that do not wait: a TAP interface, or the socket of
/// a library. A fiber waits here until an attempt may succeed.
///
/// ```
/// use std::io::Read;
/// use std::os::unix::net::UnixStream;
/// use weftwork_fiber::net::Readable;
///
/// weftwork_fiber::run(|| {
///     let (near, mut far) = UnixStream::pair().unwrap();
///     far.set_nonblocking(true).unwrap();
///     let readable = Readable::from(std::os::fd::OwnedFd::from(far.try_clone().unwrap()));
///     drop(near);
///     while let Err(error) = far.read(&mut [0; 8]) {
///         assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
///         readable.wait(None).unwrap();
///     }
/// });
/// ```
#[derive(Debug)]
pub struct Readable {
    socket: Socket,
}

impl Readable {
    /// Waits until there is something to read, an end or an error; returns at once if there is now.
    /// It may return for no reason.
    ///
    /// # Errors
    /// `TimedOut` past the deadline; [`Cancelled`](crate::Cancelled); or what `epoll_ctl(2)` says
    /// to a descriptor that cannot be waited for.
    pub fn wait(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.socket.wait_unless_ready(Interest::Read, deadline)
    }
}

descriptor!(Readable, Other);
