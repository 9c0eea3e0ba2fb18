//! Which way operations go.

use crate::backend::Backend;
use crate::sched::processor;

/// How an operation of the calling thread reaches the kernel.
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
