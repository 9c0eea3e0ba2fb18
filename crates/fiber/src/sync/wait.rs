//! The wait queue under every primitive.
//!
//! A fiber or thread that has to wait makes a [`Wait`] and a [`Node`] in its own frame and links
//! the node into the primitive's queue, under the primitive's
//! [`ShortLock`](super::short::ShortLock). The fiber or thread that ends the wait *claims* it
//! there:
//!
//! ```text
//!            claim (under the lock)         grant(code)
//!  WAITING ───────────────────────▶ CLAIMED ───────────▶ DONE + code     the waiter continues with the code
//!     │
//!     └───────────────────────────▶ GIVEN UP                             the deadline passed first
//!            give_up (the waiter)
//! ```
//!
//! One compare-and-exchange decides between a hand-over and a time-out, so there is never a doubt
//! which owns what was handed over. A `select!` links several nodes, each in another queue, to one
//! `Wait`: the first claim wins.
//!
//! The claimer has the waiter's frame until it stores DONE, and does not touch it after. A node
//! that is in a queue is taken out, under the lock, before its frame ends.
//!
//! The waiter may be a fiber or a plain thread. It is a loom thread in the models, and nothing else
//! changes there.

use std::ptr;
use std::time::Instant;

use crate::base::atomic::{AtomicUsize, Ordering, UnsafeCell};
use parker::{GrantedWaiter, PendingWaiter};

const WAITING: usize = 0;
const CLAIMED: usize = 1;
const GIVEN_UP: usize = 2;
const DONE: usize = 3;

/// End of a wait that is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit: the wait ends with the grant only.
    Never,
    /// Ends when the fiber that waits is cancelled, or past the deadline of `timeout`.
    WithFiber,
    /// At this time, or before, as `WithFiber`.
    At(Instant),
}

impl From<Option<Instant>> for Limit {
    fn from(deadline: Option<Instant>) -> Limit {
        deadline.map_or(Limit::Never, Limit::At)
    }
}

/// Caller that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// A fiber that suspends: nothing else.
    Fiber,
    /// A pinned fiber that waits for the grant alone, in one queue: see [`Wait::until`].
    Pinned,
    /// A plain thread: that thread.
    Thread,
    /// Code of a processor that cannot suspend, in a fiber that unwinds or on the processor's
    /// own stack: all fibers of that processor.
    BlocksProcessor,
}

/// One wait, in the frame of the one that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    state: AtomicUsize,
    /// Taken by the claimer.
    waiter: UnsafeCell<Option<PendingWaiter>>,
    caller: Caller,
}

impl Wait {
    /// A wait of the calling fiber or thread.
    pub(crate) fn new() -> Wait {
        Wait::of(parker::current(false))
    }

    /// A wait in one queue, until the limit; the grant comes from another.
    ///
    /// Without a limit a pinned fiber needs neither a token nor a compare-and-exchange: nothing
    /// else ends its wait, and whatever makes it ready goes through its home, which is busy until
    /// the fiber has left it. So it suspends in any case, and is made ready once.
    pub(crate) fn until(limit: impl Into<Limit>) -> Wait {
        Wait::of(parker::current(limit.into() == Limit::Never))
    }

    fn of((waiter, caller): (PendingWaiter, Caller)) -> Wait {
        Wait { state: AtomicUsize::new(WAITING), waiter: UnsafeCell::new(Some(waiter)), caller }
    }

    /// True if the wait blocks a processor, and with it all other fibers of that processor.
    pub(crate) fn blocks_processor(&self) -> bool {
        self.caller == Caller::BlocksProcessor
    }

    /// Waits for the grant and returns its code; `None` if the wait ended first.
    pub(crate) fn block(&self, limit: impl Into<Limit>) -> Option<usize> {
        let mut limit = limit.into();
        let mut has_suspended = false;
        loop {
            let code = self.state.load(Ordering::Acquire).checked_sub(DONE);
            if code.is_some() && (has_suspended || self.caller != Caller::Pinned) {
                return code;
            }
            has_suspended = true;
            if parker::park(self.caller, limit) {
                if self.give_up() {
                    return None;
                }
                // Claimed, so the grant is a few instructions away: wait for it whatever the time.
                limit = Limit::Never;
            }
        }
    }

    /// Ends the wait from the waiter's side; `false` if it has been claimed.
    pub(crate) fn give_up(&self) -> bool {
        self.state.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn claim(&self) -> bool {
        if self.caller == Caller::Pinned {
            // It is in this queue alone, whose lock is held.
            self.state.store(CLAIMED, Ordering::Relaxed);
            return true;
        }
        self.state.compare_exchange(WAITING, CLAIMED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A wait's place in one queue.
#[derive(Debug)]
pub(crate) struct Node {
    wait: *const Wait,
    /// Detail for the primitive: number of permits, index of the arm.
    tag: usize,
    /// Address that a message is read from or written to.
    slot: *mut (),
    /// Guarded by the lock of the queue.
    links: UnsafeCell<Links>,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    next: *const Node,
    previous: *const Node,
    linked: bool,
}

impl Node {
    pub(crate) fn new(wait: &Wait, tag: usize, slot: *mut ()) -> Node {
        let links =
            UnsafeCell::new(Links { next: ptr::null(), previous: ptr::null(), linked: false });
        Node { wait, tag, slot, links }
    }

    pub(crate) fn tag(&self) -> usize {
        self.tag
    }

    fn links(&self) -> Links {
        // SAFETY: called with the queue's lock held.
        self.links.with(|links| unsafe { *links })
    }

    fn relink(&self, change: impl FnOnce(&mut Links)) {
        // SAFETY: called with the queue's lock held.
        self.links.with_mut(|links| change(unsafe { &mut *links }));
    }
}

/// Nodes in the order in which they are served. Guarded by the lock that it lies in.
#[derive(Debug)]
pub(crate) struct Queue {
    head: *const Node,
    tail: *const Node,
}

// SAFETY: nodes are reached only under the lock that guards the queue.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) const fn new() -> Queue {
        Queue { head: ptr::null(), tail: ptr::null() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// # Safety
    /// The node stays where it is until it is out of the queue again.
    pub(crate) unsafe fn push_back(&mut self, node: &Node) {
        let previous = std::mem::replace(&mut self.tail, node);
        node.relink(|links| {
            *links = Links { next: ptr::null(), previous, linked: true };
        });
        // SAFETY: nodes in the queue are alive (see above).
        match unsafe { previous.as_ref() } {
            Some(previous) => previous.relink(|links| links.next = node),
            None => self.head = node,
        }
    }

    /// Inserts a node behind those at the front that `precedes` says go before it.
    ///
    /// # Safety
    /// Like [`push_back`](Queue::push_back).
    pub(crate) unsafe fn insert_behind(&mut self, node: &Node, precedes: impl Fn(usize) -> bool) {
        let mut previous: *const Node = ptr::null();
        let mut next = self.head;
        // SAFETY: nodes in the queue are alive (see push_back).
        while let Some(other) = unsafe { next.as_ref() }.filter(|other| precedes(other.tag)) {
            previous = other;
            next = other.links().next;
        }
        node.relink(|links| {
            *links = Links { next, previous, linked: true };
        });
        // SAFETY: as above.
        match unsafe { previous.as_ref() } {
            Some(previous) => previous.relink(|links| links.next = node),
            None => self.head = node,
        }
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            Some(next) => next.relink(|links| links.previous = node),
            None => self.tail = node,
        }
    }

    /// Takes a node out, if it is still in.
    pub(crate) fn remove(&mut self, node: &Node) {
        let Links { next, previous, linked } = node.links();
        if !linked {
            return;
        }
        node.relink(|links| links.linked = false);
        // SAFETY: nodes in the queue are alive (see push_back).
        match unsafe { previous.as_ref() } {
            Some(previous) => previous.relink(|links| links.next = next),
            None => self.head = next,
        }
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            Some(next) => next.relink(|links| links.previous = previous),
            None => self.tail = previous,
        }
    }

    /// The tag of the first waiter that has not given up.
    pub(crate) fn front_tag(&mut self) -> Option<usize> {
        loop {
            // SAFETY: nodes in the queue are alive (see push_back).
            let node = unsafe { self.head.as_ref() }?;
            // SAFETY: a node's wait lives as long as the node.
            if unsafe { &*node.wait }.state.load(Ordering::Acquire) == WAITING {
                return Some(node.tag);
            }
            self.remove(node);
        }
    }

    /// Claims the very first waiter, which has this tag, unless it has given up meanwhile.
    pub(crate) fn claim_front_if(&mut self, tag: usize) -> Option<Claimed> {
        // SAFETY: nodes in the queue are alive (see push_back).
        let node = unsafe { self.head.as_ref() }.filter(|node| node.tag == tag)?;
        self.remove(node);
        // SAFETY: a node's wait lives as long as the node.
        unsafe { &*node.wait }.claim().then_some(Claimed { node })
    }

    /// Takes out and claims the first waiter that has neither given up nor been claimed through
    /// another queue.
    pub(crate) fn claim_front(&mut self) -> Option<Claimed> {
        loop {
            // SAFETY: nodes in the queue are alive (see push_back).
            let node = unsafe { self.head.as_ref() }?;
            self.remove(node);
            // SAFETY: a node's wait lives as long as the node.
            if unsafe { &*node.wait }.claim() {
                return Some(Claimed { node });
            }
        }
    }

    /// True if a wait other than `wait` could be claimed here.
    pub(crate) fn has_other(&self, wait: &Wait) -> bool {
        let mut next = self.head;
        // SAFETY: nodes in the queue are alive (see push_back), and so are their waits.
        while let Some(node) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            let waits = || unsafe { &*node.wait }.state.load(Ordering::Acquire) == WAITING;
            if !ptr::eq(node.wait, wait) && waits() {
                return true;
            }
            next = node.links().next;
        }
        false
    }

    /// Claims all and grants them `code`.
    pub(crate) fn grant_all(&mut self, wakes: &mut Wakes, code: impl Fn(usize) -> usize) {
        while let Some(claimed) = self.claim_front() {
            let code = code(claimed.tag());
            wakes.push(claimed.grant(code));
        }
    }
}

/// A waiter that cannot continue before [`grant`](Claimed::grant), which must follow.
#[must_use]
#[derive(Debug)]
pub(crate) struct Claimed {
    node: *const Node,
}

impl Claimed {
    fn node(&self) -> &Node {
        // SAFETY: the waiter's frame stays until the grant.
        unsafe { &*self.node }
    }

    pub(crate) fn tag(&self) -> usize {
        self.node().tag
    }

    pub(crate) fn slot(&self) -> *mut () {
        self.node().slot
    }

    /// Grants the wait. The wake-up that it returns is to be made outside the lock.
    pub(crate) fn grant(self, code: usize) -> Wake {
        // SAFETY: as in `node`.
        let wait = unsafe { &*self.node().wait };
        // SAFETY: the claimer alone touches it.
        let waiter = wait.waiter.with_mut(|waiter| unsafe { (*waiter).take() });
        // Taken first: after the store, a waiter on another thread may continue and be gone.
        let granted = waiter.expect("a wait is granted once").into_granted(wait.caller);
        wait.state.store(DONE + code, Ordering::Release);
        Wake(granted)
    }
}

/// A wake-up to be made when the lock is free again, before the caller suspends.
#[must_use]
#[derive(Debug)]
pub(crate) struct Wake(GrantedWaiter);

impl Wake {
    #[inline(always)]
    pub(crate) fn wake(self) {
        self.0.unpark();
    }
}

/// Wake-ups to be made when the lock is free again; mostly one, which costs no memory. They lie in
/// the frame that makes them: copies would take longer than the rest.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    first: Option<Wake>,
    rest: Vec<Wake>,
}

impl Wakes {
    pub(crate) fn push(&mut self, wake: Wake) {
        match self.first {
            None => self.first = Some(wake),
            Some(_) => self.rest.push(wake),
        }
    }

    #[inline]
    pub(crate) fn wake(self) {
        if let Some(first) = self.first {
            first.wake();
        }
        if !self.rest.is_empty() {
            wake_all(self.rest);
        }
    }
}

#[cold]
fn wake_all(wakes: Vec<Wake>) {
    wakes.into_iter().for_each(Wake::wake);
}

/// Parking of fibers and threads.
#[cfg(not(loom))]
mod parker {
    use std::thread::Thread;
    use std::time::{Duration, Instant};

    use super::{Caller, Limit};
    use crate::base::thread_wait;
    use crate::io::{cancel, op};
    use crate::sched::fiber::{FiberRef, Suspend};
    use crate::sched::unparker::Unparker;
    use crate::sched::{block, processor};

    /// Waiter, in its own frame. A fiber stays as long as that frame: no count is taken.
    #[derive(Debug)]
    pub(super) enum PendingWaiter {
        Fiber(FiberRef),
        Thread(Thread),
    }

    impl PendingWaiter {
        pub(super) fn into_granted(self, caller: Caller) -> GrantedWaiter {
            match self {
                PendingWaiter::Fiber(fiber) if caller == Caller::Pinned => {
                    GrantedWaiter::Pinned(fiber)
                }
                PendingWaiter::Fiber(fiber) if fiber.waits_for_caller() => {
                    GrantedWaiter::SameThread(fiber)
                }
                PendingWaiter::Fiber(fiber) => {
                    GrantedWaiter::Owned(Unparker::Fiber(fiber.handle()))
                }
                PendingWaiter::Thread(thread) => GrantedWaiter::Owned(Unparker::Thread(thread)),
            }
        }
    }

    /// Handle to a granted waiter, which may have continued.
    #[derive(Debug)]
    pub(super) enum GrantedWaiter {
        /// Does not continue before this handle makes it ready.
        Pinned(FiberRef),
        /// Pinned to the calling thread: it does not continue before the caller suspends.
        SameThread(FiberRef),
        Owned(Unparker),
    }

    impl GrantedWaiter {
        #[inline(always)]
        pub(super) fn unpark(&self) {
            match self {
                GrantedWaiter::Pinned(fiber) => fiber.make_ready_at_home(),
                GrantedWaiter::SameThread(fiber) => fiber.borrow_handle().unpark(),
                GrantedWaiter::Owned(unparker) => unparker.unpark(),
            }
        }
    }

    /// The calling fiber or thread. With `for_grant`, nothing else ends the wait.
    pub(super) fn current(for_grant: bool) -> (PendingWaiter, Caller) {
        match processor::with_current(|_, fiber| fiber) {
            Some(fiber) if for_grant && !fiber.control().is_migratable() => {
                (PendingWaiter::Fiber(fiber), Caller::Pinned)
            }
            Some(fiber) => (PendingWaiter::Fiber(fiber), Caller::Fiber),
            None if processor::is_here() => (this_thread(), Caller::BlocksProcessor),
            None => (this_thread(), Caller::Thread),
        }
    }

    #[cold]
    fn this_thread() -> PendingWaiter {
        PendingWaiter::Thread(std::thread::current())
    }

    /// Waits for the wake-up, or less; returns true if the wait has ended.
    pub(super) fn park(caller: Caller, limit: Limit) -> bool {
        match caller {
            Caller::Fiber => {}
            Caller::Pinned => {
                debug_assert_eq!(limit, Limit::Never, "only the grant ends this wait");
                block::suspend(Suspend::Wait);
                return false;
            }
            Caller::Thread | Caller::BlocksProcessor => return park_thread(limit),
        }
        let left = match limit {
            Limit::Never => {
                block::park();
                return false;
            }
            Limit::WithFiber => None,
            Limit::At(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
        };
        if left.is_some_and(|left| left.is_zero()) {
            return true;
        }
        if cancel::checkpoint().is_err() {
            let longest = left.unwrap_or(Duration::MAX);
            processor::with_current(|_, fiber| fiber).inspect(|&fiber| op::pause(fiber, longest));
            return true;
        }
        let own = block::left_until_deadline();
        match left.into_iter().chain(own).min() {
            Some(left) => block::park_timeout(left),
            None => block::park(),
        }
        false
    }

    /// Parks the thread, also for code that cannot suspend: see `sync`.
    fn park_thread(limit: Limit) -> bool {
        let Limit::At(deadline) = limit else {
            thread_wait::for_fibers(std::thread::park);
            return false;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread_wait::for_fibers(|| std::thread::park_timeout(left));
        }
        left.is_zero()
    }
}

/// In the models all are loom's threads, and a deadline is one that has passed: loom tries it at
/// every point.
///
/// Threads of a model may be fibers of one [`Processor`](parker::Processor): then one of them runs
/// at a time, until it parks or ends, and for good if it cannot suspend.
#[cfg(loom)]
pub(super) mod parker {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;

    use loom::sync::Notify;

    use super::{Caller, Limit};

    /// Not loom's `unpark`, which resumes a thread even if something else blocks it by then.
    #[derive(Clone, Debug)]
    pub(super) struct PendingWaiter(Arc<Notify>);

    pub(super) type GrantedWaiter = PendingWaiter;

    impl PendingWaiter {
        pub(super) fn into_granted(self, _: Caller) -> GrantedWaiter {
            self
        }

        pub(super) fn unpark(&self) {
            self.0.notify();
        }
    }

    /// Made without loom's locks, because loom resumes an unparked thread whatever blocks it. The
    /// model does not explore this state, and no thread is switched while it is borrowed.
    #[derive(Clone, Debug, Default)]
    pub(in crate::sync) struct Processor(Rc<RefCell<Turn>>);

    #[derive(Debug, Default)]
    struct Turn {
        is_taken: bool,
        waiting: Vec<loom::thread::Thread>,
    }

    loom::thread_local! {
        static THIS_THREAD: PendingWaiter = PendingWaiter(Arc::new(Notify::new()));
        static PROCESSOR: RefCell<Option<Processor>> = RefCell::new(None);
        static SUSPENDS: Cell<bool> = Cell::new(true);
    }

    impl Processor {
        /// Runs `f` as a fiber of the processor.
        pub(in crate::sync) fn run(&self, suspends: bool, f: impl FnOnce()) {
            self.take();
            PROCESSOR.with(|here| *here.borrow_mut() = Some(self.clone()));
            SUSPENDS.with(|cell| cell.set(suspends));
            f();
            PROCESSOR.with(|here| *here.borrow_mut() = None);
            self.give();
        }

        fn take(&self) {
            while std::mem::replace(&mut self.0.borrow_mut().is_taken, true) {
                self.0.borrow_mut().waiting.push(loom::thread::current());
                loom::thread::park();
            }
        }

        fn give(&self) {
            self.0.borrow_mut().is_taken = false;
            let waiting = std::mem::take(&mut self.0.borrow_mut().waiting);
            waiting.iter().for_each(loom::thread::Thread::unpark);
        }
    }

    fn here() -> Option<Processor> {
        PROCESSOR.with(|here| here.borrow().clone())
    }

    /// Fibers of a model's processor are pinned.
    pub(super) fn current(for_grant: bool) -> (PendingWaiter, Caller) {
        let caller = match here() {
            None => Caller::Thread,
            Some(_) if SUSPENDS.with(Cell::get) && for_grant => Caller::Pinned,
            Some(_) if SUSPENDS.with(Cell::get) => Caller::Fiber,
            Some(_) => Caller::BlocksProcessor,
        };
        (THIS_THREAD.with(PendingWaiter::clone), caller)
    }

    pub(super) fn park(caller: Caller, limit: Limit) -> bool {
        if matches!(limit, Limit::At(_)) {
            return true;
        }
        let processor = here().filter(|_| matches!(caller, Caller::Fiber | Caller::Pinned));
        processor.iter().for_each(|processor| processor.give());
        THIS_THREAD.with(PendingWaiter::clone).0.wait();
        processor.iter().for_each(|processor| processor.take());
        false
    }
}
