//! Counters of a shard, for other threads: its loop publishes a copy at each wait.

use std::sync::{Mutex, PoisonError};

use netstack::Netstack;
use netstack::device::Device;

use super::retransmit_buffer::BufferPool;
use crate::metrics::MetricsWriter;

macro_rules! figures {
    (|$netstack:ident, $buffer_pool:ident| $($kind:ident $name:ident: $help:literal = $from:expr;)*) => {
        #[derive(Clone, Copy, Debug, Default)]
        struct Copied {
            $($name: u64,)*
        }

        impl Copied {
            fn of($netstack: &mut Netstack<impl Device>, $buffer_pool: &BufferPool) -> Copied {
                Copied { $($name: $from,)* }
            }

            /// Kind, name, help and value of each.
            fn iter(&self) -> impl Iterator<Item = (Kind, &'static str, &'static str, u64)> {
                [$((Kind::$kind, stringify!($name), $help, self.$name),)*].into_iter()
            }
        }
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Current value.
    Gauge,
    /// Count since start.
    Counter,
}

figures! { |it, buffer_pool|
    Gauge unacked_bytes: "Bytes sent and not yet acknowledged." = buffer_pool.len();
    Counter unacked_crowded: "Times that these bytes exceeded their limit, so that each connection may hold less." =
        buffer_pool.crowded();
    Counter receive_memory_refused: "Segments dropped because unread input used all memory for it." =
        it.shard().counters().receive_memory_refused;
    Counter out_of_order_given_up: "Times that a connection dropped segments received out of order, to have memory for those in order." =
        it.shard().counters().out_of_order_given_up;
    Gauge flows: "Connections, open, half open and closing." =
        it.shard().flows_len() as u64;
    Gauge time_wait: "Connections in TIME-WAIT." =
        it.shard().time_wait_len() as u64;
    Counter fin_wait_2_timeouts: "Connections that were forgotten because the peer did not close its end within a minute of our close." =
        it.shard().counters().fin_wait_2_timeouts;
    Counter opened: "Connections opened by a SYN." =
        it.shard().counters().opened_passively;
    Counter refused: "SYNs that were dropped because there were too many connections." =
        it.shard().counters().flows_refused;
    Counter accept_overflows: "SYNs and last ACKs of handshakes that were dropped because too many connections waited to be accepted." =
        it.shard().counters().accept_overflows;
    Counter cookies_sent: "SYNs that were answered with a cookie because too many connections were half open." =
        it.shard().counters().cookies_sent;
    Counter cookies_accepted: "Connections opened by such a cookie." =
        it.shard().counters().cookies_accepted;
    Counter resets_sent: "RSTs to segments of no connection." =
        it.shard().counters().resets_sent;
    Counter segments_received: "Segments that connections received, of those that have ended." =
        it.shard().counters().tcp.segments_received;
    Counter segments_sent: "Segments that connections sent, of those that have ended." =
        it.shard().counters().tcp.segments_sent;
    Counter retransmissions: "Segments that were sent again, of connections that have ended." =
        it.shard().counters().tcp.retransmissions;
    Counter retransmission_timeouts: "Retransmission time-outs, of connections that have ended." =
        u64::from(it.shard().counters().tcp.timeouts);
    Counter frames: "Frames received." =
        it.interface().counters().0.frames;
    Counter overflowed_frames: "Frames that were lost because the device's ring or queue was full." =
        it.losses().overflowed;
    Counter refused_frames: "Frames dropped because they were not TCP and above the limit for those." =
        it.losses().refused;
    Counter dropped_frames: "Frames dropped: malformed, with a wrong checksum, a fragment, or of an unknown protocol." =
        {
            let counters = it.interface().counters().0;
            it.losses().malformed + counters.malformed + counters.checksums + counters.bad_sources + counters.fragments
                + counters.extensions + counters.unknown
        };
    Counter address_conflicts: "Messages that show that another host has, or wants, one of our addresses." =
        it.interface().counters().0.conflicts;
    Counter unroutable: "Segments dropped because there was no route to the peer." =
        it.unroutable();
    Counter absent_neighbors: "Neighbours, such as the gateway, that did not answer ARP or neighbour solicitations." =
        it.interface().counters().1.absent;
}

/// See the [module page](self).
#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<Copied>);

impl Figures {
    /// Publishes a copy.
    pub(super) fn copy(&self, netstack: &mut Netstack<impl Device>, buffer_pool: &BufferPool) {
        let copied = Copied::of(netstack, buffer_pool);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = copied;
    }

    fn copied(&self) -> Copied {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line for people, with its line end.
    pub(super) fn line(&self, of: &str) -> String {
        let copied = self.copied();
        let counted = copied.iter().map(|(_, name, _, count)| {
            let name = name.replace('_', " ");
            format!("{name} {count}")
        });
        format!("  netstack {of}: {}\n", counted.collect::<Vec<_>>().join(", "))
    }

    pub(super) fn write_metrics(&self, of: &str, out: &mut MetricsWriter) {
        for (kind, name, help, count) in self.copied().iter() {
            let labels = [("loop", of)];
            match kind {
                Kind::Gauge => {
                    let name = format!("weft_netstack_{name}");
                    out.gauge(&name, help, &labels, count as f64);
                }
                Kind::Counter => {
                    let name = format!("weft_netstack_{name}_total");
                    out.counter(&name, help, &labels, count);
                }
            }
        }
    }
}
