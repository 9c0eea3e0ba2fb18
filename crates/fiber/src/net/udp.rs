//! UDP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use rustix::net::{RecvFlags, SocketAddrAny, sockopt};

use super::datagram::datagram;
use super::resolve::{first_that_works, resolve, resolve_first};
use super::socket::Socket;
use crate::backend::Interest;

/// A UDP socket, as [`std::net::UdpSocket`]. Any number of fibers, on any processors, may send and
/// receive on it at once.
///
/// ```
/// # fiber::run(|| {
/// use fiber::net::UdpSocket;
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

datagram!(UdpSocket, std::net::UdpSocket);

impl UdpSocket {
    /// A socket at the first address that is free. Names are looked up on an offload thread.
    ///
    /// # Errors
    /// What `bind(2)` reports for the last address, or the look-up.
    pub fn bind(address: impl ToSocketAddrs + Sync) -> io::Result<UdpSocket> {
        let addresses = resolve(address)?;
        Ok(first_that_works(&addresses, std::net::UdpSocket::bind)?.into())
    }

    /// From now on only datagrams from this address are received, and [`send`](UdpSocket::send)
    /// sends there.
    ///
    /// # Errors
    /// What `connect(2)` reports for the last address, or the look-up.
    pub fn connect(&self, address: impl ToSocketAddrs + Sync) -> io::Result<()> {
        let addresses = resolve(address)?;
        // Connecting a datagram socket only notes the address: it does not wait.
        first_that_works(&addresses, |address| {
            Ok(rustix::net::connect(&self.socket, &address)?)
        })
    }

    /// Sends one datagram to `address` (a name's first).
    ///
    /// # Errors
    /// `TimedOut` past the write time-out; else what `sendto(2)` or the look-up reports.
    pub fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs + Sync) -> io::Result<usize> {
        let address = SocketAddrAny::from(resolve_first(address)?);
        let deadline = self.socket.write_deadline();
        self.socket.send_datagram_to(bytes, &address, deadline)
    }

    /// As [`recv`](UdpSocket::recv), and says who sent it.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buffer, RecvFlags::empty())
    }

    /// As [`peek`](UdpSocket::peek), and says who sent it.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
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
    /// What `getsockname(2)` reports.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(self)?.try_into()?)
    }

    /// The address that it is connected to.
    ///
    /// # Errors
    /// `NotConnected`, or what `getpeername(2)` reports.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getpeername(self)?
            .ok_or(io::ErrorKind::NotConnected)?
            .try_into()?)
    }

    /// Whether it may send to broadcast addresses (SO_BROADCAST).
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_broadcast(self, broadcast)?)
    }

    /// Whether it may send to broadcast addresses.
    ///
    /// # Errors
    /// What `getsockopt(2)` reports.
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(sockopt::socket_broadcast(self)?)
    }

    /// How many routers a datagram may pass (IP_TTL).
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self, ttl)?)
    }

    /// How many routers a datagram may pass.
    ///
    /// # Errors
    /// What `getsockopt(2)` reports.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self)?)
    }

    /// Receives what is sent to the group at `address`, on the given interface; `UNSPECIFIED` is
    /// any.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn join_multicast_v4(&self, address: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        Ok(sockopt::set_ip_add_membership(self, address, interface)?)
    }

    /// The other end of [`join_multicast_v4`](UdpSocket::join_multicast_v4).
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn leave_multicast_v4(&self, address: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        Ok(sockopt::set_ip_drop_membership(self, address, interface)?)
    }

    /// Receives what is sent to the group at `address`, on the interface of that index; 0 is any.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn join_multicast_v6(&self, address: &Ipv6Addr, interface: u32) -> io::Result<()> {
        Ok(sockopt::set_ipv6_add_membership(self, address, interface)?)
    }

    /// The other end of [`join_multicast_v6`](UdpSocket::join_multicast_v6).
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn leave_multicast_v6(&self, address: &Ipv6Addr, interface: u32) -> io::Result<()> {
        Ok(sockopt::set_ipv6_drop_membership(self, address, interface)?)
    }

    /// Whether this machine receives what it sends to a group itself.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn set_multicast_loop_v4(&self, looped: bool) -> io::Result<()> {
        Ok(sockopt::set_ip_multicast_loop(self, looped)?)
    }

    /// How many routers a datagram to a group may pass; 1 unless set.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_multicast_ttl(self, ttl)?)
    }
}
