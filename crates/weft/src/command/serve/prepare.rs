//! Steps before the server starts: limits, sockets, pid file, drop of privileges.

use std::path::PathBuf;
use std::sync::Arc;

use ::serve::engine::netstack::NetstackInterface;
use ::serve::limits::{AddressLimit, ProxyProtocol, raise_nofile};
use ::serve::listen::{Address, Bound, Inherited};
use ::serve::tls::{Certificate, Clients, Managed, Tls, TlsOptions};

use session::HostName;

use super::ServeConfig;
use super::certificates;
use super::table::ProxyHeader;
use crate::acme;
use crate::failure::Failure;
use crate::operate::{self, NetstackAddresses, become_user, bind_all};
use crate::os::machine::Machine;
use crate::os::open_files::make_room;
use crate::os::pid_file::PidFile;
use crate::os::privileges::{self, Ids};
use crate::value::{show_count, show_counted, show_size};

/// Opened sockets and files, and limits of the machine.
pub(crate) struct Prepared {
    pub(crate) listeners: Vec<Bound>,
    /// Instead of listeners, if requested.
    pub(crate) netstack: Option<NetstackInterface>,
    pub(crate) admin: Vec<Bound>,
    /// For HTTPS.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) acme: Option<acme::Kept>,
    pub(crate) limits: Limits,
    /// Removed when the server ends.
    pub(crate) pid_file: Option<PidFile>,
}

/// Limits, configured or derived from the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) workers: usize,
    pub(crate) open_files_max: usize,
    pub(crate) memory_budget_bytes: u64,
    /// The memory that this process may use, if it limits the connections.
    pub(crate) connections_fit: Option<u64>,
    /// True if a flag requests more connections than fit.
    pub(crate) is_crowded: bool,
    pub(crate) connections: ::serve::limits::Limits,
}

/// Reads the certificate, binds, writes the pid file, and changes the user, in this order: each
/// step needs rights that the last one gives up.
///
/// # Errors
/// A sentence with the obstacle and the remedy.
pub(crate) fn prepare(
    config: &ServeConfig,
    inherited: Vec<Inherited>,
) -> Result<Prepared, Failure> {
    let ids = account(config).map_err(Failure::Usage)?;
    let engine = &config.common.engine;
    let workers = config.common.workers();
    let fixed = engine.check_fixed(workers, &Machine::this());
    fixed.map_err(Failure::Usage)?;
    let nofile = match config.max_connections {
        Some(connections) => {
            let flag = "--max-connections";
            let machine = Machine::this();
            let held = engine.check_holds(flag, connections.get(), workers, &machine);
            held.map_err(Failure::Usage)?;
            let others = descriptors_for_others(config) + 2 * OPEN_FILES_MIN;
            make_room(flag, engine.descriptors_of(connections.get()), others)?
        }
        None => {
            let (nofile, _) = raise_nofile()?;
            let least = descriptors_for_others(config) + 2 * OPEN_FILES_MIN + 1;
            if nofile < least {
                return Err(Failure::Running(format!(
                    "a server with one connection needs {least} open files, and the limit is \
                     {nofile}: {RAISE_NOFILE}"
                )));
            }
            nofile
        }
    };
    let acme = certificates::settings(config).map_err(Failure::Usage)?;
    let acme = acme.map(|settings| (settings, Arc::new(Managed::default())));
    if let Some((settings, managed)) = &acme {
        let made = settings.state.make(ids.as_ref());
        made.map_err(Failure::Usage)?;
        settings.load(managed);
    }
    let managed = acme.as_ref().map(|(_, managed)| managed);
    let tls = open_tls(config, managed).map_err(Failure::Usage)?;
    let tls = tls.map(Arc::new);
    let (listeners, netstack) = operate::open(
        &config.common,
        inherited,
        None,
        || netstack_addresses(config, tls.as_ref()),
        |inherited| bind_listeners(config, inherited, tls.as_ref()),
    )?;
    let admin = bind_all(&config.common.admin, &[])?;
    let pid_file = config.common.write_pid_file()?;
    let sockets = listeners.iter().chain(&admin);
    become_user(ids.as_ref(), sockets, "; --user needs a start as root")?;
    let limits = Limits::derive(config, &Machine::this(), nofile);
    Ok(Prepared { listeners, netstack, admin, tls, acme, limits, pid_file })
}

fn bind_listeners(
    config: &ServeConfig,
    inherited: Vec<Inherited>,
    tls: Option<&Arc<Tls>>,
) -> Result<Vec<Bound>, Failure> {
    let bind = |others: &[Bound]| bind_all(&config.listen, others);
    let mut listeners = operate::listeners(inherited, config.listen_is_default, bind)?;
    if listeners.is_empty() {
        return Err(Failure::Usage("the list `listen` is empty: name an address".to_owned()));
    }
    for bound in &mut listeners {
        let is_tcp = matches!(bound.address, Address::Tcp(_));
        let is_redirected = is_redirected(bound, &config.https_redirect);
        bound.tls = tls.filter(|_| is_tcp && !is_redirected).cloned();
    }
    let plain = bind_all(&config.https_redirect, &listeners)?;
    listeners.extend(plain);
    Ok(listeners)
}

/// True if a listener is at one of the addresses that are `redirected` to HTTPS: systemd may hold
/// their ports.
fn is_redirected(bound: &Bound, redirected: &[Address]) -> bool {
    redirected.iter().any(|address| match address {
        Address::Tcp(exact) if !exact.ip().is_unspecified() => bound.takes(*exact),
        _ => address.port() == bound.address.port(),
    })
}

/// A warning if the machine's limits allow few connections, with the lowest limit.
pub(super) fn few_connections(
    config: &ServeConfig,
    limits: &Limits,
    machine: &Machine,
) -> Option<String> {
    let connections = limits.connections.connections_max;
    if let (true, Some(memory)) = (limits.is_crowded, limits.connections_fit) {
        let (count, memory) = (show_count(connections as u64), show_size(memory));
        return Some(format!(
            "--max-connections {count} may take more memory than the {memory} that this process \
             has: lower it, use --engine event, or raise the limit (MemoryMax= in a systemd unit)"
        ));
    }
    let engine = &config.common.engine;
    let few = CONNECTIONS_FEW.min(engine.fixed_max());
    let is_few = config.max_connections.is_none() && connections < few;
    let workers = config.common.workers();
    is_few.then(|| match engine.connections_max(workers, machine) {
        carried if carried <= connections => engine.holds(connections, workers, machine),
        _ => {
            let connections = show_counted(connections as u64, "connection");
            format!("the limit on open files allows {connections}: {RAISE_NOFILE}")
        }
    })
}

/// Listening addresses of a netstack.
fn netstack_addresses(config: &ServeConfig, tls: Option<&Arc<Tls>>) -> NetstackAddresses {
    // The default is this machine only, which makes no sense for a host on a link.
    let everywhere = [Address::Name { host: String::new(), port: PORT }];
    let listen = if config.listen_is_default { &everywhere[..] } else { &config.listen };
    let listen = listen.iter().map(|address| (address.clone(), tls.cloned()));
    let plain = config.https_redirect.iter();
    listen.chain(plain.map(|address| (address.clone(), None))).collect()
}

/// Default port.
const PORT: u16 = 8080;

/// Reads certificates and keys, if HTTPS is configured.
///
/// # Errors
/// A sentence that names the file and its fault.
pub(super) fn open_tls(
    config: &ServeConfig,
    managed: Option<&Arc<Managed>>,
) -> Result<Option<Tls>, String> {
    let options = tls_options(config, managed)?;
    options.map(Tls::open).transpose()
}

/// Options of HTTPS, if configured.
///
/// # Errors
/// A sentence about keys without certificates.
pub(super) fn tls_options(
    config: &ServeConfig,
    managed: Option<&Arc<Managed>>,
) -> Result<Option<TlsOptions>, String> {
    let mut certificates = Vec::new();
    for host in config.all() {
        certificates.extend(certificates_of(host)?);
    }
    let clients = match config.tls_client_ca.clone() {
        Some(file) if config.tls_client_is_optional => Clients::MayShow(file),
        Some(file) => Clients::MustShow(file),
        None => Clients::Unknown,
    };
    if !config.has_tls() {
        return Ok(None);
    }
    let hosts = config.hosts.iter();
    let of_files = hosts.filter(|host| host.names_for_acme().is_empty());
    Ok(Some(TlsOptions {
        certificates,
        managed: managed.cloned(),
        hosts: of_files.flat_map(names).collect(),
        key_option: "--tls-key FILE",
        resumes: true,
        clients,
        ticket_keys: config.tls_ticket_keys.clone(),
        protocols: protocols(config),
        in_the_clear: web::WANTS_HTTPS,
        ..TlsOptions::default()
    }))
}

/// Protocols inside TLS, the preferred one first. RFC 7301
fn protocols(config: &ServeConfig) -> Vec<Vec<u8>> {
    let http2 = config.http2.then(|| HTTP2.to_vec());
    http2.into_iter().chain([b"http/1.1".to_vec()]).collect()
}

/// HTTP/2 in ALPN. RFC 9113 3.1
pub(super) const HTTP2: &[u8] = b"h2";

/// Names of a host, and its aliases.
fn names(host: &ServeConfig) -> impl Iterator<Item = HostName> {
    host.names.iter().chain(&host.aliases).cloned()
}

/// The certificates of the server, or of a host, for its names.
fn certificates_of(config: &ServeConfig) -> Result<Vec<Certificate>, String> {
    let chains = &config.tls_cert;
    let keys = &config.tls_key;
    match (chains.len(), keys.len()) {
        (0, 0) => return Ok(Vec::new()),
        (0, _) => {
            return Err("--tls-key needs --tls-cert, the certificate that it belongs to".to_owned());
        }
        (chains, keys) if keys != 0 && keys != chains => {
            return Err(format!(
                "--tls-cert and --tls-key are given {chains} and {keys} times; give a key for each \
                 certificate, in the same order, or none"
            ));
        }
        _ => {}
    }
    let certificate = |(at, chain): (usize, &PathBuf)| Certificate {
        chain: chain.clone(),
        key: keys.get(at).cloned(),
        names: names(config).collect(),
    };
    Ok(chains.iter().enumerate().map(certificate).collect())
}

/// The ids of the account to change to, if one is named.
///
/// # Errors
/// A sentence that names the missing user or group.
pub(super) fn account(config: &ServeConfig) -> Result<Option<Ids>, String> {
    let ids = config.common.user.as_ref().map(privileges::find);
    ids.transpose().map_err(|why| format!("{why}; name an existing account"))
}

// Descriptors that are neither connections nor files of the site: standard streams, listeners, the
// admin endpoint.
const DESCRIPTORS_RESERVED: u64 = 32;
// A ring or an epoll instance, and an eventfd.
const DESCRIPTORS_PER_WORKER: u64 = 2;
const OPEN_FILES_MIN: u64 = 16;
// A browser opens six for a page with its pictures.
const CONNECTIONS_FEW: usize = 100;
const RAISE_NOFILE: &str = "raise it (ulimit -n 1024 or more, LimitNOFILE= in a systemd unit)";

fn descriptors_for_others(config: &ServeConfig) -> u64 {
    // Each host keeps its root open.
    let hosts = config.hosts.len() as u64;
    DESCRIPTORS_RESERVED + config.common.workers() as u64 * DESCRIPTORS_PER_WORKER + hosts
}
const MEMORY_BUDGET_MAX_BYTES: u64 = 256 << 20;
// For a machine whose memory is unknown.
const MEMORY_BUDGET_UNKNOWN_BYTES: u64 = 32 << 20;
// For files between disk and clients, some of which are slow.
const FILE_BUFFERS_MAX_BYTES: u64 = 64 << 20;
const FILE_BUFFERS_UNKNOWN_BYTES: u64 = 16 << 20;
// Parts of the memory: a third for idle connections, an eighth for replies, input and
// handshakes.
const CONNECTIONS_PART: u64 = 3;
const CONNECTION_MEMORY_PART: u64 = 8;
const CONNECTION_MEMORY_UNKNOWN_BYTES: u64 = 64 << 20;

impl Limits {
    pub(super) fn derive(config: &ServeConfig, machine: &Machine, nofile: u64) -> Limits {
        let by_descriptors = ::serve::limits::Limits::for_descriptors(nofile);
        let for_files_and_connections = nofile.saturating_sub(descriptors_for_others(config));
        let workers = config.common.workers();
        let carried = config.common.engine.connections_max(workers, machine);
        let for_connections = for_files_and_connections.saturating_sub(2 * OPEN_FILES_MIN);
        let memory_bytes = machine.memory_bytes();
        let has_tls = config.has_tls();
        let of_memory = memory_bytes.map(|bytes| bytes / CONNECTIONS_PART);
        let fitting = (config.common.engine).connections_in(of_memory, has_tls, machine);
        let derived = by_descriptors
            .connections_max
            .min(for_connections as usize)
            .clamp(1, carried)
            .min(fitting);
        let connections_max = config.max_connections.map_or(derived, usize::from);
        let connections_max = connections_max.min(config.common.engine.fixed_max());
        // A driver that uses O_DIRECT opens a file a second time, hence the half.
        let taken = config.common.engine.descriptors_of(connections_max) as u64;
        let open_files = for_files_and_connections.saturating_sub(taken) / 2;
        let part = |of, max_bytes: u64| memory_bytes.map(|bytes| max_bytes.min(bytes / of));
        let memory = part(4, MEMORY_BUDGET_MAX_BYTES);
        let buffers = part(12, FILE_BUFFERS_MAX_BYTES);
        let held = part(CONNECTION_MEMORY_PART, u64::MAX);
        Limits {
            workers,
            open_files_max: open_files.clamp(OPEN_FILES_MIN, FILES_MAX) as usize,
            memory_budget_bytes: config
                .memory_budget_bytes
                .unwrap_or_else(|| memory.unwrap_or(MEMORY_BUDGET_UNKNOWN_BYTES)),
            connections_fit: memory_bytes.filter(|_| fitting <= connections_max),
            is_crowded: connections_max > fitting,
            connections: ::serve::limits::Limits {
                connections_max,
                connection_memory_max: held.unwrap_or(CONNECTION_MEMORY_UNKNOWN_BYTES) as usize,
                file_buffers_max: buffers.unwrap_or(FILE_BUFFERS_UNKNOWN_BYTES) as usize,
                handshake_timeout: config.common.handshake_timeout,
                drain_deadline: config.common.drain_timeout,
                proxy_protocol: proxy_protocol(config),
                by_address: config.limit_connections.map(|max| AddressLimit {
                    connections_max: max.get(),
                    prefix: config.limit_prefix,
                    exempt: config.without_limits(),
                }),
                ..config.connection_limits.clone()
            },
        }
    }
}

/// Connections that begin with a PROXY header.
fn proxy_protocol(config: &ServeConfig) -> Option<ProxyProtocol> {
    let is_required = match config.proxy_header {
        ProxyHeader::Protocol => true,
        ProxyHeader::ProtocolIfPresent => false,
        ProxyHeader::XForwardedFor | ProxyHeader::Forwarded => return None,
    };
    Some(ProxyProtocol { from: config.proxies.clone(), is_required })
}

// Each open file also needs an inode in memory.
const FILES_MAX: u64 = 8192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Common;
    use crate::engine::choice;
    use crate::os::machine::tests::machine;

    /// Seen: with `listen = "127.0.0.1:443"` and `https_redirect = "127.0.0.2:443"` neither used
    /// TLS, and the first address was redirected to itself. Cause: only the ports were compared.
    /// Cure: the addresses are.
    #[test]
    fn an_address_is_redirected_by_more_than_its_port() {
        let Ok(bound) = bind_all(&["127.0.0.1:0".parse().unwrap()], &[]) else {
            panic!("loopback has a free port");
        };
        let port = bound[0].address.port().unwrap();
        let is_plain = |address: &str| {
            let address = format!("{address}:{port}").parse().unwrap();
            is_redirected(&bound[0], &[address])
        };
        for address in ["127.0.0.1", "", "*", "[::]", "0.0.0.0", "localhost"] {
            assert!(is_plain(address), "{address}");
        }
        assert!(!is_plain("127.0.0.2") && !is_plain("[::1]"));
        assert!(!is_redirected(&bound[0], &["127.0.0.1:1".parse().unwrap()]));
    }

    fn limits(config: &ServeConfig, files: &[(&str, &str)], nofile: u64) -> Limits {
        Limits::derive(config, &machine(files).1, nofile)
    }

    fn of_thread() -> ServeConfig {
        ServeConfig {
            common: Common { engine: choice("thread"), ..Common::default() },
            ..ServeConfig::default()
        }
    }

    fn of_workers(workers: usize) -> Common {
        Common { workers: std::num::NonZeroUsize::new(workers), ..Common::default() }
    }

    #[test]
    fn connections_and_files_share_descriptors() {
        let limits = limits(&ServeConfig::default(), &[], 20_000);
        let connections = limits.connections.connections_max;
        assert!(connections > 10_000 && limits.open_files_max > 500, "{limits:?}");
        assert!(connections + 2 * limits.open_files_max + 32 <= 20_000, "{limits:?}");
    }

    /// Seen: a limit of 1,000 connections with 64 descriptors was accepted, clients used all of
    /// them, and files got a 503.
    #[test]
    fn descriptors_for_files_are_never_for_connections() {
        for nofile in [128, 256, 1024, 20_000, 1 << 30] {
            for workers in [1, 2, 16] {
                let config = ServeConfig { common: of_workers(workers), ..ServeConfig::default() };
                let limits = limits(&config, &[], nofile);
                let taken = limits.connections.connections_max + 2 * limits.open_files_max;
                assert!((taken + 2 * workers + 32) as u64 <= nofile, "{nofile}: {limits:?}");
            }
        }
    }

    #[test]
    fn few_descriptors_still_serve_with_a_warning() {
        let config = ServeConfig::default();
        let (few, many) = (limits(&config, &[], 64), limits(&config, &[], 1024));
        assert!(few.connections.connections_max >= 1 && few.open_files_max >= 1);
        let (_root, machine) = machine(&[]);
        let warning = few_connections(&config, &few, &machine).unwrap();
        assert!(warning.contains("ulimit -n"), "{warning}");
        assert_eq!(few_connections(&config, &many, &machine), None);
    }

    /// Seen: with `ulimit -u 100` and a thread per connection, the advice was to raise the limit on
    /// open files. Cause: it was named for any low limit. Cure: the lowest one is named.
    #[test]
    fn the_limit_that_leaves_little_room_is_named() {
        let config = of_thread();
        let files = [("proc/sys/kernel/pid_max", "100\n")];
        let few = limits(&config, &files, 1 << 20);
        assert_eq!(few.connections.connections_max, 50);
        let warning = few_connections(&config, &few, &machine(&files).1).unwrap();
        assert!(warning.contains("ulimit -u") && warning.contains("50 connections"), "{warning}");
        assert!(!warning.contains("open files"), "{warning}");
    }

    #[test]
    fn memory_budget_is_a_quarter_up_to_256_mib() {
        let budget = |kib: u64| {
            let text = format!("MemTotal: {kib} kB\n");
            let files = [("proc/meminfo", text.as_str())];
            limits(&ServeConfig::default(), &files, 1024).memory_budget_bytes
        };
        assert_eq!(budget(65_536), 16 << 20);
        assert_eq!(budget(16 << 20), 256 << 20);
    }

    #[test]
    fn what_was_said_is_not_derived() {
        let config = ServeConfig {
            memory_budget_bytes: Some(1),
            max_connections: std::num::NonZeroUsize::new(7),
            common: of_workers(3),
            ..ServeConfig::default()
        };
        let limits = limits(&config, &[], 1024);
        assert_eq!((limits.workers, limits.memory_budget_bytes), (3, 1));
        assert_eq!(limits.connections.connections_max, 7);
    }

    /// Seen: with `fiber:fibers=2` the banner said "17,500 connections", and the third client got
    /// no reply. Cause: the limit ignored the fixed number. Cure: it is at most that.
    #[test]
    fn a_fixed_number_of_fibers_limits_connections() {
        for (text, flag) in [("fiber:fibers=2", None), ("thread:threads=2", Some(7))] {
            let config = ServeConfig {
                max_connections: flag.and_then(std::num::NonZeroUsize::new),
                common: Common { engine: choice(text), ..Common::default() },
                ..ServeConfig::default()
            };
            let limits = limits(&config, &[], 20_000);
            assert_eq!(limits.connections.connections_max, 2);
            // The low limit was requested.
            assert_eq!(few_connections(&config, &limits, &machine(&[]).1), None);
        }
    }

    #[test]
    fn threads_are_left_for_other_programs() {
        let config = of_thread();
        let files = [("proc/sys/kernel/pid_max", "4096\n")];
        let limits = limits(&config, &files, 1 << 20);
        assert_eq!(limits.connections.connections_max, 4096 - 1024);
    }
}
