//! Which way operations go.

use crate::backend::Backend;
use crate::sched::processor;

/// How an operation of the calling thread reaches the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Uring,
    Epoll,
    /// Not a fiber: block the thread.
    Plain,
}

pub(crate) fn carrier() -> Carrier {
    processor::with_current(|processor, _| match processor.backend {
        Backend::Uring(_) => Carrier::Uring,
        Backend::Epoll(_) => Carrier::Epoll,
    })
    .unwrap_or(Carrier::Plain)
}
