//! UDP.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use rustix::net::{RecvFlags, SocketAddrAny};

use super::datagram::datagram;
use super::resolve::{first_that_works, resolve, resolve_first};
use super::socket::Socket;
use crate::backend::Interest;

/// A UDP socket, as [`std::net::UdpSocket`]. Any number of fibers, on any processors, may send and
/// receive on it at once. Options such as groups and the time to live are set on the standard
/// library's socket, from which it can be made.
///
/// ```
/// # weftwork_fiber::run(|| {
/// use weftwork_fiber::net::UdpSocket;
///
/// let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
/// a.send_to(b"hello", b.local_addr().unwrap()).unwrap();
/// let mut buffer = [0; 16];
/// let (len, sender) = b.recv_from(&mut buffer).unwrap();
/// assert_eq!((&buffer[..len], sender), (&b"hello"[..], a.local_addr().unwrap()));
/// # });
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
}

datagram!(UdpSocket, std::net::UdpSocket, Udp);

impl UdpSocket {
    /// A socket at the first address that is free. Names are looked up on an offload thread.
    ///
    /// # Errors
    /// Errors of `bind(2)` for the last address, or of the look-up.
    pub fn bind(address: impl ToSocketAddrs + Sync) -> io::Result<UdpSocket> {
        let addresses = resolve(address)?;
        Ok(first_that_works(&addresses, std::net::UdpSocket::bind)?.into())
    }

    /// From now on only datagrams from this address are received, and [`send`](UdpSocket::send)
    /// sends there.
    ///
    /// # Errors
    /// Errors of `connect(2)` for the last address, or of the look-up.
    pub fn connect(&self, address: impl ToSocketAddrs + Sync) -> io::Result<()> {
        let addresses = resolve(address)?;
        // Connecting a datagram socket only notes the address: it does not wait.
        first_that_works(&addresses, |address| Ok(rustix::net::connect(&self.socket, &address)?))
    }

    /// Sends one datagram to `address` (a name's first).
    ///
    /// # Errors
    /// `TimedOut` past the write time-out; else what `sendto(2)` or the look-up reports.
    pub fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs + Sync) -> io::Result<usize> {
        let address = SocketAddrAny::from(resolve_first(address)?);
        let deadline = self.socket.write_deadline();
        self.socket.send_datagram(bytes, Some(&address), deadline)
    }

    /// Same as [`recv`](UdpSocket::recv), and returns the sender.
    ///
    /// # Errors
    /// Like [`recv`](UdpSocket::recv).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buffer, RecvFlags::empty())
    }

    /// Same as [`peek`](UdpSocket::peek), and returns the sender.
    ///
    /// # Errors
    /// Like [`recv`](UdpSocket::recv).
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buffer, RecvFlags::PEEK)
    }

    fn receive_from(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<(usize, SocketAddr)> {
        let deadline = self.socket.read_deadline();
        let (len, sender) = self.socket.receive_datagram_from(buffer, flags, deadline)?;
        let sender = sender.ok_or(io::ErrorKind::InvalidData)?;
        Ok((len, sender.try_into()?))
    }

    /// This end's address.
    ///
    /// # Errors
    /// Errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(self)?.try_into()?)
    }

    /// The address that it is connected to.
    ///
    /// # Errors
    /// `NotConnected`, or what `getpeername(2)` reports.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getpeername(self)?.ok_or(io::ErrorKind::NotConnected)?.try_into()?)
    }
}
