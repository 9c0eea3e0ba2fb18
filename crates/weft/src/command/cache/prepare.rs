//! Steps before the server starts: limits, sockets, the pid file, the file of ports, the change of
//! user.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

use ::serve::engine::netstack::NetstackInterface;
use ::serve::listen::{self, Address, Bound, Inherited};
use ::serve::tls::Tls;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::config::{CacheConfig, Listen};
use crate::common::sockets;
use crate::failure::Failure;
use crate::operate::{self, NetstackAddresses, become_user, running};
use crate::os::files;
use crate::os::machine::Machine;
use crate::os::open_files::make_room;
use crate::os::pid_file::PidFile;
use crate::os::privileges::{self, Ids};
use crate::os::sandbox::{Needs, Right};

/// Opened sockets and files.
pub(crate) struct Prepared {
    pub(crate) listeners: Vec<Bound>,
    /// Netstack instead of sockets.
    pub(crate) netstack: Option<NetstackInterface>,
    pub(crate) datagrams: Vec<UdpSocket>,
    pub(crate) admin: Vec<Bound>,
    pub(crate) tls: Option<Arc<Tls>>,
    /// Deleted when the server ends.
    pub(crate) pid_file: Option<PidFile>,
}

impl Prepared {
    /// Listening addresses, for people.
    pub(crate) fn places(&self) -> Vec<String> {
        let of_kernel = self.listeners.iter();
        let of_kernel = of_kernel.map(|bound| (bound.address.to_string(), bound.tls.is_some()));
        let of_netstack = self.netstack.iter().flat_map(NetstackInterface::addresses);
        let of_netstack = of_netstack.map(|(address, is_secure)| (address.to_string(), is_secure));
        let listeners = of_kernel.chain(of_netstack);
        let listeners = listeners.map(|(address, is_secure)| {
            let tls = if is_secure { " (TLS)" } else { "" };
            format!("{address}{tls}")
        });
        let datagrams = self.datagrams.iter().filter_map(|socket| socket.local_addr().ok());
        let admin = self.admin.iter().flat_map(Bound::urls);
        listeners
            .chain(datagrams.map(|address| format!("{address} (UDP)")))
            .chain(admin.map(|url| format!("{url} (admin)")))
            .collect()
    }
}

/// Sets limits, binds, reads the certificate, writes the files, and changes the user, in this
/// order: the last step gives up the rights that the others need.
///
/// # Errors
/// A sentence with the obstacle and the remedy.
pub(crate) fn prepare(config: &CacheConfig) -> Result<Prepared, Failure> {
    let ids = account(config)?;
    set_limits(config)?;
    let tls = config.tls().map_err(Failure::Usage)?.map(Tls::open);
    let tls = tls.transpose().map_err(Failure::Usage)?.map(Arc::new);
    // This must come before anything else takes their descriptors. sd_listen_fds(3)
    let mut inherited = listen::inherited().map_err(running)?;
    for Inherited { bound, .. } in &mut inherited {
        let is_tcp = matches!(bound.address, Address::Tcp(_));
        bound.tls = tls.clone().filter(|_| is_tcp);
    }
    let bind = |others: &[Bound]| bind_all(config, tls.as_ref(), others);
    let (listeners, netstack) = operate::open(
        &config.common,
        inherited,
        Some(config.service.backlog as usize),
        || netstack_addresses(config, tls.as_ref()),
        |inherited| operate::listeners(inherited, config.listen_is_default, bind),
    )?;
    let datagrams = bind_datagrams(config)?;
    if listeners.is_empty() && datagrams.is_empty() && netstack.is_none() {
        return Err(Failure::Usage("no address to listen at: give -p, -U or -s".to_owned()));
    }
    let admin = operate::bind_all(&config.common.admin, &[])?;
    write_ports(&listeners, netstack.as_ref(), &datagrams)?;
    let pid_file = config.common.write_pid_file()?;
    become_user(ids.as_ref(), listeners.iter().chain(&admin), "")?;
    Ok(Prepared { listeners, netstack, datagrams, admin, tls, pid_file })
}

/// Needs of the sandbox: files that are opened after the start, by access right.
pub(super) fn needs(config: &CacheConfig) -> Needs {
    let certificate = &config.certificate;
    let chain = config.service.tls.then_some(&certificate.chain);
    let read = chain.into_iter().chain(&certificate.key).chain(&config.ca_cert);
    let read = read.chain(&config.auth_file);
    let items = config.memory_file.iter().map(|file| (Right::Replace, file.clone()));
    let listen: Vec<_> = config.listen().into_iter().map(|listen| listen.address).collect();
    let read = read.map(|file| (Right::File, file.clone()));
    Needs { files: read.chain(items).chain(sockets(&listen)).collect(), ..Needs::default() }
}

/// Listening addresses of a netstack.
fn netstack_addresses(config: &CacheConfig, tls: Option<&Arc<Tls>>) -> NetstackAddresses {
    let listen = config.listen().into_iter();
    let netstack_addresses =
        listen.map(|Listen { address, has_tls }| (address, tls.filter(|_| has_tls).cloned()));
    netstack_addresses.collect()
}

/// The user to change to. Only root can change its user, and as root `-u` is required, as in
/// memcached: a cache does not need root's rights, and should not have them by mistake.
fn account(config: &CacheConfig) -> Result<Option<Ids>, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    match &config.common.user {
        None if is_root => Err(Failure::Usage(
            "started as root: name the user to run as, such as -u nobody (or -u root to stay root)"
                .to_owned(),
        )),
        None => Ok(None),
        Some(user) if is_root => {
            let ids = privileges::find(user);
            ids.map(Some).map_err(|why| Failure::Usage(format!("-u: {why}")))
        }
        // As in memcached: a process without root's rights keeps its user.
        Some(_) => Ok(None),
    }
}

// Descriptors that are not for connections: standard streams, rings, listeners, certificates, the
// admin endpoint.
const DESCRIPTORS_RESERVED: u64 = 64;

fn set_limits(config: &CacheConfig) -> Result<(), Failure> {
    let machine = Machine::this();
    let engine = &config.common.engine;
    let workers = config.common.workers();
    let fixed = engine.check_fixed(workers, &machine);
    fixed.map_err(Failure::Usage)?;
    let held = engine.check_holds("-c", config.connections_max, workers, &machine);
    held.map_err(Failure::Usage)?;
    make_room("-c", engine.descriptors_of(config.connections_max), DESCRIPTORS_RESERVED)?;
    if config.dumps_core {
        let all = getrlimit(Resource::Core).maximum;
        setrlimit(Resource::Core, Rlimit { current: all, maximum: all })
            .map_err(io::Error::from)?;
    }
    if config.locks_memory {
        lock_memory()?;
    }
    Ok(())
}

/// Locks memory. Pages are locked when first used: the store and the stacks reserve far more
/// addresses than memory. mlockall(2)
fn lock_memory() -> Result<(), Failure> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(|error| {
        Failure::Running(format!(
            "-k: cannot lock the memory: {}; raise the limit (ulimit -l unlimited, LimitMEMLOCK= in a systemd unit)",
            io::Error::from(error)
        ))
    })
}

/// Listens at each address without a listener in `inherited`: systemd may hold the port that -l
/// names.
fn bind_all(
    config: &CacheConfig,
    tls: Option<&Arc<Tls>>,
    inherited: &[Bound],
) -> Result<Vec<Bound>, Failure> {
    let mut all = Vec::new();
    for Listen { address, has_tls } in config.listen() {
        let bound = listen::bind_beside(inherited, &address, Some(config.service.backlog));
        let mut bound = bound.map_err(running)?;
        for one in &mut bound {
            one.tls = tls.filter(|_| has_tls).cloned();
        }
        all.extend(bound);
    }
    Ok(all)
}

fn bind_datagrams(config: &CacheConfig) -> Result<Vec<UdpSocket>, Failure> {
    let mut sockets = Vec::new();
    for address in config.listen_udp() {
        let bound = match &address {
            Address::Tcp(address) => UdpSocket::bind(address).map(|one| vec![one]),
            Address::Name { host, port } if host.is_empty() => {
                let six = UdpSocket::bind(SocketAddr::from(([0u16; 8], *port)));
                // A kernel without IPv6 still has IPv4.
                six.or_else(|_| UdpSocket::bind(("0.0.0.0", *port))).map(|one| vec![one])
            }
            Address::Name { host, port } => bind_name(host, *port),
            Address::Unix { .. } => unreachable!("-s has no datagrams"),
        };
        sockets.extend(bound.map_err(|error| {
            Failure::Running(format!("-U: cannot listen on {address} (UDP): {error}"))
        })?);
    }
    Ok(sockets)
}

fn bind_name(host: &str, port: u16) -> io::Result<Vec<UdpSocket>> {
    let addresses = std::net::ToSocketAddrs::to_socket_addrs(&(host, port))?;
    let mut bound = Vec::new();
    let mut failed = None;
    for address in addresses {
        match UdpSocket::bind(address) {
            Ok(socket) => bound.push(socket),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if bound.is_empty() => Err(error),
        _ => Ok(bound),
    }
}

/// Writes the ports to a file, for starts on a free port. The variable and the format are
/// memcached's.
fn write_ports(
    listeners: &[Bound],
    netstack: Option<&NetstackInterface>,
    datagrams: &[UdpSocket],
) -> Result<(), Failure> {
    let Some(file) = std::env::var_os("MEMCACHED_PORT_FILENAME").map(PathBuf::from) else {
        return Ok(());
    };
    let tcp = listeners.iter().filter_map(|bound| match bound.address {
        Address::Tcp(address) => Some(("TCP", address)),
        _ => None,
    });
    let udp = datagrams.iter().filter_map(|socket| Some(("UDP", socket.local_addr().ok()?)));
    let of_netstack = netstack.into_iter().flat_map(NetstackInterface::addresses);
    let of_netstack = of_netstack.map(|(address, _)| ("TCP", address));
    let text: String = tcp
        .chain(of_netstack)
        .chain(udp)
        .map(|(transport, address)| port_lines(transport, address))
        .collect();
    files::write_bytes(&file, text).map_err(|error| {
        Failure::Running(format!(
            "cannot write MEMCACHED_PORT_FILENAME={}: {error}",
            file.display()
        ))
    })
}

/// One line per family. A socket on every interface serves both; ipv6(7), `IPV6_V6ONLY`
fn port_lines(transport: &str, address: SocketAddr) -> String {
    let port = address.port();
    match address {
        SocketAddr::V4(_) => format!("{transport} INET: {port}\n"),
        SocketAddr::V6(six) if six.ip().is_unspecified() => {
            format!("{transport} INET: {port}\n{transport} INET6: {port}\n")
        }
        SocketAddr::V6(_) => format!("{transport} INET6: {port}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: without `-l` the file of ports had no `TCP INET` line, which clients look for. Cause:
    /// the single socket for both families is an IPv6 socket. Cure: it gets a line for each family
    /// that it serves.
    #[test]
    fn a_wildcard_socket_has_a_line_per_family() {
        let lines = |address: &str| port_lines("TCP", address.parse().unwrap());
        assert_eq!(lines("[::]:7"), "TCP INET: 7\nTCP INET6: 7\n");
        assert_eq!(lines("[::1]:7"), "TCP INET6: 7\n");
        assert_eq!(lines("0.0.0.0:7"), "TCP INET: 7\n");
    }
}
