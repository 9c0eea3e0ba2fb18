//! Stacks, and what a fiber shows of itself when it leaves one.

pub(crate) mod look;
pub(crate) mod stack;
pub(crate) mod token;
mod valgrind;
