//! Fibers that go to another cluster: see [`move_to`](crate::move_to).

use crate::sched::fiber::{FiberRef, Flow};
use crate::sched::processor::Processor;

impl Processor {
    /// A fiber that may move has a target, and its step is over or it has suspended for this.
    /// `false` if it stays, because the target has been shut down.
    pub(crate) fn depart(&self, fiber: FiberRef, flow: Flow) -> bool {
        let Some(target) = fiber.take_target() else {
            return false;
        };
        if !self.cluster.hand_over(fiber, &target) {
            return false;
        }
        fiber.enter(&target);
        match flow {
            Flow::Receive => fiber.postpone_wait(),
            Flow::Park if fiber.park_after_switch() => return true,
            _ => {}
        }
        // From here on it is another's.
        target.push_arrived(fiber);
        true
    }
}
