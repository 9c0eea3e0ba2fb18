//! The scheduler. From the ground up: each module knows only those above it in this list.
//!
//! | module | what it is |
//! |---|---|
//! | `backlog`, `idle`, `inbox`, `ready_queue` | how long work waits, sleepers, inboxes, run queues: without a clock, without fibers |
//! | `threads` | the kernel threads of a cluster's processors |
//! | `watch` | the deadline of a fiber's operation |
//! | `fiber_ref`, `registry` | the address of a fiber; a list of all |
//! | `cluster` | state that processors share |
//! | `fiber`, `members` | the control block; fibers of a cluster |
//! | `acceptors` | listeners that fibers wait on |
//! | `processor` | the half of a processor that belongs to its thread |
//! | `local`, `waiting`, `wake` | what a fiber has, waits for, and is woken by |
//! | `run`, `block` | how a fiber gets its processor, and how it gives it away |
//! | `unparker` | a fiber or a thread that is parked |

pub(crate) mod backlog;
pub(crate) mod idle;
pub(crate) mod inbox;
pub(crate) mod ready_queue;
pub(crate) mod threads;

pub(crate) mod watch;

mod fiber_ref;
pub(crate) mod registry;

pub(crate) mod cluster;

pub(crate) mod fiber;
mod members;

pub(crate) mod acceptors;

pub(crate) mod processor;

pub(crate) mod local;
pub(crate) mod waiting;
mod wake;

pub(crate) mod block;
pub(crate) mod run;

pub(crate) mod unparker;
