//! Counters of reads, one stripe per group of threads, so that no counter's cache line moves
//! between processors. Writes count in their slab class, under its lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::store::memory::classes::CLASSES_MAX;
use crate::store::rule::Miss;

#[repr(align(128))]
pub(crate) struct CounterStripe {
    pub(crate) get_hits: [AtomicU64; CLASSES_MAX],
    pub(crate) touch_hits: [AtomicU64; CLASSES_MAX],
    pub(crate) get_misses: AtomicU64,
    pub(crate) get_expired: AtomicU64,
    pub(crate) get_flushed: AtomicU64,
    pub(crate) touch_misses: AtomicU64,
    pub(crate) delete_misses: AtomicU64,
    pub(crate) incr_misses: AtomicU64,
    pub(crate) decr_misses: AtomicU64,
    pub(crate) cas_misses: AtomicU64,
    pub(crate) crawler_items_checked: AtomicU64,
    pub(crate) rescues: AtomicU64,
    pub(crate) pages_moved: AtomicU64,
    pub(crate) reader_waits: AtomicU64,
    pub(crate) refused_behind_readers: AtomicU64,
    pub(crate) uploads_refused: AtomicU64,
}

pub(crate) struct StoreCounters(Box<[CounterStripe]>);

impl CounterStripe {
    fn new() -> CounterStripe {
        let zero = || AtomicU64::new(0);
        CounterStripe {
            get_hits: [const { AtomicU64::new(0) }; CLASSES_MAX],
            touch_hits: [const { AtomicU64::new(0) }; CLASSES_MAX],
            get_misses: zero(),
            get_expired: zero(),
            get_flushed: zero(),
            touch_misses: zero(),
            delete_misses: zero(),
            incr_misses: zero(),
            decr_misses: zero(),
            cas_misses: zero(),
            crawler_items_checked: zero(),
            rescues: zero(),
            pages_moved: zero(),
            reader_waits: zero(),
            refused_behind_readers: zero(),
            uploads_refused: zero(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        let singles = [
            &self.get_misses,
            &self.get_expired,
            &self.get_flushed,
            &self.touch_misses,
            &self.delete_misses,
            &self.incr_misses,
            &self.decr_misses,
            &self.cas_misses,
            &self.crawler_items_checked,
            &self.rescues,
            &self.pages_moved,
            &self.reader_waits,
            &self.refused_behind_readers,
            &self.uploads_refused,
        ];
        self.get_hits.iter().chain(&self.touch_hits).chain(singles)
    }

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
        self.0
            .iter()
            .map(|stripe| counter(stripe).load(Relaxed))
            .sum()
    }

    pub(crate) fn reset(&self) {
        self.0
            .iter()
            .flat_map(CounterStripe::all)
            .for_each(|counter| counter.store(0, Relaxed));
    }
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
