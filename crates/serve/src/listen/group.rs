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
        rustix::net::listen(&socket, i32::MAX)?;
        Ok(Some(Bound {
            address: self.address.clone(),
            socket,
            file: None,
            is_inherited: false,
            tls: self.tls.clone(),
        }))
    }
}
