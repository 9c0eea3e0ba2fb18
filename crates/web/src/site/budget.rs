use std::cmp::Reverse;

use super::ring::Ring;
use super::sketch::Sketch;
use super::table::Id;

/// A limit in bytes, and the items admitted under it.
///
/// A new item is admitted if it fits, or if it was requested more often lately than its victims
/// together: the bytes under the limit then answer more requests than before (Einziger et al.,
/// *Lightweight Robust Size Aware Cache Management*, 2021). The victims are the least popular of a
/// small sample that moves on with each attempt, so that a repeatedly requested item finds a weak
/// victim after few requests. This replaces lists and visited bits, so a hit writes nothing here.
///
/// A walk over more files than fit changes each place at most once between two halvings of the
/// counts: at its next visit each file leads every other by at most one request, and
/// [more](needed) is required once both are known.
#[derive(Debug)]
pub(super) struct Budget {
    ring: Ring,
    limit: u64,
    len_max: usize,
    pub(super) admitted: u64,
    pub(super) refused: u64,
    pub(super) evicted: u64,
}

/// Requests that a new item needs to replace one with `asked` requests. A lead of one request is
/// the noise of a cyclic walk, whose next file was just counted and the others not yet in this
/// round. One request more is enough over an item asked for once: a young cache holds mostly such
/// items, and a repeated one is worth more.
fn needed(asked: u32) -> u32 {
    match asked {
        0 | 1 => 2,
        _ => asked + 2,
    }
}

/// Items sampled per victim needed. 5, as in Redis's `maxmemory-samples`, comes close to choosing
/// among all; 8 cost half a microsecond.
const SAMPLE_LEN: u64 = 8;
const SAMPLE_LEN_MAX: u64 = 128;

/// Items removed per call after the limit was lowered: some milliseconds.
const GONE_MAX: usize = 8192;

impl Budget {
    /// A budget of `limit` bytes for at most `len_max` items.
    pub(super) fn new(limit: u64, len_max: usize) -> Budget {
        Budget { ring: Ring::default(), limit, len_max, admitted: 0, refused: 0, evicted: 0 }
    }

    pub(super) fn used(&self) -> u64 {
        self.ring.weight()
    }

    /// Bytes of all items that were removed since the start.
    pub(super) fn removed(&self) -> u64 {
        self.ring.removed()
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Sets the limit. Returns the items to remove for a lower one, the least popular of small
    /// samples. A large difference takes several calls.
    pub(super) fn set_limit(&mut self, limit: u64, sketch: &Sketch) -> Vec<Id> {
        self.limit = limit;
        let mut gone = Vec::new();
        while self.used() > limit && gone.len() < GONE_MAX {
            let sample = self.sample(1, sketch);
            let Some(&(_, _, victim)) = sample.first() else {
                break;
            };
            self.ring.remove(victim);
            gone.push(victim);
        }
        self.evicted += gone.len() as u64;
        gone
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn contains(&self, id: Id) -> bool {
        self.ring.contains(id)
    }

    /// Decides whether an item of this weight and popularity would be admitted; returns the
    /// victims.
    pub(super) fn consider(
        &mut self,
        weight: u64,
        estimate: u8,
        sketch: &Sketch,
    ) -> Option<Vec<Id>> {
        let victims = self.victims(weight, u32::from(estimate), sketch);
        if victims.is_none() {
            self.refused += 1;
        }
        victims
    }

    /// Admits an item in place of the victims that [`consider`](Budget::consider) named. Refuses it
    /// if changes since then leave too little space.
    pub(super) fn admit(&mut self, id: Id, weight: u64, victims: &[Id]) -> bool {
        debug_assert!(!self.contains(id), "the item is already admitted");
        let freed = victims.iter().filter_map(|&victim| self.ring.weight_of(victim));
        let (freed, gone) = freed.fold((0, 0), |(sum, count), weight| (sum + weight, count + 1));
        let after = self.ring.weight() - freed + weight;
        if after > self.limit || self.ring.len() - gone >= self.len_max {
            return false;
        }
        for &victim in victims {
            self.evicted += u64::from(self.ring.remove(victim));
        }
        self.ring.insert(id, weight);
        self.admitted += 1;
        assert!(self.used() <= self.limit, "holds {} of {}", self.used(), self.limit);
        true
    }

    pub(super) fn remove(&mut self, id: Id) -> bool {
        self.ring.remove(id)
    }

    fn victims(&mut self, weight: u64, estimate: u32, sketch: &Sketch) -> Option<Vec<Id>> {
        let room = self.limit.checked_sub(weight)?;
        let mut short = self.ring.weight().saturating_sub(room);
        if self.ring.len() >= self.len_max {
            short = short.max(1);
        }
        if short == 0 {
            return Some(Vec::new());
        }
        if estimate < needed(0) {
            return None;
        }
        let mut victims = Vec::new();
        let mut asked = 0;
        for (popularity, Reverse(freed), id) in self.sample(short, sketch) {
            asked += u32::from(popularity);
            if estimate < needed(asked) {
                return None;
            }
            victims.push(id);
            short = short.saturating_sub(freed);
            if short == 0 {
                return Some(victims);
            }
        }
        None
    }

    /// A sample of items from the hand on, the least popular first, then the largest.
    fn sample(&mut self, short: u64, sketch: &Sketch) -> Vec<(u8, Reverse<u64>, Id)> {
        let mean = (self.ring.weight() / self.ring.len().max(1) as u64).max(1);
        let len =
            (SAMPLE_LEN * short.div_ceil(mean)).min(SAMPLE_LEN_MAX).min(self.ring.len() as u64);
        let mut sample: Vec<_> = (0..len)
            .filter_map(|_| self.ring.next())
            .map(|(id, weight)| (sketch.estimate(id.hash()), Reverse(weight), id))
            .collect();
        sample.sort_unstable_by_key(|&(popularity, weight, _)| (popularity, weight));
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget with its sketch, as the site uses them, without any file.
    struct Cache {
        budget: Budget,
        sketch: Sketch,
        now_ns: u64,
    }

    impl Cache {
        fn new(limit: u64) -> Cache {
            let budget = Budget::new(limit, usize::MAX);
            Cache { budget, sketch: Sketch::new(limit), now_ns: 0 }
        }

        /// Requests a file; returns whether it was a hit.
        fn ask(&mut self, n: u64, weight: u64) -> bool {
            let id = id_of(n);
            let estimate = self.sketch.touch(id.hash(), self.now_ns);
            if self.budget.contains(id) {
                return true;
            }
            if let Some(victims) = self.budget.consider(weight, estimate, &self.sketch) {
                assert!(self.budget.admit(id, weight, &victims));
            }
            false
        }
    }

    fn id_of(n: u64) -> Id {
        Id { path: mix(n), encoding: None }
    }

    fn mix(n: u64) -> u64 {
        let z = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 31)
    }

    #[test]
    fn what_fits_gets_in_at_once() {
        let mut cache = Cache::new(1000);
        (0..1000).for_each(|n| assert!(!cache.ask(n, 1)));
        (0..1000).for_each(|n| assert!(cache.ask(n, 1)));
        assert_eq!(cache.budget.used(), 1000);
        assert!(!cache.ask(5000, 1001), "never larger than the budget");
        let mut cache = Cache::new(1000);
        cache.ask(1, 1000);
        assert!(cache.ask(1, 1000), "as large as the budget");
    }

    #[test]
    fn walk_leaves_the_hot_items() {
        let mut cache = Cache::new(1016);
        let hot = 1_000_000..1_000_016;
        let mut hot_hits = 0;
        let mut hot_asked = 0;
        let mut evicted_at_first = 0;
        for round in 0..20 {
            if round == 4 {
                evicted_at_first = cache.budget.evicted;
            }
            for cold in 0..4000 {
                cache.ask(cold, 1);
                let hit = cache.ask(hot.start + cold % 16, 1);
                if round >= 1 {
                    hot_asked += 1;
                    hot_hits += u32::from(hit);
                }
            }
        }
        assert_eq!(hot_hits, hot_asked, "hot files stay in");
        // Each place changes hands once, when files requested again meet files requested once.
        assert!(evicted_at_first <= 1016, "{evicted_at_first} of 1016");
        let evicted = cache.budget.evicted - evicted_at_first;
        assert!(evicted < 64_000 / 200, "{evicted} evicted by 64,000 requests for cold files");
    }

    #[test]
    fn new_hot_item_is_admitted_soon() {
        let mut cache = Cache::new(1000);
        (0..1000).for_each(|n| _ = cache.ask(n, 1));
        let asked = (1..).find(|_| cache.ask(7_000_000, 1)).unwrap();
        assert!(asked <= 5, "in memory at request {asked}");
    }

    /// Seen: on a slow disk, a cache that had just become full answered 3,300 requests with 900
    /// reads; one that admits every file answers 3,700. Cause: a file requested again had to lead
    /// by two requests over files requested once, and hardly any did. Cure: one suffices over
    /// those.
    #[test]
    fn second_request_beats_single_ones() {
        let mut cache = Cache::new(100);
        (0..200).for_each(|n| _ = cache.ask(n, 1));
        (100..200).for_each(|n| assert!(!cache.ask(n, 1), "the second time it is let in"));
        let known = (100..200).filter(|&n| cache.ask(n, 1)).count();
        assert!(known >= 95, "{known} of 100 are known the third time");
    }

    #[test]
    fn large_item_must_be_worth_its_victims() {
        let mut cache = Cache::new(1000);
        (0..1000).for_each(|n| _ = cache.ask(n, 1));
        (0..1000).for_each(|n| _ = cache.ask(n, 1));
        // Eight files requested twice are worth 16 requests: more than a counter can hold.
        (0..40).for_each(|_| assert!(!cache.ask(9_000_000, 8)));
        // Four are worth 8.
        assert!((0..12).any(|_| cache.ask(9_000_001, 4)));
        assert!(cache.budget.used() <= 1000);
    }

    /// The sample grows with the space that a new item needs.
    #[test]
    fn large_item_finds_weak_victims() {
        let mut cache = Cache::new(1000);
        let strong = (0..1000).filter(|n| n % 5 != 0);
        (0..1000).for_each(|n| _ = cache.ask(n, 1));
        (0..7).for_each(|_| strong.clone().for_each(|n| _ = cache.ask(n, 1)));
        // Ten of the weak files are worth 10 requests.
        (0..15).for_each(|_| _ = cache.ask(9_000_000, 10));
        assert!(cache.ask(9_000_000, 10));
    }

    #[test]
    fn lower_limit_evicts_the_unpopular() {
        let mut cache = Cache::new(1000);
        (0..1000).for_each(|n| _ = cache.ask(n, 1));
        let is_popular = |n: &u64| n.is_multiple_of(5);
        let popular = (0..1000).filter(is_popular);
        (0..3).for_each(|_| popular.clone().for_each(|n| assert!(cache.ask(n, 1))));
        let gone = cache.budget.set_limit(600, &cache.sketch);
        assert_eq!((gone.len(), cache.budget.used()), (400, 600));
        let kept = popular.filter(|&n| !gone.contains(&id_of(n))).count();
        assert!(kept > 180, "{kept} of 200 popular ones stay");
        assert!(cache.budget.set_limit(2000, &cache.sketch).is_empty());
        assert!(!cache.ask(5000, 1) && cache.ask(5000, 1), "there is room again");
    }

    #[test]
    fn formerly_hot_items_yield() {
        let mut cache = Cache::new(100);
        (0..1500).for_each(|n| _ = cache.ask(n % 100, 1));
        // All counters are at 15. Without ageing by time no file could ever lead them.
        let mut seconds = 0;
        while !cache.ask(8_000_000, 1) {
            seconds += 1;
            cache.now_ns += 1_000_000_000;
            cache.sketch.age_if_late(cache.now_ns);
        }
        assert!(seconds <= 40, "{seconds} s");
    }

    #[test]
    fn count_limit_trades_one_for_one() {
        let mut cache = Cache::new(1000);
        cache.budget = Budget::new(1000, 2);
        let id = |path| Id { path, encoding: None };
        assert!(cache.budget.admit(id(1), 1, &[]) && cache.budget.admit(id(2), 1, &[]));
        assert!(!cache.budget.admit(id(3), 1, &[]), "a third file, but the limit is two");
        // Victims that have left already free no space.
        assert!(!cache.budget.admit(id(3), 1, &[id(4), id(5)]));
        assert!(cache.budget.admit(id(3), 1, &[id(4), id(1)]));
        assert_eq!((cache.budget.used(), cache.budget.evicted), (2, 1));
    }

    #[test]
    fn vanished_victims_free_nothing() {
        let mut cache = Cache::new(10);
        (0..10).for_each(|n| _ = cache.ask(n, 1));
        let victims = cache.budget.consider(1, 15, &cache.sketch).unwrap();
        assert!(cache.budget.admit(Id { path: 1, encoding: None }, 1, &victims));
        assert!(!cache.budget.admit(Id { path: 2, encoding: None }, 1, &victims));
        assert_eq!(cache.budget.used(), 10);
    }
}
