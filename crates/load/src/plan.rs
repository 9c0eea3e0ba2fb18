//! What to send, when, and where.

mod check;
pub(crate) mod schedule;
mod statuses;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netstack::interface_config::InterfaceConfig;

use crate::workload::distribution::{Distribution, Popularity};
pub use statuses::Statuses;

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The servers. Connections are dealt to them in turn.
    pub targets: Vec<SocketAddr>,
    /// The addresses to connect from, in turn; empty: what the system picks. Each gives one more
    /// range of ports (ip_local_port_range, ip(7)).
    pub sources: Vec<IpAddr>,
    /// What to send.
    pub workload: Workload,
    /// When to send it.
    pub arrivals: Arrivals,
    /// Connections that are open at the same time, over all threads. In open loop: at most.
    pub connections: u32,
    /// Requests under way on one connection.
    pub depth: u32,
    /// How many connections are begun per second while the first ones are opened; `None`: all at
    /// once.
    pub connect_rate_per_s: Option<f64>,
    /// Additional connections that are open and send no requests.
    pub idle: Idle,
    /// Kernel threads.
    pub threads: u32,
    /// Time before measuring begins, under the same load.
    pub warm_up: Duration,
    /// Time that is measured.
    pub duration: Duration,
    /// The run ends earlier when so many requests were made, over all threads, and answered or
    /// failed.
    pub requests_max: Option<u64>,
    /// How long one interval of the interval log is.
    pub interval: Duration,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long a reply may take, from its sending.
    pub request_timeout: Duration,
    /// Requests that may wait for a free connection, over all threads; more are counted as missed.
    pub backlog_max: u32,
    /// Where the connections go.
    pub network: Network,
    /// What carries the bytes over [`Network::Kernel`].
    pub io: Io,
    /// Which statuses of HTTP are right; another one is an error.
    pub expect: Statuses,
    /// Whether every body is compared with the expected one.
    pub verify: bool,
    /// Every random choice follows from it.
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
            expect: Statuses::default(),
            verify: false,
            seed: 1,
        }
    }
}

impl Plan {
    /// The names of the classes of requests that the outcome tells apart.
    pub fn classes(&self) -> Vec<&'static str> {
        match self.workload {
            Workload::Http(_) | Workload::Sessions(_) => vec!["request"],
            Workload::Cache(_) => vec!["get", "set"],
            Workload::Idle => vec![],
        }
    }
}

/// Where the connections go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Through the kernel's TCP/IP, by sockets.
    Kernel,
    /// Through our own, as a host that this is on a link. [`Plan::sources`] are addresses of it.
    Netstack(InterfaceConfig),
}

/// What carries the bytes of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// io_uring where the kernel allows it, else epoll.
    Auto,
    /// io_uring, or fail.
    Uring,
    /// epoll.
    Epoll,
}

/// When requests (in [`Workload::Sessions`]: sessions) begin.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Each connection sends the next request when it has its reply.
    Closed,
    /// At equal distances.
    Fixed {
        /// How many per second, over all threads.
        rate_per_s: f64,
    },
    /// Independent of each other: a Poisson process.
    Poisson {
        /// How many per second in the mean, over all threads.
        rate_per_s: f64,
    },
    /// The rate follows a course; distances are equal or exponential.
    Course {
        /// The stages, one after the other; the last one goes on.
        stages: Vec<Stage>,
        /// Whether the distances are exponential.
        poisson: bool,
    },
}

/// A part of a course: the rate goes in a straight line from one value to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// How long it takes.
    pub lasts: Duration,
    /// The rate at its beginning.
    pub from_per_s: f64,
    /// The rate at its end. A step has the same as at its beginning.
    pub to_per_s: f64,
}

/// What to send.
#[derive(Clone, Debug)]
pub enum Workload {
    /// HTTP requests.
    Http(Http),
    /// Sessions of HTTP requests, with think times.
    Sessions(Sessions),
    /// The memcached protocols.
    Cache(Cache),
    /// Nothing: only [`Plan::idle`].
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
    /// What is sent as `Host`.
    pub authority: String,
    /// `GET` and so on.
    pub method: String,
    /// The pages to request.
    pub pages: Arc<[Page]>,
    /// Which of the pages, in their order.
    pub choice: Choice,
    /// Further header fields.
    pub headers: Vec<(String, String)>,
    /// The body of every request.
    pub body: Arc<[u8]>,
    /// After how many requests a connection is closed, on average; `None`: the generator never
    /// closes it. One is "a connection for every request", asked for with `Connection: close`. Of
    /// more, each connection ends after any of its requests by the same chance, so that those which
    /// began together do not end together.
    pub requests_per_connection: Option<u32>,
}

/// A page to request.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The request target: path and query.
    pub path: String,
    /// How often, compared with the others, under [`Choice::Weighted`].
    pub weight: f64,
    /// The expected body, where it is known beforehand.
    pub expected: Option<Expected>,
    /// The method, where it is not [`Http::method`].
    pub method: Option<String>,
    /// The request's body, where it is not [`Http::body`].
    pub body: Option<Arc<[u8]>>,
}

impl Page {
    /// A page with only its path known.
    pub fn new(path: impl Into<String>) -> Page {
        Page {
            path: path.into(),
            weight: 1.0,
            expected: None,
            method: None,
            body: None,
        }
    }
}

/// An expected body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its length.
    pub bytes: u64,
    /// Its CRC-32 (ISO-HDLC, as in zip).
    pub crc32: u32,
}

/// How pages are picked.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// One after the other, over and over.
    InTurn,
    /// By their weights.
    Weighted,
    /// The first is the most popular.
    ByRank(Popularity),
}

/// Sessions, each on a connection of its own, closed when it ends.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// Method, header fields, pages. `choice` and `requests_per_connection` are not used.
    pub http: Http,
    /// The sessions, begun one after the other, over and over.
    pub scripts: Arc<[SessionPlan]>,
}

/// What one session does.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPlan {
    /// One after the other.
    pub bursts: Vec<Burst>,
}

/// Requests that follow each other without a pause: the first alone, and the others, all at once,
/// when its reply is there (httperf's `--wsesslog`: a page, then what is embedded in it).
#[derive(Clone, Debug, PartialEq)]
pub struct Burst {
    /// Indices of [`Http::pages`].
    pub pages: Vec<u32>,
    /// The pause after the last reply.
    pub think: Duration,
}

/// The memcached protocols.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Text or meta.
    pub protocol: CacheProtocol,
    /// How many of a hundred commands are `set`.
    pub set_percent: f64,
    /// How many different keys there are.
    pub keys: u64,
    /// Prefix of every key.
    pub key_prefix: String,
    /// How long keys are, the prefix included.
    pub key_bytes: Distribution,
    /// How long values are. A key's value has always the same length and content.
    pub value_bytes: Distribution,
    /// Which keys are asked for.
    pub popularity: Popularity,
    /// Keys in one `get`.
    pub keys_per_get: u32,
    /// The expiry time of what is set, in seconds; 0: never.
    pub exptime_s: u32,
    /// Whether every key is set once before the run.
    pub populate: bool,
}

/// Longest key, in bytes (memcached's doc/protocol.txt).
pub(crate) const KEY_BYTES_MAX: usize = 250;
/// Digits of a key's number.
pub(crate) const KEY_DIGITS: usize = 10;
/// Longest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// A memcached protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheProtocol {
    /// `get`, `set`.
    Text,
    /// `mg`, `ms`.
    Meta,
}

/// Connections that are held open and send no requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// How many, over all threads.
    pub connections: u32,
    /// How often each sends a single byte; `None`: never.
    pub byte_every: Option<Duration>,
}
