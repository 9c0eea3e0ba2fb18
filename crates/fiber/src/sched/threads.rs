//! The kernel threads of a cluster's processors, by place.

use std::any::Any;
use std::sync::{Mutex, mpsc};
use std::thread;

/// See the [module page](self). A call that adds or removes a processor holds the lock, so they
/// come and go one after the other.
#[derive(Debug)]
pub(crate) struct ProcessorThreads {
    pub(crate) members: Mutex<Vec<Option<ProcessorThread>>>,
}

impl ProcessorThreads {
    pub(crate) fn new(processors_max: usize) -> ProcessorThreads {
        ProcessorThreads { members: Mutex::new((0..processors_max).map(|_| None).collect()) }
    }
}

#[derive(Debug)]
pub(crate) struct ProcessorThread {
    pub(crate) thread: thread::JoinHandle<()>,
    /// Channel for values that are dropped when the processor has ended, or at once if it has:
    /// their destructors report the end. Used once, at the removal.
    pub(crate) drop_at_end: mpsc::Sender<Box<dyn Any + Send>>,
    /// Gets a message if the thread does not end then, because frames are left on it.
    pub(crate) stays: mpsc::Receiver<()>,
}
