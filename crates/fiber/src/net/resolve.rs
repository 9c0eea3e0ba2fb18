//! From names to addresses, without a processor that waits for a name server.

use std::io;
use std::mem::needs_drop;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::io::offload::{offload, try_offload};

/// All addresses of `address`. A name is looked up (`getaddrinfo(3)`, so `/etc/hosts` and
/// `/etc/resolv.conf` count) on an offload thread, while other fibers run. It is waited for to its
/// end; see [`resolve_name`].
///
/// ```
/// # weftwork_fiber::run(|| {
/// let addresses = weftwork_fiber::net::resolve("localhost:80").unwrap();
/// assert!(addresses.iter().all(|address| address.port() == 80));
/// # });
/// ```
///
/// # Errors
/// Errors of the look-up.
pub fn resolve(address: impl ToSocketAddrs + Sync) -> io::Result<Vec<SocketAddr>> {
    look_up(&address, Iterator::collect)
}

/// All addresses of a host, with this port. Unlike [`resolve`], which may borrow what it looks up,
/// it does not wait beyond the deadline of [`timeout`](crate::timeout), and a fiber that waits in
/// it can be cancelled: the look-up then continues without it.
///
/// # Errors
/// `TimedOut`, [`Cancelled`](crate::Cancelled), or what the look-up reports.
pub fn resolve_name(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host.to_owned();
    try_offload(move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect))?
}

/// The first address, as `std` takes it for datagrams.
pub(super) fn resolve_first(address: impl ToSocketAddrs + Sync) -> io::Result<SocketAddr> {
    look_up(&address, |mut found| found.next())?.ok_or_else(no_address)
}

/// Calls `attempt` with one address after the other until one succeeds.
///
/// # Errors
/// The last error; `InvalidInput` if there is no address.
pub(super) fn first_that_works<T>(
    addresses: &[SocketAddr],
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = no_address();
    for &address in addresses {
        match attempt(address) {
            Ok(value) => return Ok(value),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn look_up<A: ToSocketAddrs + Sync, T: Send>(
    address: &A,
    take: impl FnOnce(A::Iter) -> T + Send,
) -> io::Result<T> {
    let look_up = || address.to_socket_addrs().map(take);
    // A name look-up returns answers in memory of its own. An iterator that owns nothing (a
    // SocketAddr, a slice of them) had the addresses before, and needs no thread.
    if needs_drop::<A::Iter>() { offload(look_up) } else { look_up() }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")
}
