//! The lowest layer: types and tools that know nothing of fibers.

pub(crate) mod abort;
pub(crate) mod atomic;
mod by_reference;
pub(crate) mod cancelled;
pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod home;
pub(crate) mod lock;
pub(crate) mod report;
pub(crate) mod stamp;
pub(crate) mod thread_wait;
pub(crate) mod topology;

pub(crate) use by_reference::by_reference;
