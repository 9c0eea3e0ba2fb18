//! Requests of fibers to the kernel and to other threads. From the ground up: each module knows
//! only those above it in this list.
//!
//! | module | what it is |
//! |---|---|
//! | `path`, `lent`, `op` | which way operations go; a receive's buffer; an operation |
//! | `accept`, `ready` | operations: on listeners, by readiness (epoll) |
//! | `end` | how operations end |
//! | `cancel`, `ring` | requests to a fiber to end; operations by the ring |
//! | `offload` | calls on other threads |
//! | `fork` | what becomes of all that when the process forks |

pub(crate) mod lent;
pub(crate) mod op;
pub(crate) mod path;

pub(crate) mod accept;
pub(crate) mod ready;

pub(crate) mod end;

pub(crate) mod cancel;
pub(crate) mod ring;

pub(crate) mod offload;

pub(crate) mod fork;
