//! The outcome of a run.

mod json;
mod merge;

use std::ops::{Deref, DerefMut};
use std::time::{Duration, SystemTime};

pub use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::units::count_of;
use json::{class_name, histogram_text};

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Start of the measurement.
    pub began: SystemTime,
    /// Length of the measurement; shorter than planned if the run was stopped.
    pub elapsed: Duration,
    /// Demand on the server.
    pub asked: Demand,
    /// Requests per second that the arrivals called for; `None` in a closed loop.
    pub offered_rate_per_s: Option<f64>,
    /// All counts.
    pub total: Tally,
    /// Counts of each interval, without the warm-up.
    pub intervals: Vec<IntervalRecord>,
    /// Resources that the generator used.
    pub generator: Generator,
    /// True if the run was stopped early.
    pub stopped_early: bool,
}

impl Outcome {
    /// Good replies per second within the measured time.
    pub fn achieved_rate_per_s(&self) -> f64 {
        let replies = self.total.replies() - self.total.drained + self.total.carried;
        replies as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Demand on a run, as far as its [verdict](crate::verdict) needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// The event that made a connection send.
    pub kind: Kind,
    /// Connections that send requests, at most.
    pub connections: u64,
    /// Additional connections that send no requests.
    pub idle_connections: u64,
    /// The number of requests that ends the run.
    pub requests_max: Option<u64>,
    /// True if every body is compared with the expected one.
    pub verify: bool,
}

/// The event that made a connection send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// None: connections are only held.
    #[default]
    Idle,
    /// The previous reply.
    Closed,
    /// A rate of requests.
    Open,
    /// A rate of sessions.
    Sessions,
}

/// Resources that the generator used.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Generator {
    /// Back end and the reason for it: "io_uring", "epoll (io_uring is denied: …)".
    pub io: String,
    /// Its threads.
    pub threads: Vec<ThreadUse>,
    /// Packets that its kernel dropped as it could not track their connections (`nf_conntrack`).
    #[serde(default)]
    pub table_drops: u64,
}

/// Resources that one thread used during the measurement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ThreadUse {
    /// CPU time.
    pub cpu: Duration,
    /// Part of it spent spinning, to send on time.
    pub spun: Duration,
    /// Time ready to run, but waiting for a processor (schedstat, proc(5)).
    pub run_delay: Duration,
    /// Wall-clock time.
    pub elapsed: Duration,
}

/// One interval of the interval log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// Start, from the start of the measurement.
    pub begins: Duration,
    /// Length.
    pub lasts: Duration,
    /// Counts of the interval.
    pub tally: Tally,
}

/// The progress of a run, once per interval.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The time since the start, warm-up included.
    pub elapsed: Duration,
    /// Planned length of the run, warm-up included.
    pub planned: Duration,
    /// True during the warm-up.
    pub is_warm_up: bool,
    /// The last interval, over all threads.
    pub interval: &'a IntervalRecord,
}

/// Counts of a period, by one thread or by several.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// Per class of requests, in the order of [`Plan::classes`](crate::Plan::classes).
    pub classes: Vec<Class>,
    /// Failed requests and connections.
    pub errors: Errors,
    /// Times of TLS handshakes, in nanoseconds; that of opening TCP is not in them.
    #[serde(with = "histogram_text", default = "histogram")]
    pub handshake_ns: Histogram<u64>,
    /// Times to open a connection, in nanoseconds.
    #[serde(with = "histogram_text")]
    pub connect_ns: Histogram<u64>,
    /// Lateness of the generator in nanoseconds: from the intended time until it looked for a free
    /// connection. Waiting for one after that is due to the server. Open loop only.
    #[serde(with = "histogram_text")]
    pub lag_ns: Histogram<u64>,
    /// All that is only counted; its fields can be read as the tally's own.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Name of a class. (A type alias, because serde would take `&'static str` for borrowed text.)
pub type ClassName = &'static str;

/// One class of requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    #[serde(deserialize_with = "class_name")]
    pub name: ClassName,
    /// Times from the intended time to the last byte of the reply, in nanoseconds.
    #[serde(with = "histogram_text")]
    pub response_ns: Histogram<u64>,
    /// Times from sending to the last byte of the reply, in nanoseconds.
    #[serde(with = "histogram_text")]
    pub service_ns: Histogram<u64>,
    /// Complete replies, right or wrong. HTTP: by the first digit of the status (index 1 to 5).
    /// Cache: index 2 if good, 4 for `CLIENT_ERROR` and `ERROR`, 5 for `SERVER_ERROR`.
    pub replies_by_status: [u64; 6],
}

/// Defines a struct of named counts.
macro_rules! counts {
    ($(#[$about:meta])* $counts:ident: $($(#[$doc:meta])* $count:ident)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $counts {
            $($(#[$doc])* pub $count: u64,)*
        }

        impl $counts {
            /// Names, as in JSON and CSV, and counts.
            pub fn named(&self) -> [(&'static str, u64); [$(stringify!($count)),*].len()] {
                [$((stringify!($count), self.$count)),*]
            }

            /// Adds the counts of another period.
            pub fn add(&mut self, other: &$counts) {
                $(self.$count += other.$count;)*
            }
        }
    };
}

counts! {
    /// Counts of requests, connections, keys, sessions and bytes.
    Counts:
    /// Requests that the arrivals called for.
    intended
    /// Intended requests dropped because the backlog was full.
    missed
    /// Intended requests that found no free connection.
    waited
    /// Sessions that began before the run's time was over.
    sessions_begun
    /// Requests that were sent.
    sent
    /// Replies after the end of the measurement. They are awaited, so that the slowest are not left
    /// out, but they do not count in the achieved rate.
    drained
    /// Good replies within the measured time to requests of the warm-up. They count in the achieved
    /// rate only.
    carried
    /// Handshakes that resumed a session.
    resumed
    /// Largest backlog, summed over the threads.
    backlog_max
    /// Connections that were opened.
    opened
    /// Idle connections open at the end of the period.
    idle_open
    /// Idle connections that the server closed.
    idle_closed
    /// HTTP/2: request bodies that waited for a flow-control window of the server.
    window_waits
    /// HTTP/2: connections on which the server allows fewer streams than the plan asks for.
    stream_limits
    /// Good replies that are redirects; they are not followed.
    redirects
    /// UDP: datagrams that came after their request had timed out.
    late_datagrams
    /// Keys that were found.
    hits
    /// Keys that were not found.
    misses
    /// Replies (of a cache: values) compared with the expected ones.
    compared
    /// Sessions that ended.
    sessions
    /// Bytes received, heads included.
    received_bytes
    /// Bytes sent.
    sent_bytes
}

counts! {
    /// Errors in httperf's classes, and ten more. Each failed request or connection is counted
    /// once.
    Errors:
    /// No reply, or no connection, within the plan's time-out; over UDP also a lost datagram.
    client_timeout
    /// The kernel gave a connection up (`ETIMEDOUT`).
    socket_timeout
    /// Connection refused.
    refused
    /// Connection reset.
    reset
    /// No more descriptors (`EMFILE`, `ENFILE`).
    fd_unavailable
    /// No more ports, or no such source address (`EADDRNOTAVAIL`, `EADDRINUSE`).
    address_unavailable
    /// TLS failed: a handshake, a certificate, or a record.
    tls
    /// Anything else.
    other
    /// HTTP/2: stream refused by the server (REFUSED_STREAM).
    refused_stream
    /// HTTP/2: stream reset by the server for another reason.
    stream_reset
    /// HTTP/2: connection ended by the server (GOAWAY) with an error, or before it served anything.
    goaway
    /// HTTP/2: no reply within the plan's time-out to a request whose body waits for the server's
    /// flow-control window.
    window_timeout
    /// Connection closed in the middle of a reply, or in place of one.
    short_reply
    /// Bytes that are no reply of the protocol, or an unsolicited reply.
    bad_reply
    /// Reply with a status outside [`Plan::expect`](crate::Plan::expect); of a cache: an error.
    unexpected_status
    /// Wrong body (only with [`Plan::verify`](crate::Plan::verify)), or a cache value under another
    /// key than requested.
    wrong_bytes
    /// Miss of a key that was stored before the run (only with
    /// [`Plan::verify`](crate::Plan::verify)).
    missing_value
}

/// Lines of names of errors, and what to do about them: `NAMES = ADVICE`.
const ADVICE: &str = include_str!("outcome/advice.txt");
/// Lines for a cache, which go before the others.
const CACHE_ADVICE: &str = include_str!("outcome/cache_advice.txt");

fn advice_on(name: &str, lines: &'static str) -> Option<&'static str> {
    let mut advice = lines.lines().filter_map(|line| line.split_once(" = "));
    let found = advice.find(|(names, _)| names.split(' ').any(|known| known == name));
    found.map(|(_, hint)| hint)
}

impl Errors {
    /// Replies that arrived and are wrong.
    pub(crate) fn wrong_replies(&self) -> u64 {
        self.bad_reply + self.unexpected_status + self.wrong_bytes + self.missing_value
    }

    /// Most frequent of [`Errors::wrong_replies`], with advice; see [`Errors::sentence`].
    pub(crate) fn wrong_sentence(&self, is_cache: bool) -> String {
        let wrong = Errors {
            bad_reply: self.bad_reply,
            unexpected_status: self.unexpected_status,
            wrong_bytes: self.wrong_bytes,
            missing_value: self.missing_value,
            ..Errors::default()
        };
        wrong.sentence(is_cache)
    }

    /// Most frequent class, with advice. `is_cache`: the server is a cache.
    pub(crate) fn sentence(&self, is_cache: bool) -> String {
        let most = self.named().into_iter().max_by_key(|(_, count)| *count);
        let (name, count) = most.expect("there are some");
        let of_cache = advice_on(name, CACHE_ADVICE).filter(|_| is_cache);
        let hint = of_cache.or_else(|| advice_on(name, ADVICE));
        let hint = hint.unwrap_or("the network or the system failed");
        let count = count_of(count);
        let name = name.replace('_', " ");
        format!("{count} × {name}; {hint}")
    }

    /// Sum of all classes.
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, count)| count).sum()
    }
}

/// Longest recorded time; longer ones count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Creates an empty histogram: 0.1 µs to an hour, three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, LONGEST_NS, 3).expect("the bounds are right")
}

/// Records a time in a histogram of [`histogram`]'s bounds, capped at an hour.
pub fn record(histogram: &mut Histogram<u64>, ns: u64) {
    histogram.saturating_record(ns.min(LONGEST_NS));
}

impl Tally {
    /// Creates an empty tally.
    pub fn new(classes: &[&'static str]) -> Tally {
        Tally {
            classes: classes.iter().map(|&name| Class::new(name)).collect(),
            errors: Errors::default(),
            handshake_ns: histogram(),
            connect_ns: histogram(),
            lag_ns: histogram(),
            counts: Counts::default(),
        }
    }

    /// Number of complete and correct replies.
    pub fn replies(&self) -> u64 {
        self.classes.iter().map(|class| class.service_ns.len()).sum()
    }

    /// True if the requests were a cache's commands.
    pub(crate) fn is_of_cache(&self) -> bool {
        self.classes.iter().any(|class| class.name == "get")
    }

    /// Number of good replies and errors.
    pub(crate) fn ended(&self) -> u64 {
        self.replies() + self.errors.total()
    }

    /// Complete replies, right or wrong, by the first digit of the status; a cache's by its words.
    pub fn replies_by_status(&self) -> [(&'static str, u64); 5] {
        let names = if self.is_of_cache() {
            ["1xx", "good", "3xx", "CLIENT_ERROR", "SERVER_ERROR"]
        } else {
            ["1xx", "2xx", "3xx", "4xx", "5xx"]
        };
        let count = |digit: usize| {
            let classes = self.classes.iter();
            classes.map(|class| class.replies_by_status[digit]).sum()
        };
        std::array::from_fn(|at| (names[at], count(at + 1)))
    }

    /// Response times of all classes.
    pub fn response_ns(&self) -> Histogram<u64> {
        sum(self.classes.iter().map(|class| &class.response_ns))
    }

    /// Service times of all classes.
    pub fn service_ns(&self) -> Histogram<u64> {
        sum(self.classes.iter().map(|class| &class.service_ns))
    }

    /// Adds the counts of another thread in the same period.
    pub fn add_thread(&mut self, other: &Tally) {
        for (class, theirs) in self.classes.iter_mut().zip(&other.classes) {
            class.add(theirs);
        }
        self.errors.add(&other.errors);
        add(&mut self.handshake_ns, &other.handshake_ns);
        add(&mut self.connect_ns, &other.connect_ns);
        add(&mut self.lag_ns, &other.lag_ns);
        self.counts.add(&other.counts);
    }

    /// Adds the counts of a later period.
    pub fn add_later(&mut self, other: &Tally) {
        let backlog_max = self.backlog_max.max(other.backlog_max);
        self.add_thread(other);
        self.backlog_max = backlog_max;
        self.idle_open = other.idle_open;
    }
}

impl Deref for Tally {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

impl DerefMut for Tally {
    fn deref_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }
}

impl Class {
    fn new(name: &'static str) -> Class {
        Class { name, response_ns: histogram(), service_ns: histogram(), replies_by_status: [0; 6] }
    }

    fn add(&mut self, other: &Class) {
        add(&mut self.response_ns, &other.response_ns);
        add(&mut self.service_ns, &other.service_ns);
        for (count, theirs) in self.replies_by_status.iter_mut().zip(&other.replies_by_status) {
            *count += theirs;
        }
    }
}

fn sum<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Histogram<u64> {
    let mut sum = histogram();
    histograms.for_each(|one| add(&mut sum, one));
    sum
}

fn add(histogram: &mut Histogram<u64>, other: &Histogram<u64>) {
    histogram.add(other).expect("all have the same bounds");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_about_errors_that_there_are() {
        let known = Errors::default().named().map(|(name, _)| name);
        for line in ADVICE.lines().chain(CACHE_ADVICE.lines()) {
            let (names, advice) = line.split_once(" = ").unwrap();
            assert!(names.split(' ').all(|name| known.contains(&name)), "{line}");
            assert!(!advice.is_empty());
        }
    }
}
