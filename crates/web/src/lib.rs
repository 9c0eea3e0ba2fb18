//! HTTP/1.1 and HTTP/2 over a static site, as a [`Session`](::session::Session): bytes in, replies
//! out; only the site does I/O.
//!
//! ```text
//!  bytes ─▶ request ─▶ answer ─────────────▶ reply ─▶ Outbox
//!           parse      │  conditional, range    │
//!           in place   │  negotiate             └▶ log, counters
//!                      ▼
//!                 site: path ─▶ Entry (header lines ready, bytes in memory or an open file)
//! ```
//!
//! | module | what it decides | source |
//! |---|---|---|
//! | `request` | where a request ends, and that no other reader can see another end | RFC 9112 |
//! | `answer` | which reply a request gets | RFC 9110 |
//! | `conditional`, `range`, `negotiate` | 304, 412, 206, 416, `.br` or `.gz` | RFC 9110 13, 14, 12 |
//! | `host`, `redirect` | which site answers; another address, or file, for a path | RFC 9110 7, 15.4 |
//! | `client`, `rate` | the client behind proxies; 429 | RFC 7239, 6585 |
//! | `password`, `challenge` | who may read a path; 401; proof of a host name | RFC 7617, 8555 |
//! | `reply`, `error_page`, `log`, `counters` | form of the reply, its log line, its counters | |
//! | `popular` | the most requested paths, from a sample | |
//! | `session` | what comes next: more input, a flush, blocking work, the end | crate `session` |
//! | `session::multiplexed` | streams of HTTP/2; heads are rewritten as HTTP/1.1 | RFC 9113 |
//! | `site` | the file at a path; the fast path never touches the disk | |
//!
//! A server makes one [`Handle`] from a [`Site`], or from [`Hosts`] with a site each, and a
//! [`ServiceConfig`], and one [`Session`] for each connection. [`Handle::reload`] swaps both under
//! running connections.
//!
//! Cost targets: a request without a body is parsed in place and allocates nothing; its reply is a
//! handful of copies into the outbox. `examples/request_cost.rs` measures both.
//!
//! Deliberately absent: sockets, clocks, uploads, scripts, compression on the request path, and
//! threads other than those of [`Site::start_compressing`].

#![forbid(unsafe_code)]

mod answer;
mod challenge;
mod client;
mod conditional;
mod config;
mod counters;
mod date;
mod error_page;
mod explain;
mod handle;
mod host;
#[cfg(test)]
mod html_test;
mod log;
mod lookup;
mod negotiate;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod oracle;
mod password;
mod popular;
mod range;
mod rate;
mod redirect;
mod reply;
mod request;
mod session;
mod site;
mod status;

pub use self::session::{Covers, Session, Work};
pub use challenge::Challenges;
pub use config::{ForwardedField, Proxies, RATE_LIMITS_MAX, RequestLimits, ServiceConfig};
pub use counters::Metric;
pub use explain::Explanation;
pub use handle::Handle;
pub use host::{HostRate, Hosts, VirtualHost};
pub use log::{LogFormat, Peer};
pub use lookup::Encoding;
pub use popular::PopularPath;
pub use rate::RateLimit;
pub use redirect::{RedirectRule, Redirects};
pub use reply::WANTS_HTTPS;
pub use site::{
    CacheRule, ConfigError, CorsRule, EtagKind, HeaderRule, RuleList, Site, SiteConfig,
};
