//! Inspection of a runtime from outside.

pub(crate) mod debugger;
pub(crate) mod dump;
pub(crate) mod monitor;
pub(crate) mod panic_hook;
mod thread_time;
