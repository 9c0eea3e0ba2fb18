//! A server, and how it is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A server, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadTarget {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP, with memcached's framing.
    Udp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl LoadTarget {
    /// Address of the network; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            LoadTarget::Tcp(address) | LoadTarget::Udp(address) => Some(*address),
            LoadTarget::Unix(_) => None,
        }
    }

    pub(crate) fn is_udp(&self) -> bool {
        matches!(self, LoadTarget::Udp(_))
    }
}

impl From<SocketAddr> for LoadTarget {
    /// TCP to this address.
    fn from(address: SocketAddr) -> LoadTarget {
        LoadTarget::Tcp(address)
    }
}

impl fmt::Display for LoadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadTarget::Tcp(address) => address.fmt(f),
            LoadTarget::Udp(address) => write!(f, "{address} over UDP"),
            LoadTarget::Unix(path) => path.display().fmt(f),
        }
    }
}
