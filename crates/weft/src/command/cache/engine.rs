//! Assembly of the libraries: a store behind a service, a server for connections and datagrams,
//! housekeeping beside them, and an admin endpoint.

use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use ::serve::datagrams::DatagramCounters;
use ::serve::engine::netstack::NetstackInterface;
use ::serve::listen::{Address, Bound};
use ::serve::metrics::MetricsWriter;
use ::serve::{Server, Settings};
use cache::auth::Users;
use cache::store::{self, Snapshot, SnapshotTime, Store};
use cache::{Auth, Evicted, Peer, Service};
use session::{Now, Opening};

use super::config::CacheConfig;
use super::host::ProcessHost;
use super::metrics;
use super::prepare::Prepared;
use super::restart::{self, Restored};
use super::udp;
use super::verbose::VerboseSession;
use crate::failure::Failure;
use crate::operate::{Hosted, Part};
use crate::os::files;
use crate::os::machine::why_no_threads;
use crate::os::signals::Signal;

/// A running cache.
pub(crate) struct Running {
    service: Arc<Service>,
    pub(crate) hosted: Hosted,
}

impl Running {
    /// Opens the store, with the items of an earlier run if there are any, and starts to serve.
    /// `asked` receives requests of clients to the process.
    ///
    /// # Errors
    /// The store, listener or thread that could not be opened or started.
    pub(crate) fn start(
        config: &CacheConfig,
        prepared: Prepared,
        asked: Sender<Signal>,
        tell: impl Fn(Result<&str, &str>) + Send + 'static,
    ) -> Result<(Running, Restored), Failure> {
        let Prepared { listeners, netstack, datagrams, admin, tls, .. } = prepared;
        let host = ProcessHost::new(asked, tls.clone());
        let of_netstack = netstack.iter().flat_map(NetstackInterface::addresses);
        let of_netstack: Vec<_> = of_netstack.map(|(address, _)| Address::Tcp(address)).collect();
        let addresses = listeners.iter().map(|bound| &bound.address);
        let addresses: Vec<_> = addresses.chain(&of_netstack).cloned().collect();
        let (service, restored) = open_service(config, &addresses, &datagrams, &host)?;
        let server = Arc::new(start_server(config, listeners, netstack, &service)?);
        let datagrams = serve_datagrams(&server, datagrams, &service)?;
        host.knows(&server);
        start_housekeeping(&server, &service)?;
        let counted = Arc::clone(&service);
        let write_more = move |_: &Server, out: &mut MetricsWriter| {
            metrics::write(&counted, &datagrams, out);
        };
        let running = Running {
            hosted: Hosted::new(server, tls, admin, Vec::new(), write_more, tell)?,
            service,
        };
        Ok((running, restored))
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Reloads the users, if there are any.
    pub(crate) fn reload_users(&self, config: &CacheConfig) -> Option<Part> {
        let (Some(file), Auth::Ascii(known) | Auth::Sasl(known)) =
            (&config.auth_file, &self.service.settings().auth)
        else {
            return None;
        };
        let read = users(file).map(|users| known.replace_by(users));
        Some(("the users", read))
    }

    /// Stops accepting and lets open connections finish within the drain time-out. Returns the
    /// number of connections cut.
    pub(crate) fn drain(&self) -> usize {
        self.service.end_watchers();
        self.hosted.drain()
    }

    /// Saves the items, after the drain.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn save(&self, file: &Path) -> io::Result<Snapshot> {
        self.service.store().save(file, time(&self.service))
    }
}

fn time(service: &Service) -> SnapshotTime {
    let now = Now::read();
    SnapshotTime { now: service.seconds(now), unix: now.since_epoch.as_secs() }
}

/// The service, and the items of the previous run.
fn open_service(
    config: &CacheConfig,
    addresses: &[Address],
    datagrams: &[UdpSocket],
    host: &ProcessHost,
) -> Result<(Arc<Service>, Restored), Failure> {
    let settings = service_settings(config, addresses, datagrams).map_err(Failure::Usage)?;
    let store = Store::new(config.store.clone()).map_err(|error| {
        Failure::Running(format!("cannot reserve the memory of the store: {error}"))
    })?;
    let service = Service::new(store, settings, host.clone(), Now::read());
    let restored = match &config.memory_file {
        None => Restored::Nothing,
        Some(file) => {
            restart::restore(service.store(), file, time(&service)).map_err(Failure::Running)?
        }
    };
    for address in addresses {
        service.listens_at(match address {
            Address::Unix { path, .. } => format!("unix:{}", path.display()),
            other => format!("tcp:{other}"),
        });
    }
    for address in datagrams.iter().filter_map(|socket| socket.local_addr().ok()) {
        service.listens_at(format!("udp:{address}"));
    }
    let service = Arc::new(service);
    let watched = Arc::downgrade(&service);
    service.store().observe_evictions(move |eviction| {
        if let Some(service) = watched.upgrade() {
            log_eviction(&service, &eviction);
        }
    });
    Ok((service, restored))
}

/// For `watch evictions`.
fn log_eviction(service: &Service, eviction: &store::Eviction<'_>) {
    let expires = eviction.exptime != store::NEVER;
    let evicted = Evicted {
        was_fetched: eviction.was_fetched,
        ttl_s: if expires { i64::from(eviction.exptime) - i64::from(eviction.now) } else { -1 },
        idle_s: eviction.now.saturating_sub(eviction.last_access),
        class_id: eviction.class_id,
        size: eviction.size,
    };
    service.log_eviction(eviction.key, evicted, Now::read());
}

fn service_settings(
    config: &CacheConfig,
    addresses: &[Address],
    datagrams: &[UdpSocket],
) -> Result<cache::Settings, String> {
    let tcp_port = addresses.iter().find_map(|address| match address {
        Address::Tcp(address) => Some(address.port()),
        _ => None,
    });
    let udp_port = datagrams.iter().find_map(|socket| Some(socket.local_addr().ok()?.port()));
    let unix = addresses.iter().find_map(|address| match address {
        Address::Unix { path, mode } => Some((path.display().to_string(), *mode)),
        _ => None,
    });
    Ok(cache::Settings {
        connections_max: config.connections_max as u32,
        tcp_port: tcp_port.unwrap_or(0),
        udp_port: udp_port.unwrap_or(0),
        unix_mask: unix.as_ref().map_or(0o700, |(_, mode)| *mode),
        unix_socket: unix.map(|(path, _)| path),
        memory_file: config.memory_file.as_ref().map(|file| file.display().to_string()),
        threads: config.common.workers() as u32,
        prefix_delimiter: config.prefix_end.unwrap_or(':') as u8,
        counts_prefixes: config.prefix_end.is_some(),
        idle_timeout_s: config.idle_timeout.map_or(0, |timeout| timeout.as_secs() as u32),
        auth: auth(config)?,
        ..config.service.clone()
    })
}

fn auth(config: &CacheConfig) -> Result<Auth, String> {
    let users = config.auth_file.as_deref().map(users).transpose()?;
    Ok(match users {
        None => Auth::Open,
        Some(users) if config.has_sasl => Auth::Sasl(users),
        Some(users) => Auth::Ascii(users),
    })
}

/// Longest file of users; eight users take less.
const USERS_BYTES_MAX: u64 = 64 << 10;

fn users(file: &Path) -> Result<Users, String> {
    let wrong = |why: String| format!("-Y: {}: {why}", file.display());
    let text = files::read(file, USERS_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
    Users::parse(&text).map_err(wrong)
}

/// Longer than any server runs: memcached waits for its clients forever.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

fn start_server(
    config: &CacheConfig,
    listeners: Vec<Bound>,
    netstack: Option<NetstackInterface>,
    service: &Arc<Service>,
) -> Result<Server, Failure> {
    let patience = config.idle_timeout.unwrap_or(FOREVER);
    let limits = ::serve::limits::Limits {
        connections_max: config.connections_max,
        refusal: (config.service.refuses_at_connections_max)
            .then_some("ERROR Too many open connections\r\n"),
        handshake_timeout: config.common.handshake_timeout,
        head_timeout: patience,
        body_timeout: patience,
        idle_timeout: patience,
        send_timeout: patience,
        send_rate_min: 0,
        drain_deadline: config.common.drain_timeout,
        ..::serve::limits::Limits::default()
    };
    let limits = ::serve::limits::Limits {
        connection_memory_max: config.connection_memory_max.unwrap_or(limits.connection_memory_max),
        ..limits
    };
    let are_unix: Vec<_> =
        listeners.iter().map(|bound| matches!(bound.address, Address::Unix { .. })).collect();
    let service = Arc::clone(service);
    let settings = Settings {
        engine: config.common.engine(),
        listeners,
        netstack,
        limits,
        fibers: config.common.engine.fibers.map(usize::from),
        log: None,
        names_peers: true,
    };
    let open = move |opening: Opening<'_>| {
        let peer = match opening.peer {
            None if are_unix.get(opening.listener) == Some(&true) => Peer::Unix,
            address => Peer::Tcp(address),
        };
        VerboseSession::new(&service, peer, opening.listener, opening.now)
    };
    Server::start(settings, open)
        .map_err(|error| Failure::Running(config.common.engine.why_not_started(&error)))
}

fn serve_datagrams(
    server: &Server,
    sockets: Vec<UdpSocket>,
    service: &Arc<Service>,
) -> Result<Vec<Arc<DatagramCounters>>, Failure> {
    let start = |socket| {
        let service = Arc::clone(service);
        server.serve_datagrams(socket, move |datagram, from, send| {
            udp::answer(&service, datagram, from, send);
        })
    };
    let started: io::Result<_> = sockets.into_iter().map(start).collect();
    started.map_err(|error| Failure::Running(why_no_threads("the threads of UDP", &error)))
}

/// Steps of housekeeping before it yields.
const HOUSEKEEPING_STEPS: usize = 256;
/// Pause of the housekeeping when it is idle.
const HOUSEKEEPING_REST: Duration = Duration::from_millis(100);

/// Removes expired items and returns memory, in small steps, beside the connections.
fn start_housekeeping(server: &Server, service: &Arc<Service>) -> Result<(), Failure> {
    let service = Arc::clone(service);
    let started = server.run_beside("housekeeping", move |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            let now = Now::read();
            service.follow_clock(now);
            let has_more = service.store().maintain(HOUSEKEEPING_STEPS, service.seconds(now));
            let pause = service.crawl_pause().filter(|_| has_more);
            fiber::sleep(pause.unwrap_or(HOUSEKEEPING_REST));
        }
    });
    started.map_err(|error| Failure::Running(why_no_threads("the housekeeping", &error)))
}
