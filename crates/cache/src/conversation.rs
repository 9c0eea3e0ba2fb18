//! One conversation in any protocol: the context of a command ([`Context`]), the state of the
//! conversation ([`State`]), the result of a step ([`Progress`]), listings, and reports to
//! watchers.

mod context;
mod dump;
mod observe;
mod state;
mod storage;

pub(crate) use context::Context;
pub(crate) use dump::Dump;
pub(crate) use observe::Deletion;
pub(crate) use state::{Pending, Progress, Retrieval, State, Swallow};
pub(crate) use storage::{Bad, Storage};
