//! Stacks, and the observable state of fibers that leave them.

pub(crate) mod context;
pub(crate) mod locals;
pub(crate) mod look;
pub(crate) mod reason;
pub(crate) mod resources;
mod sanitizer;
pub(crate) mod stack;
pub(crate) mod token;
mod valgrind;
