//! A server, and how it is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A server, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP, with memcached's framing.
    Udp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Target {
    /// Address of the network; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Target::Tcp(address) | Target::Udp(address) => Some(*address),
            Target::Unix(_) => None,
        }
    }

    pub(crate) fn is_udp(&self) -> bool {
        matches!(self, Target::Udp(_))
    }
}

impl From<SocketAddr> for Target {
    /// TCP to this address.
    fn from(address: SocketAddr) -> Target {
        Target::Tcp(address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => address.fmt(f),
            Target::Udp(address) => write!(f, "{address} over UDP"),
            Target::Unix(path) => path.display().fmt(f),
        }
    }
}
