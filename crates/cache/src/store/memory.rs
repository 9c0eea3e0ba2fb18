//! Memory: the address range, its chunks and their headers, and the reclamation of memory.

pub(crate) mod arena;
pub(crate) mod classes;
pub(crate) mod epoch;
pub(crate) mod layout;
pub(crate) mod mark;
pub(crate) mod prefetch;
pub(crate) mod sync;
