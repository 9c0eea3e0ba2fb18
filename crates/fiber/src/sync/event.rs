//! [`Event`].

use std::time::Duration;

use super::const_unless_loom;
use super::short::ShortLock;
use super::wait::{Limit, Node, Queue, Wait, Wakes};
use crate::base::atomic::{AtomicBool, Ordering};
use crate::base::clock::after;
use crate::sched::waiting;
use crate::switch::reason::WaitReason;

/// Something that has happened or not: a gate that stays open once set, until it is reset.
///
/// All that wait when it is set continue, even if it is reset before they run.
///
/// ```
/// use std::sync::Arc;
/// use weftwork_fiber::sync::Event;
///
/// weftwork_fiber::run(|| {
///     let started = Arc::new(Event::new());
///     let other = Arc::clone(&started);
///     weftwork_fiber::spawn(move || other.set());
///     started.wait();
///     assert!(started.is_set());
/// });
/// ```
#[derive(Debug)]
pub struct Event {
    set: AtomicBool,
    queue: ShortLock<Queue>,
}

impl Event {
    const_unless_loom! {
        /// An event that has not happened.
        pub fn new() -> Event {
            Event { set: AtomicBool::new(false), queue: ShortLock::new(Queue::new()) }
        }
    }

    /// Sets the event: all waiters continue, and later callers do not wait.
    pub fn set(&self) {
        let mut wakes = Wakes::default();
        self.queue.with(|queue| {
            self.set.store(true, Ordering::Release);
            queue.grant_all(&mut wakes, |_| 0);
        });
        wakes.wake();
    }

    /// Resets the event: callers wait from now on.
    pub fn reset(&self) {
        self.queue.with(|_| self.set.store(false, Ordering::Release));
    }

    /// True if it is set.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Waits until it has happened.
    pub fn wait(&self) {
        self.wait_within(None, self.reason());
    }

    /// Waits until the event is set, but not longer than `timeout`; true if it was set.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_within(Some(after(timeout)), self.reason())
    }

    fn reason(&self) -> WaitReason {
        let address = std::ptr::from_ref(self).addr();
        WaitReason::Event { address }
    }

    /// Waits until the event is set, or for the limit; true if it was set. A dump shows the reason.
    pub(crate) fn wait_within(&self, limit: impl Into<Limit>, reason: WaitReason) -> bool {
        if self.is_set() {
            return true;
        }
        let limit = limit.into();
        let wait = Wait::until(limit);
        let node = Node::new(&wait, 0, std::ptr::null_mut());
        let is_set = self.queue.with(|queue| {
            let is_set = self.set.load(Ordering::Acquire);
            if !is_set {
                // SAFETY: this frame continues when the node is claimed, and so out of the queue,
                // or after it has removed it.
                unsafe { queue.push_back(&node) };
            }
            is_set
        });
        let _noted = waiting::on(reason);
        if is_set || wait.block(limit).is_some() {
            return true;
        }
        self.queue.with(|queue| queue.remove(&node));
        false
    }
}

impl Default for Event {
    fn default() -> Event {
        Event::new()
    }
}
