//! Giving the processor to a fiber, and from fiber to fiber.
//!
//! A pinned fiber that yields, or waits, gives the processor to the next pinned one itself: half
//! as many switches, and none of the loop's work between them. It does so [`DIRECT_MAX`] times in a
//! row at most, then the loop looks at everything else; and not while a fiber waits here that any
//! processor may run, nor once the turn has lasted for long. The order is the loop's: the batch
//! that was ready, then the next one. A fiber that yields while no other is ready continues at
//! once, which counts as a switch.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::base::counters::Counter;
use crate::base::home;
use crate::base::stamp;
use crate::sched::fiber::{FiberRef, Flow, RESUME, RunOutcome, Suspend, TRACE};
use crate::sched::local;
use crate::sched::processor::{self, Processor};
use crate::switch::context::Context;
use crate::switch::look::FiberState;

/// Switches in a row from fiber to fiber.
pub(crate) const DIRECT_MAX: u8 = 15;

/// Switches of these between two looks at the time.
const SWITCHES_PER_TIME: u8 = 4;

/// Operations without a wait that count as much: see
/// [`consume_budget`](crate::sched::block::consume_budget).
pub(crate) const MUCH_UNSUSPENDED: u8 = 8;

impl FiberRef {
    /// Runs the fiber on this processor, and those that it gives the processor to, until one leaves
    /// it to the loop: the current one. `None` if there was no stack to be had, and the fiber is
    /// finished.
    pub(crate) fn run(self, processor: &Processor, started: &Counter) -> Option<RunOutcome> {
        let control = self.control();
        let is_new = control.home.load(Ordering::Relaxed).is_null();
        let has_frames = control.stack().is_some();
        if is_new || !has_frames || control.is_migratable() {
            self.settle(processor, started);
            control.look.enter(FiberState::Running);
        }
        if !has_frames {
            self.begin_step(processor)?;
        } else if is_new {
            processor.pin(self);
        }
        // SAFETY: the loop runs. The fiber has frames, or code to begin with, and waits; only the
        // processor that has it resumes it (invariant of FiberRef). This thread stays the same.
        unsafe { processor.context.switch_to(&control.context, RESUME) };
        Some(processor.outcome.get())
    }

    /// Resumes a fiber that waits, only until it has made its backtrace. Called only by the loop of
    /// its own processor.
    pub(crate) fn trace(self, processor: &Processor) -> Option<Backtrace> {
        let control = self.control();
        control.stack()?;
        // SAFETY: it waits, with frames, and is at home here, so nothing else resumes it; it
        // switches back to the loop.
        unsafe { processor.context.switch_to(&control.context, TRACE) };
        control.rare().traced.take().map(|traced| *traced)
    }

    /// Frees the stack after a step, or the whole fiber, has ended.
    pub(crate) fn end_frames(self, processor: &Processor, flow: Flow) {
        let control = self.control();
        let stack = control.context.take_stack();
        processor.unpin(self);
        let now = processor.turn_began.get();
        processor.stacks.give(stack.expect("the fiber just ran on it"), now);
        control.look.enter(match flow {
            Flow::Done => FiberState::Finished,
            _ => FiberState::BetweenSteps,
        });
    }

    /// Makes this processor the fiber's home: a cancel or a wake finds it here.
    fn settle(self, processor: &Processor, started: &Counter) {
        let home = std::ptr::from_ref(processor.shared()).cast_mut();
        let at = &self.control().home;
        if at.load(Ordering::Relaxed) == home {
            return; // A cancel sends a message here, as for a pinned fiber.
        }
        // Sequentially consistent, for `Fiber::cancel`: one of the two sees the other's store.
        let before = at.swap(home, Ordering::SeqCst);
        if before.is_null() {
            started.add(1);
        }
    }

    /// Makes the frames of a fiber between two steps. `None` if there is no memory for the stack:
    /// such a fiber is finished.
    fn begin_step(self, processor: &Processor) -> Option<()> {
        let abandon = |error| {
            // Destructors of the user's run here, on the processor's own stack: they must not
            // suspend.
            processor.set_current(None);
            self.stackless().abandon(error);
            processor.set_current(Some(self));
        };
        let stack = processor.stacks.take().map_err(abandon).ok()?;
        processor.pin(self);
        self.control().context.put(stack, move || {
            let flow = self.stackless().step();
            // The next step may be on another thread.
            local::reset_here();
            end_here(flow)
        });
        Some(())
    }
}

/// Ends a step, or a fiber; returns the context that gets the thread now.
pub(crate) fn end_here(flow: Flow) -> *const Context {
    if !processor::is_here() {
        home::abort_child();
    }
    processor::here(|processor| {
        processor.outcome.set(RunOutcome::Ended(flow));
        std::ptr::from_ref(&processor.context)
    })
}

impl Processor {
    /// Gives the processor away: to the next pinned fiber, or to the loop. Returns the word that
    /// comes with the switch back, perhaps on another thread: `self` is not to be used afterwards.
    #[inline(always)]
    pub(crate) fn give_away(&self, fiber: FiberRef, mut how: Suspend) -> usize {
        let control = fiber.control();
        let mut to = std::ptr::from_ref(&self.context);
        if !control.is_migratable() {
            // It runs here only, so not before it has left its stack.
            if how == Suspend::Park {
                if !control.token.park() {
                    return RESUME;
                }
                how = Suspend::Wait;
            }
            if self.may_switch_directly() {
                if let Some(next) = self.next_pinned() {
                    if how == Suspend::Yield {
                        self.gave_way.borrow_mut().push_back(fiber);
                    }
                    self.enter(next);
                    to = &raw const next.control().context;
                } else if how == Suspend::Yield && !self.has_pinned_ready() && !self.is_turn_long()
                {
                    self.enter(fiber);
                    return RESUME;
                }
            }
        }
        if std::ptr::eq(to, &self.context) {
            self.outcome.set(RunOutcome::Suspended(how));
        }
        // SAFETY: the fiber runs. The loop waits while a fiber runs; a pinned fiber that is in a
        // list waits with frames, and nothing else resumes it. What comes back is the caller's.
        unsafe { control.context.switch_to(to, RESUME) }
    }

    /// True if the running fiber may give the processor to another, or keep it, without the loop.
    /// Counts the switch.
    #[inline(always)]
    fn may_switch_directly(&self) -> bool {
        let left = self.direct_left.get();
        let may = left > 0
            && self.unsuspended.get() < MUCH_UNSUSPENDED
            && self.cluster.queue.oldest(self.index) == u64::MAX
            && (!left.is_multiple_of(SWITCHES_PER_TIME) || !self.is_turn_long());
        if may {
            self.direct_left.set(left - 1);
        }
        may
    }

    /// True if the back end is to be polled before pinned fibers continue.
    #[inline(always)]
    pub(crate) fn is_turn_long(&self) -> bool {
        self.is_long_since(self.turn_began.get())
    }

    /// True if a turn that began at this stamp is long by now.
    #[inline(always)]
    pub(crate) fn is_long_since(&self, began: u64) -> bool {
        stamp::now().saturating_sub(began) >= self.turn_max
    }

    /// Takes the next pinned fiber that has frames: of this batch, or the first of a new one.
    #[inline(always)]
    fn next_pinned(&self) -> Option<FiberRef> {
        if self.batch_left() == 0 {
            self.begin_batch();
            self.is_past_batch.set(true);
        }
        let (queue, left) = self.batch_queue();
        let mut queue = queue.borrow_mut();
        let next = *queue.front()?;
        if next.control().home.load(Ordering::Relaxed).is_null() {
            return None; // It is yet to start.
        }
        queue.pop_front();
        if let Some(after) = queue.front() {
            after.control().context.prefetch_frame();
        }
        if let Some(later) = queue.get(1) {
            later.control().context.prefetch();
        }
        left.set(left.get() - 1);
        Some(next)
    }

    /// Makes the ready fibers the batch, which runs before fibers that become ready later.
    pub(crate) fn begin_batch(&self) {
        self.ready_left.set(self.ready.borrow().len());
        self.gave_way_left.set(self.gave_way.borrow().len());
    }

    /// The list of the fiber that is next in the batch, and how many of the batch are left in it.
    #[inline(always)]
    pub(crate) fn batch_queue(&self) -> (&RefCell<VecDeque<FiberRef>>, &Cell<usize>) {
        if self.ready_left.get() > 0 {
            (&self.ready, &self.ready_left)
        } else {
            (&self.gave_way, &self.gave_way_left)
        }
    }

    /// Fibers of the batch that are yet to run.
    #[inline(always)]
    pub(crate) fn batch_left(&self) -> usize {
        self.ready_left.get() + self.gave_way_left.get()
    }

    /// Notes that the fiber runs from now on.
    #[inline(always)]
    pub(crate) fn enter(&self, fiber: FiberRef) {
        let shared = self.shared();
        shared.counters.switches.add(1);
        self.backlog.count_run();
        self.set_current(Some(fiber));
        self.unsuspended.set(0);
        let id = fiber.control().id();
        shared.running.set(id);
    }
}
