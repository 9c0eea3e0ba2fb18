//! The address of a fiber, for queues and operations.
//!
//! A cluster's queues are made of these, and a fiber's control block keeps its cluster alive. The
//! type of the control block is known only above the cluster, in [`fiber`](crate::sched::fiber).

use std::ptr::NonNull;

/// A fiber that is not finished.
///
/// INVARIANT: the runtime owns one count of the control block from spawn to finish, so the address
/// is good; and the fiber is in one place only: running, in one queue, or named by one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FiberRef(NonNull<()>);

// SAFETY: it is a counted pointer to a `Sync` control block; see the invariant.
unsafe impl Send for FiberRef {}

impl FiberRef {
    /// Only for [`fiber`](crate::sched::fiber), with the address of a control block.
    #[inline(always)]
    pub(super) fn at(address: NonNull<()>) -> FiberRef {
        FiberRef(address)
    }

    /// The fiber of an [`address`](FiberRef::address), or none for null.
    #[inline(always)]
    pub(super) fn at_some(address: *mut ()) -> Option<FiberRef> {
        NonNull::new(address).map(FiberRef)
    }

    #[inline(always)]
    pub(super) fn address(self) -> NonNull<()> {
        self.0
    }
}
