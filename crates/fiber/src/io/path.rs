//! Choice between ring, epoll and blocking calls.

use crate::backend::Backend;
use crate::sched::processor;

/// Way of an operation of the calling thread to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoPath {
    Uring,
    Epoll,
    /// Not a fiber: block the thread.
    Plain,
}

pub(crate) fn io_path() -> IoPath {
    processor::with_current(|processor, _| match processor.backend {
        Backend::Uring(_) => IoPath::Uring,
        Backend::Epoll(_) => IoPath::Epoll,
    })
    .unwrap_or(IoPath::Plain)
}
