//! Listeners that fibers wait on: the state only. [`io::accept`](crate::io::accept) works on it.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use crate::base::home::Home;
use crate::sched::cluster::Cluster;

/// The part of a listener that all processors share.
#[derive(Debug)]
pub(crate) struct ListenerState {
    /// Non-blocking from the first accept on: others may be faster.
    pub(crate) fd: OwnedFd,
    pub(crate) id: u64,
    pub(crate) closed: AtomicBool,
    /// Number of fibers that wait, on all processors.
    pub(crate) waiting: AtomicUsize,
    /// Processors that accept from it; each gets a message when it closes.
    pub(crate) users: Mutex<Vec<(Arc<Cluster>, usize)>>,
    /// For plain threads that wait.
    pub(crate) end: OnceLock<Box<ListenerEnd>>,
}

/// Reports to the plain threads of one process that a listener was closed there. A forked child
/// that has the listener as well makes its own, or it would report to the parent's threads.
#[derive(Debug)]
pub(crate) struct ListenerEnd {
    pub(crate) process: Home,
    /// Readable forever once the listener is closed.
    pub(crate) eventfd: OwnedFd,
    pub(crate) of_child: OnceLock<Box<ListenerEnd>>,
}

/// Listeners that fibers of one processor wait on. Few, so a list.
#[derive(Default)]
pub(crate) struct Acceptors {
    pub(crate) list: RefCell<Vec<Acceptor>>,
}

/// One listener on one processor.
pub(crate) struct Acceptor {
    pub(crate) listener: Arc<ListenerState>,
    /// An accept is in the ring, from its push to its completion. A fiber waits meanwhile.
    pub(crate) is_armed: bool,
    pub(crate) is_disarming: bool,
    /// The ring's last accept left connections in the queue.
    pub(crate) is_queue_filled: bool,
    /// Further accepts that were allowed after the ring's last accept, and those left.
    pub(crate) more: usize,
    pub(crate) more_now: usize,
    /// Addresses of fibers' waiters, whose type only `io::accept` knows. Last in, first out.
    pub(crate) waiters: Vec<*const ()>,
}

impl ListenerState {
    pub(crate) fn new(fd: OwnedFd, id: u64) -> Arc<ListenerState> {
        Arc::new(ListenerState {
            fd,
            id,
            closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            users: Mutex::default(),
            end: OnceLock::new(),
        })
    }
}

impl AsFd for ListenerState {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
