//! Starting fibers, waiting for them, and where they go. From the ground up: each knows only those
//! above it in this list.
//!
//! | module | what it is |
//! |---|---|
//! | `packet`, `handle` | where a fiber leaves its result; a handle to a cluster |
//! | `processors`, `stackless` | processors that come and go; fibers without a stack while they wait |
//! | `builder` | starting a fiber, and scopes |
//! | `clusters`, `join_set` | several clusters; fibers whose results are taken as they come |

pub(crate) mod handle;
pub(crate) mod packet;

pub(crate) mod processors;
pub(crate) mod stackless;

pub(crate) mod builder;

pub(crate) mod clusters;
pub(crate) mod join_set;
