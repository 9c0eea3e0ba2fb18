//! What all conversations of a server share: the store, the settings, who is connected, who watches.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use session::Now;

use crate::auth::Users;
use crate::connections::{Connections, Peer};
use crate::counters::Counters;
use crate::detail::Detail;
use crate::store::{Seconds, Store};
use crate::watch::{Kinds, Watchers, push_encoded};

/// What a server is started with, apart from its store: memcached's flags, which `stats settings` shows.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `version` says. Clients parse it, so it begins with three numbers.
    pub version: String,
    /// `-c`
    pub connections_max: u32,
    /// `-p`, 0 when it does not listen there.
    pub tcp_port: u16,
    /// `-U`, 0 when it does not listen there.
    pub udp_port: u16,
    /// `-l`
    pub interface: Option<String>,
    /// `-s`
    pub unix_socket: Option<String>,
    /// `-a`, the Unix socket's permissions.
    pub unix_mask: u32,
    /// `-e`
    pub memory_file: Option<String>,
    /// `-t`
    pub threads: u32,
    /// `-b`
    pub backlog: u32,
    /// `-R`
    pub requests_per_turn: u32,
    /// `-B`
    pub binding: Binding,
    /// `-D`: what ends the prefix of a key in `stats detail`.
    pub prefix_delimiter: u8,
    /// `-D` was given: `stats detail` counts from the start.
    pub counts_prefixes: bool,
    /// `-A`: clients may shut the server down.
    pub allows_shutdown: bool,
    /// Without `-F`: clients may flush.
    pub allows_flush: bool,
    /// Without `-X`: clients may look at all keys.
    pub allows_dump: bool,
    /// `-o maxconns_fast`
    pub refuses_at_connections_max: bool,
    /// `-o idle_timeout=`, 0 is none.
    pub idle_timeout_s: u32,
    /// `-Z`
    pub tls: bool,
    /// `-v`: 0 to 2.
    pub verbosity: u32,
    /// Without `-o no_lru_crawler`: expired items are looked for in the background. Clients may change it.
    pub crawls: bool,
    /// `-o track_sizes`: `stats sizes` tells. Clients may change it.
    pub tracks_sizes: bool,
    /// Who may use it.
    pub access: Access,
}

/// What `-B` allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The first byte of a connection decides.
    #[default]
    Auto,
    /// Text only.
    Ascii,
    /// Binary only.
    Binary,
}

/// Who may use the cache.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Everybody.
    #[default]
    Open,
    /// `-Y FILE`: a text conversation begins with a `set` of `user password`.
    Ascii(Users),
    /// `-S`: a binary conversation begins with SASL PLAIN; text is refused.
    Sasl(Users),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: concat!("1.6.45-weft.", env!("CARGO_PKG_VERSION")).to_owned(),
            connections_max: 1024,
            tcp_port: 11211,
            udp_port: 0,
            interface: None,
            unix_socket: None,
            unix_mask: 0o700,
            memory_file: None,
            threads: 4,
            backlog: 1024,
            requests_per_turn: 20,
            binding: Binding::Auto,
            prefix_delimiter: b':',
            counts_prefixes: false,
            allows_shutdown: false,
            allows_flush: true,
            allows_dump: true,
            refuses_at_connections_max: true,
            idle_timeout_s: 0,
            tls: false,
            verbosity: 0,
            crawls: true,
            tracks_sizes: false,
            access: Access::Open,
        }
    }
}

/// What the command knows and the sessions do not: the process around them.
pub trait Host: Send + Sync {
    /// Looks at the process now.
    fn process(&self) -> Process;

    /// A client asked for the end (`shutdown`, `shutdown graceful`), and the settings allow it.
    fn shut_down(&self, how: Shutdown);

    /// A client wants the certificate to be read again (`refresh_certs`). `None` where no TLS is spoken; else what is wrong
    /// with the files.
    fn refresh_certificates(&self) -> Option<Result<(), String>> {
        None
    }

    /// A client changed the verbosity.
    fn set_verbosity(&self, level: u32) {
        let _ = level;
    }
}

/// How to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// As on SIGINT.
    Now,
    /// As on SIGUSR1: what runs is finished.
    Graceful,
}

/// What `stats` says of the process. `None`: the host does not know, and the session's own count is shown,
/// or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The process's number.
    pub pid: u32,
    /// Processor time in user mode.
    pub rusage_user: Duration,
    /// Processor time in the kernel.
    pub rusage_system: Duration,
    /// Connections refused because there were too many.
    pub rejected_connections: u64,
    /// Connections for which memory is held.
    pub connection_structures: u64,
    /// Descriptors for other purposes than connections.
    pub reserved_fds: u64,
    /// Bytes received.
    pub bytes_read: u64,
    /// Bytes sent.
    pub bytes_written: u64,
    /// Whether connections are accepted now.
    pub accepting_conns: bool,
    /// How often accepting paused.
    pub listen_disabled_num: u64,
    /// For how long, in all.
    pub time_in_listen_disabled: Duration,
    /// Connections closed because they were idle.
    pub idle_kicks: u64,
}

/// A host that knows nothing and ends nothing: for tests, and for who embeds a cache.
#[derive(Clone, Copy, Debug)]
pub struct NoHost;

impl Host for NoHost {
    fn process(&self) -> Process {
        Process {
            pid: std::process::id(),
            accepting_conns: true,
            ..Process::default()
        }
    }

    fn shut_down(&self, _: Shutdown) {}
}

/// What all conversations of a server share.
pub struct Service {
    store: Store,
    pub(crate) settings: Settings,
    pub(crate) host: Box<dyn Host>,
    pub(crate) started: Instant,
    /// Seconds since 1970 at the store's time 0.
    pub(crate) epoch: u64,
    pub(crate) counters: Counters,
    pub(crate) connections: Connections,
    pub(crate) watchers: Watchers,
    pub(crate) detail: Detail,
    pub(crate) tuning: Tuning,
}

/// What clients may change while it runs.
#[derive(Debug)]
pub(crate) struct Tuning {
    pub(crate) verbosity: AtomicU32,
    pub(crate) crawls: AtomicBool,
    pub(crate) crawl_pause_us: AtomicU32,
    pub(crate) crawl_items_max: AtomicU32,
    pub(crate) tracks_sizes: AtomicBool,
    /// Crawls of clients that are under way.
    pub(crate) client_crawls: AtomicU32,
}

/// The store's time when the server starts: below are [`NEVER`](crate::store::NEVER) and
/// [`EXPIRED`](crate::store::EXPIRED).
const START_SECONDS: Seconds = 2;

/// Longer expiry times than this are seconds since 1970; protocol.txt, "Expiration times".
const RELATIVE_EXPTIME_MAX: i64 = 60 * 60 * 24 * 30;

/// `lru_crawler sleep` at the start, in microseconds.
const CRAWL_PAUSE_US: u32 = 100;

impl Service {
    /// A service over `store`, which starts at `now`.
    pub fn new(store: Store, settings: Settings, host: impl Host + 'static, now: Now) -> Service {
        let detail = Detail::new(settings.prefix_delimiter, settings.counts_prefixes);
        let verbosity = AtomicU32::new(settings.verbosity);
        let crawls = AtomicBool::new(settings.crawls);
        let tracks_sizes = AtomicBool::new(settings.tracks_sizes);
        Service {
            store,
            settings,
            host: Box::new(host),
            started: now.monotonic,
            epoch: now
                .since_epoch
                .as_secs()
                .saturating_sub(START_SECONDS.into()),
            counters: Counters::new(),
            connections: Connections::default(),
            watchers: Watchers::default(),
            detail,
            tuning: Tuning {
                verbosity,
                crawls,
                crawl_pause_us: AtomicU32::new(CRAWL_PAUSE_US),
                crawl_items_max: AtomicU32::new(0),
                tracks_sizes,
                client_crawls: AtomicU32::new(0),
            },
        }
    }

    /// The items.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What it was started with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Says where it listens, for `stats conns`: `tcp:127.0.0.1:11211`, `unix:/run/cache.sock`.
    pub fn listens_at(&self, address: impl Into<String>) {
        self.connections.listen(address.into());
    }

    /// How long a crawler rests between two looks at the store, or `None` when clients turned it off
    /// (`lru_crawler enable|disable|sleep`).
    pub fn crawl_pause(&self) -> Option<Duration> {
        let pause = self.tuning.crawl_pause_us.load(Ordering::Relaxed);
        self.tuning
            .crawls
            .load(Ordering::Relaxed)
            .then(|| Duration::from_micros(pause.into()))
    }

    /// Ends all conversations that only watch: called when the server drains.
    pub fn end_watchers(&self) {
        self.watchers.end();
    }

    /// How verbose it is now: `-v`, or what a client made it.
    pub fn verbosity(&self) -> u32 {
        self.tuning.verbosity.load(Ordering::Relaxed)
    }

    /// The store's time.
    #[inline]
    pub fn seconds(&self, now: Now) -> Seconds {
        let since = now.monotonic.saturating_duration_since(self.started);
        START_SECONDS.saturating_add(since.as_secs() as Seconds)
    }

    /// The store's time for an expiry time of the protocol.
    pub(crate) fn deadline(&self, exptime: i64, now: Seconds) -> Seconds {
        match exptime {
            0 => crate::store::NEVER,
            ..0 => crate::store::EXPIRED,
            1..=RELATIVE_EXPTIME_MAX => now.saturating_add(exptime as Seconds),
            // What is over is over, however long ago.
            absolute => (absolute as u64)
                .saturating_sub(self.epoch)
                .clamp(crate::store::EXPIRED.into(), u32::MAX.into())
                as Seconds,
        }
    }

    /// Seconds since 1970 for a time of the store.
    pub(crate) fn unix_seconds(&self, at: Seconds) -> u64 {
        self.epoch + u64::from(at)
    }

    /// Logs that a connection opened or closed, if somebody watches.
    pub(crate) fn log_connection(&self, what: ConnEvent, peer: Peer, id: u64, now: Now) {
        use std::fmt::Write as _;
        if self.watchers.kinds().overlap(Kinds::CONNEVENTS) {
            self.watchers.log(Kinds::CONNEVENTS, now, |line| {
                let (ip, port, transport) = (peer.ip(), peer.port(), peer.transport());
                let (kind, reason) = match what {
                    ConnEvent::New => ("conn_new", String::new()),
                    ConnEvent::Close(reason) => ("conn_close", format!("reason={reason} ")),
                };
                let _ = write!(
                    line,
                    "type={kind} rip={ip} rport={port} transport={transport} {reason}cfd={id}"
                );
            });
        }
    }

    /// Logs an eviction, if somebody watches. The store's housekeeping calls it.
    pub fn log_eviction(&self, key: &[u8], evicted: Evicted, now: Now) {
        use std::fmt::Write as _;
        if self.watchers.kinds().overlap(Kinds::EVICTIONS) {
            self.watchers.log(Kinds::EVICTIONS, now, |line| {
                line.push_str("type=eviction key=");
                push_encoded(key, line);
                let fetched = if evicted.was_fetched { "yes" } else { "no" };
                let _ = write!(
                    line,
                    " fetch={fetched} ttl={} la={} clsid={} size={}",
                    evicted.ttl_s, evicted.idle_s, evicted.class_id, evicted.size
                );
            });
        }
    }
}

/// What is logged of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnEvent {
    New,
    /// With memcached's word for the reason.
    Close(&'static str),
}

/// What is logged of an item that was evicted.
#[derive(Clone, Copy, Debug)]
pub struct Evicted {
    /// Whether it was ever fetched.
    pub was_fetched: bool,
    /// Seconds that it still had; -1 if it would not have expired.
    pub ttl_s: i64,
    /// Seconds since its last use.
    pub idle_s: u32,
    /// Its slab class.
    pub class_id: u8,
    /// Its size in bytes.
    pub size: u64,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{EXPIRED, NEVER};
    use crate::transcript;

    #[test]
    fn expiry_times_are_relative_up_to_30_days() {
        let service = transcript::service(Settings::default()).unwrap();
        let epoch = service.epoch as i64;
        assert_eq!(service.deadline(0, 50), NEVER);
        assert_eq!(service.deadline(-1, 50), EXPIRED);
        assert_eq!(service.deadline(10, 50), 60);
        assert_eq!(service.deadline(2_592_000, 50), 2_592_050);
        assert_eq!(service.deadline(2_592_001, 50), EXPIRED);
        assert_eq!(service.deadline(epoch + 70, 50), 70);
        assert!(service.deadline(4_000_000_000, 50) > 50);
        assert_eq!(service.deadline(epoch - 70, 50), EXPIRED);
    }

    #[test]
    fn the_crawler_can_be_turned_off() {
        let service = transcript::service(Settings::default()).unwrap();
        assert_eq!(service.crawl_pause(), Some(Duration::from_micros(100)));
        service.tuning.crawls.store(false, Ordering::Relaxed);
        assert_eq!(service.crawl_pause(), None);
    }
}
