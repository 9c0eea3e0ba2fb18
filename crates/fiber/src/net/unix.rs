//! Unix domain sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, socketpair,
};

use super::socket::{Socket, next_id};
use super::{Carrier, carrier, stream};
use crate::accept::{self, ListenerState};
use crate::backend::Interest;

/// A connection between processes of this machine, as [`std::os::unix::net::UnixStream`].
#[derive(Debug)]
pub struct UnixStream {
    socket: Socket,
}

stream!(UnixStream);

impl UnixStream {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// What `connect(2)` reports; `InvalidInput` for a path of more than 107 bytes.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let address = SocketAddrUnix::new(path.as_ref())?;
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(UnixStream {
            socket: Socket::connect(fd, &address.into())?,
        })
    }

    /// Two streams connected to each other.
    ///
    /// # Errors
    /// What `socketpair(2)` reports.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((a.into(), b.into()))
    }
}

/// A listening Unix socket, as [`std::os::unix::net::UnixListener`].
#[derive(Debug)]
pub struct UnixListener {
    state: Arc<ListenerState>,
}

impl UnixListener {
    /// Makes a socket at `path` and listens on it.
    ///
    /// # Errors
    /// What `bind(2)` reports; `AddrInUse` if something is at `path`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        Ok(OwnedFd::from(std::os::unix::net::UnixListener::bind(path)?).into())
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// As [`TcpListener::accept`](super::TcpListener::accept).
    pub fn accept(&self) -> io::Result<UnixStream> {
        let connection = accept::accept(&self.state)?;
        let nonblocking = carrier() != Carrier::Uring;
        Ok(UnixStream {
            socket: Socket::with_mode(connection, nonblocking),
        })
    }

    /// Stops listening, as [`TcpListener::close`](super::TcpListener::close).
    pub fn close(&self) {
        self.state.close();
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }
}

impl From<OwnedFd> for UnixListener {
    fn from(fd: OwnedFd) -> UnixListener {
        UnixListener {
            state: ListenerState::new(fd, next_id()),
        }
    }
}

impl From<std::os::unix::net::UnixStream> for UnixStream {
    fn from(stream: std::os::unix::net::UnixStream) -> UnixStream {
        OwnedFd::from(stream).into()
    }
}
