//! The watch over a fiber's operation: one timer that stays set from operation to operation.
//!
//! A server gives every receive and every send a deadline, and almost none passes. To set and cancel a timer for
//! each would touch the wheel four times a request. So the timer of a fiber is left alone as long as it expires
//! *no later* than the present operation's deadline; when it does expire, the processor looks which operation is
//! in flight and until when, and sets it anew.
//!
//! ```text
//!  operations   [recv, till 60 s] [send, till 30 s] [recv, till 61 s] [send, till 31 s] ...
//!  timer        60 s              30 s ────────────────────────────────▶ expires: look, set to 61 s
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::backend::Op;
use crate::cluster::ProcessorShared;
use crate::timer::{Tick, TimerKey};

/// The deadline of an operation that has none.
pub(crate) const NEVER: Tick = Tick::MAX;

/// The operation in flight and the timer over it.
///
/// A fiber that moves leaves its timer behind on the processor that set it, where it expires without effect:
/// `keeper` names the processor whose timer counts.
#[derive(Default)]
pub(crate) struct Watch {
    operation: AtomicPtr<Op>,
    deadline: AtomicU64,
    keeper: AtomicPtr<ProcessorShared>,
    /// Where the operation is in flight.
    place: AtomicPtr<ProcessorShared>,
    /// Of the keeper, if there is one. Touched only where the fiber is: by who runs it, or while it waits there.
    timer: Cell<(TimerKey, Tick)>,
}

impl Watch {
    /// `op` is in flight on processor `here` and ends at `deadline`. Before [`cover`](Watch::cover).
    pub(crate) fn begin(&self, here: &ProcessorShared, op: *const Op, deadline: Tick) {
        let place = std::ptr::from_ref(here).cast_mut();
        self.place.store(place, Ordering::Relaxed);
        self.deadline.store(deadline, Ordering::Relaxed);
        self.operation.store(op.cast_mut(), Ordering::Release);
    }

    /// No operation is in flight. The timer stays.
    pub(crate) fn end(&self) {
        self.operation
            .store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The operation that is in flight on processor `here`, which is the caller's, and its deadline. Only its thread
    /// completes it, and ends the watch when it does, so until the caller does that it stays.
    pub(crate) fn operation_here(&self, here: &ProcessorShared) -> Option<(*const Op, Tick)> {
        let op = self.operation.load(Ordering::Acquire);
        let is_here = std::ptr::eq(self.place.load(Ordering::Relaxed), here);
        let in_flight = is_here && !op.is_null();
        in_flight.then(|| (op.cast_const(), self.deadline.load(Ordering::Relaxed)))
    }

    /// Whether the timer on processor `here` expires by `deadline`.
    pub(crate) fn is_covered(&self, here: &ProcessorShared, deadline: Tick) -> bool {
        self.is_kept_by(here) && self.timer.get().1 <= deadline
    }

    /// The timer, if processor `here` keeps it.
    pub(crate) fn timer_of(&self, here: &ProcessorShared) -> Option<TimerKey> {
        self.is_kept_by(here).then(|| self.timer.get().0)
    }

    /// Processor `here` has set a timer.
    pub(crate) fn cover(&self, here: &ProcessorShared, timer: TimerKey, tick: Tick) {
        self.timer.set((timer, tick));
        self.keeper
            .store(std::ptr::from_ref(here).cast_mut(), Ordering::Release);
    }

    /// The timer on processor `here` has expired. `false` if it no longer counted: the fiber may be on another
    /// processor by now, which covers it at this moment, so this touches nothing but `keeper`.
    pub(crate) fn uncover(&self, here: &ProcessorShared) -> bool {
        let here = std::ptr::from_ref(here).cast_mut();
        self.keeper
            .compare_exchange(
                here,
                std::ptr::null_mut(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    fn is_kept_by(&self, here: &ProcessorShared) -> bool {
        std::ptr::eq(self.keeper.load(Ordering::Acquire), here)
    }
}
