//! Count and limit of connections that linger after their last reply.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::metrics::MetricsWriter;

/// The least limit on lingering connections, however few may be open.
const LINGERING_MIN: usize = 16;

/// Count of connections that linger, and its limit.
#[derive(Debug)]
pub(crate) struct Lingering {
    count: AtomicUsize,
    max: usize,
    begun: AtomicU64,
    refused: AtomicU64,
}

impl Lingering {
    /// A quarter of the connections that may be open: peers that do not close leave space for
    /// others.
    pub(crate) fn new(connections_max: usize) -> Lingering {
        Lingering {
            count: AtomicUsize::new(0),
            max: (connections_max / 4).max(LINGERING_MIN),
            begun: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Counts one more; `false` at the limit. In a drain there is none, since new connections need
    /// no space.
    pub(crate) fn enter(&self, is_draining: bool) -> bool {
        let max = if is_draining { usize::MAX } else { self.max };
        let more = |count| (count < max).then_some(count + 1);
        let set = Ordering::Relaxed;
        let fetch = Ordering::Relaxed;
        let has_space = self.count.fetch_update(set, fetch, more).is_ok();
        let counted = if has_space { &self.begun } else { &self.refused };
        counted.fetch_add(1, Ordering::Relaxed);
        has_space
    }

    /// Uncounts one.
    pub(crate) fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        for (name, help, value) in [
            (
                "weft_connections_lingering",
                "Connections that have sent their last reply and wait for the peer to close.",
                self.count.load(Ordering::Relaxed),
            ),
            (
                "weft_connections_lingering_limit",
                "Limit on these connections; further ones are closed without waiting.",
                self.max,
            ),
        ] {
            out.gauge(name, help, &[], value as f64);
        }
        for (name, help, value) in [
            (
                "weft_lingered_total",
                "Connections that waited for the peer to close after their last reply.",
                &self.begun,
            ),
            (
                "weft_linger_refused_total",
                "Connections that were closed without waiting, because too many did.",
                &self.refused,
            ),
        ] {
            out.counter(name, help, &[], value.load(Ordering::Relaxed));
        }
    }
}
