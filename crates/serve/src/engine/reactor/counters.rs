//! Counters of a loop.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::MetricsWriter;

macro_rules! loop_counters {
    ($($name:ident: $metric:literal, $help:literal;)*) => {
        /// Counted by one loop, read by all.
        #[derive(Debug, Default)]
        pub(crate) struct LoopCounters {
            $(pub(crate) $name: LoopCounter,)*
        }

        impl LoopCounters {
            fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(($metric, $help, self.$name.get()),)*].into_iter()
            }
        }
    };
}

loop_counters! {
    waits: "waits", "Waits of the dispatcher that have ended.";
    reports: "reports", "Descriptors that were reported ready.";
    changes: "interest_changes", "Connections added to the dispatcher, removed from it, or watched for other events.";
    accepted: "accepted", "Connections taken by this loop.";
    passed_on: "passed_on", "Connections that this loop accepted and gave to another.";
    slow_reads: "slow_reads", "Pieces of files that threads read because they were not in memory.";
    signal_overflows: "signal_overflows", "Times that the queue of real-time signals was full, and all connections were polled.";
    errors: "dispatcher_errors", "Errors of the dispatcher: waits that failed, and connections that it could not watch.";
}

impl LoopCounters {
    /// One line for people, with its line end.
    pub(crate) fn line(&self, of: &str) -> String {
        let counted = self.iter();
        let counted = counted.map(|(name, _, count)| format!("{name} {count}"));
        format!("  loop {of}: {}\n", counted.collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn write_metrics(&self, of: &str, out: &mut MetricsWriter) {
        for (name, help, count) in self.iter() {
            let name = format!("weft_loop_{name}_total");
            out.counter(&name, help, &[("loop", of)], count);
        }
    }
}

/// Written by one thread only, so that a load and a store suffice.
#[derive(Debug, Default)]
pub(crate) struct LoopCounter(AtomicU64);

impl LoopCounter {
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
