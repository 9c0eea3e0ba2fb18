//! The ready queue of a cluster: fibers that any processor may run, in the order of their age,
//! nearly.
//!
//! The rule is that of C∀ ("User-Level Threading for Fairness", T. Delisle, Waterloo 2022). Each
//! processor owns two FIFO *run queues*. It pushes to its own and pops from its own, so that
//! processors seldom meet; but at every other pop it looks at one run queue of another processor,
//! and if an item there is *much older* than the items at home, it *helps*: takes one from
//! there although it has work of its own. So a fiber never waits forever behind a busy processor.
//! Elsewhere this is called *work stealing*; here it takes one item, never a run queue whole.
//!
//! A look fetches a cache line that the other processor writes at every push and pop, which takes
//! both longer than a short run. So while runs are short, a look that finds nothing older is
//! followed by the next one after some microseconds or [`POPS_PER_LOOK`] pops.
//!
//! ```text
//!             processor 0        processor 1        ...
//!  run queues [ 0 ]   [ 1 ]      [ 2 ]   [ 3 ]            a spin bit and a FIFO each; if the bit is
//!                                                         taken, the caller tries the other one
//!  clocks     │head│average│     │head│average│           in cache lines of their own: a look
//!                                                         does not disturb a push
//! ```
//!
//! *Age* is a moving average of waiting times, on a logarithmic scale: three quarters from the item
//! that waits now, a quarter from those before. "Much older" is eight times the worst of the own
//! run queues, which is 3 more in log2. The scale matters: with a plain average one long stall
//! lifts the average, which lifts the next cut-off, which makes the next stall longer, and helping
//! dies out.
//!
//! Processors come and go. When one goes, its run queues are *closed*: their items move
//! to the others with their age, and a remote push that finds the run queues closed forwards its
//! own item.
//!
//! Stamps, or the clock, are handed in, so that this file can be model-checked. A pop reads the
//! clock only if an age is asked for and no push since the pop before has read it: that takes as
//! long as the rest.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::base::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell, full_fence, spin_loop,
};

/// Run queues per processor. Two, so that a push finds one free while the other is helped from.
const QUEUES: usize = 2;

/// Stamp of the head of an empty run queue.
const EMPTY: u64 = u64::MAX;

/// Fractions of a power of two, in which logarithms are kept.
const LOG2_ONE: u32 = 256;

/// A remote run queue is helped when it is this much older on the scale of log2: eight times.
const HELP_LOG2: u32 = 3 * LOG2_ONE;

/// Pops between two looks at another processor's run queues, at most.
const POPS_PER_LOOK: u32 = 16;

/// A run queue behind another last-level cache is looked at with odds of 3 in 256: its items come
/// with cold data.
const FAR_ODDS: u64 = 3;

/// Items that any processor may take.
pub(crate) struct ReadyQueue<T> {
    queues: Box<[RunQueue<T>]>,
    clocks: Box<[Clock]>,
    /// Last-level cache that each processor was near when it last looked.
    caches: Box<[AtomicU32]>,
    /// For each processor: true if others may push to its run queues.
    open: Box<[AtomicBool]>,
    /// Run queues that have ever been opened; the others are empty.
    queues_open: AtomicUsize,
    /// Ticks between two looks, if there were fewer pops.
    look_ticks: u64,
}

/// State that one processor keeps between two visits to the queue.
#[derive(Debug, Default)]
pub(crate) struct Visitor {
    index: usize,
    pushes: usize,
    pops: usize,
    /// A run queue of another processor, chosen by the previous pop for this one to look at.
    target: Option<usize>,
    /// Latest stamp that is known, and that of the latest choice; pops since then.
    latest: u64,
    chosen_at: u64,
    pops_since: u32,
    /// The latest stamp is of a push since the latest pop.
    has_pushed: bool,
    /// The latest look helped, so the next one may as well.
    has_helped: bool,
    random: u64,
}

/// Origin of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A run queue of the processor that popped it.
    Own,
    /// Another processor's run queue, because the item was much older than those at home.
    Helped,
}

/// A FIFO behind a spin bit. Two cache lines apart from the next, because CPUs fetch lines in
/// pairs.
#[repr(align(128))]
struct RunQueue<T> {
    locked: AtomicBool,
    items: UnsafeCell<VecDeque<(u64, T)>>,
}

// SAFETY: the items are touched by the one that has set `locked` only.
unsafe impl<T: Send> Sync for RunQueue<T> {}

/// State of a run queue that others may read without its spin bit. Written by the thread that has
/// it.
#[repr(align(64))]
struct Clock {
    /// Stamp of the run queue's head.
    head: AtomicU64,
    /// Moving average of log2 of how long items waited.
    average: AtomicU32,
}

impl<T> ReadyQueue<T> {
    /// A queue for up to `processors_max` processors, none of which has run queues yet. Each looks
    /// at another processor's queues after `look_ticks`.
    pub(crate) fn new(processors_max: usize, look_ticks: u64) -> ReadyQueue<T> {
        let queues_max = processors_max * QUEUES;
        ReadyQueue {
            queues: (0..queues_max).map(|_| RunQueue::new()).collect(),
            clocks: (0..queues_max).map(|_| Clock::new()).collect(),
            caches: (0..processors_max).map(|_| AtomicU32::new(0)).collect(),
            open: (0..processors_max).map(|_| AtomicBool::new(false)).collect(),
            queues_open: AtomicUsize::new(0),
            look_ticks,
        }
    }

    /// Gives processor `index` its run queues. Helpers and searchers find what lies in them even
    /// after they were closed.
    pub(crate) fn open(&self, index: usize) -> Visitor {
        assert!(index * QUEUES < self.queues.len(), "no queues for processor {index}");
        self.queues_open.fetch_max((index + 1) * QUEUES, Ordering::AcqRel);
        self.open[index].store(true, Ordering::SeqCst);
        Visitor::new(index)
    }

    /// Stops pushes to the run queues of processor `index` from elsewhere; the run queues of
    /// another must be open. The owner may still push, and empties them in the end: see
    /// [`drain_to_others`](ReadyQueue::drain_to_others).
    pub(crate) fn close(&self, index: usize) {
        self.open[index].store(false, Ordering::SeqCst);
    }

    /// Empties the run queues of processor `index`, which are closed, into those of the others;
    /// returns the number of items.
    pub(crate) fn drain_to_others(&self, index: usize) -> usize {
        // With the fence of `push_remote`: either the item that is pushed there is seen here, or
        // that it is closed, there.
        full_fence();
        let own = || index * QUEUES..(index + 1) * QUEUES;
        let mut count = 0;
        // The oldest first, so that the heads of the others' run queues are right.
        while let Some(queue) = own()
            .filter(|&queue| !self.clocks[queue].is_empty())
            .min_by_key(|&queue| self.clocks[queue].head.load(Ordering::Relaxed))
        {
            if let Some((stamp, item)) = self.take(queue) {
                self.push_to(self.open_from(index + count), count, stamp, item);
                count += 1;
            }
        }
        count
    }

    /// The next processor from `index` on, modulo their number, that takes pushes.
    fn open_from(&self, index: usize) -> usize {
        let processors = self.open.len();
        loop {
            // Repeated if processors came and went meanwhile: one is open at any time.
            let mut round = (0..processors).map(|step| (index + step) % processors);
            if let Some(found) = round.find(|&index| self.is_open(index)) {
                return found;
            }
            spin_loop();
        }
    }

    fn is_open(&self, index: usize) -> bool {
        self.open[index].load(Ordering::Acquire)
    }

    /// Notes which last-level cache processor `index` is near.
    pub(crate) fn set_cache(&self, index: usize, cache: u32) {
        self.caches[index].store(cache, Ordering::Relaxed);
    }

    /// Puts an item at the end of a run queue of the visitor's own: one after the other in turn.
    #[inline]
    pub(crate) fn push(&self, visitor: &mut Visitor, now: u64, item: T) {
        visitor.pushes += 1;
        visitor.latest = now;
        visitor.has_pushed = true;
        self.push_to(visitor.index, visitor.pushes, now, item);
    }

    /// Puts an item at the end of a run queue of processor `index`, from any thread; or of another,
    /// if that one goes.
    pub(crate) fn push_remote(&self, index: usize, now: u64, item: T) {
        let index = self.open_from(index);
        self.push_to(index, now as usize, now, item);
        full_fence();
        if !self.is_open(index) {
            self.drain_to_others(index);
        }
    }

    #[inline]
    fn push_to(&self, index: usize, mut turn: usize, now: u64, item: T) {
        loop {
            let queue = index * QUEUES + turn % QUEUES;
            if let Some(mut items) = self.queues[queue].try_lock() {
                if items.is_empty() {
                    self.clocks[queue].head.store(now, Ordering::Relaxed);
                }
                items.push_back((now, item));
                return;
            }
            turn += 1;
            spin_loop();
        }
    }

    /// Takes the next item by the rule above, except from run queues that are not worth it.
    /// `waiting_since` is the stamp of the oldest that the caller has to run besides, for the
    /// cut-off; [`u64::MAX`] if there is none.
    #[inline]
    pub(crate) fn pop(
        &self,
        visitor: &mut Visitor,
        now: impl Fn() -> u64 + Copy,
        waiting_since: u64,
    ) -> Option<(T, Origin)> {
        visitor.pops_since += 1;
        if self.is_look_due(visitor)
            && let Some(item) = self.help(visitor, now, waiting_since)
        {
            return Some((item, Origin::Helped));
        }
        visitor.pops += 1;
        // A push of the latest run has just read the clock.
        let is_fresh = std::mem::take(&mut visitor.has_pushed);
        let latest = Cell::new(visitor.latest);
        let now = || {
            if !is_fresh {
                latest.set(now());
            }
            latest.get()
        };
        let popped = (0..QUEUES).find_map(|step| {
            let queue = visitor.index * QUEUES + (visitor.pops + step) % QUEUES;
            Some((self.try_pop(queue, now)?, Origin::Own))
        });
        visitor.latest = latest.get();
        popped
    }

    /// True if a look has been prepared, or is to be.
    #[inline]
    fn is_look_due(&self, visitor: &Visitor) -> bool {
        visitor.target.is_some()
            || visitor.has_helped
            || visitor.pops_since >= POPS_PER_LOOK
            || visitor.latest.saturating_sub(visitor.chosen_at) >= self.look_ticks
    }

    /// Chooses a run queue to look at, or looks at the chosen one: so at most every other call
    /// helps.
    #[inline]
    pub(crate) fn help(
        &self,
        visitor: &mut Visitor,
        now: impl Fn() -> u64,
        waiting_since: u64,
    ) -> Option<T> {
        let Some(target) = visitor.target.take() else {
            visitor.target = self.choose(visitor);
            visitor.chosen_at = visitor.latest;
            visitor.pops_since = 0;
            return None;
        };
        let now = now();
        visitor.latest = now;
        let age = self.clocks[target].age(now);
        let is_older = age > self.cutoff(visitor.index, now, waiting_since);
        let helped = if is_older { self.try_pop(target, || now) } else { None };
        visitor.has_helped = helped.is_some();
        helped
    }

    /// Draws a run queue of another processor.
    #[inline]
    fn choose(&self, visitor: &mut Visitor) -> Option<usize> {
        if !self.has_others() {
            return None;
        }
        let random = visitor.draw();
        let queue = (random >> 32) as usize % self.queues_open.load(Ordering::Relaxed);
        let owner = queue / QUEUES;
        let cache_of = |index: usize| self.caches[index].load(Ordering::Relaxed);
        let is_worth = cache_of(owner) == cache_of(visitor.index) || random % 256 < FAR_ODDS;
        (owner != visitor.index && is_worth).then_some(queue)
    }

    /// True if there was ever a second processor, so that ages matter.
    #[inline]
    fn has_others(&self) -> bool {
        self.queues_open.load(Ordering::Relaxed) > QUEUES
    }

    /// Age from which on a run queue of another processor is helped.
    #[inline]
    fn cutoff(&self, index: usize, now: u64, waiting_since: u64) -> u32 {
        let own = index * QUEUES..(index + 1) * QUEUES;
        let queues = self.clocks[own].iter().map(|clock| clock.age(now));
        let worst = queues.max().unwrap_or(0).max(log2(waited(now, waiting_since)));
        worst + HELP_LOG2
    }

    fn try_pop(&self, queue: usize, now: impl Fn() -> u64) -> Option<T> {
        let clock = &self.clocks[queue];
        if clock.is_empty() {
            return None;
        }
        let mut items = self.queues[queue].try_lock()?;
        let (stamp, item) = items.pop_front()?;
        match items.front() {
            Some(&(next, _)) => {
                if self.has_others() {
                    let average = moving_average(log2(waited(now(), stamp)), clock.average());
                    clock.average.store(average, Ordering::Relaxed);
                }
                clock.head.store(next, Ordering::Relaxed);
            }
            None => clock.head.store(EMPTY, Ordering::Relaxed),
        }
        Some(item)
    }

    /// Takes the head of a run queue with its stamp, and waits for the spin bit if it must. The
    /// average stays: the caller does not serve the run queue.
    fn take(&self, queue: usize) -> Option<(u64, T)> {
        loop {
            if let Some(mut items) = self.queues[queue].try_lock() {
                let taken = items.pop_front()?;
                let head = items.front().map_or(EMPTY, |&(stamp, _)| stamp);
                self.clocks[queue].head.store(head, Ordering::Relaxed);
                return Some(taken);
            }
            spin_loop();
        }
    }

    /// Takes an item from any run queue, in order from a random one on. An item of another
    /// processor must have waited since `until` or before, so a fiber that is spawned and joined at
    /// once runs where its parent does.
    pub(crate) fn search(&self, visitor: &mut Visitor, now: u64, until: u64) -> Option<T> {
        let queues_open = self.queues_open.load(Ordering::Acquire);
        let start = (visitor.draw() >> 32) as usize % queues_open;
        let mut queues = (0..queues_open).map(|step| (start + step) % queues_open);
        queues.find_map(|queue| {
            let is_own = queue / QUEUES == visitor.index;
            let may = is_own || self.clocks[queue].head.load(Ordering::Relaxed) <= until;
            may.then(|| self.try_pop(queue, || now)).flatten()
        })
    }

    /// True if an item has waited since `until` or before.
    pub(crate) fn has_since(&self, until: u64) -> bool {
        let queues_open = self.queues_open.load(Ordering::Acquire);
        let mut clocks = self.clocks[..queues_open].iter();
        clocks.any(|clock| clock.head.load(Ordering::Relaxed) <= until)
    }

    /// True if no run queue has an item. After a fence of the caller's, which is about to sleep.
    pub(crate) fn is_empty(&self) -> bool {
        let queues_open = self.queues_open.load(Ordering::Acquire);
        self.clocks[..queues_open].iter().all(Clock::is_empty)
    }

    /// The stamp of the oldest item in the run queues of processor `index`; [`u64::MAX`] if they
    /// are empty.
    #[inline]
    pub(crate) fn oldest(&self, index: usize) -> u64 {
        let own = index * QUEUES..(index + 1) * QUEUES;
        let heads = self.clocks[own].iter().map(|clock| clock.head.load(Ordering::Relaxed));
        heads.min().unwrap_or(EMPTY)
    }
}

impl<T> ReadyQueue<T> {
    /// True if processor `index` has more than one item. Several in one run queue, with none in the
    /// other, count as one.
    #[inline]
    pub(crate) fn has_several(&self, index: usize) -> bool {
        let own = index * QUEUES..(index + 1) * QUEUES;
        // Several items in one queue are rare and soon spread: the owner pushes to the run queues
        // in turn, and other threads by the parity of the stamp.
        self.clocks[own].iter().all(|clock| !clock.is_empty())
    }
}

impl<T> fmt::Debug for ReadyQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyQueue").field("queues_open", &self.queues_open).finish_non_exhaustive()
    }
}

impl Visitor {
    fn new(index: usize) -> Visitor {
        let random = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Visitor { index, random, ..Visitor::default() }
    }

    /// A pseudo-random number (xorshift64*, Vigna 2016).
    #[inline]
    fn draw(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

impl Clock {
    fn new() -> Clock {
        Clock { head: AtomicU64::new(EMPTY), average: AtomicU32::new(0) }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == EMPTY
    }

    #[inline]
    fn average(&self) -> u32 {
        self.average.load(Ordering::Relaxed)
    }

    /// Waiting time of the head, averaged with those before it. An empty run queue has no age of
    /// its own.
    #[inline]
    fn age(&self, now: u64) -> u32 {
        let waited = waited(now, self.head.load(Ordering::Relaxed));
        moving_average(log2(waited), self.average())
    }
}

/// The time since a stamp; none since [`EMPTY`], or one that another CPU read a moment later.
#[inline]
fn waited(now: u64, since: u64) -> u64 {
    now.saturating_sub(since)
}

/// Three quarters new, one quarter old: 12 and 4 sixteenths.
#[inline]
fn moving_average(new: u32, old: u32) -> u32 {
    (12 * new + 4 * old) / 16
}

/// The logarithm in 256ths, straight between powers of two (off by 0.09 at most).
#[inline]
fn log2(ticks: u64) -> u32 {
    let ticks = ticks.max(1);
    let (whole, zeros) = (ticks.ilog2(), ticks.leading_zeros());
    // The eight bits after the leading one.
    let fraction = (ticks << zeros << 1) >> 56;
    whole * LOG2_ONE + fraction as u32
}

impl<T> RunQueue<T> {
    fn new() -> RunQueue<T> {
        RunQueue { locked: AtomicBool::new(false), items: UnsafeCell::new(VecDeque::new()) }
    }

    #[inline]
    fn try_lock(&self) -> Option<Locked<'_, T>> {
        let taken = self.locked.load(Ordering::Relaxed)
            || self
                .locked
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err();
        // Lazily: a guard, once made, unlocks when dropped.
        (!taken).then(|| Locked(self))
    }
}

/// Items of a run queue whose spin bit is held.
struct Locked<'a, T>(&'a RunQueue<T>);

impl<T> Deref for Locked<'_, T> {
    type Target = VecDeque<(u64, T)>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: the bit is held until `self` is dropped, and the borrow ends before.
        self.0.items.with(|items| unsafe { &*items })
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as in `deref`.
        self.0.items.with_mut(|items| unsafe { &mut *items })
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn drain(queue: &ReadyQueue<u32>, visitor: &mut Visitor, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(visitor, || now, EMPTY).map(|(item, _)| item)).collect()
    }

    #[test]
    fn one_processor_serves_in_order() {
        let queue = ReadyQueue::new(1, 0);
        let mut visitor = queue.open(0);
        (0..10).for_each(|n| queue.push(&mut visitor, 100 + u64::from(n), n));
        assert_eq!(queue.oldest(0), 100);
        assert_eq!(drain(&queue, &mut visitor, 200), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(queue.is_empty());
        assert_eq!(queue.oldest(0), u64::MAX);
    }

    #[test]
    fn several_means_one_in_each_queue() {
        let queue = ReadyQueue::new(2, 0);
        let (mut here, mut there) = (queue.open(0), queue.open(1));
        (0..4).for_each(|n| queue.push(&mut there, 100, n));
        let mut has_several_after = |push: &dyn Fn(&mut Visitor)| {
            push(&mut here);
            queue.has_several(0)
        };
        assert!(!has_several_after(&|_| ()), "items of another processor count");
        assert!(!has_several_after(&|here| queue.push(here, 100, 1)));
        assert!(has_several_after(&|here| queue.push(here, 100, 2)));
        assert!(!has_several_after(&|here| {
            queue.pop(here, || 100, EMPTY);
        }));
        drain(&queue, &mut here, 100);
        for stamp in [102, 104] {
            queue.push_remote(0, stamp, 3);
            assert!(!queue.has_several(0), "two items in one queue count as several");
        }
        queue.push_remote(0, 105, 4);
        assert!(queue.has_several(0));
    }

    #[test]
    fn helps_much_older_item_first() {
        let queue = ReadyQueue::new(2, 0);
        let (mut here, mut there) = (queue.open(0), queue.open(1));
        queue.push(&mut there, 1_000, 99);
        (0..100).for_each(|n| queue.push(&mut here, 1_000_000, n));
        let mut popped = std::iter::from_fn(|| queue.pop(&mut here, || 1_001_000, EMPTY));
        assert!(popped.any(|item| item == (99, Origin::Helped)));
        assert!(popped.next().is_some(), "helped before the own queues were empty");
    }

    #[test]
    fn leaves_item_of_same_age() {
        let queue = ReadyQueue::new(2, 0);
        let (mut here, mut there) = (queue.open(0), queue.open(1));
        queue.push(&mut there, 1_000, 99);
        (0..100).for_each(|n| queue.push(&mut here, 1_000, n));
        for _ in 0..50 {
            let (_, origin) = queue.pop(&mut here, || 2_000, EMPTY).unwrap();
            assert_eq!(origin, Origin::Own);
        }
    }

    #[test]
    fn cutoff_counts_pinned_fibers() {
        let queue = ReadyQueue::new(2, 0);
        let (mut here, mut there) = (queue.open(0), queue.open(1));
        queue.push(&mut there, 1_000, 99);
        let mut try_often = |since| (0..100).find_map(|_| queue.help(&mut here, || 2_000, since));
        assert_eq!(try_often(1_000), None);
        assert_eq!(try_often(EMPTY), Some(99));
    }

    #[test]
    fn at_most_every_other_pop_helps() {
        let queue = ReadyQueue::new(2, 0);
        let (mut here, mut there) = (queue.open(0), queue.open(1));
        (0..100).for_each(|n| queue.push(&mut there, 1, n));
        (0..100).for_each(|n| queue.push(&mut here, 1_000_000, 100 + n));
        let mut before = Origin::Own;
        for _ in 0..100 {
            let (_, origin) = queue.pop(&mut here, || 1_000_001, EMPTY).unwrap();
            assert!((before, origin) != (Origin::Helped, Origin::Helped));
            before = origin;
        }
    }

    #[test]
    fn short_runs_look_seldom() {
        const LOOK_TICKS: u64 = 1_000;
        let choices_with = |run_ticks: u64| {
            let queue = ReadyQueue::new(2, LOOK_TICKS);
            let (mut here, _there) = (queue.open(0), queue.open(1));
            let mut choices = 0;
            for now in (1..=1_024).map(|nth| nth * run_ticks) {
                (0..4).for_each(|n| queue.push(&mut here, now, n));
                for _ in 0..4 {
                    queue.pop(&mut here, || now, EMPTY).unwrap();
                    choices += u32::from(here.pops_since == 0);
                }
            }
            choices
        };
        let by_count = choices_with(1);
        assert!((250..=258).contains(&by_count), "{by_count} choices in 4,096 pops");
        let by_time = choices_with(LOOK_TICKS);
        assert!((1_000..=1_024).contains(&by_time), "{by_time} choices, and as many times");
    }

    #[test]
    fn a_far_cache_is_looked_at_seldom() {
        let queue = ReadyQueue::new(2, 0);
        let (mut here, mut there) = (queue.open(0), queue.open(1));
        queue.set_cache(1, 1);
        let mut helped = 0;
        for _ in 0..10_000 {
            queue.push(&mut there, 1, 0);
            helped += usize::from(queue.help(&mut here, || 1_000_000, EMPTY).is_some());
        }
        // 10,000 choices, half of them of a remote run queue, 3 in 256 of those: some 60.
        assert!((10..200).contains(&helped), "helped {helped} times of 10,000");
    }

    #[test]
    fn search_finds_the_last_item() {
        let queue = ReadyQueue::new(8, 0);
        let mut visitors: Vec<_> = (0..8).map(|index| queue.open(index)).collect();
        for index in 0..8 {
            queue.push_remote(index, 5, 42);
            assert!(!queue.is_empty());
            assert_eq!(queue.search(&mut visitors[3], 6, 6), Some(42));
            assert_eq!(queue.search(&mut visitors[3], 6, 6), None);
        }
    }

    #[test]
    fn shut_queues_keep_ages() {
        let queue = ReadyQueue::new(4, 0);
        let mut visitors: Vec<_> = (0..3).map(|index| queue.open(index)).collect();
        (0..10u32).for_each(|n| queue.push(&mut visitors[1], 100 + u64::from(n), n));
        queue.close(1);
        assert_eq!(queue.drain_to_others(1), 10);
        assert_eq!(queue.oldest(1), EMPTY);
        assert_eq!(queue.oldest(0).min(queue.oldest(2)), 100);
        queue.push_remote(1, 200, 10);
        queue.push_remote(3, 200, 11);
        assert_eq!((queue.oldest(1), queue.oldest(3)), (EMPTY, EMPTY));
        let mut found: Vec<_> =
            std::iter::from_fn(|| queue.search(&mut visitors[0], 300, 300)).collect();
        found.sort_unstable();
        assert_eq!(found, (0..12).collect::<Vec<_>>());
        queue.open(1);
        queue.push_remote(1, 300, 12);
        assert_eq!(queue.oldest(1), 300);
    }

    #[test]
    fn the_logarithm_is_nearly_right() {
        for ticks in [1, 2, 3, 7, 1000, 1 << 40, u64::MAX] {
            let exact = (ticks as f64).log2() * f64::from(LOG2_ONE);
            assert!((f64::from(log2(ticks)) - exact).abs() <= 24.0, "log2({ticks})");
        }
        assert_eq!(log2(0), 0);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Owner and helper together take every item once.
    #[test]
    fn owner_and_searcher_share_items() {
        check(|| {
            let queue = Arc::new(ReadyQueue::new(2, 0));
            let (mut here, mut there) = (queue.open(0), queue.open(1));
            queue.push(&mut here, 1, 1u32);
            let other = Arc::clone(&queue);
            let helper = thread::spawn(move || other.search(&mut there, 9, 9).unwrap_or(0));
            queue.push(&mut here, 2, 2);
            let mut sum = 0;
            for _ in 0..2 {
                sum += queue.pop(&mut here, || 9, EMPTY).map_or(0, |(item, _)| item);
            }
            sum += helper.join().unwrap();
            // A try-lock that failed may have left something, which is then found.
            while let Some(item) = queue.search(&mut here, 9, 9) {
                sum += item;
            }
            assert_eq!(sum, 3);
            assert!(queue.is_empty());
        });
    }

    /// Two threads push into one processor's run queues: nothing is lost, and the queue says that
    /// it is not empty.
    #[test]
    fn remote_pushes_are_all_found() {
        check(|| {
            let queue = Arc::new(ReadyQueue::new(1, 0));
            let mut here = queue.open(0);
            let other = Arc::clone(&queue);
            let pusher = thread::spawn(move || other.push_remote(0, 1, 1u32));
            queue.push_remote(0, 3, 2);
            assert!(!queue.is_empty());
            pusher.join().unwrap();
            let first = queue.search(&mut here, 9, 9).unwrap();
            assert_eq!(first + queue.search(&mut here, 9, 9).unwrap(), 3);
        });
    }

    /// A processor retires while another pushes to it: nothing stays in its run queues, and nothing
    /// is lost.
    #[test]
    fn push_races_with_shut() {
        check(|| {
            let queue = Arc::new(ReadyQueue::new(2, 0));
            let (mut here, mut gone) = (queue.open(0), queue.open(1));
            queue.push(&mut gone, 1, 1u32);
            let (pusher, owner) = (Arc::clone(&queue), Arc::clone(&queue));
            let threads = [
                thread::spawn(move || pusher.push_remote(1, 2, 2)),
                thread::spawn(move || {
                    owner.close(1);
                    owner.drain_to_others(1);
                }),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(queue.oldest(1), EMPTY, "left in a queue that is closed");
            let mut sum = 0;
            while let Some((item, _)) = queue.pop(&mut here, || 9, EMPTY) {
                sum += item;
            }
            assert_eq!(sum, 3);
        });
    }

    /// One processor comes and another goes, while a third pushes: one of them is found.
    #[test]
    fn push_finds_an_open_processor() {
        check(|| {
            let queue = Arc::new(ReadyQueue::new(2, 0));
            let mut here = queue.open(0);
            let (pusher, owner) = (Arc::clone(&queue), Arc::clone(&queue));
            let threads = [
                thread::spawn(move || pusher.push_remote(0, 2, 2u32)),
                thread::spawn(move || {
                    owner.open(1);
                    owner.close(0);
                    owner.drain_to_others(0);
                }),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(queue.oldest(0), EMPTY);
            assert_eq!(queue.search(&mut here, 9, 9), Some(2));
        });
    }
}
