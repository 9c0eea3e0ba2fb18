//! Set of descriptors in the form of `poll(2)`, with an entry of the mechanism beside each.
//!
//! ```text
//! fds     │ fd events revents │ fd events revents │ …    one run of memory for the kernel
//! entries │ E                 │ E                 │ …    at the same index
//! ```

use std::os::fd::RawFd;

use libc::pollfd;

pub(crate) struct Set<E> {
    pub(crate) fds: Vec<pollfd>,
    pub(crate) entries: Vec<E>,
}

impl<E> Default for Set<E> {
    fn default() -> Set<E> {
        Set { fds: Vec::new(), entries: Vec::new() }
    }
}

impl<E> Set<E> {
    pub(crate) fn len(&self) -> usize {
        self.fds.len()
    }

    /// Appends a descriptor; returns its index.
    pub(crate) fn push(&mut self, fd: RawFd, events: i16, entry: E) -> usize {
        self.fds.push(pollfd { fd, events, revents: 0 });
        self.entries.push(entry);
        self.fds.len() - 1
    }

    /// Removes a descriptor. The last one moves to its index.
    pub(crate) fn swap_remove(&mut self, at: usize) -> (pollfd, E) {
        (self.fds.swap_remove(at), self.entries.swap_remove(at))
    }

    pub(crate) fn swap(&mut self, one: usize, other: usize) {
        self.fds.swap(one, other);
        self.entries.swap(one, other);
    }

    /// Descriptor at index `at`, if that is within the set.
    pub(crate) fn fd_at(&self, at: usize) -> Option<RawFd> {
        self.fds.get(at).map(|it| it.fd)
    }
}
