//! What reads count, by the stripe of the thread, so that no counter's line goes between processors.
//! Writes count in their slab class, under its lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Miss;
use super::classes::CLASSES_MAX;

#[repr(align(128))]
pub(super) struct Stripe {
    pub(super) get_hits: [AtomicU64; CLASSES_MAX],
    pub(super) touch_hits: [AtomicU64; CLASSES_MAX],
    pub(super) get_misses: AtomicU64,
    pub(super) get_expired: AtomicU64,
    pub(super) get_flushed: AtomicU64,
    pub(super) touch_misses: AtomicU64,
    pub(super) delete_misses: AtomicU64,
    pub(super) incr_misses: AtomicU64,
    pub(super) decr_misses: AtomicU64,
    pub(super) cas_misses: AtomicU64,
    pub(super) crawler_items_checked: AtomicU64,
    pub(super) rescues: AtomicU64,
    pub(super) pages_moved: AtomicU64,
    pub(super) reader_waits: AtomicU64,
    pub(super) refused_behind_readers: AtomicU64,
}

pub(super) struct Counters(Box<[Stripe]>);

impl Stripe {
    fn new() -> Stripe {
        let zero = || AtomicU64::new(0);
        Stripe {
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
        ];
        self.get_hits.iter().chain(&self.touch_hits).chain(singles)
    }

    pub(super) fn count_miss(&self, miss: Miss) {
        add(&self.get_misses);
        match miss {
            Miss::NotFound => {}
            Miss::Expired => add(&self.get_expired),
            Miss::Flushed => add(&self.get_flushed),
        }
    }
}

impl Counters {
    pub(super) fn new(stripes: usize) -> Counters {
        Counters((0..stripes).map(|_| Stripe::new()).collect())
    }

    #[inline]
    pub(super) fn stripe(&self, stripe: usize) -> &Stripe {
        &self.0[stripe % self.0.len()]
    }

    pub(super) fn sum(&self, counter: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.0
            .iter()
            .map(|stripe| counter(stripe).load(Relaxed))
            .sum()
    }

    pub(super) fn reset(&self) {
        self.0
            .iter()
            .flat_map(Stripe::all)
            .for_each(|counter| counter.store(0, Relaxed));
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
