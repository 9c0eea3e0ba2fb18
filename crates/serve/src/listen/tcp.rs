//! TCP listeners at an address, a host name, or every interface.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{Address, Backlog, BindError, Bound, holder};

/// Binds one address and listens.
pub(super) fn bind(
    address: SocketAddr,
    backlog: Backlog,
    asked: &Address,
) -> Result<Bound, BindError> {
    bind_tcp(address, backlog).map_err(explain(asked, address))
}

pub(super) fn bind_every_interface(
    port: u16,
    backlog: Backlog,
    asked: &Address,
) -> Result<Bound, BindError> {
    let six = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    match bind_tcp(six, backlog) {
        // A kernel without IPv6 (`ipv6.disable=1`) has no such family at all.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
            let four = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            bind_tcp(four, backlog).map_err(explain(asked, four))
        }
        bound => bound.map_err(explain(asked, six)),
    }
}

pub(super) fn bind_name(
    host: &str,
    port: u16,
    backlog: Backlog,
    asked: &Address,
    is_taken: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<Bound>, BindError> {
    let mut bound: Vec<Bound> = Vec::new();
    let mut unavailable = None;
    let mut addresses = resolve(host, port, asked)?;
    addresses.retain(|address| !is_taken(*address));
    for mut address in addresses {
        if let Some(Address::Tcp(first)) = bound.first().map(|first| &first.address) {
            address.set_port(first.port());
        }
        match bind_tcp(address, backlog) {
            Ok(one) => bound.push(one),
            // `localhost` may resolve to ::1 even without IPv6; the other address suffices.
            Err(errno @ (Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {
                unavailable = Some(explain(asked, address)(errno));
            }
            Err(errno) => return Err(explain(asked, address)(errno)),
        }
    }
    match unavailable {
        Some(error) if bound.is_empty() => Err(error),
        _ => Ok(bound),
    }
}

fn resolve(host: &str, port: u16, asked: &Address) -> Result<Vec<SocketAddr>, BindError> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let resolved = (host, port).to_socket_addrs();
    for address in resolved.map_err(|error| BindError::unresolved(asked, host, error))? {
        // A hosts file may name one address twice.
        if !found.contains(&address) {
            found.push(address);
        }
    }
    Ok(found)
}

/// Time for which a port or a Unix socket may still be held by a dead process: the kernel frees an
/// io_uring some time after its process was killed, and the ring holds the listener until then.
pub(super) const ORPHAN_PATIENCE: Duration = Duration::from_secs(1);
pub(super) const ORPHAN_LOOK: Duration = Duration::from_millis(20);

fn bind_tcp(address: SocketAddr, backlog: Backlog) -> rustix::io::Result<Bound> {
    bind_within(ORPHAN_PATIENCE, address, backlog)
}

/// Binds and listens. Waits for a port held by a dead process: at most for `patience`, and only
/// while no living process is found to hold it.
pub(super) fn bind_within(
    patience: Duration,
    address: SocketAddr,
    backlog: Backlog,
) -> rustix::io::Result<Bound> {
    let deadline = Instant::now() + patience;
    loop {
        match try_bind(address, backlog) {
            Err(Errno::ADDRINUSE)
                if Instant::now() < deadline && holder::of_tcp(address).is_none() =>
            {
                thread::sleep(ORPHAN_LOOK);
            }
            done => return done,
        }
    }
}

pub(super) fn try_bind(address: SocketAddr, backlog: Backlog) -> rustix::io::Result<Bound> {
    let socket = listener(address, backlog, None)?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok(Bound::new(Address::Tcp(address), socket, backlog))
}

/// Listens at an address, alone or beside the `first` socket that does.
pub(super) fn listener(
    address: SocketAddr,
    backlog: Backlog,
    first: Option<&OwnedFd>,
) -> rustix::io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(first) = first {
        sockopt::set_socket_reuseport(first, true)?;
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    // Otherwise a restart fails while old connections are in TIME_WAIT. It does not let two
    // processes listen at one port. socket(7)
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets inherit it, which saves a system call for every connection.
    sockopt::set_tcp_nodelay(&socket, true)?;
    if address.is_ipv6() {
        // [::] accepts IPv4 too, regardless of net.ipv6.bindv6only. ipv6(7)
        let is_v6_only = first.map_or(Ok(false), sockopt::ipv6_v6only)?;
        sockopt::set_ipv6_v6only(&socket, is_v6_only)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, backlog.0)?;
    Ok(socket)
}

fn explain(asked: &Address, tried: SocketAddr) -> impl Fn(Errno) -> BindError {
    move |errno| BindError::tcp(asked, tried, errno)
}
