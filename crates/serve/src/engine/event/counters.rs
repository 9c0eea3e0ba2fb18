//! What a loop counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! loop_counters {
    ($($name:ident: $metric:literal, $help:literal;)*) => {
        /// Counted by one loop, read by all.
        #[derive(Debug, Default)]
        pub(super) struct LoopCounters {
            $(pub(super) $name: LoopCounter,)*
        }

        impl LoopCounters {
            pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(($metric, $help, self.$name.get()),)*].into_iter()
            }
        }
    };
}

loop_counters! {
    waits: "waits", "Waits of the dispatcher that have ended.";
    reports: "reports", "Descriptors that were reported ready.";
    changes: "interest_changes", "Connections added to the dispatcher, taken out, or watched for something else.";
    accepted: "accepted", "Connections that came to this loop.";
    slow_reads: "slow_reads", "Pieces of files that threads read because they were not in memory.";
    errors: "dispatcher_errors", "Errors of the dispatcher: waits that failed, and connections that it could not watch.";
}

/// Written by one thread, so that a load and a store are enough.
#[derive(Debug, Default)]
pub(super) struct LoopCounter(AtomicU64);

impl LoopCounter {
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
