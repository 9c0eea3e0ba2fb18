//! An address at which nothing listens, and nothing will as long as this is there.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

/// Holds a port of TCP and does not listen, so a connection to it is refused. A port that was free
/// a moment ago may have been taken by another test.
pub(crate) struct ClosedPort {
    _holds: OwnedFd,
    pub(crate) address: SocketAddr,
}

pub(crate) fn closed_port() -> ClosedPort {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    ClosedPort { _holds: socket, address }
}
