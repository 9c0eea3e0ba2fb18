//! The ground floor: words and tools that know nothing of fibers.

pub(crate) mod atomic;
pub(crate) mod counters;
pub(crate) mod stamp;
pub(crate) mod topology;
