//! Load generators that tell the truth: the ruler of the project.
//!
//! A [`Plan`] says what to send, when and where; [`run`] does it on kernel threads and returns an
//! [`Outcome`]. Nothing here is made of what it measures: no fibers, no sessions, no driver. Over
//! [`Network::Netstack`](plan::Network::Netstack) it has our own TCP in it, so a server on that TCP
//! is not measured with it.
//!
//! ```text
//!            Plan                       one Worker per kernel thread
//!  ┌──────────────────────┐   ┌─────────────────────────────────────────────┐
//!  │ targets, sources     │   │ Arrivals ─▶ backlog ─▶ connections ─▶ ring   │  Tally
//!  │ arrivals   (when)    │──▶│  (when)     (bounded)   HTTP or cache  epoll │─────────▶ Outcome
//!  │ workload   (what)    │   │                         out and in   netstack│ per interval
//!  └──────────────────────┘   └─────────────────────────────────────────────┘
//! ```
//!
//! **Open loop.** Arrival times are computed ahead, from the rate alone. Each request has an
//! *intended* time, and its response time is counted from there, whether or not a connection was
//! free and whether or not this thread was late. If all connections are busy, requests wait in a
//! backlog, with their intended times; the backlog is bounded, and what does not fit is counted as
//! missed. So a slow server does not slow its own examination down ("coordinated omission"). The
//! *service* time, from sending to the last byte of the reply, is kept beside it.
//!
//! **Closed loop.** Every connection sends its next request when it has its reply, as wrk does.
//! There the two times are the same. Its last replies are awaited too, and are no part of the rate.
//!
//! **Sessions.** Partly open, as httperf's: sessions arrive by a rate; the requests inside follow
//! each other with think times.
//!
//! **The generator examines itself.** Its threads' CPU time, the time that they waited for a
//! processor, and how late they sent are part of the outcome. [`verdict`] is the table that says
//! what a run shows, and of what: the server, the generator, or what was asked.

#![deny(unsafe_code)]

pub mod agents;
mod io;
pub mod outcome;
pub mod plan;
mod protocol;
pub mod random;
pub mod report;
mod run;
pub mod sweep;
mod units;
pub mod verdict;
mod worker;
pub mod workload;

use std::fmt;
use std::net::SocketAddr;

pub use outcome::{Class, Errors, IntervalRecord, Outcome, Progress, Tally};
pub use plan::Plan;
pub use run::run;

/// Why a run could not begin, or was given up as a whole. Failures of single requests and
/// connections are counted in [`Outcome`] and are no error here.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The plan contradicts itself, or this machine has no room for it; the sentence says where.
    Plan(String),
    /// No server answers at a target.
    Unreachable {
        /// The target.
        target: SocketAddr,
        /// The error of the first connection.
        error: std::io::Error,
    },
    /// A system call of the generator's own failed.
    System {
        /// The step that failed, and the remedy.
        doing: String,
        /// The error of the system.
        error: std::io::Error,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Plan(sentence) => f.write_str(sentence),
            LoadError::Unreachable { target, error } => {
                write!(
                    f,
                    "cannot connect to {target}: {error}; is the server running?"
                )
            }
            LoadError::System { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Plan(_) => None,
            LoadError::Unreachable { error, .. } | LoadError::System { error, .. } => Some(error),
        }
    }
}
