//! A snapshot of the counters, and their metrics.

use super::cells::{CELLS, Cell, DURATION_BOUNDS_US, NAMED_CELLS};
use super::{AcceptError, Closed};
use crate::metrics::MetricsWriter;

/// A snapshot of the counters.
#[derive(Clone, Debug)]
pub struct CounterSnapshot {
    pub(super) values: [u64; CELLS],
}

impl CounterSnapshot {
    /// Connections accepted so far: the sum of [`active`](CounterSnapshot::active) and
    /// [`closed_total`](CounterSnapshot::closed_total).
    pub fn accepted(&self) -> u64 {
        self.value(Cell::Accepted)
    }

    /// Connections that are open.
    pub fn active(&self) -> u64 {
        let (accepted, closed) = (self.accepted(), self.closed_total());
        accepted.checked_sub(closed).unwrap_or_else(|| {
            panic!("{closed} connections closed of {accepted} accepted: one was closed twice")
        })
    }

    /// Connections that ended for this reason.
    pub fn closed(&self, reason: Closed) -> u64 {
        self.value(reason.cell())
    }

    /// Connections that ended.
    pub fn closed_total(&self) -> u64 {
        Closed::ALL.iter().map(|reason| self.closed(*reason)).sum()
    }

    /// Failures of accept(2) of this class.
    pub fn accept_errors(&self, class: AcceptError) -> u64 {
        self.value(class.cell())
    }

    /// Number of pauses of accepting.
    pub fn accept_pauses(&self) -> u64 {
        self.value(Cell::AcceptPauses)
    }

    /// Receives of at least one byte.
    pub fn receives(&self) -> u64 {
        self.value(Cell::Receives)
    }

    /// Bytes received.
    pub fn bytes_received(&self) -> u64 {
        self.value(Cell::BytesReceived)
    }

    /// Sends of at least one byte.
    pub fn sends(&self) -> u64 {
        self.value(Cell::Sends)
    }

    /// Bytes sent.
    pub fn bytes_sent(&self) -> u64 {
        self.value(Cell::BytesSent)
    }

    /// Calls of `Session::work`.
    pub fn work_calls(&self) -> u64 {
        self.value(Cell::WorkCalls)
    }

    /// Writes all counters.
    pub fn write_to(&self, out: &mut MetricsWriter) {
        out.counter(
            "weft_connections_accepted_total",
            "Connections accepted.",
            &[],
            self.accepted(),
        );
        out.gauge("weft_connections_active", "Connections open.", &[], self.active() as f64);
        for reason in Closed::ALL {
            let labels = [("reason", reason.label())];
            let help = "Connections ended, by reason.";
            out.counter("weft_connections_closed_total", help, &labels, self.closed(reason));
        }
        for class in AcceptError::ALL {
            let labels = [("class", class.label())];
            let help = "Failures of accept(2), by class.";
            out.counter("weft_accept_errors_total", help, &labels, self.accept_errors(class));
        }
        for (version, cell) in
            [("1", Cell::ProxyV1), ("2", Cell::ProxyV2), ("none", Cell::ProxyAbsent)]
        {
            let help = "Connections from proxies, by version of the PROXY header.";
            let labels = [("version", version)];
            out.counter("weft_proxy_headers_total", help, &labels, self.value(cell));
        }
        let plain = [
            ("weft_accept_pauses_total", "Times accepting paused.", self.accept_pauses()),
            ("weft_receives_total", "Receives of at least one byte.", self.receives()),
            ("weft_received_bytes_total", "Bytes received.", self.bytes_received()),
            ("weft_sends_total", "Sends of at least one byte.", self.sends()),
            ("weft_sent_bytes_total", "Bytes sent.", self.bytes_sent()),
            ("weft_work_calls_total", "Calls of session work that may block.", self.work_calls()),
        ];
        for (name, help, value) in plain {
            out.counter(name, help, &[], value);
        }
    }

    /// Writes the durations of replies as a histogram of this name.
    pub fn write_durations_to(&self, name: &str, help: &str, out: &mut MetricsWriter) {
        let bounds = DURATION_BOUNDS_US.map(|us| us as f64 / 1e6);
        let sum = self.value(Cell::DurationNs) as f64 / 1e9;
        out.histogram(name, help, &bounds, &self.values[NAMED_CELLS..], sum);
    }

    fn value(&self, cell: Cell) -> u64 {
        self.values[cell as usize]
    }
}
