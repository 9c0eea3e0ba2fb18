//! A processor: a kernel thread that runs fibers. This half belongs to its thread alone.
//!
//! One turn: run what was ready when the turn began, take mail, expire timers, then enter the back end
//! once, to hand over all operations that the fibers made and to collect what has completed. Batching
//! the fibers' sends into that one system call is where the speed comes from.
//!
//! What is ready lies in two places. Fibers that have frames here (*pinned*) are in a plain list of this
//! thread's, where a push and a pop cost a nanosecond. Fibers that any processor may run are in the cluster's
//! [`ready_queue`](crate::ready_queue). The two are served by age. For the pinned ones the age is that of the
//! turn before: reading the counter for each would cost ten times what the rest does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Backend, BackendKind, Op, Wait};
use crate::base::stamp;
use crate::base::topology::last_level_cache;
use crate::io::accept::Acceptors;
use crate::sched::cluster::{Cluster, Message, ProcessorShared};
use crate::sched::fiber::{Fiber, FiberRef, Ran, Suspend, after};
use crate::sched::idle::{Notified, Woken};
use crate::sched::overflow;
use crate::sched::ready_queue::{Origin, Visitor};
use crate::sched::resize::Retiring;
use crate::sched::spans;
use crate::sched::timer::{Tick, TimerKey, Wheel};
use crate::sched::watch::{NEVER, SetTimer};
use crate::spawn::steps::Flow;
use crate::switch::look::{Phase, TraceJob};
use crate::switch::stack::StackCache;

/// How many fibers from the lanes a turn runs: enough to keep busy, few enough that completions
/// are not kept waiting.
const MOVABLE_PER_TURN: usize = 64;

/// After so many pinned fibers the processor looks whether somebody else's work has waited much longer.
const PINNED_PER_LOOK: u8 = 16;

/// How often a processor without work looks around before it sleeps; with the pauses some 5 to 10 µs, which is less
/// than it takes to wake a thread.
const SPIN_ROUNDS: usize = 64;
const PAUSES_PER_ROUND: usize = 8;

pub(crate) struct Processor {
    pub(crate) cluster: Arc<Cluster>,
    /// Its place in the cluster, which others may have after it.
    pub(crate) index: usize,
    /// No other processor of this process had or gets this number.
    pub(crate) id: u64,
    pub(crate) backend: Backend,
    pub(crate) acceptors: Acceptors,
    /// Pinned fibers that are ready, first in, first out.
    ready: RefCell<VecDeque<FiberRef>>,
    visitor: RefCell<Visitor>,
    /// When the turn began: no fiber that becomes ready in it is older. See [`stamp`].
    turn_began: Cell<u64>,
    /// Pinned fibers that have run since the processor last looked at somebody else's lane.
    pinned_in_a_row: Cell<u8>,
    /// Something has come from another processor, or any processor might have run it, since the last sleep: the next
    /// may come soon, so it is worth a look around before the next sleep.
    shares_work: Cell<bool>,
    current: Cell<Option<FiberRef>>,
    /// The spans of the fiber that it runs.
    #[cfg_attr(
        not(feature = "tracing"),
        expect(dead_code, reason = "nothing, without the feature")
    )]
    pub(crate) inside: spans::Inside,
    /// Stacks for the next steps: the warmest first.
    pub(crate) stacks: StackCache,
    /// Operations that the running fiber has done without suspending.
    unsuspended: Cell<u8>,
    /// Fibers that have frames here and cannot leave: those that have started here, and those in the middle of a step.
    pinned: Cell<usize>,
    pub(crate) retiring: Retiring,
    pub(crate) timers: RefCell<Wheel<Expiry>>,
    /// When tick 0 of the timers was.
    epoch: Instant,
}

/// What happens when a timer expires.
#[derive(Debug)]
pub(crate) enum Expiry {
    /// `park_timeout` ends.
    Unpark(Fiber),
    /// A fiber's operation may be past its deadline; see [`Watch`](crate::sched::watch::Watch).
    Watch(Fiber),
}

thread_local! {
    static HERE: Cell<*const Processor> = const { Cell::new(std::ptr::null()) };
}

/// The processor of this thread, or null. Never inlined, so that no caller can keep the address of the
/// thread-local across a switch.
#[inline(never)]
fn here_ptr() -> *const Processor {
    HERE.get()
}

/// Whether this thread is a processor.
pub(crate) fn is_here() -> bool {
    !here_ptr().is_null()
}

/// Calls `f` with this thread's processor and the fiber that runs on it. `None` on plain threads, and
/// while a fiber unwinds: the panic count is thread-local, so other fibers must not run
/// until it is caught. What would suspend then blocks the thread instead.
#[inline]
pub(crate) fn with_current<R>(f: impl FnOnce(&Processor, FiberRef) -> R) -> Option<R> {
    let processor = here_ptr();
    if processor.is_null() || std::thread::panicking() {
        return None;
    }
    // SAFETY: `Processor::run` sets the pointer for as long as the processor lives on this thread.
    let processor = unsafe { &*processor };
    processor.current.get().map(|fiber| f(processor, fiber))
}

/// Makes a fiber ready that any processor may run, in a lane of the calling processor, if that is one of `cluster`'s.
pub(crate) fn push_movable_if_in(cluster: &Cluster, fiber: FiberRef) -> bool {
    let processor = here_ptr();
    if processor.is_null() {
        return false;
    }
    // SAFETY: as in `with_current`.
    let processor = unsafe { &*processor };
    let is_in = std::ptr::eq(&*processor.cluster, cluster);
    if is_in {
        processor.push_movable(fiber);
    }
    is_in
}

/// Calls `f` if this thread is a processor, also outside of a fiber and while one unwinds.
#[cfg(feature = "tracing")]
pub(crate) fn with_inside(f: impl FnOnce(&spans::Inside)) {
    let processor = here_ptr();
    if !processor.is_null() {
        // SAFETY: as in `with_current`.
        f(unsafe { &(*processor).inside });
    }
}

/// In the child of a fork: the thread that forked is a plain one there.
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

/// Calls `f` if the calling thread is the processor with this shared half; says whether it is.
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

/// Makes a fiber ready without a detour if its home is the calling thread.
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
        let backend = Backend::new(cluster.backend, &cluster.processors[index], wake_fd)?;
        let visitor = cluster.queue.open(index);
        Ok(Processor {
            cluster,
            index,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            backend,
            acceptors: Acceptors::default(),
            ready: RefCell::default(),
            visitor: RefCell::new(visitor),
            turn_began: Cell::new(0),
            pinned_in_a_row: Cell::new(0),
            shares_work: Cell::new(false),
            current: Cell::new(None),
            inside: spans::Inside::default(),
            stacks: StackCache::default(),
            unsuspended: Cell::new(0),
            pinned: Cell::new(0),
            retiring: Retiring::default(),
            timers: RefCell::new(Wheel::new()),
            epoch: Instant::now(),
        })
    }

    pub(crate) fn shared(&self) -> &ProcessorShared {
        &self.cluster.processors[self.index]
    }

    /// Runs fibers until the cluster stops, or the processor is removed.
    pub(crate) fn run(&self) {
        /// A processor that panics leaves fibers that nobody will ever run: better none than half a server.
        struct Here;
        impl Drop for Here {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("a processor panicked, which is a mistake of the runtime's");
                    std::process::abort();
                }
                HERE.set(std::ptr::null());
            }
        }
        overflow::install();
        self.shared()
            .thread
            .store(crate::inspect::monitor::thread_id(), Ordering::Release);
        HERE.set(self);
        let _here = Here;
        self.note_cache();
        while !self.cluster.is_stopping() {
            self.shared().counters.turns.add(1);
            self.take_mail();
            self.run_some();
            self.expire_timers();
            if self.retiring.is_begun() && self.wind_down() {
                break;
            }
            if self.has_work() || self.retiring.is_busy() {
                self.backend.turn(self, Wait::Poll);
            } else if self.retiring.is_begun() {
                self.rest_for_mail();
            } else if !self.search() {
                self.rest();
            }
        }
        // Buffers that were read elsewhere.
        self.take_mail();
        self.backend.shut_down(self);
        self.shared().close_inbox();
    }

    /// Lets fibers that wait here say where they are.
    fn trace(&self, job: &TraceJob) {
        for fiber in &job.fibers {
            let control = &fiber.control;
            // In this order: who waits here stays here until this thread runs it, but who is at home here may be moving
            // away, and wait elsewhere by the next line. And it may wait deeper in its stack than when it was asked.
            let waits_here =
                control.look().phase() == Phase::Waiting && control.is_home(self.shared());
            if !waits_here || !control.look().has_room_to_trace() {
                continue; // It has gone on meanwhile.
            }
            if control.is_migratable() {
                continue; // Another processor may be about to run it.
            }
            let fiber = FiberRef::of(fiber);
            self.current.set(Some(fiber));
            let traced = fiber.trace();
            self.current.set(None);
            if let Some(traced) = traced {
                // Nobody waits any more if it took too long.
                let _ = job.answers.send((control.id(), traced));
            }
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.ready.borrow().is_empty() || self.cluster.queue.oldest(self.index) != u64::MAX
    }

    fn take_mail(&self) {
        for message in self.shared().take_mail() {
            self.shared().counters.messages.add(1);
            self.shares_work.set(true);
            match message {
                Message::Start(fiber) if self.retiring.is_begun() => self.pass_on(fiber),
                Message::Ready(fiber) | Message::Start(fiber) => self.push_ready(fiber),
                Message::CloseListener(id) => self.acceptors.close(self, id),
                Message::Buffer(id) => self.take_buffer_back(id),
                Message::ListenQueue(id) => self.acceptors.readable(self, id),
                Message::Cancel(fiber) => self.cancel(&fiber),
                Message::Trace(job) => self.trace(&job),
                Message::Retire => self.retiring.begin(),
                Message::CancelTimer(processor, key) if processor == self.id => {
                    self.timers.borrow_mut().cancel(key);
                }
                Message::CancelTimer(..) => {} // It went with the processor that was here before.
                Message::Timer(deadline, fiber) => {
                    self.set_timer(deadline, Expiry::Unpark(fiber));
                }
            }
        }
    }

    /// Runs what was ready when the turn began, the oldest first; who becomes ready meanwhile runs in the next turn.
    fn run_some(&self) {
        let queue = &self.cluster.queue;
        let began = stamp::now();
        // The pinned fibers became ready in the turn before.
        let pinned_since = self.turn_began.replace(began);
        let mut pinned = self.ready.borrow().len();
        if queue.oldest(self.index) != u64::MAX && (pinned > 0 || queue.has_several(self.index)) {
            // While one runs, the others might run elsewhere.
            self.notify();
        }
        // Who may leave a processor that goes does so instead of running.
        let mut movable_left = match self.retiring.is_begun() {
            true => 0,
            false => MOVABLE_PER_TURN,
        };
        loop {
            let limit = if pinned > 0 { pinned_since } else { began };
            if movable_left > 0 && queue.oldest(self.index) < limit {
                movable_left -= 1;
                self.run_movable(if pinned > 0 { pinned_since } else { u64::MAX });
            } else if pinned > 0 {
                pinned -= 1;
                self.run_pinned(pinned_since);
            } else {
                return;
            }
        }
    }

    /// Runs the next fiber by the rule of the ready queue: of ours as a rule, or of somebody whom it helps.
    fn run_movable(&self, waiting_since: u64) {
        let mut visitor = self.visitor.borrow_mut();
        let popped = self
            .cluster
            .queue
            .pop(&mut visitor, stamp::now(), waiting_since);
        drop(visitor);
        let Some((fiber, origin)) = popped else {
            return; // Others have been faster.
        };
        self.shares_work.set(true);
        let counters = &self.shared().counters;
        match origin {
            Origin::Own => counters.fibers_popped.add(1),
            Origin::Helped => counters.fibers_helped.add(1),
        }
        self.run_fiber(fiber);
    }

    /// Runs the next of those that have frames here; now and then one of somebody else's before, if that has waited much
    /// longer.
    fn run_pinned(&self, waiting_since: u64) {
        let in_a_row = self.pinned_in_a_row.get() + 1;
        self.pinned_in_a_row.set(in_a_row);
        if in_a_row >= PINNED_PER_LOOK {
            self.pinned_in_a_row.set(0);
        }
        if in_a_row >= PINNED_PER_LOOK && !self.retiring.is_begun() {
            let mut visitor = self.visitor.borrow_mut();
            let helped = self
                .cluster
                .queue
                .help(&mut visitor, stamp::now(), waiting_since);
            drop(visitor);
            if let Some(fiber) = helped {
                self.shared().counters.fibers_helped.add(1);
                self.run_fiber(fiber);
            }
        }
        let fiber = self.ready.borrow_mut().pop_front();
        if let Some(fiber) = fiber {
            self.run_fiber(fiber);
        }
    }

    /// Looks for work in all lanes.
    fn search(&self) -> bool {
        let found = self.find();
        if let Some(fiber) = found {
            self.run_fiber(fiber);
        }
        found.is_some()
    }

    fn find(&self) -> Option<FiberRef> {
        let mut visitor = self.visitor.borrow_mut();
        let fiber = self.cluster.queue.search(&mut visitor, stamp::now())?;
        self.shares_work.set(true);
        self.shared().counters.fibers_stolen.add(1);
        Some(fiber)
    }

    /// Sleeps until there is something to do; before that, looks around for a moment if that seems worth it.
    fn rest(&self) {
        let idle = &self.cluster.idle;
        let is_worth = self.cluster.open_places().len() > 1 && self.shares_work.replace(false);
        if is_worth && idle.begin_spin() && self.spin() {
            return;
        }
        idle.register(self.index);
        if self.cluster.is_work_for(self.index) {
            self.left(idle.leave(self.index));
            return self.backend.turn(self, Wait::Poll);
        }
        self.shared().counters.sleeps.add(1);
        self.backend.turn(self, Wait::For(self.until_next_timer()));
        self.turn_began.set(stamp::now());
        self.note_cache();
        self.left(idle.leave(self.index));
    }

    /// Sleeps until something is for this very processor, which goes.
    fn rest_for_mail(&self) {
        let idle = &self.cluster.idle;
        idle.register_for_mail(self.index);
        let wait = match self.shared().has_mail() || self.cluster.is_stopping() {
            true => Wait::Poll,
            false => Wait::For(self.until_next_timer()),
        };
        self.shared().counters.sleeps.add(1);
        self.backend.turn(self, wait);
        self.turn_began.set(stamp::now());
        self.left(idle.leave(self.index));
    }

    /// Looks around, as the spinner of the cluster. Afterwards it is not that any more; says whether there is
    /// something to do.
    fn spin(&self) -> bool {
        self.shared().counters.spins.add(1);
        for _ in 0..SPIN_ROUNDS {
            if self.shared().has_mail()
                || !self.cluster.queue.is_empty()
                || !self.ready.borrow().is_empty()
            {
                break;
            }
            (0..PAUSES_PER_ROUND).for_each(|_| std::hint::spin_loop());
            if self.backend.kind() == BackendKind::Uring {
                // No system call as long as nothing has come.
                self.backend.turn(self, Wait::Poll);
            }
        }
        self.search_as_spinner() || self.shared().has_mail() || self.has_work()
    }

    /// Awake again: if it was woken to look for work, it does.
    fn left(&self, woken: Woken) {
        if woken != Woken::ByItself {
            self.shared().counters.wakes.add(1);
        }
        if woken == Woken::ToSearch && !self.search_as_spinner() {
            self.shared().counters.wakes_early.add(1);
        }
    }

    /// Looks for work and stops being the spinner. Those who pushed meanwhile woke nobody, so if there is
    /// more than it takes itself, it wakes the next.
    fn search_as_spinner(&self) -> bool {
        let found = self.find();
        self.cluster.idle.end_spin();
        if !self.cluster.queue.is_empty() {
            self.notify();
        }
        if let Some(fiber) = found {
            self.run_fiber(fiber);
        }
        found.is_some()
    }

    /// The kernel may have moved this thread to a CPU with another cache.
    fn note_cache(&self) {
        self.cluster.queue.set_cache(self.index, last_level_cache());
    }

    fn notify(&self) {
        if self.cluster.notify() == Notified::Suppressed {
            self.shared().counters.wakes_suppressed.add(1);
        }
    }

    fn until_next_timer(&self) -> Option<Duration> {
        let tick = self.timers.borrow().next_expiry()?;
        let due = self.epoch + Duration::from_millis(tick);
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn run_fiber(&self, fiber: FiberRef) {
        let counters = &self.shared().counters;
        counters.switches.add(1);
        self.current.set(Some(fiber));
        self.unsuspended.set(0);
        self.shared()
            .running
            .store(fiber.control().id(), Ordering::Relaxed);
        let ran = fiber.run(self, &counters.fibers_started);
        self.shared().running.store(0, Ordering::Relaxed);
        self.current.set(None);
        match ran {
            Ran::Stepped(flow) if fiber.has_target() && self.depart(fiber, flow) => {}
            Ran::Suspended(Suspend::Move) => {
                if !self.depart(fiber, Flow::Yield) {
                    self.make_ready(fiber);
                }
            }
            Ran::Stepped(Flow::Receive) if self.retiring.is_begun() => {
                fiber.postpone_wait();
                self.make_ready(fiber);
            }
            Ran::Stepped(Flow::Receive) => self.begin_wait(fiber),
            Ran::Stepped(Flow::Park) if fiber.park_after_switch() => {}
            Ran::Stepped(_) => self.make_ready(fiber),
            Ran::Suspended(Suspend::Yield) => self.make_ready(fiber),
            Ran::Suspended(Suspend::Wait) => {}
            Ran::Suspended(Suspend::Park) => {
                if !fiber.park_after_switch() {
                    self.make_ready(fiber);
                }
            }
            Ran::Finished => {
                counters.fibers_finished.add(1);
                self.end_watch(fiber);
                self.cluster.roster.remove(fiber);
                fiber.release();
                self.cluster.fiber_finished();
            }
        }
    }

    /// After a step: begins the wait for the next one's input. Only then is the fiber made ready, or its wait ended: from that
    /// moment another processor may have its steps.
    fn begin_wait(&self, fiber: FiberRef) {
        if !fiber.begin_wait(self) {
            self.make_ready(fiber);
        } else if fiber.control().cancellation().is_due() {
            self.cancel(&fiber.handle());
        }
    }

    /// Makes a fiber ready whose wait this processor has ended: one that has frames here, or one between two steps.
    #[inline]
    pub(crate) fn make_ready(&self, fiber: FiberRef) {
        if fiber.is_movable() {
            // Nobody is woken yet: if this is all there is to do, it runs here, next.
            let mut visitor = self.visitor.borrow_mut();
            self.cluster.queue.push(&mut visitor, stamp::now(), fiber);
        } else {
            self.push_ready(fiber);
        }
    }

    /// Makes a fiber ready that any processor may run, on behalf of the fiber that runs here, which may go on for long.
    pub(crate) fn push_movable(&self, fiber: FiberRef) {
        let mut visitor = self.visitor.borrow_mut();
        self.cluster.queue.push(&mut visitor, stamp::now(), fiber);
        drop(visitor);
        self.notify();
    }

    /// Makes one of this processor's own fibers ready.
    #[inline]
    pub(crate) fn push_ready(&self, fiber: FiberRef) {
        self.ready.borrow_mut().push_back(fiber);
    }

    /// The fiber has frames here from now on.
    pub(crate) fn pin(&self, fiber: FiberRef) {
        if !fiber.control().is_migratable() {
            self.pinned.set(self.pinned.get() + 1);
        }
    }

    /// The fiber has no frames any more.
    pub(crate) fn unpin(&self, fiber: FiberRef) {
        if !fiber.control().is_migratable() {
            self.pinned.set(self.pinned.get() - 1);
        }
    }

    pub(crate) fn pinned(&self) -> usize {
        self.pinned.get()
    }

    /// Counts an operation that did not suspend; returns how many in a row.
    pub(crate) fn count_unsuspended(&self) -> u8 {
        self.unsuspended
            .set(self.unsuspended.get().saturating_add(1));
        self.unsuspended.get()
    }

    pub(crate) fn set_timer(&self, deadline: Instant, expiry: Expiry) -> TimerKey {
        let tick = self.tick_of(deadline);
        self.timers.borrow_mut().insert(tick, expiry)
    }

    /// When a tick of this processor's timers is.
    pub(crate) fn time_of(&self, tick: Tick) -> Instant {
        let time = self.epoch.checked_add(Duration::from_millis(tick));
        time.unwrap_or_else(|| after(Duration::MAX))
    }

    /// Rounded up: a timer may be late by a tick, never early. In 64 bits: this is done for every operation.
    fn tick_of(&self, deadline: Instant) -> Tick {
        let after = deadline.saturating_duration_since(self.epoch);
        let whole_ms = after.as_secs().min(u64::MAX / 2000) * 1000;
        whole_ms + u64::from(after.subsec_nanos().div_ceil(1_000_000))
    }

    /// Sees to it that `op`, an operation of `fiber`, is ended when its deadline passes.
    pub(crate) fn watch(&self, fiber: FiberRef, op: &Op, deadline: Instant) {
        let (watch, tick) = (fiber.control().watch(), self.tick_of(deadline));
        watch.begin(self.shared(), op, tick);
        if watch.is_covered(self.shared(), tick) {
            return;
        }
        self.end_watch(fiber);
        self.cover(fiber.handle(), tick);
    }

    /// Sets a timer over the operations of a fiber that is here and has none.
    fn cover(&self, fiber: Fiber, tick: Tick) {
        let control = Arc::clone(&fiber.control);
        let key = self.timers.borrow_mut().insert(tick, Expiry::Watch(fiber));
        let processor = self.id;
        let timer = SetTimer {
            key,
            tick,
            processor,
        };
        control.watch().cover(self.shared(), timer);
    }

    /// A watch's timer has expired: perhaps the operation's deadline has passed, perhaps another one is in flight,
    /// with a later deadline.
    fn look_after(&self, fiber: &Fiber) {
        let watch = fiber.control.watch();
        if !watch.uncover(self.shared()) {
            return; // The fiber has moved on to another processor.
        }
        // An operation on another processor is covered there.
        let Some((op, tick)) = watch.operation_here(self.shared()) else {
            return;
        };
        if tick == NEVER {
            return;
        }
        if tick > self.timers.borrow().now() {
            return self.cover(fiber.clone(), tick);
        }
        // SAFETY: it is in flight here, so only this thread completes it, and until then it stays.
        self.backend.expire(self, unsafe { &*op });
    }

    /// Takes the timer over a fiber's operations back, wherever it is. A finished fiber needs none.
    fn end_watch(&self, fiber: FiberRef) {
        if let Some((keeper, timer)) = fiber.control().watch().take_timer() {
            // SAFETY: the keeper is of a cluster that the fiber has been in, which its control block keeps.
            let keeper = unsafe { &*keeper };
            self.cancel_timer(keeper, timer.processor, timer.key);
        }
    }

    /// Takes a timer back that processor number `processor` has set, whose shared half was `keeper`. It may have expired.
    pub(crate) fn cancel_timer(&self, keeper: &ProcessorShared, processor: u64, key: TimerKey) {
        if processor == self.id {
            self.timers.borrow_mut().cancel(key);
        } else {
            keeper.send_unhurried(Message::CancelTimer(processor, key));
        }
    }

    fn expire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.epoch.elapsed().as_millis() as u64;
        let mut expired = Vec::new();
        self.timers
            .borrow_mut()
            .advance(now, |expiry| expired.push(expiry));
        self.shared()
            .counters
            .timers_expired
            .add(expired.len() as u64);
        for expiry in expired {
            match expiry {
                Expiry::Unpark(fiber) => fiber.unpark(),
                Expiry::Watch(fiber) => self.look_after(&fiber),
            }
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

/// The fiber that runs on this thread, for the overflow handler: no lock, no allocation.
pub(crate) fn running_here() -> Option<FiberRef> {
    let processor = here_ptr();
    // SAFETY: as in `with_current`; the handler interrupts this very thread.
    let processor = (!processor.is_null()).then(|| unsafe { &*processor })?;
    processor.running()
}
