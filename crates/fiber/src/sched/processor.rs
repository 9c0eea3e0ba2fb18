//! A processor: a kernel thread that runs fibers. This half belongs to its thread alone.
//!
//! Ready fibers are in two places. Fibers that have frames here (*pinned*) are in a plain list of
//! this thread's, where a push and a pop cost a nanosecond. Fibers that any processor may run are
//! in the cluster's [`ready_queue`](crate::sched::ready_queue). The module
//! [`turn`](crate::turn) runs them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timer::{Tick, TimerKey, Wheel};

use crate::backend::{Backend, Completed};
use crate::base::clock::after;
use crate::base::report::report;
use crate::base::stamp;
use crate::sched::acceptors::Acceptors;
use crate::sched::backlog::{Backlog, WORTH_WAKING};
use crate::sched::cluster::{Cluster, Message, ProcessorShared};
use crate::sched::fiber::{Fiber, FiberRef, RunOutcome, Suspend};
use crate::sched::idle::Notified;
use crate::sched::ready_queue::Visitor;
use crate::sched::registry::SHARDS;
use crate::sched::watch::SetTimer;
use crate::switch::context::Context;
use crate::switch::stack::StackCache;

/// Time for which fibers run before the processor looks at the back end.
pub(crate) const TURN_MAX: Duration = Duration::from_millis(2);

/// Time for which a fiber that any processor may run is left to the processor that made it ready.
/// A fiber that is spawned and joined at once then runs there, and waking it costs no message.
const KEEP: Duration = Duration::from_micros(3);

/// The fields that a switch touches come first.
#[repr(C)]
pub(crate) struct Processor {
    /// Context of the loop, while a fiber runs.
    pub(crate) context: Context,
    /// The fiber that runs.
    current: Cell<Option<FiberRef>>,
    /// Outcome of the current fiber's run, once it has left the processor to the loop.
    pub(crate) outcome: Cell<RunOutcome>,
    /// Switches from fiber to fiber before the loop is to have the processor.
    pub(crate) direct_left: Cell<u8>,
    /// Limit on such switches in a row in this turn.
    pub(crate) direct_max: Cell<u8>,
    /// Operations that the running fiber has done without suspending.
    pub(crate) unsuspended: Cell<u8>,
    /// Fibers of the batch that are yet to run, of `ready` and of `gave_way`.
    pub(crate) ready_left: Cell<usize>,
    pub(crate) gave_way_left: Cell<usize>,
    /// True if a fiber of a batch that began within the turn has run.
    pub(crate) is_past_batch: Cell<bool>,
    pub(crate) cluster: Arc<Cluster>,
    /// The half that all may reach, in `cluster`.
    shared: NonNull<ProcessorShared>,
    /// Its index in the cluster, which others may have after it.
    pub(crate) index: usize,
    /// Pinned fibers that are ready, first in, first out.
    pub(crate) ready: RefCell<VecDeque<FiberRef>>,
    /// Pinned fibers that are ready because they yielded to others.
    pub(crate) gave_way: RefCell<VecDeque<FiberRef>>,
    /// Start of the turn: no fiber that becomes ready in it is older. See [`stamp`].
    pub(crate) turn_began: Cell<u64>,
    pub(crate) backlog: Backlog,
    pub(crate) visitor: RefCell<Visitor>,
    /// No other processor of this process had or gets this number.
    pub(crate) id: u64,
    pub(crate) backend: Backend,
    pub(crate) acceptors: Acceptors,
    /// Results of the latest turn of the back end.
    pub(crate) completed: RefCell<Vec<Completed>>,
    /// Stamp of the latest push since the last look at the time; 0 if there was none.
    pub(crate) latest_push: Cell<u64>,
    /// The turn before has left fibers to this one, and how long a turn may last. See
    /// [`turn`](crate::turn).
    pub(crate) turn_was_cut: Cell<bool>,
    pub(crate) turn_max: u64,
    /// Pinned fibers that have run since the processor last looked at another's run queue.
    pub(crate) pinned_in_a_row: Cell<u8>,
    /// True if something has come from another processor, or a fiber has made another ready that
    /// any processor may run, since the last sleep: more may come soon, so a search before the next
    /// sleep is worthwhile.
    pub(crate) shares_work: Cell<bool>,
    /// Naps before the next sleep. While there are some, the processor may have left work to
    /// another that was too young to take, and looks after it: see [`turn`](crate::turn).
    pub(crate) naps_left: Cell<u8>,
    pub(crate) keep_ticks: u64,
    /// Stacks for the next steps: the warmest first.
    pub(crate) stacks: StackCache,
    /// Fibers that have frames here and cannot leave: those that have started here, and those in
    /// the middle of a step.
    pinned: Cell<usize>,
    pub(crate) retiring: Retiring,
    pub(crate) timers: RefCell<Wheel<Expiry>>,
    /// Time of tick 0 of the timers.
    pub(crate) epoch: Instant,
}

/// Action when a timer expires.
#[derive(Debug)]
pub(crate) enum Expiry {
    /// `park_timeout` ends.
    Unpark(Fiber),
    /// A fiber's operation may be past its deadline; see [`Watch`](crate::sched::watch::Watch).
    Watch(Fiber),
}

/// Progress of a processor that retires.
#[derive(Debug, Default)]
pub(crate) struct Retiring {
    is_begun: Cell<bool>,
    /// Shards of the registry that were searched for fibers that wait here and may leave.
    pub(crate) parts_done: Cell<usize>,
}

impl Retiring {
    pub(crate) fn begin(&self) {
        self.is_begun.set(true);
    }

    #[inline]
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.get()
    }

    /// True while shards of the registry are left to search.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_begun.get() && self.parts_done.get() < SHARDS
    }
}

thread_local! {
    static HERE: Cell<*const Processor> = const { Cell::new(std::ptr::null()) };
}

/// The processor of this thread, or null. Never inlined, so that no caller can keep the address of
/// the thread-local across a switch.
#[inline(never)]
fn here_ptr() -> *const Processor {
    HERE.get()
}

/// Guard: the thread is this processor while it exists.
pub(crate) struct Here(());

impl Here {
    /// # Safety
    /// The processor outlives the guard, which must not be forgotten.
    pub(crate) unsafe fn enter(processor: &Processor) -> Here {
        HERE.set(processor);
        Here(())
    }
}

/// A processor that panics leaves fibers that will never run: better none than half a server.
impl Drop for Here {
    fn drop(&mut self) {
        if std::thread::panicking() {
            report(format_args!("bug: a processor panicked; please report it\n"));
            std::process::abort();
        }
        HERE.set(std::ptr::null());
    }
}

/// True if this thread is a processor.
pub(crate) fn is_here() -> bool {
    !here_ptr().is_null()
}

/// Calls `f` with this thread's processor and the fiber that runs on it. `None` on plain threads,
/// and while a fiber unwinds: the panic count is thread-local, so other fibers must not run until
/// it is caught. What would suspend then blocks the thread instead.
#[inline]
pub(crate) fn with_current<R>(f: impl FnOnce(&Processor, FiberRef) -> R) -> Option<R> {
    let processor = here_ptr();
    if processor.is_null() || std::thread::panicking() {
        return None;
    }
    // SAFETY: `Here` sets the pointer for as long as the processor lives on this thread.
    let processor = unsafe { &*processor };
    processor.current.get().map(|fiber| f(processor, fiber))
}

/// Same as [`with_current`], also while the fiber unwinds: for code that does not suspend.
pub(crate) fn with_running<R>(f: impl FnOnce(&Processor, FiberRef) -> R) -> Option<R> {
    let processor = here_ptr();
    if processor.is_null() {
        return None;
    }
    // SAFETY: as in `with_current`.
    let processor = unsafe { &*processor };
    processor.current.get().map(|fiber| f(processor, fiber))
}

/// Makes a fiber ready that any processor may run, in a run queue of the calling processor, if that
/// is one of `cluster`'s.
pub(crate) fn push_movable_if_in(cluster: &Cluster, now: u64, fiber: FiberRef) -> bool {
    let processor = here_ptr();
    if processor.is_null() {
        return false;
    }
    // SAFETY: as in `with_current`.
    let processor = unsafe { &*processor };
    let is_in = std::ptr::eq(&*processor.cluster, cluster);
    if is_in {
        processor.push_movable(now, fiber);
    }
    is_in
}

/// Makes the thread that forked a plain one, in the child of a fork.
pub(crate) fn leave_after_fork() {
    HERE.set(std::ptr::null());
}

/// Calls `f` with this thread's processor, which must be one.
#[inline]
pub(crate) fn here<R>(f: impl FnOnce(&Processor) -> R) -> R {
    let processor = here_ptr();
    assert!(!processor.is_null(), "not on a processor");
    // SAFETY: as in `with_current`.
    f(unsafe { &*processor })
}

/// Calls `f` if the calling thread is the processor with this shared half; returns true if so.
pub(crate) fn at(shared: &ProcessorShared, f: impl FnOnce(&Processor)) -> bool {
    let processor = here_ptr();
    if processor.is_null() {
        return false;
    }
    // SAFETY: as in `with_current`.
    let processor = unsafe { &*processor };
    let is_here = std::ptr::eq(processor.shared(), shared);
    if is_here {
        f(processor);
    }
    is_here
}

/// True if the calling thread is a processor of the same cluster, which it keeps.
pub(crate) fn is_in_cluster_of(shared: *const ProcessorShared) -> bool {
    let processor = here_ptr();
    // SAFETY: as in `with_current`.
    let here = (!processor.is_null()).then(|| unsafe { &*processor });
    here.is_some_and(|here| here.cluster.processors.as_ptr_range().contains(&shared))
}

/// Makes a fiber ready without a detour if its home is the calling thread.
#[inline]
pub(crate) fn push_ready_if_here(shared: &ProcessorShared, fiber: FiberRef) -> bool {
    at(shared, |processor| processor.push_ready(fiber))
}

impl Processor {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        index: usize,
        wake_fd: Arc<OwnedFd>,
    ) -> io::Result<Processor> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let slot = &cluster.processors[index];
        let shared = NonNull::from(slot);
        let backend = Backend::new(cluster.backend, &slot.waker, &slot.lent_memory, wake_fd)?;
        let visitor = cluster.queue.open(index);
        Ok(Processor {
            context: Context::without_stack(),
            current: Cell::new(None),
            outcome: Cell::new(RunOutcome::Suspended(Suspend::Wait)),
            direct_left: Cell::new(0),
            direct_max: Cell::new(0),
            unsuspended: Cell::new(0),
            ready_left: Cell::new(0),
            gave_way_left: Cell::new(0),
            is_past_batch: Cell::new(false),
            cluster,
            shared,
            index,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            backend,
            acceptors: Acceptors::default(),
            completed: RefCell::default(),
            ready: RefCell::default(),
            gave_way: RefCell::default(),
            visitor: RefCell::new(visitor),
            turn_began: Cell::new(0),
            latest_push: Cell::new(0),
            turn_was_cut: Cell::new(false),
            turn_max: stamp::ticks(TURN_MAX),
            backlog: Backlog::new(stamp::ticks(WORTH_WAKING)),
            pinned_in_a_row: Cell::new(0),
            shares_work: Cell::new(false),
            naps_left: Cell::new(0),
            keep_ticks: stamp::ticks(KEEP),
            stacks: StackCache::default(),
            pinned: Cell::new(0),
            retiring: Retiring::default(),
            timers: RefCell::new(Wheel::new()),
            epoch: Instant::now(),
        })
    }

    #[inline]
    pub(crate) fn shared(&self) -> &ProcessorShared {
        // SAFETY: it is in a box of the cluster's, which `self` keeps and which never changes.
        unsafe { self.shared.as_ref() }
    }

    /// True if its cluster has no other processor.
    fn is_alone(&self) -> bool {
        self.cluster.processor_count() == 1 && !self.retiring.is_begun()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.has_pinned_ready() || self.cluster.queue.oldest(self.index) != u64::MAX
    }

    pub(crate) fn has_pinned_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || !self.gave_way.borrow().is_empty()
    }

    /// Makes a fiber ready again that has given way.
    pub(crate) fn make_ready_again(&self, fiber: FiberRef) {
        if fiber.is_movable() {
            self.make_ready(fiber);
        } else {
            self.gave_way.borrow_mut().push_back(fiber);
        }
    }

    /// Makes a fiber ready whose wait this processor has ended: one that has frames here, or one
    /// between two steps.
    #[inline]
    pub(crate) fn make_ready(&self, fiber: FiberRef) {
        if fiber.is_movable() {
            // No processor is woken yet: if this is all there is to do, it runs here, next.
            self.push(stamp::now(), fiber);
        } else {
            self.push_ready(fiber);
        }
    }

    /// Makes a fiber ready that any processor may run. The fiber that runs here and called this may
    /// run for long.
    fn push_movable(&self, now: u64, fiber: FiberRef) {
        self.push(now, fiber);
        self.shares_work.set(true);
        self.notify();
    }

    #[inline]
    fn push(&self, now: u64, fiber: FiberRef) {
        self.latest_push.set(now);
        let mut visitor = self.visitor.borrow_mut();
        self.cluster.queue.push(&mut visitor, now, fiber);
    }

    pub(crate) fn notify(&self) {
        if self.cluster.notify() == Notified::Suppressed {
            self.shared().counters.wakes_suppressed.add(1);
        }
    }

    /// Makes one of this processor's own fibers ready.
    #[inline]
    pub(crate) fn push_ready(&self, fiber: FiberRef) {
        self.ready.borrow_mut().push_back(fiber);
    }

    /// Notes that the fiber has frames here from now on.
    pub(crate) fn pin(&self, fiber: FiberRef) {
        if !fiber.control().is_migratable() {
            self.pinned.set(self.pinned.get() + 1);
        }
    }

    /// Notes that the fiber has no frames any more.
    pub(crate) fn unpin(&self, fiber: FiberRef) {
        if !fiber.control().is_migratable() {
            self.pinned.set(self.pinned.get() - 1);
        }
    }

    pub(crate) fn pinned(&self) -> usize {
        self.pinned.get()
    }

    /// Counts operations that did not suspend; returns how many in a row.
    pub(crate) fn count_unsuspended(&self, count: u8) -> u8 {
        self.unsuspended.set(self.unsuspended.get().saturating_add(count));
        self.unsuspended.get()
    }

    pub(crate) fn set_timer(&self, deadline: Instant, expiry: Expiry) -> TimerKey {
        let tick = self.tick_of(deadline);
        self.timers.borrow_mut().insert(tick, expiry)
    }

    /// Time of a tick of this processor's timers.
    pub(crate) fn time_of(&self, tick: Tick) -> Instant {
        let time = self.epoch.checked_add(Duration::from_millis(tick));
        time.unwrap_or_else(|| after(Duration::MAX))
    }

    /// Rounded up: a timer may be late by a tick, never early. In 64 bits: this is done for every
    /// operation.
    pub(crate) fn tick_of(&self, deadline: Instant) -> Tick {
        let after = deadline.saturating_duration_since(self.epoch);
        let whole_ms = after.as_secs().min(u64::MAX / 2000) * 1000;
        whole_ms + u64::from(after.subsec_nanos().div_ceil(1_000_000))
    }

    /// Makes `op`, the address of an operation of `fiber`, end when its deadline passes.
    pub(crate) fn watch(&self, fiber: FiberRef, op: *const (), deadline: Instant) {
        let (watch, tick) = (fiber.control().watch(), self.tick_of(deadline));
        watch.begin(op, tick);
        if watch.is_covered(self.shared(), tick) {
            return;
        }
        self.end_watch(fiber);
        self.cover(fiber.handle(), tick);
    }

    /// Sets a timer over the operations of a fiber that is here and has none.
    pub(crate) fn cover(&self, fiber: Fiber, tick: Tick) {
        let control = Arc::clone(&fiber.control);
        let key = self.timers.borrow_mut().insert(tick, Expiry::Watch(fiber));
        let processor = self.id;
        let timer = SetTimer { key, tick, processor };
        control.watch().cover(self.shared(), timer);
    }

    /// Takes the timer over a fiber's operations back, wherever it is. A finished fiber needs none.
    pub(crate) fn end_watch(&self, fiber: FiberRef) {
        if let Some((keeper, timer)) = fiber.control().watch().take_timer() {
            // SAFETY: the keeper is of a cluster that the fiber has been in, which its control
            // block keeps.
            let keeper = unsafe { &*keeper };
            self.cancel_timer(keeper, timer.processor, timer.key);
        }
    }

    /// Takes a timer back that processor number `processor` has set, whose shared half was
    /// `keeper`. It may have expired.
    pub(crate) fn cancel_timer(&self, keeper: &ProcessorShared, processor: u64, key: TimerKey) {
        if processor == self.id {
            self.timers.borrow_mut().cancel(key);
        } else {
            keeper.send_unhurried(Message::Call(cancel_timer, [processor, key.bits()]));
        }
    }

    /// Changes which fiber runs on its own stack here.
    pub(crate) fn set_current(&self, fiber: Option<FiberRef>) {
        self.current.set(fiber);
    }

    /// The fiber that runs on its own stack here.
    #[inline]
    pub(crate) fn running(&self) -> Option<FiberRef> {
        self.current.get()
    }
}

/// Takes a timer back on the processor with this number: its fiber has continued elsewhere.
fn cancel_timer([processor, key]: [u64; 2]) {
    here(|here| {
        // Otherwise it ended with the processor that was here before.
        if processor == here.id {
            here.timers.borrow_mut().cancel(TimerKey::from_bits(key));
        }
    });
}

/// True if this fiber can run on the calling thread only.
pub(crate) fn is_fiber_of_here(id: u64) -> bool {
    let processor = here_ptr();
    // SAFETY: as in `with_current`.
    let processor = (!processor.is_null()).then(|| unsafe { &*processor });
    processor.is_some_and(|processor| {
        let found = processor.cluster.find_fiber(id);
        found.is_some_and(|fiber| {
            let is_here = fiber.control.is_home(processor.shared());
            is_here && !FiberRef::of(&fiber).is_movable() || processor.is_alone()
        })
    })
}

/// True if the calling code cannot suspend, and no fiber of the cluster runs before it ends.
pub(crate) fn blocks_all_of(cluster: &Cluster) -> bool {
    let processor = here_ptr();
    if processor.is_null() || with_current(|_, _| ()).is_some() {
        return false;
    }
    // SAFETY: as in `with_current`.
    let here = unsafe { &*processor };
    std::ptr::eq(&*here.cluster, cluster) && here.is_alone()
}

/// The fiber that runs on this thread, also while it unwinds. No lock, no allocation: the overflow
/// handler calls it, and interrupts this very thread.
pub(crate) fn running_here() -> Option<FiberRef> {
    with_running(|_, fiber| fiber)
}
