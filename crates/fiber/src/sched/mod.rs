//! Who runs where and when: queue, idle, timers, the fiber, the cluster, the processor.

pub(crate) mod cancel;
pub(crate) mod cluster;
pub(crate) mod fiber;
pub(crate) mod fork;
mod idle;
pub(crate) mod local;
mod overflow;
pub(crate) mod processor;
mod ready_queue;
pub(crate) mod resize;
pub(crate) mod roster;
#[cfg(feature = "tracing")]
pub mod spans;
#[cfg(not(feature = "tracing"))]
#[path = "spans_off.rs"]
pub(crate) mod spans;
mod timer;
pub(crate) mod waiting;
pub(crate) mod watch;
