//! Several sockets at one address, so that each thread has a listen queue of its own.

use std::io;

use rustix::io::Errno;

use super::{Address, Bound, tcp};

impl Bound {
    /// Listens with `count` sockets at the address: the kernel spreads connections over them by
    /// their hash (`SO_REUSEPORT`, socket(7)). Keeps a single socket where this is not possible: on
    /// a Unix socket, on an inherited one, which other processes may share, and after a change of
    /// user, since the kernel requires the same user for all. It must therefore be called before
    /// that. A second call adds missing sockets.
    ///
    /// The first socket of an address was bound without the option, so a port held by another
    /// process has been noticed. From now on processes of the same user may join, as with every
    /// server that listens this way.
    ///
    /// # Errors
    /// Errors of `bind(2)` and `listen(2)`.
    pub(crate) fn split(&mut self, count: usize) -> io::Result<()> {
        let Address::Tcp(address) = self.address else {
            return Ok(());
        };
        if self.is_inherited {
            return Ok(());
        }
        while self.sockets().count() < count {
            match tcp::listener(address, self.backlog, Some(&self.socket)) {
                Ok(socket) => self.siblings.push(socket),
                Err(Errno::ACCESS | Errno::PERM | Errno::ADDRINUSE) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
        // By a hash: the probability that one of four sockets gets all is 4 to the power of -99.
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
