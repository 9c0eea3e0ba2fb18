//! Sockets for connections, and their errors in httperf's classes.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use crate::io::operation::Route;
use crate::outcome::Errors;

/// Creates a socket for a connection.
pub(crate) fn socket_for(route: &Route, is_nonblocking: bool) -> Result<OwnedFd, Errno> {
    let family = if route.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, is_nonblocking);
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if route.is_chatty {
        // Nagle would hold the second of two small requests until the first is acknowledged. A
        // connection with a single request needs no such call.
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    if let Some(source) = route.from {
        // Pick the port at connect, by the whole 4-tuple, so that each source address has its whole
        // range for each target (IP_BIND_ADDRESS_NO_PORT, ip(7)).
        bind_without_port(&socket)?;
        bind(&socket, &SocketAddr::new(source, 0))?;
    }
    Ok(socket)
}

#[allow(unsafe_code)]
fn bind_without_port(socket: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    const IP_BIND_ADDRESS_NO_PORT: libc::c_int = 24;
    let on: libc::c_int = 1;
    // SAFETY: the option takes an int, which lives across the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Counts a connection error by its class.
pub(crate) fn count(errors: &mut Errors, error: Errno) {
    let counter = match error {
        Errno::TIMEDOUT => &mut errors.socket_timeout,
        Errno::CONNREFUSED => &mut errors.refused,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => &mut errors.reset,
        Errno::MFILE | Errno::NFILE => &mut errors.fd_unavailable,
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => &mut errors.address_unavailable,
        Errno::PROTO => &mut errors.tls,
        _ => &mut errors.other,
    };
    *counter += 1;
}
