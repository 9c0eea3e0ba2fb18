//! [`Semaphore`], and the counting core that [`RwLock`](super::RwLock) is made of as well.

use std::time::{Duration, Instant};

use super::const_unless_loom;
use super::short::ShortLock;
use super::wait::{Node, Queue, Wait, Wakes};
use crate::base::atomic::{AtomicUsize, Ordering};
use crate::base::clock::after;
use crate::sched::waiting;
use crate::switch::reason::{WaitReason, encode};

/// A number of permits that are taken and given back.
///
/// # Fairness
/// Strictly first come, first served: released permits go to the first waiter, and a caller that
/// comes while others wait is queued behind them, even if there are permits enough for a smaller
/// request. Only a caller that [cannot suspend](super#code-that-cannot-suspend) goes first,
/// because all fibers of its processor wait with it.
///
/// ```
/// use weftwork_fiber::sync::Semaphore;
///
/// let connections = Semaphore::new(2);
/// let first = connections.acquire();
/// let second = connections.acquire();
/// assert!(connections.try_acquire().is_none());
/// drop(first);
/// assert!(connections.try_acquire().is_some());
/// # drop(second);
/// ```
#[derive(Debug)]
pub struct Semaphore {
    raw: RawSemaphore,
}

/// Permits; dropping it gives them back.
#[must_use = "dropped at once, the permits are given back at once"]
#[derive(Debug)]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Semaphore {
    /// The most permits a semaphore can have.
    pub const PERMITS_MAX: usize = PERMITS_MAX;

    const_unless_loom! {
        /// A semaphore with this many permits.
        ///
        /// # Panics
        /// If there are more than [`PERMITS_MAX`](Semaphore::PERMITS_MAX).
        pub fn new(permits: usize) -> Semaphore {
            Semaphore { raw: RawSemaphore::new(permits) }
        }
    }

    /// Waits for a permit.
    pub fn acquire(&self) -> Permit<'_> {
        self.acquire_many(1)
    }

    /// Waits for `count` permits at once.
    ///
    /// # Panics
    /// If `count` is more than [`PERMITS_MAX`](Semaphore::PERMITS_MAX): they would never come.
    pub fn acquire_many(&self, count: usize) -> Permit<'_> {
        self.wait(count, None);
        self.permit(count)
    }

    /// Waits for a permit, but not longer than `timeout`.
    pub fn acquire_timeout(&self, timeout: Duration) -> Option<Permit<'_>> {
        self.wait(1, Some(timeout)).then(|| self.permit(1))
    }

    /// A permit, if there is one and nothing waits.
    pub fn try_acquire(&self) -> Option<Permit<'_>> {
        self.try_acquire_many(1)
    }

    /// `count` permits, if there are so many and nothing waits.
    pub fn try_acquire_many(&self, count: usize) -> Option<Permit<'_>> {
        self.raw.try_acquire(count).then(|| self.permit(count))
    }

    /// Adds permits, which were acquired and [forgotten](Permit::forget) or are new.
    ///
    /// # Panics
    /// If there would be more than [`PERMITS_MAX`](Semaphore::PERMITS_MAX).
    pub fn release(&self, count: usize) {
        self.raw.release(count);
    }

    /// Number of permits just now.
    pub fn available(&self) -> usize {
        self.raw.available()
    }

    fn wait(&self, count: usize, timeout: Option<Duration>) -> bool {
        let address = std::ptr::from_ref(self).addr();
        self.raw.acquire(count, timeout.map(after), WaitReason::Semaphore { address })
    }

    fn permit(&self, count: usize) -> Permit<'_> {
        Permit { semaphore: self, count }
    }
}

impl Permit<'_> {
    /// Keeps the permits out of the semaphore, until as many are [released](Semaphore::release).
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.release(self.count);
    }
}

/// Flag: something waits, or a waiter comes for a grant that was partly taken back. While this is
/// set, the state changes under the lock of the waitlist only.
const WAITERS: usize = 1;
const ONE: usize = 2;
pub(super) const PERMITS_MAX: usize = usize::MAX >> 2;

const TOO_MANY: &str = "more permits than PERMITS_MAX";

/// The state with `count` permits more; `None` if there would be too many.
fn more(state: usize, count: usize) -> Option<usize> {
    let permits = (state / ONE).checked_add(count)?;
    (permits <= PERMITS_MAX).then(|| (permits * ONE) | (state & WAITERS))
}

/// Permits and a queue of waiters.
///
/// Permits are granted to a waiter before it runs, and it may be a fiber of a processor whose
/// thread is about to block in here. So a caller that blocks its processor may take back permits
/// that were granted to a waiter that has not run yet. The next released permits replace them. If
/// the waiter runs before that, it gives up the rest of its grant and is queued again, at the
/// front. There is always
///
/// ```text
///   all permits  =  in `state`  +  had by code that runs  +  (granted - taken_back)
///   taken_back > 0  implies  none in `state`, and WAITERS
/// ```
#[derive(Debug)]
pub(super) struct RawSemaphore {
    /// Permits times [`ONE`], and [`WAITERS`].
    state: AtomicUsize,
    waitlist: ShortLock<Waitlist>,
}

#[derive(Debug)]
struct Waitlist {
    queue: Queue,
    /// Permits of waiters that have not come for them yet.
    granted: usize,
    /// Permits of these that were taken by callers that block their processor.
    taken_back: usize,
}

/// Code for a waiter.
const IS_GRANTED: usize = 0;
/// Waiter has the permits: it blocks its processor, so its thread will run.
const IS_OWNED: usize = 1;

/// A waiter's tag: how many permits, and whether it blocks its processor.
const BLOCKS_PROCESSOR: usize = 1;

fn tag(count: usize, blocks_processor: bool) -> usize {
    count * 2 + usize::from(blocks_processor)
}

fn count(tag: usize) -> usize {
    tag / 2
}

fn blocks_processor(tag: usize) -> bool {
    tag & BLOCKS_PROCESSOR != 0
}

impl RawSemaphore {
    const_unless_loom! {
        pub(super) fn new(permits: usize) -> RawSemaphore {
            assert!(permits <= PERMITS_MAX, "{}", TOO_MANY);
            RawSemaphore {
                state: AtomicUsize::new(permits * ONE),
                waitlist: ShortLock::new(Waitlist {
                    queue: Queue::new(),
                    granted: 0,
                    taken_back: 0,
                }),
            }
        }
    }

    pub(super) fn available(&self) -> usize {
        self.state.load(Ordering::Relaxed) / ONE
    }

    #[inline]
    pub(super) fn try_acquire(&self, count: usize) -> bool {
        let set = Ordering::Acquire;
        let fetch = Ordering::Relaxed;
        let may = |seen| seen & WAITERS == 0 && seen / ONE >= count;
        let next = |seen| may(seen).then(|| seen - count * ONE);
        self.state.fetch_update(set, fetch, next).is_ok()
    }

    /// `false` when the deadline has passed.
    #[inline]
    pub(super) fn acquire(&self, count: usize, deadline: Option<Instant>, why: WaitReason) -> bool {
        assert!(count <= PERMITS_MAX, "{}", TOO_MANY);
        self.try_acquire(count) || self.acquire_slow(count, deadline, encode(why))
    }

    #[cold]
    fn acquire_slow(&self, count: usize, deadline: Option<Instant>, reason: u64) -> bool {
        let _noted = waiting::on_encoded(reason);
        let mut was_granted = false;
        loop {
            // It may grant its own request below, without having given its processor away.
            let wait = if was_granted { Wait::new() } else { Wait::until(deadline) };
            let tag = tag(count, wait.blocks_processor());
            let node = Node::new(&wait, tag, std::ptr::null_mut());
            if !self.enqueue(&node, was_granted) {
                return true;
            }
            match wait.block(deadline) {
                Some(IS_OWNED) => return true,
                Some(_) if self.take_grant(count) => return true,
                Some(_) => was_granted = true,
                None => {
                    self.leave(&node);
                    return false;
                }
            }
        }
    }

    /// Takes granted permits; `false` if some were taken back: the grant is then settled as the
    /// waiter is queued again.
    fn take_grant(&self, count: usize) -> bool {
        self.waitlist.with(|waitlist| {
            let is_whole = waitlist.taken_back == 0 || count == 0;
            if is_whole {
                waitlist.granted -= count;
            }
            is_whole
        })
    }

    /// Queues the caller, at the front if it `was_granted` permits that were taken back or blocks
    /// its processor; or takes the permits (`false`), if they are there after all.
    fn enqueue(&self, node: &Node, was_granted: bool) -> bool {
        if was_granted || blocks_processor(node.tag()) {
            self.enqueue_first(node, was_granted);
            return true;
        }
        self.waitlist.with(|waitlist| {
            let count = count(node.tag());
            let set = Ordering::Acquire;
            let fetch = Ordering::Relaxed;
            let may = |seen| seen & WAITERS == 0 && seen / ONE >= count;
            let next = |seen| {
                if may(seen) { seen - count * ONE } else { seen | WAITERS }
            };
            // Once set, it stays so as long as the lock is held.
            let is_first = self.state.load(fetch) & WAITERS == 0;
            let update = || self.state.fetch_update(set, fetch, |seen| Some(next(seen)));
            if is_first && update().is_ok_and(may) {
                return false;
            }
            // SAFETY: the node is in the frame of `acquire_slow`, which continues when the node is
            // claimed, and so out of the queue, or after `leave`.
            unsafe { waitlist.queue.push_back(node) };
            true
        })
    }

    #[cold]
    fn enqueue_first(&self, node: &Node, was_granted: bool) {
        let mut wakes = Wakes::default();
        self.waitlist.with(|waitlist| {
            // From here on the state changes under this lock only.
            self.state.fetch_or(WAITERS, Ordering::Acquire);
            if was_granted {
                self.settle(waitlist, count(node.tag()));
            }
            // SAFETY: as in `enqueue`.
            unsafe { waitlist.queue.insert_behind(node, blocks_processor) };
            // The new waiter may be served at once.
            self.serve(waitlist, &mut wakes);
        });
        wakes.wake();
    }

    /// Gives a grant up: it replaces permits that were taken back, and the rest is free.
    fn settle(&self, waitlist: &mut Waitlist, granted: usize) {
        let replaced = waitlist.taken_back.min(granted);
        waitlist.taken_back -= replaced;
        waitlist.granted -= granted;
        self.add(granted - replaced).expect(TOO_MANY);
    }

    /// Adds permits, with [`WAITERS`] set and the lock of the waitlist held: nothing else
    /// changes the state.
    fn add(&self, count: usize) -> Option<()> {
        let sum = more(self.state.load(Ordering::Acquire), count)?;
        self.state.store(sum, Ordering::Release);
        Some(())
    }

    /// Leaves the queue after a time-out. The others may have waited behind this one.
    fn leave(&self, node: &Node) {
        let mut wakes = Wakes::default();
        self.waitlist.with(|waitlist| {
            waitlist.queue.remove(node);
            self.serve(waitlist, &mut wakes);
        });
        wakes.wake();
    }

    #[inline]
    pub(super) fn release(&self, count: usize) {
        let set = Ordering::Release;
        let fetch = Ordering::Relaxed;
        let next = |seen| (seen & WAITERS == 0).then(|| more(seen, count).expect(TOO_MANY));
        if self.state.fetch_update(set, fetch, next).is_err() {
            self.release_slow(count);
        }
    }

    #[cold]
    fn release_slow(&self, count: usize) {
        let mut wakes = Wakes::default();
        let is_added = self.waitlist.with(|waitlist| {
            let state = self.state.load(Ordering::Relaxed);
            let may_grant_first = state == WAITERS && count <= PERMITS_MAX;
            if may_grant_first && self.grant_to_first(waitlist, count, &mut wakes) {
                return true;
            }
            if state & WAITERS != 0 {
                let added = self.add(count);
                return added.map(|()| self.serve(waitlist, &mut wakes)).is_some();
            }
            // The last waiter has left the queue meanwhile.
            let set = Ordering::Release;
            let fetch = Ordering::Relaxed;
            let next = |seen| more(seen, count);
            self.state.fetch_update(set, fetch, next).is_ok()
        });
        assert!(is_added, "{}", TOO_MANY);
        wakes.wake();
    }

    /// Grants released permits to the first waiter, if it needs exactly so many and no others are
    /// free: as [`serve`](RawSemaphore::serve) would. With the queue's lock held.
    fn grant_to_first(&self, waitlist: &mut Waitlist, count: usize, wakes: &mut Wakes) -> bool {
        if waitlist.taken_back > 0 {
            return false;
        }
        let Some(first) = waitlist.queue.claim_front_if(tag(count, false)) else {
            return false;
        };
        waitlist.granted += count;
        wakes.push(first.grant(IS_GRANTED));
        match waitlist.queue.front_tag() {
            None => self.state.store(0, Ordering::Release),
            // The next waiter needs no permit, so it is served as well.
            Some(next) if self::count(next) == 0 => self.serve(waitlist, wakes),
            Some(_) => {}
        }
        true
    }

    /// Replaces permits that were taken back, and grants the rest from the front on, as far as they
    /// last. With the queue's lock held.
    fn serve(&self, waitlist: &mut Waitlist, wakes: &mut Wakes) {
        let state = self.state.load(Ordering::Acquire);
        if state & WAITERS == 0 {
            return;
        }
        let replaced = waitlist.taken_back.min(state / ONE);
        waitlist.taken_back -= replaced;
        let mut free = state / ONE - replaced;
        while let Some(tag) = waitlist.queue.front_tag() {
            let revocable =
                if blocks_processor(tag) { waitlist.granted - waitlist.taken_back } else { 0 };
            if free + revocable < count(tag) {
                break;
            }
            // The first waiter may give up just now; the next one may need more.
            let Some(first) = waitlist.queue.claim_front_if(tag) else {
                continue;
            };
            let from_free = count(tag).min(free);
            free -= from_free;
            if blocks_processor(tag) {
                waitlist.taken_back += count(tag) - from_free;
                wakes.push(first.grant(IS_OWNED));
            } else {
                waitlist.granted += count(tag);
                wakes.push(first.grant(IS_GRANTED));
            }
        }
        let is_over = waitlist.queue.is_empty() && waitlist.taken_back == 0;
        let waiters = if is_over { 0 } else { WAITERS };
        // Last: without WAITERS, others change the state from here on.
        self.state.store((free * ONE) | waiters, Ordering::Release);
    }
}
