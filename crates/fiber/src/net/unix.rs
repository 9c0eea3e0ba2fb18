//! Unix domain sockets.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, socket_with,
    socketpair,
};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use super::datagram::datagram;
use super::socket::Socket;
use super::{listener, stream};
use crate::backend::Interest;
use crate::io::accept::ListenerState;
use crate::io::path::{IoPath, io_path};

/// A connection between processes of this machine, as [`std::os::unix::net::UnixStream`].
#[derive(Debug)]
pub struct UnixStream {
    socket: Socket,
}

stream!(UnixStream, std::os::unix::net::UnixStream);

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

listener!(UnixListener, UnixStream, std::os::unix::net::UnixListener);

impl UnixListener {
    /// Makes a socket at `path` and listens on it.
    ///
    /// # Errors
    /// What `bind(2)` reports; `AddrInUse` if something is at `path`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        Ok(std::os::unix::net::UnixListener::bind(path)?.into())
    }
}

/// A datagram socket between processes of this machine, as [`std::os::unix::net::UnixDatagram`].
/// Nothing is lost or comes out of order; a sender waits while the receiver's queue is full.
#[derive(Debug)]
pub struct UnixDatagram {
    socket: Socket,
}

datagram!(UnixDatagram, std::os::unix::net::UnixDatagram);

impl UnixDatagram {
    /// A socket at `path`, to which others may send.
    ///
    /// # Errors
    /// What `bind(2)` reports; `AddrInUse` if something is at `path`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        Ok(std::os::unix::net::UnixDatagram::bind(path)?.into())
    }

    /// A socket without a name: it can send, and receive from its peer.
    ///
    /// # Errors
    /// What `socket(2)` reports.
    pub fn unbound() -> io::Result<UnixDatagram> {
        Ok(std::os::unix::net::UnixDatagram::unbound()?.into())
    }

    /// Two sockets connected to each other.
    ///
    /// # Errors
    /// What `socketpair(2)` reports.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (a, b) = std::os::unix::net::UnixDatagram::pair()?;
        Ok((a.into(), b.into()))
    }

    /// From now on [`send`](UnixDatagram::send) sends to the socket at `path`.
    ///
    /// # Errors
    /// What `connect(2)` reports.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let address = SocketAddrUnix::new(path.as_ref())?;
        Ok(rustix::net::connect(&self.socket, &address)?)
    }

    /// Sends one datagram to the socket at `path`.
    ///
    /// # Errors
    /// `TimedOut` past the write time-out; else what `sendto(2)` reports.
    pub fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let address = SocketAddrAny::from(SocketAddrUnix::new(path.as_ref())?);
        let deadline = self.socket.write_deadline();
        self.socket.send_datagram_to(bytes, &address, deadline)
    }

    /// As [`recv`](UnixDatagram::recv), and says who sent it.
    ///
    /// # Errors
    /// As [`recv`](UnixDatagram::recv).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (flags, deadline) = (RecvFlags::empty(), self.socket.read_deadline());
        let (len, sender) = self.socket.receive_datagram_from(buffer, flags, deadline)?;
        Ok((len, unix_address(sender)?))
    }

    /// This end's address.
    ///
    /// # Errors
    /// What `getsockname(2)` reports.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        unix_address(Some(rustix::net::getsockname(self)?))
    }

    /// Ends receiving, sending or both; those that wait are woken.
    ///
    /// # Errors
    /// What `shutdown(2)` reports.
    pub fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }
}

/// As `std` has it. An address of nothing but its family is that of a socket without a name
/// (unix(7)).
fn unix_address(address: Option<SocketAddrAny>) -> io::Result<SocketAddr> {
    const FAMILY_LEN: u32 = size_of::<libc::sa_family_t>() as u32;
    let Some(address) = address.filter(|address| address.addr_len() > FAMILY_LEN) else {
        return SocketAddr::from_pathname("");
    };
    let address = SocketAddrUnix::try_from(address)?;
    match (address.abstract_name(), address.path_bytes()) {
        (Some(name), _) => SocketAddr::from_abstract_name(name),
        (None, path) => SocketAddr::from_pathname(OsStr::from_bytes(path.unwrap_or_default())),
    }
}
