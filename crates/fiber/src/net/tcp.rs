//! TCP.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::resolve::{first_that_works, resolve};
use super::socket::{Socket, SocketKind};
use super::{listener, stream};
use crate::backend::Interest;
use crate::sched::acceptors::ListenerState;
use crate::sched::block::suspendable;

/// A TCP connection, as [`std::net::TcpStream`].
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
}

stream!(TcpStream, std::net::TcpStream, Tcp);

impl TcpStream {
    /// Connects to the first address that answers. Names are looked up on an offload thread.
    ///
    /// # Errors
    /// Errors of `connect(2)` for the last address, or of the look-up.
    pub fn connect(address: impl ToSocketAddrs + Sync) -> io::Result<TcpStream> {
        first_that_works(&resolve(address)?, connect)
    }

    /// Connects to `address`, or fails after `timeout`. For a look-up and several addresses in one
    /// time: [`timeout`](crate::timeout()) around [`connect`](Self::connect).
    ///
    /// # Errors
    /// `TimedOut`; `InvalidInput` for a zero time-out; else what `connect(2)` reports.
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if suspendable().is_none() {
            return Ok(std::net::TcpStream::connect_timeout(address, timeout)?.into());
        }
        crate::timeout(timeout, || connect(*address))
    }

    /// True if small segments are sent at once.
    ///
    /// # Errors
    /// Errors of `getsockopt(2)`.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(sockopt::tcp_nodelay(self)?)
    }

    /// Sends small segments at once if true (TCP_NODELAY).
    ///
    /// # Errors
    /// Errors of `setsockopt(2)`.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self, nodelay)?)
    }

    /// The other end's address.
    ///
    /// # Errors
    /// Errors of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getpeername(self)?.ok_or(io::ErrorKind::NotConnected)?.try_into()?)
    }

    /// This end's address.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(self)?.try_into()?)
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(TcpStream { socket: Socket::connect(fd, &address.into(), SocketKind::Tcp)? })
}

/// A listening TCP socket, as [`std::net::TcpListener`]. Any number of fibers, on any processors,
/// may accept from it at once.
#[derive(Debug)]
pub struct TcpListener {
    state: Arc<ListenerState>,
}

listener!(TcpListener, TcpStream, std::net::TcpListener, Tcp);

impl TcpListener {
    /// Listens on the first address that is free. Names are looked up on an offload thread. As many
    /// connections wait to be accepted as the system allows (`net.core.somaxconn`).
    ///
    /// # Errors
    /// Errors of `bind(2)` or `listen(2)` for the last address.
    pub fn bind(address: impl ToSocketAddrs + Sync) -> io::Result<TcpListener> {
        let addresses = resolve(address)?;
        let listener = first_that_works(&addresses, std::net::TcpListener::bind)?;
        // std asks for 128 only. listen(2) may be called again.
        rustix::net::listen(&listener, i32::MAX)?;
        Ok(listener.into())
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(self)?.try_into()?)
    }
}
