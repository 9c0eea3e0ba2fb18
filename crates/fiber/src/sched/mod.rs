//! Who runs where and when. From the ground up: each knows only those above it in this list, but
//! for the fiber, which keeps its cluster alive.
//!
//! | module | what it is |
//! |---|---|
//! | `backlog`, `idle`, `inbox`, `ready_queue` | how long work waits, sleepers, inboxes, run queues: without a clock, without fibers |
//! | `threads` | the kernel threads of a cluster's processors |
//! | `spans`, `watch` | parts of a fiber's control block |
//! | `fiber` | the control block |
//! | `registry`, `cluster` | all fibers; what processors share |
//! | `processor` | the half of a processor that belongs to its thread |
//! | `local`, `waiting`, `wake` | what a fiber has, waits for, and is woken by |
//! | `block`, `run` | how a fiber gives its processor away, and how it gets it |
//! | `unparker` | a fiber or a thread that is parked |

pub(crate) mod backlog;
pub(crate) mod idle;
pub(crate) mod inbox;
pub(crate) mod ready_queue;
pub(crate) mod threads;

#[cfg(feature = "tracing")]
pub mod spans;
#[cfg(not(feature = "tracing"))]
#[path = "spans_off.rs"]
pub(crate) mod spans;
pub(crate) mod watch;

pub(crate) mod fiber;

pub(crate) mod registry;

pub(crate) mod cluster;

pub(crate) mod processor;

pub(crate) mod local;
pub(crate) mod waiting;
mod wake;

pub(crate) mod block;
mod run;

pub(crate) mod unparker;
