//! Handshakes in progress at a listener.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// True if a handshake with one of these ports of this network namespace is in progress: its SYN
/// was answered, and the connection is not in the listen queue yet. Also true if that cannot be
/// determined.
pub(crate) fn handshakes_under_way(ports: &[u16]) -> bool {
    let asked = ports
        .iter()
        .try_fold(false, |found, &port| Ok::<_, io::Error>(found || asked_of_kernel(port)?));
    asked.unwrap_or_else(|_| listed(ports))
}

/// Asks by netlink, whose answer covers only these sockets, however many others exist. sock_diag(7)
fn asked_of_kernel(port: u16) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = AddressFamily::NETLINK;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        rustix::net::send(&socket, &request(family as u8, port), SendFlags::empty())?;
        // The answer is complete when the request was accepted; a truncated one suffices.
        let mut buffer = [0; 4096];
        let (len, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        match kind_of(&buffer[..len]) {
            Some(SOCK_DIAG_BY_FAMILY) => return Ok(true),
            Some(NLMSG_DONE) => {}
            _ => return Err(Errno::PROTO.into()),
        }
    }
    Ok(false)
}

// linux/sock_diag.h, linux/netlink.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;

/// `struct nlmsghdr`, then `struct inet_diag_req_v2`: all handshakes of this port.
fn request(family: u8, port: u16) -> [u8; 72] {
    const SYN_RECV: u32 = 1 << 3;
    let mut bytes = [0; 72];
    let (len, flags) = (bytes.len() as u32, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16);
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = libc::IPPROTO_TCP as u8;
    bytes[20..24].copy_from_slice(&SYN_RECV.to_ne_bytes());
    bytes[24..26].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// The kind of the first message.
fn kind_of(answer: &[u8]) -> Option<u16> {
    let kind = answer.get(4..6)?;
    Some(u16::from_ne_bytes(kind.try_into().ok()?))
}

/// Searches the list of all sockets, where netlink is forbidden.
fn listed(ports: &[u16]) -> bool {
    let tables = ["tcp", "tcp6"].map(|name| fs::read(format!("/proc/thread-self/net/{name}")));
    if tables.iter().all(Result::is_err) {
        return true;
    }
    let tables = tables.iter().flatten();
    let mut rows = tables.flat_map(|table| table.split(|&byte| byte == b'\n'));
    rows.any(|row| parse_handshake(row).is_some_and(|port| ports.contains(&port)))
}

/// The local port in a row of `/proc/net/tcp{,6}`, if it is a handshake. proc(5)
fn parse_handshake(row: &[u8]) -> Option<u16> {
    // sl local_address rem_address st
    let mut fields = row.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty());
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    const TCP_SYN_RECV: &[u8] = b"03";
    if state != TCP_SYN_RECV {
        return None;
    }
    let port = local.rsplit(|&byte| byte == b':').next()?;
    u16::from_str_radix(std::str::from_utf8(port).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_found_by_its_port() {
        let four = b"   2: 0100007F:1F90 0100007F:A6F2 03 00000000:00000000 01:00000063 00000000";
        assert_eq!(parse_handshake(four), Some(8080));
        let six = b"  10: 00000000000000000000000001000000:0050 \
            00000000000000000000000001000000:A6F2 03 00000000:00000000 01:00000063 00000000";
        assert_eq!(parse_handshake(six), Some(80));
        let listener = b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000";
        assert_eq!(parse_handshake(listener), None);
        assert_eq!(parse_handshake(b"  sl  local_address rem_address   st tx_queue"), None);
        assert_eq!(parse_handshake(b""), None);
    }

    /// A deferred accept keeps a handshake in progress until the client sends something.
    #[test]
    fn handshakes_of_other_ports_do_not_count() {
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::AsRawFd;
        let [idle, deferring] = ["127.0.0.1:0"; 2].map(|at| TcpListener::bind(at).unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let seconds: libc::c_int = 30;
        // SAFETY: the option is an int, and an int is passed. tcp(7), `TCP_DEFER_ACCEPT`
        let set = unsafe {
            libc::setsockopt(
                deferring.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_DEFER_ACCEPT,
                (&raw const seconds).cast(),
                size_of_val(&seconds) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        let ports = [port(&idle), port(&deferring)];
        assert!(!handshakes_under_way(&ports) && !listed(&ports));
        let _client = TcpStream::connect(deferring.local_addr().unwrap()).unwrap();
        assert!(asked_of_kernel(ports[1]).unwrap() && listed(&ports[1..]));
        assert!(handshakes_under_way(&ports));
        assert!(!handshakes_under_way(&ports[..1]) && !listed(&ports[..1]));
    }
}
