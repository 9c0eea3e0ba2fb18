//! Calls and fibers in another cluster of the process.

use std::io;
use std::panic::Location;
use std::sync::Arc;

use crate::io::offload::offload;
use crate::sched::block::suspendable;
use crate::spawn::builder::{self, Builder};
use crate::spawn::handle::ClusterHandle;
use crate::spawn::packet::JoinHandle;
use crate::spawn::processors::{ProcessorStatus, Retirement};

impl ClusterHandle {
    /// Starts a fiber there, from anywhere. See [`Builder::cluster`] for settings, and for
    /// stackless fibers.
    ///
    /// # Panics
    /// If no stack can be had, or the runtime of the cluster has been shut down.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let started = Builder::new().spawn_in(Arc::clone(&self.0), Location::caller(), f);
        started.expect("failed to spawn a fiber")
    }

    /// Runs `f` in a fiber there and waits for it, from a fiber or a plain thread. It may borrow,
    /// because the caller waits until it has finished; a caller that is
    /// [cancelled](crate::Fiber::cancel) meanwhile cancels it, and keeps waiting.
    ///
    /// If the runtime of the cluster is shut down and leaves the fiber behind, the caller waits for
    /// ever, as for any fiber that was left behind.
    ///
    /// # Panics
    /// With the panic of `f`; or if no stack can be had, or the runtime of the cluster has been
    /// shut down.
    #[track_caller]
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        builder::run_in(&self.0, Location::caller(), f)
    }

    /// Same as [`Runtime::processors`](crate::Runtime::processors).
    pub fn processors(&self) -> Vec<ProcessorStatus> {
        self.0.processor_statuses()
    }

    /// Same as [`Runtime::add_processor`](crate::Runtime::add_processor).
    ///
    /// # Errors
    /// The same, and `NotConnected` if the runtime has been shut down.
    pub fn add_processor(&self) -> io::Result<usize> {
        // In a fiber, without holding its processor up: a thread has to start, and another call may
        // be at it.
        match suspendable() {
            Some(_) => offload(|| self.0.add_processor()),
            None => self.0.add_processor(),
        }
    }

    /// Same as [`Runtime::remove_processor`](crate::Runtime::remove_processor).
    ///
    /// # Errors
    /// The same, and `NotConnected` if the runtime has been shut down.
    pub fn remove_processor(&self, index: usize) -> io::Result<Retirement> {
        match suspendable() {
            Some(_) => offload(|| self.0.remove_processor(index)),
            None => self.0.remove_processor(index),
        }
    }
}
