//! Several sockets at one address, so that each of several threads has a listen queue of its own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{Address, Bound};

impl Bound {
    /// Listens with so many sockets at the address: the kernel spreads connections over them by
    /// their hash (`SO_REUSEPORT`, socket(7)). It goes on with one where that cannot be: on a Unix
    /// socket, on one that was inherited, which is not ours alone, and once the process has become
    /// another user, which the kernel lets join no group of the former one. So it comes before
    /// that. A second call adds what is missing.
    ///
    /// The first socket of an address was bound without the option, so a port that another process
    /// holds was found taken. From now on processes of the same user may join, as with every server
    /// that listens in this way.
    ///
    /// # Errors
    /// What `bind(2)` and `listen(2)` report.
    pub(crate) fn split(&mut self, count: usize) -> io::Result<()> {
        let Address::Tcp(address) = self.address else {
            return Ok(());
        };
        if self.is_inherited {
            return Ok(());
        }
        while self.sockets().count() < count {
            match self.sibling(address) {
                Ok(socket) => self.siblings.push(socket),
                Err(error) => {
                    return match error.kind() {
                        io::ErrorKind::PermissionDenied | io::ErrorKind::AddrInUse => Ok(()),
                        _ => Err(error),
                    };
                }
            }
        }
        Ok(())
    }

    fn sibling(&self, address: SocketAddr) -> io::Result<OwnedFd> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        for socket in [&self.socket, &socket] {
            sockopt::set_socket_reuseport(socket, true)?;
        }
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, sockopt::ipv6_v6only(&self.socket)?)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, self.backlog.0)?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::listen::bind;

    fn accepted(socket: BorrowedFd<'_>) -> usize {
        rustix::io::ioctl_fionbio(socket, true).unwrap();
        std::iter::from_fn(|| rustix::net::accept(socket).ok()).count()
    }

    #[test]
    fn the_sockets_of_an_address_share_its_connections() {
        const CLIENTS: usize = 100;
        let mut bound = bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap().remove(0);
        let Address::Tcp(address) = bound.address else { panic!("not a TCP address") };
        bound.split(2).unwrap();
        bound.split(4).unwrap();
        assert_eq!(bound.sockets().count(), 4);
        let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let shares: Vec<_> = bound.sockets().map(accepted).collect();
        assert_eq!(shares.iter().sum::<usize>(), CLIENTS, "{shares:?}");
        // By a hash: all on one socket out of four would be 4 to the power of -99.
        assert!(shares.iter().all(|share| *share < CLIENTS), "{shares:?}");
        drop(clients);
    }

    #[test]
    fn a_unix_socket_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", directory.path().join("socket").display());
        let mut bound = bind(&address.parse().unwrap(), None).unwrap().remove(0);
        bound.split(4).unwrap();
        assert_eq!(bound.sockets().count(), 1);
    }
}
