//! List of connections, for `stats conns` and `watch connevents`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::Seconds;

/// The other end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Over TCP, from this address if it is known.
    Tcp(Option<SocketAddr>),
    /// Over a Unix socket.
    Unix,
    /// One datagram over UDP.
    Udp(SocketAddr),
}

impl Peer {
    pub(crate) fn transport(self) -> &'static str {
        match self {
            Peer::Tcp(_) => "tcp",
            Peer::Unix => "unix",
            Peer::Udp(_) => "udp",
        }
    }

    fn address(self) -> Option<SocketAddr> {
        match self {
            Peer::Tcp(address) => address,
            Peer::Unix => None,
            Peer::Udp(address) => Some(address),
        }
    }

    pub(crate) fn ip(self) -> String {
        self.address().map_or_else(|| "-".to_owned(), |address| address.ip().to_string())
    }

    pub(crate) fn port(self) -> u16 {
        self.address().map_or(0, |address| address.port())
    }
}

/// Displays the peer as memcached does: `tcp:127.0.0.1:4711`, `tcp6:[::1]:4711`, `unix:-`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let six = matches!(self.address(), Some(SocketAddr::V6(_)));
        write!(f, "{}{}:", self.transport(), if six { "6" } else { "" })?;
        match self.address() {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("-"),
        }
    }
}

/// Facts about one conversation.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Counted from 1. Shown where memcached has a descriptor.
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    /// Index of the listener that accepted it.
    pub(crate) listener: Option<usize>,
    /// Time of the last command.
    pub(crate) last_command: AtomicU32,
    /// Position in the list. Changed only under the list's lock.
    place: Mutex<usize>,
}

/// All conversations, and the listening addresses.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    last_id: AtomicU64,
    list: Mutex<Vec<Arc<Connection>>>,
    listeners: Mutex<Vec<String>>,
}

impl Connections {
    pub(crate) fn open(
        &self,
        peer: Peer,
        listener: Option<usize>,
        now: Seconds,
    ) -> Arc<Connection> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut list = lock(&self.list);
        let connection = Arc::new(Connection {
            id,
            peer,
            listener,
            last_command: AtomicU32::new(now),
            place: Mutex::new(list.len()),
        });
        list.push(Arc::clone(&connection));
        connection
    }

    pub(crate) fn close(&self, connection: &Connection) {
        let mut list = lock(&self.list);
        let place = *lock(&connection.place);
        list.swap_remove(place);
        if let Some(moved) = list.get(place) {
            *lock(&moved.place) = place;
        }
    }

    pub(crate) fn listen(&self, address: String) {
        lock(&self.listeners).push(address);
    }

    /// Numbers of open connections and of connections since the start.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let open = lock(&self.list).len() as u64;
        (open, self.last_id.load(Ordering::Relaxed))
    }

    /// Calls `each` with every open conversation.
    pub(crate) fn for_each(&self, each: impl FnMut(&Arc<Connection>)) {
        let list: Vec<_> = lock(&self.list).clone();
        list.iter().for_each(each);
    }

    pub(crate) fn listeners(&self) -> Vec<String> {
        lock(&self.listeners).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_close_in_any_order() {
        let all = Connections::default();
        let [a, b, c] = [2, 3, 4].map(|now| all.open(Peer::Unix, None, now));
        all.close(&a);
        all.close(&c);
        let mut left = Vec::new();
        all.for_each(|one| left.push(one.id));
        assert_eq!(left, [b.id]);
        all.close(&b);
        assert_eq!(all.counts(), (0, 3));
    }

    #[test]
    fn peer_display_as_in_memcached() {
        let four = Peer::Tcp(Some("127.0.0.1:4711".parse().unwrap()));
        let six = Peer::Tcp(Some("[::1]:4711".parse().unwrap()));
        assert_eq!(four.to_string(), "tcp:127.0.0.1:4711");
        assert_eq!(six.to_string(), "tcp6:[::1]:4711");
        assert_eq!(Peer::Unix.to_string(), "unix:-");
    }
}
