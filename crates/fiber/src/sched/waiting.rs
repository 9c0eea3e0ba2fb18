//! Notes what the calling fiber waits for: see [`reason`](crate::switch::reason).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sched::fiber::FiberRef;
use crate::sched::processor;
use crate::switch::reason::{WaitReason, encode};

/// Takes the note back, and puts the outer one (if any) in its place.
///
/// INVARIANT: never forgotten; readers rely on the lock being there until this is dropped.
#[derive(Debug)]
pub(crate) struct Noted<'a> {
    fiber: Option<FiberRef>,
    outer: u64,
    is_lock: bool,
    reason: PhantomData<&'a AtomicU64>,
}

/// Notes that the calling fiber waits for `reason`, until the guard goes. On a plain thread,
/// nothing.
pub(crate) fn on(reason: WaitReason) -> Noted<'static> {
    debug_assert!(!matches!(reason, WaitReason::Lock { .. }), "see on_lock");
    note(encode(reason), false)
}

/// Same as [`on`], with a reason that is encoded already.
pub(crate) fn on_encoded(reason: u64) -> Noted<'static> {
    note(reason, false)
}

/// Notes that the calling fiber waits for a lock that keeps its owner's number in `owner`, for a
/// time or until it has it.
pub(crate) fn on_lock(owner: &AtomicU64, is_timed: bool) -> Noted<'_> {
    let address = std::ptr::from_ref(owner).expose_provenance();
    note(encode(WaitReason::Lock { address, owner: 0, is_timed }), true)
}

/// Same as [`on`] for the calling fiber, unless a more detailed reason is noted already.
pub(crate) fn on_unless_noted(fiber: FiberRef, reason: WaitReason) -> Option<Noted<'static>> {
    let note = &fiber.control().waiting().note;
    // Only the fiber itself writes here.
    (note.load(Ordering::Relaxed) == 0).then(|| {
        note.store(encode(reason), Ordering::Release);
        Noted { fiber: Some(fiber), outer: 0, is_lock: false, reason: PhantomData }
    })
}

fn note<'a>(note: u64, is_lock: bool) -> Noted<'a> {
    let noted = processor::with_current(|_, fiber| {
        let waiting = fiber.control().waiting();
        // Only the fiber itself writes here.
        let outer = waiting.note.load(Ordering::Relaxed);
        waiting.note.store(note, Ordering::Release);
        (fiber, outer)
    });
    Noted {
        fiber: noted.map(|(fiber, _)| fiber),
        outer: noted.map_or(0, |(_, outer)| outer),
        is_lock,
        reason: PhantomData,
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let Some(fiber) = self.fiber else { return };
        let waiting = fiber.control().waiting();
        if !self.is_lock {
            return waiting.note.store(self.outer, Ordering::Relaxed);
        }
        // With `reason`: either the reader sees the note gone, or this thread sees the reader.
        waiting.note.store(self.outer, Ordering::SeqCst);
        while waiting.readers.load(Ordering::SeqCst) != 0 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::switch::reason::WaitReason;

    #[test]
    fn parked_fiber_has_a_reason() {
        let runtime = crate::Runtime::builder().processors(1).start().unwrap();
        runtime.run(|| {
            let waiter = crate::spawn(crate::park);
            crate::yield_now();
            crate::yield_now();
            let waiting = waiter.fiber().control.waiting();
            assert_eq!(waiting.reason(), Some(WaitReason::Park));
            assert_eq!(crate::current().unwrap().control.waiting().reason(), None);
            waiter.fiber().unpark();
            waiter.join().unwrap();
        });
    }
}
