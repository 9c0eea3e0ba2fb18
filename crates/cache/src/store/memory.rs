//! Memory: the range of addresses, its chunks and what stands at their start, and when memory may
//! be used again.

pub(crate) mod arena;
pub(crate) mod classes;
pub(crate) mod epoch;
pub(crate) mod layout;
pub(crate) mod mark;
pub(crate) mod prefetch;
pub(crate) mod sync;
