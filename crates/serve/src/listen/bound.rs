use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::net::sockopt;

use super::unix::SocketFile;
use super::{Address, Backlog, zone};
use crate::tls::Tls;

/// A listening stream socket.
///
/// Dropping it closes the socket, and removes the file of a Unix socket if this process created it
/// and no other has replaced it.
#[derive(Debug)]
pub struct Bound {
    /// Local address: [`Address::Tcp`], with the real port in place of port 0, or
    /// [`Address::Unix`]; never a name.
    pub address: Address,
    /// The socket, listening, close-on-exec, blocking, with `TCP_NODELAY` where that exists.
    pub socket: OwnedFd,
    /// More sockets at the address, with queues of their own; see [`split`](Bound::split).
    pub(super) siblings: Vec<OwnedFd>,
    /// File of a Unix socket; dropping it removes it.
    pub(super) file: Option<SocketFile>,
    pub(super) is_inherited: bool,
    /// Length of the listen queue, for more sockets at the address.
    pub(super) backlog: Backlog,
    /// TLS, if enabled.
    pub tls: Option<Arc<Tls>>,
}

/// Limit on the URLs of one listener.
pub(super) const URLS_MAX: usize = 8;

impl Bound {
    /// A socket owned by this process, without TLS.
    pub(super) fn new(address: Address, socket: OwnedFd, backlog: Backlog) -> Bound {
        Bound {
            address,
            socket,
            siblings: Vec::new(),
            file: None,
            is_inherited: false,
            backlog,
            tls: None,
        }
    }

    /// Stops queueing new connections; queued ones can still be accepted. Removes the file of a
    /// Unix socket. On TCP no new handshake begins, and those in progress complete.
    pub(crate) fn stop_queueing(&self) {
        if let Some(file) = &self.file {
            file.remove();
        }
        if let Address::Tcp(_) = self.address {
            for socket in self.sockets() {
                // This may fail for lack of memory; new clients may then be reset.
                let _ = drop_handshakes(socket);
            }
        }
    }

    /// All sockets that listen at the address.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = [&self.socket].into_iter().chain(&self.siblings);
        all.map(AsFd::as_fd)
    }

    /// TCP port.
    pub(crate) fn port(&self) -> Option<u16> {
        match self.address {
            Address::Tcp(address) => Some(address.port()),
            _ => None,
        }
    }

    /// True if this socket receives the connections to `address`.
    pub fn takes(&self, address: SocketAddr) -> bool {
        let Address::Tcp(own) = self.address else {
            return false;
        };
        let is_for_all = own.ip().is_unspecified()
            && (own.is_ipv4() == address.is_ipv4()
                || own.is_ipv6() && !sockopt::ipv6_v6only(&self.socket).unwrap_or(false));
        own.port() == address.port() && (own.ip() == address.ip() || is_for_all)
    }

    /// True if this is the Unix socket at `path`.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        matches!(&self.address, Address::Unix { path: own, .. } if own == path)
    }

    /// Changes the owner of the file of a Unix socket that this process created, so that the later
    /// user of the process can remove it at the end.
    ///
    /// # Errors
    /// Errors of chown(2), or the file was replaced.
    pub fn give_to(&self, user: u32, group: u32) -> io::Result<()> {
        match &self.file {
            Some(file) => file.give_to(user, group),
            None => Ok(()),
        }
    }

    /// True if the parent process created the socket; others may use it later.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Marks the socket as inherited.
    #[cfg(test)]
    pub(crate) fn inherit(&mut self) {
        self.is_inherited = true;
    }

    /// URLs of this listener: for a wildcard address `localhost` first, then one URL for each
    /// address of an interface, at most eight in all. For a Unix socket, its address.
    pub fn urls(&self) -> Vec<String> {
        let Address::Tcp(address) = &self.address else {
            return vec![self.address.to_string()];
        };
        let port = address.port();
        if !address.ip().is_unspecified() {
            return vec![self.url(*address)];
        }
        let four = address.is_ipv4() || !sockopt::ipv6_v6only(&self.socket).unwrap_or(false);
        let mut urls = vec![named_url("localhost", port, self.tls.is_some())];
        urls.extend(
            interface_addresses()
                .into_iter()
                .filter(|ip| if ip.is_ipv4() { four } else { address.is_ipv6() })
                .map(|ip| self.url(SocketAddr::new(ip, port)))
                .take(URLS_MAX - 1),
        );
        urls
    }

    pub(super) fn url(&self, address: SocketAddr) -> String {
        url(address, self.tls.is_some())
    }

    /// Duplicates the listening socket, for one more accept loop. The file of a Unix socket stays
    /// with the original.
    ///
    /// # Errors
    /// The error of `fcntl(2)`: no descriptors left.
    pub fn try_clone(&self) -> io::Result<Bound> {
        let socket = self.socket.try_clone()?;
        let clone = Bound::new(self.address.clone(), socket, self.backlog);
        Ok(Bound { is_inherited: self.is_inherited, tls: self.tls.clone(), ..clone })
    }
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// URL of an address.
pub(crate) fn url(address: SocketAddr, is_secure: bool) -> String {
    let host = match address.ip() {
        IpAddr::V4(four) => four.to_string(),
        IpAddr::V6(six) => match address {
            SocketAddr::V6(in_zone) if in_zone.scope_id() != 0 => {
                // RFC 6874: the percent sign is encoded.
                format!("[{six}%25{}]", zone::name(in_zone.scope_id()))
            }
            _ => format!("[{six}]"),
        },
    };
    named_url(&host, address.port(), is_secure)
}

fn named_url(host: &str, port: u16, is_secure: bool) -> String {
    let (scheme, default_port) = if is_secure { ("https", 443) } else { ("http", 80) };
    if port == default_port {
        format!("{scheme}://{host}/")
    } else {
        format!("{scheme}://{host}:{port}/")
    }
}

/// Attaches a filter that drops every SYN (socket(7), `SO_ATTACH_FILTER`). A client retransmits its
/// SYN, as after any loss, and is refused once the socket is closed.
fn drop_handshakes(socket: BorrowedFd<'_>) -> io::Result<()> {
    const FLAGS_OFFSET: u32 = 13; // of the TCP header, RFC 9293 3.1
    const SYN: u32 = 0x02;
    let instruction = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut drop_syn = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, FLAGS_OFFSET),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, SYN),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: drop_syn.len() as u16, filter: drop_syn.as_mut_ptr() };
    // SAFETY: the program is as long as it says; the kernel checks and copies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as u32,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Addresses of this machine that others can reach; empty if the kernel does not list them.
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs::getifaddrs() else {
        return Vec::new();
    };
    interfaces
        .filter(|interface| interface.flags.contains(getifaddrs::InterfaceFlags::UP))
        .filter_map(|interface| interface.address.ip_addr())
        .filter(|ip| match ip {
            IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local(),
            // A link-local address needs a zone, which browsers do not support.
            IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local(),
        })
        .collect()
}
