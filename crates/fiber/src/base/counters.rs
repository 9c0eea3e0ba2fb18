//! Counters of processors, for `/metrics` and tests.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $doc:literal,)*) => {
        /// Counters of one processor. Written by its thread only (so a plain load and store will
        /// do), read by any thread. A cache line of their own keeps readers of neighbours from
        /// slowing it.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// Counters of one processor since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ProcessorCounters {
            $(#[doc = $doc] pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> ProcessorCounters {
                ProcessorCounters { $($name: self.$name.get(),)* }
            }
        }

        impl ProcessorCounters {
            /// Name, meaning and value of each counter, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), $doc, self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    fibers_started: "Fibers that started here.",
    fibers_finished: "Fibers that finished here.",
    fibers_popped: "Fibers that any processor may run, taken from an own queue.",
    fibers_helped: "Of these, taken from another processor because they had waited much longer.",
    fibers_stolen: "Of these, taken from another processor because this one had no work.",
    switches: "Times that a fiber was given the processor.",
    turns: "Turns of the processor's loop.",
    turns_cut: "Turns cut short because they took long, so that newly arrived work went first.",
    sleeps: "Times that the processor went to sleep.",
    spins: "Times that it searched for work for a moment before a sleep.",
    naps: "Times that it slept for a moment because the work it found had not waited for long.",
    wakes: "Times that it was woken.",
    wakes_by_ring: "Times that it was woken by a message to its ring, and not through an eventfd.",
    wakes_early: "Times that it was woken to look for work and found none.",
    wakes_suppressed: "Times that it woke no other processor for new work, because one was searching.",
    messages: "Messages from other threads (fibers unparked, fibers sent here).",
    timers_expired: "Timers that expired.",
    enters: "System calls of the back end (io_uring_enter or epoll_pwait).",
    operations: "Operations handed to the back end (ring entries, or epoll waits).",
    operations_timed_out: "Operations whose deadline passed first.",
    operations_cancelled: "Operations (and sleeps) whose fiber was cancelled.",
    cancels_repeated: "Times that an operation which the ring was to cancel had not ended, and was cancelled again.",
    buffers_exhausted: "Receives that found no lent buffer free and took one of the thread's.",
    accepted: "Connections accepted.",
    offloads: "Calls handed to the offload threads.",
}

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
