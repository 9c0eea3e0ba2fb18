//! [`Barrier`].

use super::const_unless_loom;
use super::short::ShortLock;
use super::wait::{Node, Queue, Wait, Wakes};
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// A place where `n` meet before any continues, as of [`std::sync::Barrier`]; again and again.
#[derive(Debug)]
pub struct Barrier {
    size: usize,
    state: ShortLock<State>,
}

#[derive(Debug)]
struct State {
    arrived: usize,
    queue: Queue,
}

/// Result of [`Barrier::wait`] for each caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult {
    is_leader: bool,
}

impl BarrierWaitResult {
    /// True for one caller of each round: the last to come.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }
}

impl Barrier {
    const_unless_loom! {
        /// A barrier for `n`; 0 counts as 1.
        pub fn new(n: usize) -> Barrier {
            Barrier { size: n, state: ShortLock::new(State { arrived: 0, queue: Queue::new() }) }
        }
    }

    /// Waits until `n` have come.
    pub fn wait(&self) -> BarrierWaitResult {
        let wait = Wait::until(None);
        let node = Node::new(&wait, 0, std::ptr::null_mut());
        let mut wakes = Wakes::default();
        let is_leader = self.state.with(|state| {
            state.arrived += 1;
            if state.arrived >= self.size {
                state.arrived = 0;
                state.queue.grant_all(&mut wakes, |_| 0);
                return true;
            }
            // SAFETY: this frame continues when the node is claimed, and so out of the queue.
            unsafe { state.queue.push_back(&node) };
            false
        });
        if is_leader {
            wakes.wake();
        } else {
            let address = std::ptr::from_ref(self).addr();
            let _noted = waiting::on(WaitReason::Event { address });
            wait.block(None);
        }
        BarrierWaitResult { is_leader }
    }
}
