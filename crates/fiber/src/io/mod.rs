//! What fibers ask of the kernel.

pub(crate) mod accept;
pub(crate) mod offload;
