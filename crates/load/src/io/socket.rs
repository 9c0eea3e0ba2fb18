//! Sockets for connections, and their errors in httperf's classes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    socket_with, sockopt,
};

use crate::io::ReadWrite;
use crate::io::operation::Route;
use crate::outcome::Errors;
use crate::plan::LoadTarget;

/// Address that connect(2) takes.
pub(crate) fn address_of(target: &LoadTarget) -> Result<SocketAddrAny, Errno> {
    match target {
        LoadTarget::Tcp(address) | LoadTarget::Udp(address) => Ok((*address).into()),
        LoadTarget::Unix(path) => SocketAddrUnix::new(path.as_path()).map(SocketAddrAny::from),
    }
}

/// Creates a socket for a connection.
pub(crate) fn socket_for(route: &Route<'_>, is_nonblocking: bool) -> Result<OwnedFd, Errno> {
    let (family, kind) = match route.to {
        LoadTarget::Tcp(SocketAddr::V4(_)) => (AddressFamily::INET, SocketType::STREAM),
        LoadTarget::Tcp(SocketAddr::V6(_)) => (AddressFamily::INET6, SocketType::STREAM),
        LoadTarget::Udp(SocketAddr::V4(_)) => (AddressFamily::INET, SocketType::DGRAM),
        LoadTarget::Udp(SocketAddr::V6(_)) => (AddressFamily::INET6, SocketType::DGRAM),
        LoadTarget::Unix(_) => (AddressFamily::UNIX, SocketType::STREAM),
    };
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, is_nonblocking);
    let socket = socket_with(family, kind, flags, None)?;
    if route.is_chatty && matches!(route.to, LoadTarget::Tcp(_)) {
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

/// Opens a blocking stream, to a UDP server over TCP. A read or write fails after `wait`.
pub(crate) fn blocking_stream(
    to: &LoadTarget,
    connect_timeout: Duration,
    wait: Duration,
) -> io::Result<Box<dyn ReadWrite>> {
    Ok(match to {
        LoadTarget::Tcp(address) | LoadTarget::Udp(address) => {
            let stream = TcpStream::connect_timeout(address, connect_timeout)?;
            stream.set_read_timeout(Some(wait))?;
            stream.set_write_timeout(Some(wait))?;
            Box::new(stream)
        }
        LoadTarget::Unix(path) => {
            let address = SocketAddrUnix::new(path.as_path())?;
            let socket =
                socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            // It bounds connect(2) as well, which waits for a place in the listen queue. unix(7)
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(connect_timeout))?;
            retry_on_intr(|| connect(&socket, &address)).map_err(|error| match error {
                Errno::AGAIN => Errno::TIMEDOUT,
                error => error,
            })?;
            let stream = UnixStream::from(socket);
            stream.set_read_timeout(Some(wait))?;
            stream.set_write_timeout(Some(wait))?;
            Box::new(stream)
        }
    })
}

/// Asks a UDP server for its version until it answers: a datagram may be lost.
pub(crate) fn ask_version(to: SocketAddr, limit: Duration) -> io::Result<()> {
    const REPEAT_AFTER: Duration = Duration::from_millis(200);
    const VERSION: &[u8] = b"\0\0\0\0\0\x01\0\0version\r\n";
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(limit.min(REPEAT_AFTER)))?;
    let began = Instant::now();
    loop {
        socket.send(VERSION)?;
        match socket.recv(&mut [0; 256]) {
            Ok(_) => return Ok(()),
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Err(error);
            }
            Err(_) if began.elapsed() >= limit => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no datagram came back"));
            }
            Err(_) => {}
        }
    }
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
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
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
