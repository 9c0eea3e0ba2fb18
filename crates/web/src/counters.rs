//! The counters of the protocol, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

use session::Shards;

use crate::range::Ignored;
use crate::request::Refusal;
use crate::status::Status;

/// One value of one counter, ready to be written as Prometheus text.
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
#[derive(Debug)]
struct CounterShard {
    replies: [AtomicU64; Status::COUNT],
    reply_body_len: AtomicU64,
    request_body_len: AtomicU64,
    refusals: [AtomicU64; Refusal::ALL.len()],
    ranges_ignored: [AtomicU64; Ignored::ALL.len()],
    rate_evictions: AtomicU64,
}

impl Counters {
    /// Counts a reply and the bytes of its body. Returns how many such replies this thread had.
    #[inline]
    pub(crate) fn replied(&self, status: Status, body_len: u64) -> u64 {
        let shard = self.shards.own();
        shard.reply_body_len.fetch_add(body_len, Ordering::Relaxed);
        shard.replies[status as usize].fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.shards.own().refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a set of ranges to which the whole file was the answer.
    pub(crate) fn ranges_ignored(&self, why: Ignored) {
        self.shards.own().ranges_ignored[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an address that lost its slot in the table of the rate limit.
    pub(crate) fn rate_evicted(&self) {
        self.shards
            .own()
            .rate_evictions
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of a request's body that were discarded.
    pub(crate) fn discarded(&self, len: usize) {
        self.shards
            .own()
            .request_body_len
            .fetch_add(len as u64, Ordering::Relaxed);
    }

    /// All values. Each is exact, but they are not read at one moment.
    pub(crate) fn samples(&self) -> impl Iterator<Item = Metric> + '_ {
        let replies = Status::ALL.into_iter().map(|status| Metric {
            name: "weft_http_replies_total",
            help: "Replies by status.",
            labels: status.label(),
            value: self.sum(|shard| &shard.replies[status as usize]),
        });
        let refusals = Refusal::ALL.into_iter().map(|refusal| Metric {
            name: "weft_http_refused_requests_total",
            help: "Requests that could not be parsed, or may not be, by reason.",
            labels: refusal.label(),
            value: self.sum(|shard| &shard.refusals[refusal as usize]),
        });
        let ranges = Ignored::ALL.into_iter().map(|why| Metric {
            name: "weft_http_ranges_ignored_total",
            help: "Sets of ranges that were answered with the whole file, by reason.",
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
            help: "Addresses that were forgotten before their rate allowed it, because others took their place.",
            labels: "",
            value: self.sum(|shard| &shard.rate_evictions),
        };
        let plain = [reply_bytes, request_bytes, rate_evictions];
        replies.chain(plain).chain(refusals).chain(ranges)
    }

    fn sum(&self, of: impl Fn(&CounterShard) -> &AtomicU64) -> u64 {
        let of_thread = |shard| of(shard).load(Ordering::Relaxed);
        self.shards.iter().map(of_thread).sum()
    }
}

impl Default for CounterShard {
    fn default() -> CounterShard {
        CounterShard {
            replies: std::array::from_fn(|_| AtomicU64::new(0)),
            reply_body_len: AtomicU64::new(0),
            request_body_len: AtomicU64::new(0),
            refusals: std::array::from_fn(|_| AtomicU64::new(0)),
            ranges_ignored: std::array::from_fn(|_| AtomicU64::new(0)),
            rate_evictions: AtomicU64::new(0),
        }
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
            let found = counters
                .samples()
                .find(|s| s.name == name && s.labels == labels);
            found.unwrap().value
        };
        assert_eq!(value("weft_http_replies_total", r#"status="404""#), 8000);
        assert_eq!(value("weft_http_reply_body_bytes_total", ""), 24_000);
        assert_eq!(
            value("weft_http_refused_requests_total", r#"kind="chunk""#),
            1
        );
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
