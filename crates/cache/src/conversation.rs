//! One conversation below its protocol: what a command needs ([`Context`]), where the conversation
//! stands ([`State`]), what one step of it came to ([`Progress`]), and what goes on beside the reply:
//! listings and what watchers see.

mod context;
mod dump;
pub(crate) mod observe;
mod state;
mod storage;

pub(crate) use context::Context;
pub(crate) use dump::Dump;
pub(crate) use state::{Pending, Progress, Retrieval, State, Swallow};
pub(crate) use storage::{Bad, Storage};
