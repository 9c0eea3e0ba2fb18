//! Several sockets at one address, so that each of several threads has a listen queue of its own.

use std::io;
use std::net::SocketAddr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{Address, Bound};

impl Bound {
    /// Another socket that listens at the same address: the kernel spreads connections over it and
    /// this one by their hash (`SO_REUSEPORT`, socket(7)). `None` where that cannot be: on a Unix
    /// socket, and on one that was inherited, which is not ours alone.
    ///
    /// The first socket of an address was bound without the option, so a port that another process
    /// holds was found taken. From now on processes of the same user may join, as with every server
    /// that listens in this way.
    ///
    /// # Errors
    /// What `bind(2)` and `listen(2)` report.
    pub(crate) fn sibling(&self) -> io::Result<Option<Bound>> {
        let Address::Tcp(address) = self.address else {
            return Ok(None);
        };
        if self.is_inherited {
            return Ok(None);
        }
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
        Ok(Some(Bound {
            address: self.address.clone(),
            socket,
            file: None,
            is_inherited: false,
            backlog: self.backlog,
            tls: self.tls.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::listen::bind;

    fn accepted(bound: &Bound) -> usize {
        rustix::io::ioctl_fionbio(bound, true).unwrap();
        std::iter::from_fn(|| rustix::net::accept(bound).ok()).count()
    }

    #[test]
    fn siblings_share_the_connections_of_their_address() {
        const CLIENTS: usize = 100;
        let first = bind(&"127.0.0.1:0".parse().unwrap(), None)
            .unwrap()
            .remove(0);
        let Address::Tcp(address) = first.address else {
            panic!("not a TCP address")
        };
        let siblings = [(); 3].map(|()| first.sibling().unwrap().expect("on TCP"));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let shares: Vec<_> = siblings.iter().chain([&first]).map(accepted).collect();
        assert_eq!(shares.iter().sum::<usize>(), CLIENTS, "{shares:?}");
        // By a hash: all on one socket out of four would be 4 to the power of -99.
        assert!(shares.iter().all(|share| *share < CLIENTS), "{shares:?}");
        drop(clients);
    }

    #[test]
    fn a_unix_socket_has_no_siblings() {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", directory.path().join("socket").display());
        let bound = bind(&address.parse().unwrap(), None).unwrap();
        assert!(bound[0].sibling().unwrap().is_none());
    }
}
