//! Where the server listens: addresses as people write them, sockets as drivers take them.
//!
//! ```text
//!  "[::]:8080"            --listen, TOML, WEFT_LISTEN          systemd: LISTEN_FDS
//!       │ FromStr                                                    │
//!       ▼                                                            ▼
//!   Address ──── bind() ────▶ Bound { address, socket } ◀──── inherited()
//!                               │                │
//!                               ▼                ▼
//!                             urls()        accept loops
//! ```
//!
//! Sockets come out listening, close-on-exec and in blocking mode; a driver that polls sets
//! `O_NONBLOCK` itself.

mod address;
mod error;
mod holder;
mod inherited;
mod unix;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

pub use address::{Address, AddressError};
pub use error::BindError;
pub use inherited::{Inherited, inherited};
use unix::SocketFile;

use crate::tls::Tls;

/// A listening stream socket.
///
/// Dropping it closes the socket, and removes the file of a Unix socket if this process made it and
/// nobody has put another in its place.
#[derive(Debug)]
pub struct Bound {
    /// Where it listens: [`Address::Tcp`] with the real port if port 0 was asked for, or
    /// [`Address::Unix`]; never a name.
    pub address: Address,
    /// The socket, listening, close-on-exec, blocking, with `TCP_NODELAY` where that exists.
    pub socket: OwnedFd,
    #[expect(dead_code, reason = "kept for its drop, which removes the file")]
    file: Option<SocketFile>,
    is_inherited: bool,
    /// TLS, if it is spoken on this one.
    pub tls: Option<Arc<Tls>>,
}

/// Listens at `address`. A host name listens at every address that it resolves to, so one `Address`
/// may give several sockets, which share one port.
///
/// `backlog` is how many connections may wait to be accepted; `None` is as many as the system
/// allows (`net.core.somaxconn`).
///
/// # Errors
/// A [`BindError`] whose text says what to do.
pub fn bind(address: &Address, backlog: Option<u32>) -> Result<Vec<Bound>, BindError> {
    bind_beside(&[], address, backlog)
}

/// As [`bind`], but leaves out what one of `others` takes the connections of already: systemd may hold the very port that
/// the configuration names.
///
/// # Errors
/// A [`BindError`] whose text says what to do.
pub fn bind_beside(
    others: &[Bound],
    address: &Address,
    backlog: Option<u32>,
) -> Result<Vec<Bound>, BindError> {
    let backlog = Backlog::from(backlog);
    let is_taken = |address| others.iter().any(|bound| bound.takes(address));
    match address {
        Address::Tcp(tcp) if is_taken(*tcp) => Ok(Vec::new()),
        Address::Tcp(tcp) => Ok(vec![
            bind_tcp(*tcp, backlog).map_err(explain(address, *tcp))?,
        ]),
        Address::Name { host, port } if host.is_empty() => {
            let four = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port);
            match is_taken(four) {
                true => Ok(Vec::new()),
                false => Ok(vec![bind_every_interface(*port, backlog, address)?]),
            }
        }
        Address::Name { host, port } => bind_name(host, *port, backlog, address, is_taken),
        Address::Unix { path, .. } if others.iter().any(|bound| bound.is_at(path)) => {
            Ok(Vec::new())
        }
        Address::Unix { path, mode } => Ok(vec![unix::bind(path, *mode, backlog)?]),
    }
}

/// What `listen(2)` gets. It caps silently at `net.core.somaxconn`, so "all" needs no look there.
#[derive(Clone, Copy)]
struct Backlog(i32);

impl From<Option<u32>> for Backlog {
    fn from(backlog: Option<u32>) -> Backlog {
        Backlog(backlog.map_or(i32::MAX, |len| len.min(i32::MAX as u32) as i32))
    }
}

fn bind_every_interface(port: u16, backlog: Backlog, asked: &Address) -> Result<Bound, BindError> {
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

fn bind_name(
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
            // `localhost` resolves to ::1 as well where IPv6 is off: the other address will do.
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

/// How long a port may still be held by a process that is no more: the kernel takes an io_uring apart some time after
/// its process was killed, and until then the ring keeps the listener.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(1);
const ORPHAN_LOOK: Duration = Duration::from_millis(20);

/// Binds and listens. Waits for a port that a dead process has not given back yet, for as long as no living one is
/// seen to hold it.
fn bind_tcp(address: SocketAddr, backlog: Backlog) -> rustix::io::Result<Bound> {
    let deadline = Instant::now() + ORPHAN_PATIENCE;
    loop {
        match try_bind_tcp(address, backlog) {
            Err(Errno::ADDRINUSE)
                if Instant::now() < deadline && holder::of_tcp(address).is_none() =>
            {
                thread::sleep(ORPHAN_LOOK);
            }
            done => return done,
        }
    }
}

fn try_bind_tcp(address: SocketAddr, backlog: Backlog) -> rustix::io::Result<Bound> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Otherwise a restart fails while old connections are in TIME_WAIT. It does not let two
    // processes listen at one port. socket(7)
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets inherit it, which saves a system call for every connection.
    sockopt::set_tcp_nodelay(&socket, true)?;
    if address.is_ipv6() {
        // [::] takes IPv4 too, whatever net.ipv6.bindv6only says. ipv6(7)
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, backlog.0)?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok(Bound {
        address: Address::Tcp(address),
        socket,
        file: None,
        is_inherited: false,
        tls: None,
    })
}

fn explain(asked: &Address, tried: SocketAddr) -> impl Fn(Errno) -> BindError {
    move |errno| BindError::tcp(asked, tried, errno)
}

/// A machine with more interfaces than this knows its addresses.
const URLS_MAX: usize = 8;

impl Bound {
    /// Begins no more TCP handshakes, while those under way end and what is in the listen queue can still be
    /// accepted: a filter on the socket drops every SYN (socket(7), `SO_ATTACH_FILTER`). Who connects meanwhile
    /// tries again, as after any loss, and is refused once the socket is closed.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub(crate) fn stop_queueing(&self) -> io::Result<()> {
        const FLAGS_OFFSET: u32 = 13; // of the TCP header, RFC 9293 3.1
        const SYN: u32 = 0x02;
        let instruction = |code: u32, jf, k| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf,
            k,
        };
        let mut drop_syn = [
            instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, FLAGS_OFFSET),
            instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, SYN),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
        ];
        let program = libc::sock_fprog {
            len: drop_syn.len() as u16,
            filter: drop_syn.as_mut_ptr(),
        };
        // SAFETY: the program is as long as it says; the kernel checks and copies it.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
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

    /// Whether it takes the connections to `address`, so that another socket cannot listen there.
    fn takes(&self, address: SocketAddr) -> bool {
        let Address::Tcp(own) = self.address else {
            return false;
        };
        let is_for_all = own.ip().is_unspecified()
            && (own.is_ipv4() == address.is_ipv4()
                || own.is_ipv6() && !sockopt::ipv6_v6only(&self.socket).unwrap_or(false));
        own.port() == address.port() && (own.ip() == address.ip() || is_for_all)
    }

    /// Whether it is the Unix socket at `path`.
    fn is_at(&self, path: &Path) -> bool {
        matches!(&self.address, Address::Unix { path: own, .. } if own == path)
    }

    /// Whether whoever started us made the socket, and others may listen on it after us.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// What to type into a browser to get here: for a wildcard address `localhost` first, then one
    /// URL for each address of an interface, at most eight in all. A Unix socket has no URL that
    /// browsers know, so its address is given instead.
    pub fn urls(&self) -> Vec<String> {
        let Address::Tcp(address) = &self.address else {
            return vec![self.address.to_string()];
        };
        let port = address.port();
        if !address.ip().is_unspecified() {
            return vec![self.url(*address)];
        }
        let four = address.is_ipv4() || !sockopt::ipv6_v6only(&self.socket).unwrap_or(false);
        let mut urls = vec![self.named_url("localhost", port)];
        urls.extend(
            interface_addresses()
                .into_iter()
                .filter(|ip| {
                    if ip.is_ipv4() {
                        four
                    } else {
                        address.is_ipv6()
                    }
                })
                .map(|ip| self.url(SocketAddr::new(ip, port)))
                .take(URLS_MAX - 1),
        );
        urls
    }

    fn url(&self, address: SocketAddr) -> String {
        match address.ip() {
            IpAddr::V4(four) => self.named_url(&four.to_string(), address.port()),
            IpAddr::V6(six) => self.named_url(&format!("[{six}]"), address.port()),
        }
    }

    fn named_url(&self, host: &str, port: u16) -> String {
        let (scheme, default_port) = match self.tls {
            None => ("http", 80),
            Some(_) => ("https", 443),
        };
        match port == default_port {
            true => format!("{scheme}://{host}/"),
            false => format!("{scheme}://{host}:{port}/"),
        }
    }

    /// Another handle on the same listening socket, for one more accept loop. The file of a Unix
    /// socket stays with the original.
    ///
    /// # Errors
    /// What `fcntl(2)` reports: no descriptors left.
    pub fn try_clone(&self) -> io::Result<Bound> {
        let socket = self.socket.try_clone()?;
        Ok(Bound {
            address: self.address.clone(),
            socket,
            file: None,
            is_inherited: self.is_inherited,
            tls: self.tls.clone(),
        })
    }
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Addresses of this machine that others can reach; none if the kernel will not tell.
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs::getifaddrs() else {
        return Vec::new();
    };
    interfaces
        .filter(|interface| interface.flags.contains(getifaddrs::InterfaceFlags::UP))
        .filter_map(|interface| interface.address.ip_addr())
        .filter(|ip| match ip {
            IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local(),
            // A link-local address needs a zone, and browsers take none.
            IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: `weft.socket` and `serve.toml`, as shipped, name port 80 both, and did not start together: an inherited address
    /// was bound again.
    #[test]
    fn what_an_inherited_socket_takes_is_not_bound_again() {
        let all = |text: &str| bind(&text.parse().unwrap(), None).unwrap();
        let beside = |others: &[Bound], text: &str| {
            let bound = bind_beside(others, &text.parse().unwrap(), None);
            bound
                .map(|bound| bound.len())
                .map_err(|error| error.to_string())
        };
        let port = |bound: &Bound| match bound.address {
            Address::Tcp(address) => address.port(),
            ref other => panic!("{other}"),
        };
        let wild = all(":0");
        let port_of_wild = port(&wild[0]);
        for asked in [
            "",
            ":",
            "*:",
            "0.0.0.0:",
            "[::]:",
            "127.0.0.1:",
            "localhost:",
        ] {
            assert_eq!(
                beside(&wild, &format!("{asked}{port_of_wild}")),
                Ok(0),
                "{asked}"
            );
        }
        let other_port = beside(&wild, "127.0.0.1:0");
        assert_eq!(other_port, Ok(1));

        let local = all("127.0.0.1:0");
        let port_of_local = port(&local[0]);
        assert_eq!(beside(&local, &format!("127.0.0.1:{port_of_local}")), Ok(0));
        assert_eq!(beside(&local, &format!("127.0.0.2:{port_of_local}")), Ok(1));

        let folder = tempfile::tempdir().unwrap();
        let path = format!("unix:{}/socket", folder.path().display());
        let unix = all(&path);
        assert_eq!(beside(&unix, &format!("{path}?mode=0600")), Ok(0));
        assert_eq!(beside(&unix, &format!("{path}2")), Ok(1));
    }
    use std::net::TcpStream;

    fn bind_one(text: &str) -> Bound {
        let mut bound = bind(&text.parse().unwrap(), None).unwrap();
        assert_eq!(bound.len(), 1, "{text}");
        bound.remove(0)
    }

    fn tcp(bound: &Bound) -> SocketAddr {
        match bound.address {
            Address::Tcp(address) => address,
            ref other => panic!("{other} is not TCP"),
        }
    }

    fn refusal(text: &str) -> String {
        bind(&text.parse().unwrap(), None).unwrap_err().to_string()
    }

    #[test]
    fn port_zero_becomes_the_real_port() {
        let bound = bind_one("127.0.0.1:0");
        assert_ne!(tcp(&bound).port(), 0);
        TcpStream::connect(tcp(&bound)).unwrap();
        assert_eq!(
            bound.urls(),
            [format!("http://127.0.0.1:{}/", tcp(&bound).port())]
        );
    }

    #[test]
    fn every_interface_means_both_families() {
        let bound = bind_one(":0");
        let port = tcp(&bound).port();
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        if tcp(&bound).is_ipv6() {
            TcpStream::connect(("::1", port)).unwrap();
        }
        assert_eq!(bound.urls()[0], format!("http://localhost:{port}/"));
        assert!(bound.urls().len() <= URLS_MAX);
    }

    #[test]
    fn all_addresses_of_a_name_share_one_port() {
        let bound = bind(&"localhost:0".parse().unwrap(), None).unwrap();
        assert!(!bound.is_empty());
        for one in &bound {
            assert_eq!(tcp(one).port(), tcp(&bound[0]).port());
            TcpStream::connect(tcp(one)).unwrap();
        }
    }

    #[test]
    fn accepted_connections_have_nodelay_without_asking() {
        let bound = bind_one("127.0.0.1:0");
        let _client = TcpStream::connect(tcp(&bound)).unwrap();
        let accepted = rustix::net::accept(&bound).unwrap();
        assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    }

    #[test]
    fn sockets_are_not_left_to_child_processes() {
        let flags = rustix::io::fcntl_getfd(bind_one("127.0.0.1:0")).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_port_in_use_is_refused_by_the_holders_name() {
        let bound = bind_one("127.0.0.1:0");
        let refused = refusal(&bound.address.to_string());
        assert!(
            refused.contains("this process already listens there"),
            "{refused}"
        );
        let wildcard = refusal(&format!("0.0.0.0:{}", tcp(&bound).port()));
        assert!(
            wildcard.contains("this process already listens there"),
            "{wildcard}"
        );
    }

    /// Seen: a start right after `kill -9` found the port in use under io_uring, 8 of 8 times. Cause: the dead
    /// process's ring held the listener a little longer. Cure: a port without a living holder is waited for.
    #[test]
    fn a_port_that_nobody_holds_any_more_is_waited_for() {
        let orphan = bind_one("127.0.0.1:0");
        let address = tcp(&orphan);
        // A descriptor under way through a Unix socket belongs to no process.
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = rustix::net::SendAncillaryBuffer::new(&mut room);
        let fds = [orphan.as_fd()];
        assert!(message.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [io::IoSlice::new(b"x")];
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&one, &bytes, &mut message, flags).unwrap();
        drop(orphan);
        assert_eq!(
            try_bind_tcp(address, Backlog::from(None)).unwrap_err(),
            Errno::ADDRINUSE
        );
        let end = thread::spawn(move || {
            thread::sleep(ORPHAN_LOOK);
            drop((one, other));
        });
        bind_one(&address.to_string());
        end.join().unwrap();
    }

    #[test]
    fn a_foreign_address_is_refused_with_where_to_look() {
        // 192.0.2.0/24 is documentation, never an interface's. RFC 5737
        let refused = refusal("192.0.2.1:0");
        assert!(
            refused.contains("no interface has the address 192.0.2.1"),
            "{refused}"
        );
    }

    #[test]
    fn an_unknown_name_is_refused() {
        // RFC 2606: .invalid never resolves.
        let refused = refusal("nowhere.invalid:80");
        assert!(refused.contains("the name nowhere.invalid"), "{refused}");
    }

    #[test]
    fn a_clone_accepts_from_the_same_queue() {
        let bound = bind_one("127.0.0.1:0");
        let clone = bound.try_clone().unwrap();
        let address = tcp(&bound);
        drop(bound);
        let _client = TcpStream::connect(address).unwrap();
        rustix::net::accept(&clone).unwrap();
    }

    #[test]
    fn urls_leave_out_the_default_port() {
        let bound = bind(&"127.0.0.1:0".parse().unwrap(), None)
            .unwrap()
            .remove(0);
        let url = |text: &str| bound.url(text.parse().unwrap());
        assert_eq!(url("127.0.0.1:80"), "http://127.0.0.1/");
        assert_eq!(url("[::1]:8080"), "http://[::1]:8080/");
    }
}
