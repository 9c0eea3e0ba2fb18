//! Plan of a run: requests, arrivals, targets and limits.

mod check;
pub(crate) mod schedule;
mod statuses;
mod target;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netstack::interface_config::InterfaceConfig;

use crate::workload::distribution::{Distribution, Popularity};
use crate::workload::template::Template;
pub use statuses::Statuses;
pub use target::LoadTarget;

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Servers. Connections are distributed over them in turn.
    pub targets: Vec<LoadTarget>,
    /// Source addresses, used in turn; empty: the system picks. Each adds one range of ports
    /// (ip_local_port_range, ip(7)).
    pub sources: Vec<IpAddr>,
    /// Requests.
    pub workload: Workload,
    /// Arrival times.
    pub arrivals: Arrivals,
    /// Open connections, over all threads. In open loop: the maximum.
    pub connections: u32,
    /// True for HTTP/2: over TLS by ALPN, otherwise by prior knowledge.
    pub http2: bool,
    /// Maximum of in-flight requests per connection; with HTTP/2 its streams.
    pub depth: u32,
    /// Connections begun per second while the first ones are opened; `None`: all at once.
    pub connect_rate_per_s: Option<f64>,
    /// Additional connections that send no requests.
    pub idle: Idle,
    /// Kernel threads.
    pub threads: u32,
    /// Time before the measurement, under the same load.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub duration: Duration,
    /// Number of requests, over all threads, after which the run ends early, once they are answered
    /// or failed.
    pub requests_max: Option<u64>,
    /// Length of an interval.
    pub interval: Duration,
    /// Time limit for opening a connection.
    pub connect_timeout: Duration,
    /// Time limit for a reply, from sending.
    pub request_timeout: Duration,
    /// Maximum of requests that wait for a free connection, over all threads; more are counted as
    /// missed.
    pub backlog_max: u32,
    /// Network stack.
    pub network: Network,
    /// I/O back end of [`Network::Kernel`].
    pub io: Io,
    /// TLS on every connection; `None`: plain.
    pub tls: Option<Tls>,
    /// Expected HTTP statuses; others are errors.
    pub expect: Statuses,
    /// True if every body is compared with the expected one.
    pub verify: bool,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for Plan {
    /// Ten seconds of a closed loop over ten connections, without a target or a workload.
    fn default() -> Plan {
        Plan {
            targets: Vec::new(),
            sources: Vec::new(),
            workload: Workload::Idle,
            arrivals: Arrivals::Closed,
            connections: 10,
            http2: false,
            depth: 1,
            connect_rate_per_s: None,
            idle: Idle::default(),
            threads: 1,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(10),
            requests_max: None,
            interval: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            backlog_max: 1_000_000,
            network: Network::Kernel,
            io: Io::Auto,
            tls: None,
            expect: Statuses::default(),
            verify: false,
            seed: 1,
        }
    }
}

impl Plan {
    /// True if requests are datagrams.
    pub(crate) fn is_udp(&self) -> bool {
        self.targets.iter().any(LoadTarget::is_udp)
    }

    /// Names of the classes of requests that the outcome distinguishes.
    pub fn classes(&self) -> Vec<&'static str> {
        match self.workload {
            Workload::Http(_) | Workload::Sessions(_) => vec!["request"],
            Workload::Cache(_) => vec!["get", "set"],
            Workload::Idle => vec![],
        }
    }
}

/// Network stack of the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Kernel TCP/IP, by sockets.
    Kernel,
    /// Own TCP/IP: the generator is a host on a link. [`Plan::sources`] are its addresses.
    Netstack(InterfaceConfig),
}

/// I/O back end for sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// io_uring if the kernel allows it, else epoll.
    Auto,
    /// io_uring, or fail.
    Uring,
    /// epoll.
    Epoll,
}

/// TLS to the targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Name of the server, sent to it (SNI) and required in its certificate.
    pub server_name: String,
    /// Certificates (DER) of the authorities that are trusted; `None`: certificates are not
    /// checked.
    pub authorities: Option<Vec<Vec<u8>>>,
    /// The only version; `None`: 1.3, or 1.2 if the server has no other.
    pub version: Option<TlsVersion>,
    /// True if connections after the first resume its session.
    pub resumes: bool,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    V12,
    /// RFC 8446.
    V13,
}

/// Arrivals of requests (in [`Workload::Sessions`]: of sessions).
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Each connection sends the next request when it has its reply.
    Closed,
    /// At equal intervals.
    Fixed {
        /// Rate per second, over all threads.
        rate_per_s: f64,
    },
    /// Independent of each other: a Poisson process.
    Poisson {
        /// Mean rate per second, over all threads.
        rate_per_s: f64,
    },
    /// At a rate that changes over time, with equal or exponential intervals.
    Course {
        /// Stages in order; the last one continues.
        stages: Vec<Stage>,
        /// True if the intervals are exponential.
        poisson: bool,
    },
}

/// Part of a course, in which the rate changes linearly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Length.
    pub lasts: Duration,
    /// Rate at its start.
    pub from_per_s: f64,
    /// Rate at its end. Equal to the first for a step.
    pub to_per_s: f64,
}

/// Kind of requests.
#[derive(Clone, Debug)]
pub enum Workload {
    /// HTTP requests.
    Http(Http),
    /// Sessions of HTTP requests, with think times.
    Sessions(Sessions),
    /// The memcached protocols.
    Cache(Cache),
    /// No requests, only [`Plan::idle`].
    Idle,
}

impl Workload {
    /// [`Http::requests_per_connection`]; of other workloads `None`.
    pub(crate) fn requests_per_connection(&self) -> Option<u32> {
        match self {
            Workload::Http(http) => http.requests_per_connection,
            _ => None,
        }
    }
}

/// HTTP requests.
#[derive(Clone, Debug)]
pub struct Http {
    /// Value of `Host`.
    pub authority: String,
    /// `GET` and so on.
    pub method: String,
    /// Pages to request.
    pub pages: Arc<[Page]>,
    /// Order of the pages.
    pub choice: Choice,
    /// Further header fields.
    pub headers: Vec<(String, String)>,
    /// Body of every request.
    pub body: Arc<[u8]>,
    /// Mean number of requests after which a connection is closed; `None`: the generator never
    /// closes it. With 1, each request asks for `Connection: close`. With more, a connection ends
    /// after each request with the same probability, so that connections opened together do not end
    /// together.
    pub requests_per_connection: Option<u32>,
}

/// Page to request.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Request target: path and query.
    pub path: String,
    /// Relative frequency under [`Choice::Weighted`].
    pub weight: f64,
    /// Expected body, if known beforehand.
    pub expected: Option<Expected>,
    /// Method, if not [`Http::method`].
    pub method: Option<String>,
    /// Body, if not [`Http::body`].
    pub body: Option<Arc<[u8]>>,
}

impl Page {
    /// Creates a page of which only the path is known.
    pub fn new(path: impl Into<String>) -> Page {
        Page { path: path.into(), weight: 1.0, expected: None, method: None, body: None }
    }
}

/// Expected body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its length.
    pub bytes: u64,
    /// CRC-32 (ISO-HDLC, as in zip).
    pub crc32: u32,
}

/// Order of pages.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// In order, repeatedly.
    InTurn,
    /// By their weights.
    Weighted,
    /// By rank; the first is the most popular.
    ByRank(Popularity),
}

/// Sessions, each on a connection of its own, closed when it ends.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Method, header fields and pages. `choice` and `requests_per_connection` are ignored.
    pub http: Http,
    /// Sessions, begun in this order, repeatedly.
    pub scripts: Arc<[SessionPlan]>,
}

/// Script of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPlan {
    /// Bursts in order.
    pub bursts: Vec<Burst>,
}

/// Requests without a pause between them. The first goes alone; the others follow together when its
/// reply is there (httperf's `--wsesslog`: a page, then its embedded files).
#[derive(Clone, Debug, PartialEq)]
pub struct Burst {
    /// Indices of [`Http::pages`].
    pub pages: Vec<u32>,
    /// Pause after the last reply.
    pub think: Duration,
}

/// The memcached protocols.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Text or meta.
    pub protocol: CacheProtocol,
    /// Percentage of commands that are `set`.
    pub set_percent: f64,
    /// Number of different keys.
    pub keys: u64,
    /// Names of the keys, as many as [`Cache::keys`]; `None`: the prefix, the key's number, and
    /// filling up to the length.
    pub template: Option<Template>,
    /// Prefix of every key.
    pub key_prefix: String,
    /// Length of keys, including the prefix.
    pub key_bytes: Distribution,
    /// Length of values. Length and content of a key's value never change.
    pub value_bytes: Distribution,
    /// Distribution of requests over the keys.
    pub popularity: Popularity,
    /// Keys in one `get`.
    pub keys_per_get: u32,
    /// Expiry time of stored items, in seconds; 0: never.
    pub exptime_s: u32,
    /// True if every key is set once before the run.
    pub populate: bool,
}

/// Longest key, in bytes (memcached's doc/protocol.txt).
pub(crate) const KEY_BYTES_MAX: usize = 250;
/// Digits of a key's number.
pub(crate) const KEY_DIGITS: usize = 10;
/// Longest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Longest value in a datagram of 65,507 bytes (udp(7)), beside its header, command and key.
pub(crate) const VALUE_BYTES_UDP_MAX: usize = 65_000;

/// A memcached protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheProtocol {
    /// `get`, `set`.
    Text,
    /// `mg`, `ms`.
    Meta,
}

/// Idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// Number, over all threads.
    pub connections: u32,
    /// Interval at which each sends a single byte; `None`: never.
    pub byte_every: Option<Duration>,
}
