//! State shared by all conversations of a server: the store, the settings, the connections, the
//! watchers.

pub mod auth;
pub(crate) mod connections;
pub(crate) mod counters;
pub(crate) mod detail;
mod host;
mod settings;
pub(crate) mod stats;
pub(crate) mod watch;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use session::Now;

pub use connections::Peer;
pub use host::{Host, NoHost, Process, StopMode};
pub use settings::{Auth, Binding, Settings};

use crate::store::{EXPIRED, NEVER, Seconds, Store};
use crate::words::push_encoded;
use connections::Connections;
use counters::Counters;
use detail::Detail;
use watch::{Kinds, Watchers};

/// State shared by all conversations of a server.
pub struct Service {
    store: Store,
    pub(crate) settings: Settings,
    pub(crate) host: Box<dyn Host>,
    pub(crate) started: Instant,
    /// Seconds since 1970 at the store's time 0, by the current system clock.
    epoch: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) connections: Connections,
    pub(crate) watchers: Watchers,
    pub(crate) detail: Detail,
    pub(crate) tuning: Tuning,
}

/// Settings that clients may change at run time.
#[derive(Debug)]
pub(crate) struct Tuning {
    pub(crate) verbosity: AtomicU32,
    pub(crate) crawls: AtomicBool,
    pub(crate) crawl_pause_us: AtomicU32,
    pub(crate) crawl_items_max: AtomicU32,
    pub(crate) tracks_sizes: AtomicBool,
    /// True while a client's crawl is running.
    pub(crate) has_client_crawl: AtomicBool,
}

/// The store's time at server start; smaller values are [`NEVER`] and [`EXPIRED`].
const START_SECONDS: Seconds = 2;

/// Difference between monotonic and system clock that is rounding, not a step.
const CLOCKS_APART_MAX_S: u64 = 1;

/// Longest relative expiry time; others are seconds since 1970. protocol.txt, "Expiration times".
const RELATIVE_EXPTIME_MAX: i64 = 60 * 60 * 24 * 30;

/// `lru_crawler sleep` at start, in microseconds.
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
            epoch: AtomicU64::new(now.since_epoch.as_secs().saturating_sub(START_SECONDS.into())),
            counters: Counters::default(),
            connections: Connections::default(),
            watchers: Watchers::default(),
            detail,
            tuning: Tuning {
                verbosity,
                crawls,
                crawl_pause_us: AtomicU32::new(CRAWL_PAUSE_US),
                crawl_items_max: AtomicU32::new(0),
                tracks_sizes,
                has_client_crawl: AtomicBool::new(false),
            },
        }
    }

    /// The items.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Settings from the start.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a listening address, for `stats conns`: `tcp:127.0.0.1:11211`, `unix:/run/cache.sock`.
    pub fn listens_at(&self, address: impl Into<String>) {
        self.connections.listen(address.into());
    }

    /// Calls `each` with the names and values of a group of `stats`; the general group has the
    /// empty name.
    pub fn figures(&self, group: &str, now: Now, mut each: impl FnMut(&str, &str)) {
        stats::group_of(self, group.as_bytes(), self.seconds(now), &mut each);
    }

    /// Pause of the crawler between two steps, or `None` when clients turned it off (`lru_crawler
    /// enable|disable|sleep`).
    pub fn crawl_pause(&self) -> Option<Duration> {
        let pause = self.tuning.crawl_pause_us.load(Ordering::Relaxed);
        self.tuning.crawls.load(Ordering::Relaxed).then(|| Duration::from_micros(pause.into()))
    }

    /// Ends all watchers' conversations: called when the server drains.
    pub fn end_watchers(&self) {
        self.watchers.end();
    }

    /// Current verbosity: `-v`, or as set by a client.
    pub fn verbosity(&self) -> u32 {
        self.tuning.verbosity.load(Ordering::Relaxed)
    }

    /// The store's time.
    #[inline]
    pub fn seconds(&self, now: Now) -> Seconds {
        let since = now.monotonic.saturating_duration_since(self.started);
        START_SECONDS.saturating_add(since.as_secs() as Seconds)
    }

    /// Converts an expiry time of the protocol to the store's time.
    pub(crate) fn deadline(&self, exptime: i64, now: Seconds) -> Seconds {
        match exptime {
            0 => NEVER,
            ..0 => EXPIRED,
            1..=RELATIVE_EXPTIME_MAX => now.saturating_add(exptime as Seconds),
            // A past time has expired, however long ago.
            absolute => (absolute as u64)
                .saturating_sub(self.epoch.load(Ordering::Relaxed))
                .clamp(EXPIRED.into(), u32::MAX.into()) as Seconds,
        }
    }

    /// Converts a time of the store to seconds since 1970.
    pub(crate) fn unix_seconds(&self, at: Seconds) -> u64 {
        self.epoch.load(Ordering::Relaxed) + u64::from(at)
    }

    /// Follows a step of the system clock, so that expiry times in seconds since 1970 stay right;
    /// to be called periodically. Existing items keep their remaining lifetime.
    pub fn follow_clock(&self, now: Now) {
        let store_seconds = u64::from(self.seconds(now));
        let epoch = now.since_epoch.as_secs().saturating_sub(store_seconds);
        if epoch.abs_diff(self.epoch.load(Ordering::Relaxed)) > CLOCKS_APART_MAX_S {
            self.epoch.store(epoch, Ordering::Relaxed);
        }
    }

    /// True if each command is reported to a watcher or `stats detail`.
    pub(crate) fn is_observed(&self) -> bool {
        self.watchers.kinds() != Kinds::NONE || self.detail.is_on()
    }

    /// Logs an opened or closed connection, if a client watches.
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

    /// Logs an eviction, if a client watches. The store's housekeeping calls it.
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

/// Connection event, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnEvent {
    New,
    /// Closed, with memcached's word for the reason.
    Close(&'static str),
}

/// Evicted item, for the log.
#[derive(Clone, Copy, Debug)]
pub struct Evicted {
    /// True if it was ever fetched.
    pub was_fetched: bool,
    /// Remaining lifetime in seconds; -1 if it would not have expired.
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
        f.debug_struct("Service").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Config;
    use session::replay::test_now;

    fn service() -> Service {
        let store = Store::new(Config::default()).unwrap();
        Service::new(store, Settings::default(), NoHost, test_now())
    }

    #[test]
    fn exptime_is_relative_up_to_30_days() {
        let service = service();
        let epoch = service.unix_seconds(0) as i64;
        assert_eq!(service.deadline(0, 50), NEVER);
        assert_eq!(service.deadline(-1, 50), EXPIRED);
        assert_eq!(service.deadline(10, 50), 60);
        assert_eq!(service.deadline(2_592_000, 50), 2_592_050);
        assert_eq!(service.deadline(2_592_001, 50), EXPIRED);
        assert_eq!(service.deadline(epoch + 70, 50), 70);
        assert!(service.deadline(4_000_000_000, 50) > 50);
        assert_eq!(service.deadline(epoch - 70, 50), EXPIRED);
    }

    /// Seen: after the system clock had been set back by an hour, an item with an expiry time in
    /// seconds since 1970, 100 s ahead, was stored as expired; set forward, an item lived an hour
    /// longer, and `stats` showed another time. Cause: both clocks were compared at the start only.
    /// Cure: a step of the system clock is followed.
    #[test]
    fn exptime_follows_the_system_clock() {
        let service = service();
        let start = test_now();
        let monotonic = start.monotonic + Duration::from_secs(60);
        let wall = start.since_epoch.as_secs();
        for since_epoch in [wall + 60, wall + 3660, wall - 3540] {
            for off in [0, 1] {
                let shown = Duration::from_secs(since_epoch + off);
                let now = Now { monotonic, since_epoch: shown };
                service.follow_clock(now);
                let seconds = service.seconds(now);
                // The clocks tick at different moments: one second is no step.
                assert_eq!(service.unix_seconds(seconds), since_epoch);
                let in_a_minute = since_epoch as i64 + 60;
                assert_eq!(service.deadline(in_a_minute, seconds), seconds + 60);
            }
        }
    }

    #[test]
    fn crawler_off() {
        let service = service();
        assert_eq!(service.crawl_pause(), Some(Duration::from_micros(100)));
        service.tuning.crawls.store(false, Ordering::Relaxed);
        assert_eq!(service.crawl_pause(), None);
    }
}
