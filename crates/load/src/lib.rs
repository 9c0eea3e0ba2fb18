//! Load generators: open and closed loop, HTTP/1.1, HTTP/2 and memcached, with a verdict.
//!
//! A [`Plan`] says what to send, when and where; [`run`] carries it out on kernel threads and
//! returns an [`Outcome`]. The generator shares no code with what it measures: no fibers, no
//! sessions, no driver. Over [`Network::Netstack`](plan::Network::Netstack) it uses our own TCP, so
//! a server on that TCP is never measured with it.
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
//! *intended* time. Its response time counts from there, even if no connection was free or this
//! thread was late. If all connections are busy, requests wait in a backlog and keep their intended
//! times. The backlog is bounded; requests beyond it are counted as missed. A slow server therefore
//! cannot slow its own examination down ("coordinated omission"). The *service* time, from sending
//! to the last byte of the reply, is kept beside it.
//!
//! **Closed loop.** Each connection sends its next request when it has its reply, as in wrk.
//! Response and service time are the same. The last replies are awaited, but are not part of the
//! rate.
//!
//! **Sessions.** Partly open, as in httperf: sessions arrive at a rate; the requests inside a
//! session follow each other with think times.
//!
//! **The generator measures itself.** The outcome includes its threads' CPU time, their waits for a
//! processor, and their lateness. The table in [`verdict`] tells whether the server, the generator
//! or the demand limited the run.

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

pub use outcome::{Class, Counts, Errors, IntervalRecord, Outcome, Progress, Tally};
pub use plan::Plan;
pub use run::{run, table_drops};

/// Reason why a run did not begin, or was aborted as a whole: a sentence with the remedy. Failures
/// of single requests and connections are counted in [`Outcome`]; they are no errors here.
#[derive(Debug)]
pub struct LoadError(String);

impl LoadError {
    /// Error of a step, which `doing` names with the remedy.
    fn during(doing: &str) -> impl FnOnce(std::io::Error) -> LoadError {
        move |error| LoadError(format!("{doing}: {error}"))
    }

    /// Error of the first connection to a target.
    fn unreachable(target: &plan::LoadTarget, error: &std::io::Error) -> LoadError {
        let how = if target.is_udp() { " with UDP (-U)" } else { "" };
        LoadError(format!("cannot connect to {target}: {error}; is the server running{how}?"))
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}
