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
use super::socket::{Socket, SocketKind};
use super::{listener, stream};
use crate::backend::Interest;
use crate::sched::acceptors::ListenerState;

/// A connection between processes of this machine, as [`std::os::unix::net::UnixStream`].
#[derive(Debug)]
pub struct UnixStream {
    socket: Socket,
}

stream!(UnixStream, std::os::unix::net::UnixStream, Unix);

impl UnixStream {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// Errors of `connect(2)`; `InvalidInput` for a path of more than 107 bytes.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        UnixStream::connect_to(SocketAddrUnix::new(path.as_ref())?)
    }

    /// Connects to the socket at `address`, which may be an abstract name.
    ///
    /// # Errors
    /// Like [`connect`](UnixStream::connect).
    pub fn connect_addr(address: &SocketAddr) -> io::Result<UnixStream> {
        UnixStream::connect_to(kernel_address(address)?)
    }

    fn connect_to(address: SocketAddrUnix) -> io::Result<UnixStream> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok(UnixStream { socket: Socket::connect(fd, &address.into(), SocketKind::Unix)? })
    }

    /// The other end's address.
    ///
    /// # Errors
    /// Errors of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        unix_address(rustix::net::getpeername(self)?)
    }

    /// This end's address.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        unix_address(Some(rustix::net::getsockname(self)?))
    }

    /// Two streams connected to each other.
    ///
    /// # Errors
    /// Errors of `socketpair(2)`.
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

listener!(UnixListener, UnixStream, std::os::unix::net::UnixListener, Unix);

impl UnixListener {
    /// Makes a socket at `path` and listens on it.
    ///
    /// # Errors
    /// Errors of `bind(2)`; `AddrInUse` if something is at `path`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        Ok(std::os::unix::net::UnixListener::bind(path)?.into())
    }

    /// Makes a socket at `address`, which may be an abstract name, and listens on it.
    ///
    /// # Errors
    /// Like [`bind`](UnixListener::bind).
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixListener> {
        Ok(std::os::unix::net::UnixListener::bind_addr(address)?.into())
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        unix_address(Some(rustix::net::getsockname(self)?))
    }
}

/// A datagram socket between processes of this machine, as [`std::os::unix::net::UnixDatagram`].
/// Nothing is lost or comes out of order; a sender waits while the receiver's queue is full.
#[derive(Debug)]
pub struct UnixDatagram {
    socket: Socket,
}

datagram!(UnixDatagram, std::os::unix::net::UnixDatagram, Unix);

impl UnixDatagram {
    /// A socket at `path`, to which others may send.
    ///
    /// # Errors
    /// Errors of `bind(2)`; `AddrInUse` if something is at `path`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        Ok(std::os::unix::net::UnixDatagram::bind(path)?.into())
    }

    /// A socket at `address`, which may be an abstract name, to which others may send.
    ///
    /// # Errors
    /// Like [`bind`](UnixDatagram::bind).
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixDatagram> {
        Ok(std::os::unix::net::UnixDatagram::bind_addr(address)?.into())
    }

    /// A socket without a name: it can send, and receive from its peer.
    ///
    /// # Errors
    /// Errors of `socket(2)`.
    pub fn unbound() -> io::Result<UnixDatagram> {
        Ok(std::os::unix::net::UnixDatagram::unbound()?.into())
    }

    /// Two sockets connected to each other.
    ///
    /// # Errors
    /// Errors of `socketpair(2)`.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (a, b) = std::os::unix::net::UnixDatagram::pair()?;
        Ok((a.into(), b.into()))
    }

    /// From now on [`send`](UnixDatagram::send) sends to the socket at `path`.
    ///
    /// # Errors
    /// Errors of `connect(2)`.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let address = SocketAddrUnix::new(path.as_ref())?;
        Ok(rustix::net::connect(&self.socket, &address)?)
    }

    /// Same as [`connect`](UnixDatagram::connect), to an address, which may be an abstract name.
    ///
    /// # Errors
    /// Errors of `connect(2)`.
    pub fn connect_addr(&self, address: &SocketAddr) -> io::Result<()> {
        Ok(rustix::net::connect(&self.socket, &kernel_address(address)?)?)
    }

    /// Sends one datagram to the socket at `path`.
    ///
    /// # Errors
    /// `TimedOut` past the write time-out; else what `sendto(2)` reports.
    pub fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let address = SocketAddrAny::from(SocketAddrUnix::new(path.as_ref())?);
        let deadline = self.socket.write_deadline();
        self.socket.send_datagram(bytes, Some(&address), deadline)
    }

    /// Same as [`send_to`](UnixDatagram::send_to), to an address, which may be an abstract name.
    ///
    /// # Errors
    /// Like [`send_to`](UnixDatagram::send_to).
    pub fn send_to_addr(&self, bytes: &[u8], address: &SocketAddr) -> io::Result<usize> {
        let address = SocketAddrAny::from(kernel_address(address)?);
        let deadline = self.socket.write_deadline();
        self.socket.send_datagram(bytes, Some(&address), deadline)
    }

    /// Same as [`recv`](UnixDatagram::recv), and returns the sender.
    ///
    /// # Errors
    /// Like [`recv`](UnixDatagram::recv).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (flags, deadline) = (RecvFlags::empty(), self.socket.read_deadline());
        let (len, sender) = self.socket.receive_datagram_from(buffer, flags, deadline)?;
        Ok((len, unix_address(sender)?))
    }

    /// The address that it is connected to.
    ///
    /// # Errors
    /// Errors of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        unix_address(rustix::net::getpeername(self)?)
    }

    /// This end's address.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        unix_address(Some(rustix::net::getsockname(self)?))
    }

    /// Ends receiving, sending or both; waiting fibers are woken, those that wait for space within
    /// a tenth of a second. From then on an empty datagram may be the end.
    ///
    /// # Errors
    /// Errors of `shutdown(2)`.
    pub fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }
}

/// Address as the kernel has it. An empty name can be no target.
fn kernel_address(address: &SocketAddr) -> io::Result<SocketAddrUnix> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => Ok(SocketAddrUnix::new(path)?),
        (None, Some(name)) => Ok(SocketAddrUnix::new_abstract_name(name)?),
        (None, None) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Address as `std` has it. An address of only its family is that of a socket without a name
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
