//! Starting fibers, waiting for them, and where they go.

pub(crate) mod builder;
pub(crate) mod clusters;
pub(crate) mod join_set;
pub(crate) mod steps;
