//! Counters of reads, striped over groups of threads, so that no counter's cache line moves between
//! processors. Writes count in their slab class, under its lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::store::memory::classes::CLASSES_MAX;
use crate::store::rule::Miss;

macro_rules! stripe {
    ($($count:ident)*) => {
        #[repr(align(128))]
        pub(crate) struct CounterStripe {
            pub(crate) get_hits: [AtomicU64; CLASSES_MAX],
            pub(crate) touch_hits: [AtomicU64; CLASSES_MAX],
            $(pub(crate) $count: AtomicU64,)*
        }

        impl CounterStripe {
            fn new() -> CounterStripe {
                CounterStripe {
                    get_hits: [const { AtomicU64::new(0) }; CLASSES_MAX],
                    touch_hits: [const { AtomicU64::new(0) }; CLASSES_MAX],
                    $($count: AtomicU64::new(0),)*
                }
            }

            fn all(&self) -> impl Iterator<Item = &AtomicU64> {
                let of_classes = self.get_hits.iter().chain(&self.touch_hits);
                of_classes.chain([$(&self.$count),*])
            }
        }
    };
}

stripe! {
    get_misses get_expired get_flushed touch_misses delete_misses incr_misses decr_misses
    cas_misses crawler_items_checked rescues pages_moved reader_waits refused_behind_readers
    uploads_refused
}

pub(crate) struct StoreCounters(Box<[CounterStripe]>);

impl CounterStripe {
    pub(crate) fn count_miss(&self, miss: Miss) {
        add(&self.get_misses);
        match miss {
            Miss::NotFound => {}
            Miss::Expired => add(&self.get_expired),
            Miss::Flushed => add(&self.get_flushed),
        }
    }
}

impl StoreCounters {
    pub(crate) fn new(stripes: usize) -> StoreCounters {
        StoreCounters((0..stripes).map(|_| CounterStripe::new()).collect())
    }

    #[inline]
    pub(crate) fn stripe(&self, stripe: usize) -> &CounterStripe {
        &self.0[stripe % self.0.len()]
    }

    pub(crate) fn sum(&self, counter: impl Fn(&CounterStripe) -> &AtomicU64) -> u64 {
        self.0.iter().map(|stripe| counter(stripe).load(Relaxed)).sum()
    }

    pub(crate) fn reset(&self) {
        self.0.iter().flat_map(CounterStripe::all).for_each(|counter| counter.store(0, Relaxed));
    }
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
