//! The counters of the protocol, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

use http2::{Abuse, EndpointCounters};
use session::Shards;

use crate::range::Ignored;
use crate::request::Refusal;
use crate::status::Status;

/// One value of one counter, for Prometheus text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// `weft_http_replies_total` and the like.
    pub name: &'static str,
    /// Description of the metric.
    pub help: &'static str,
    /// `status="200"` and the like; empty if the counter has no labels.
    pub labels: &'static str,
    /// Since the start.
    pub value: u64,
}

/// Counters of the protocol.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    shards: Shards<CounterShard>,
}

/// Counters of one thread.
#[derive(Debug, Default)]
struct CounterShard {
    replies: [AtomicU64; Status::COUNT],
    reply_body_len: AtomicU64,
    request_body_len: AtomicU64,
    refusals: [AtomicU64; Refusal::ALL.len()],
    ranges_ignored: [AtomicU64; Ignored::ALL.len()],
    rate_evictions: AtomicU64,
    multiplexed: [AtomicU64; MULTIPLEXED.len()],
    /// HTTP/2 connections that were ended, by the exhausted budget.
    calmed: [AtomicU64; Abuse::ALL.len()],
}

/// Counters of HTTP/2 except ended connections: name, help, and label.
const MULTIPLEXED: [(&str, &str, &str); 11] = [
    ("weft_http2_connections_total", "Connections that speak HTTP/2.", ""),
    ("weft_http2_streams_total", "Requests of HTTP/2 whose head was well-formed.", ""),
    (RESETS, RESETS_HELP, "reason=\"client\""),
    (RESETS, RESETS_HELP, "reason=\"fault\""),
    (RESETS, RESETS_HELP, "reason=\"too_many\""),
    (RESETS, RESETS_HELP, "reason=\"memory\""),
    (RESETS, RESETS_HELP, "reason=\"file\""),
    (
        "weft_http2_windows_exhausted_total",
        "Times that a client's window was exhausted with bytes left to send.",
        "",
    ),
    ("weft_http2_late_frames_total", "Frames of ended streams, which were ignored.", ""),
    (FAILED, FAILED_HELP, "reason=\"fault\""),
    (FAILED, FAILED_HELP, "reason=\"header_block\""),
];
const RESETS: &str = "weft_http2_resets_total";
const RESETS_HELP: &str = "Streams that ended early: reset by the client, because of its fault, \
    because too many were open or their requests held too much memory, or a file had changed.";
const FAILED: &str = "weft_http2_connections_failed_total";
const FAILED_HELP: &str =
    "Connections of HTTP/2 closed for a fault of the client, or for too many of these frames.";

impl Counters {
    /// Counts a reply and the bytes of its body. Returns this thread's number of such replies.
    #[inline]
    pub(crate) fn replied(&self, status: Status, body_len: u64) -> u64 {
        let shard = self.shards.own();
        shard.reply_body_len.fetch_add(body_len, Ordering::Relaxed);
        shard.replies[status as usize].fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.shards.own().refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a set of ranges that was ignored in favour of the whole file.
    pub(crate) fn ranges_ignored(&self, why: Ignored) {
        self.shards.own().ranges_ignored[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an address that lost its slot in the table of the rate limit.
    pub(crate) fn rate_evicted(&self) {
        self.shards.own().rate_evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that speaks HTTP/2.
    pub(crate) fn multiplexed(&self) {
        self.add_multiplexed(0, 1);
    }

    /// Adds the counters of an HTTP/2 connection.
    pub(crate) fn count_streams(&self, counters: &EndpointCounters) {
        let counts = [
            (1, counters.requests),
            (2, counters.remote_resets),
            (3, counters.local_resets - counters.refused.min(counters.local_resets)),
            (4, counters.refused),
            (7, counters.windows_exhausted),
            (8, counters.late_frames),
        ];
        for (at, count) in counts {
            if count > 0 {
                self.add_multiplexed(at, count.into());
            }
        }
        if counters.discarded > 0 {
            self.discarded(counters.discarded as usize);
        }
    }

    /// Counts a stream that was refused because requests held too much memory.
    pub(crate) fn stream_refused(&self) {
        self.add_multiplexed(5, 1);
    }

    /// Counts a stream that was reset because its file had changed.
    pub(crate) fn stream_cut(&self) {
        self.add_multiplexed(6, 1);
    }

    /// Counts an HTTP/2 connection that the endpoint ended.
    pub(crate) fn ended(&self, abuse: Option<Abuse>, is_calmed: bool) {
        match abuse {
            Some(abuse) => {
                self.shards.own().calmed[abuse as usize].fetch_add(1, Ordering::Relaxed);
            }
            None => self.add_multiplexed(if is_calmed { 10 } else { 9 }, 1),
        }
    }

    fn add_multiplexed(&self, at: usize, count: u64) {
        self.shards.own().multiplexed[at].fetch_add(count, Ordering::Relaxed);
    }

    /// Counts bytes of a request's body that were discarded.
    pub(crate) fn discarded(&self, len: usize) {
        self.shards.own().request_body_len.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// All values. Each is exact, but they are read one after another.
    pub(crate) fn samples(&self) -> impl Iterator<Item = Metric> + '_ {
        let replies = Status::ALL.into_iter().map(|status| Metric {
            name: "weft_http_replies_total",
            help: "Replies by status.",
            labels: status.label(),
            value: self.sum(|shard| &shard.replies[status as usize]),
        });
        let refusals = Refusal::ALL.into_iter().map(|refusal| Metric {
            name: "weft_http_refused_requests_total",
            help: "Requests that could not be parsed, or were refused, by reason.",
            labels: refusal.label(),
            value: self.sum(|shard| &shard.refusals[refusal as usize]),
        });
        let ranges = Ignored::ALL.into_iter().map(|why| Metric {
            name: "weft_http_ranges_ignored_total",
            help: "Requests for ranges answered with the whole file, by reason.",
            labels: why.label(),
            value: self.sum(|shard| &shard.ranges_ignored[why as usize]),
        });
        let reply_bytes = Metric {
            name: "weft_http_reply_body_bytes_total",
            help: "Bytes of reply bodies handed to the driver.",
            labels: "",
            value: self.sum(|shard| &shard.reply_body_len),
        };
        let request_bytes = Metric {
            name: "weft_http_request_body_bytes_total",
            help: "Bytes of request bodies that were read and discarded.",
            labels: "",
            value: self.sum(|shard| &shard.request_body_len),
        };
        let rate_evictions = Metric {
            name: "weft_http_rate_evictions_total",
            help: "Addresses forgotten early because others took their place.",
            labels: "",
            value: self.sum(|shard| &shard.rate_evictions),
        };
        let multiplexed = MULTIPLEXED.into_iter().enumerate();
        let multiplexed = multiplexed.map(|(at, (name, help, labels))| Metric {
            name,
            help,
            labels,
            value: self.sum(|shard| &shard.multiplexed[at]),
        });
        let calmed = Abuse::ALL.into_iter().map(|abuse| Metric {
            name: FAILED,
            help: FAILED_HELP,
            labels: label(abuse),
            value: self.sum(|shard| &shard.calmed[abuse as usize]),
        });
        let multiplexed = multiplexed.chain(calmed);
        let plain = [reply_bytes, request_bytes, rate_evictions];
        let http1 = replies.chain(plain).chain(refusals).chain(ranges);
        http1.chain(multiplexed)
    }

    fn sum(&self, of: impl Fn(&CounterShard) -> &AtomicU64) -> u64 {
        let of_thread = |shard| of(shard).load(Ordering::Relaxed);
        self.shards.iter().map(of_thread).sum()
    }
}

fn label(abuse: Abuse) -> &'static str {
    match abuse {
        Abuse::Resets => "reason=\"resets\"",
        Abuse::Settings => "reason=\"settings\"",
        Abuse::Pings => "reason=\"pings\"",
        Abuse::Priorities => "reason=\"priorities\"",
        Abuse::Windows => "reason=\"windows\"",
        Abuse::TinyWindows => "reason=\"tiny_windows\"",
        Abuse::EmptyData => "reason=\"empty_data\"",
        Abuse::LateFrames => "reason=\"late_frames\"",
        Abuse::OtherFrames => "reason=\"other_frames\"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_add_up() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| _ = counters.replied(Status::NotFound, 3)));
            }
        });
        counters.refused(Refusal::Chunk);
        let value = |name: &str, labels: &str| {
            let found = counters.samples().find(|s| s.name == name && s.labels == labels);
            found.unwrap().value
        };
        assert_eq!(value("weft_http_replies_total", r#"status="404""#), 8000);
        assert_eq!(value("weft_http_reply_body_bytes_total", ""), 24_000);
        assert_eq!(value("weft_http_refused_requests_total", r#"kind="chunk""#), 1);
    }

    #[test]
    fn refusals_have_their_own_labels() {
        for (at, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, at);
        }
        let labels: std::collections::HashSet<_> = Refusal::ALL.iter().map(|r| r.label()).collect();
        assert_eq!(labels.len(), Refusal::ALL.len());
    }
}
