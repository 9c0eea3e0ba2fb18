//! Giving a fiber the processor, until it suspends or finishes.

use std::sync::atomic::Ordering;

use corosensei::{Coroutine, CoroutineResult};

use crate::base::counters::Counter;
use crate::sched::cluster::ProcessorShared;
use crate::sched::fiber::{Context, FiberRef, Flow, Ran, Resume, Suspend};
use crate::sched::local;
use crate::sched::processor::Processor;
use crate::switch::look::FiberState;

impl FiberRef {
    /// Runs the fiber on this processor until it suspends or finishes.
    pub(crate) fn run(self, processor: &Processor, started: &Counter) -> Ran {
        // SAFETY: only the processor that runs a fiber touches its context (invariant of FiberRef).
        let context = unsafe { &mut *self.control().context.get() };
        let is_new = self.control().home.load(Ordering::Relaxed).is_null();
        let has_frames = context.is_some();
        if is_new || !has_frames || self.control().is_migratable() {
            self.settle(processor, started);
        }
        if !has_frames {
            *context = self.begin_step(processor);
        } else if is_new {
            processor.pin(self);
        }
        let Some(running) = context.as_mut() else {
            return Ran::Finished; // There was no stack to be had.
        };
        let look = self.control().look();
        look.enter(FiberState::Running);
        let outcome = running.resume(Resume::GoOn);
        self.control().cluster().process.abort_if_left();
        match outcome {
            CoroutineResult::Yield(suspend) => {
                look.enter(match suspend {
                    Suspend::Yield => FiberState::Ready,
                    Suspend::Park | Suspend::Wait => FiberState::Waiting,
                });
                Ran::Suspended(suspend)
            }
            CoroutineResult::Return(flow) => {
                look.forget_stack();
                processor.unpin(self);
                let ended = context.take().expect("it just ran");
                processor.stacks.give(ended.into_stack());
                match flow {
                    Flow::Done => {
                        look.enter(FiberState::Finished);
                        Ran::Finished
                    }
                    flow => {
                        look.enter(FiberState::BetweenSteps);
                        Ran::Stepped(flow)
                    }
                }
            }
        }
    }

    /// The fiber is at home on this processor from now on: a cancel or a wake finds it here.
    fn settle(self, processor: &Processor, started: &Counter) {
        let home: *const ProcessorShared = processor.shared();
        // Sequentially consistent, for `Fiber::cancel`: it sees where we are, or we see its flag.
        let before = self.control().home.swap(home.cast_mut(), Ordering::SeqCst);
        if before.is_null() {
            started.add(1);
        }
    }

    /// Makes the frames of a fiber between two steps. `None` if there is no memory for the stack:
    /// such a fiber is finished.
    fn begin_step(self, processor: &Processor) -> Option<Context> {
        let abandon = |error| {
            // Destructors of the user's run here, on the processor's own stack: they must not
            // suspend.
            processor.set_current(None);
            self.stackless().abandon(error);
        };
        let stack = processor.stacks.take().map_err(abandon).ok()?;
        self.control().look.note_stack(stack.place());
        processor.pin(self);
        Some(Coroutine::with_stack(stack, move |yielder, _| {
            self.control().yielder.set(yielder);
            let flow = self.stackless().step();
            // The next step may be on another thread.
            local::reset_here();
            flow
        }))
    }
}
