//! TCP.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::resolve::{first_that_works, resolve};
use super::socket::{Socket, next_id};
use super::stream;
use crate::backend::Interest;
use crate::io::accept::{self, ListenerState};
use crate::io::path::{IoPath, io_path};

/// A TCP connection, as [`std::net::TcpStream`].
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
}

stream!(TcpStream);

impl TcpStream {
    /// Connects to the first address that answers. Names are looked up on an offload thread.
    ///
    /// # Errors
    /// What `connect(2)` reports for the last address, or the look-up.
    pub fn connect(address: impl ToSocketAddrs + Sync) -> io::Result<TcpStream> {
        first_that_works(&resolve(address)?, connect)
    }

    /// Whether small segments are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self, nodelay)?)
    }

    /// The other end's address.
    ///
    /// # Errors
    /// What `getpeername(2)` reports.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getpeername(self)?
            .ok_or(io::ErrorKind::NotConnected)?
            .try_into()?)
    }

    /// This end's address.
    ///
    /// # Errors
    /// What `getsockname(2)` reports.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(self)?.try_into()?)
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(TcpStream {
        socket: Socket::connect(fd, &address.into())?,
    })
}

/// A listening TCP socket, as [`std::net::TcpListener`]. Any number of fibers, on any processors,
/// may accept from it at once.
#[derive(Debug)]
pub struct TcpListener {
    state: Arc<ListenerState>,
}

impl TcpListener {
    /// Listens on the first address that is free. Names are looked up on an offload thread. As many
    /// connections wait to be accepted as the system allows (`net.core.somaxconn`).
    ///
    /// # Errors
    /// What `bind(2)` or `listen(2)` report for the last address.
    pub fn bind(address: impl ToSocketAddrs + Sync) -> io::Result<TcpListener> {
        let addresses = resolve(address)?;
        let listener = first_that_works(&addresses, std::net::TcpListener::bind)?;
        // std asks for 128 only. listen(2) may be called again.
        rustix::net::listen(&listener, i32::MAX)?;
        Ok(listener.into())
    }

    /// Waits for a connection. Any number of fibers and plain threads may wait on one listener.
    ///
    /// # Errors
    /// `NotConnected` after [`close`](TcpListener::close); else what `accept4(2)` reports. A server
    /// goes on after any other error; out of descriptors, after a pause.
    pub fn accept(&self) -> io::Result<TcpStream> {
        let connection = accept::accept(&self.state)?;
        // As our back ends accept them: the ring's are blocking, the others not.
        let nonblocking = io_path() != IoPath::Uring;
        Ok(TcpStream {
            socket: Socket::with_mode(connection, nonblocking),
        })
    }

    /// The connections, one after the other, as [`std::net::TcpListener::incoming`]; but it ends
    /// when the listener is [closed](TcpListener::close) or the fiber is cancelled.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::from_fn(|| accept::unless_over(self.accept()))
    }

    /// Stops listening: fibers that wait in [`accept`](TcpListener::accept) get an error, later
    /// connections are refused.
    pub fn close(&self) {
        self.state.close();
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// What `getsockname(2)` reports.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(self)?.try_into()?)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }
}

impl From<OwnedFd> for TcpListener {
    fn from(fd: OwnedFd) -> TcpListener {
        TcpListener {
            state: ListenerState::new(fd, next_id()),
        }
    }
}

impl From<std::net::TcpListener> for TcpListener {
    fn from(listener: std::net::TcpListener) -> TcpListener {
        OwnedFd::from(listener).into()
    }
}

impl From<std::net::TcpStream> for TcpStream {
    fn from(stream: std::net::TcpStream) -> TcpStream {
        OwnedFd::from(stream).into()
    }
}
