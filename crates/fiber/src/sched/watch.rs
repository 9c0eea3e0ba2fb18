//! The watch over a fiber's operation: one timer that stays set from operation to operation.
//!
//! A server gives every receive and every send a deadline, and almost none passes. To set and
//! cancel a timer for each would touch the wheel four times a request. So the timer of a fiber is
//! left alone as long as it expires *no later* than the present operation's deadline; when it does
//! expire, the processor looks which operation is in flight and until when, and sets it anew.
//!
//! ```text
//!  operations   [recv, till 60 s] [send, till 30 s] [recv, till 61 s] [send, till 31 s] ...
//!  timer        60 s              30 s ────────────────────────────────▶ expires: look, set to 61 s
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use timer::{Tick, TimerKey};

/// The deadline of an operation that has none.
pub(crate) const NEVER: Tick = Tick::MAX;

/// The operation in flight and the timer over it.
///
/// `P` is the half of a processor that all may reach. `keeper` names the processor that has the
/// timer. When the fiber waits on another one, that one sets a timer of its own and tells the
/// keeper to take back the old one.
pub(crate) struct Watch<P> {
    /// Address of the operation; only `io::op` knows its type.
    operation: AtomicPtr<()>,
    deadline: AtomicU64,
    keeper: AtomicPtr<P>,
    /// Timer on the keeper, if there is one. Touched only where the fiber is: by the thread that
    /// runs it, or while it waits there.
    timer: Cell<SetTimer>,
}

/// A timer over a fiber's operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetTimer {
    pub(crate) key: TimerKey,
    pub(crate) tick: Tick,
    /// The [number](crate::sched::processor::Processor::id) of the processor, whose place another
    /// may have taken.
    pub(crate) processor: u64,
}

impl<P> Default for Watch<P> {
    fn default() -> Watch<P> {
        Watch {
            operation: AtomicPtr::default(),
            deadline: AtomicU64::default(),
            keeper: AtomicPtr::default(),
            timer: Cell::default(),
        }
    }
}

impl<P> Watch<P> {
    /// Notes that `op` is in flight, on the fiber's home, and ends at `deadline`. Called before
    /// [`cover`](Watch::cover).
    pub(crate) fn begin(&self, op: *const (), deadline: Tick) {
        self.deadline.store(deadline, Ordering::Relaxed);
        self.operation.store(op.cast_mut(), Ordering::Release);
    }

    /// Notes that no operation is in flight. The timer stays.
    pub(crate) fn end(&self) {
        self.operation.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The operation that is in flight, and its deadline. The caller looks afterwards whether the
    /// fiber is at home on its processor.
    pub(super) fn operation(&self) -> Option<(*const (), Tick)> {
        let op = self.operation.load(Ordering::Acquire);
        (!op.is_null()).then(|| (op.cast_const(), self.deadline.load(Ordering::Relaxed)))
    }

    /// True if the timer on processor `here` expires by `deadline`.
    pub(crate) fn is_covered(&self, here: &P, deadline: Tick) -> bool {
        self.is_kept_by(here) && self.timer.get().tick <= deadline
    }

    /// Takes the timer off, to be cancelled where it is kept. `None` if there is none, or it
    /// expires just now.
    pub(crate) fn take_timer(&self) -> Option<(*const P, SetTimer)> {
        let none = std::ptr::null_mut();
        if self.keeper.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let keeper = self.keeper.swap(none, Ordering::AcqRel);
        (!keeper.is_null()).then(|| (keeper.cast_const(), self.timer.get()))
    }

    /// Notes the timer that processor `here` has set. There is no other.
    pub(crate) fn cover(&self, here: &P, timer: SetTimer) {
        self.timer.set(timer);
        self.keeper.store(std::ptr::from_ref(here).cast_mut(), Ordering::Release);
    }

    /// Notes that the timer on processor `here` has expired; `false` if it has just been taken off.
    /// The fiber may be covered by another processor at this moment, so this touches nothing but
    /// `keeper`.
    pub(crate) fn uncover(&self, here: &P) -> bool {
        let here = std::ptr::from_ref(here).cast_mut();
        self.keeper
            .compare_exchange(here, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn is_kept_by(&self, here: &P) -> bool {
        std::ptr::eq(self.keeper.load(Ordering::Acquire), here)
    }
}
