//! The kernel threads of an engine.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::messages;

/// Threads that end with their engine.
#[derive(Debug, Default)]
pub(crate) struct LoopThreads(Vec<JoinHandle<()>>);

impl LoopThreads {
    /// Starts a thread that makes its own task: a dispatcher may be bound to its thread.
    ///
    /// # Errors
    /// Errors of `make`, or of a new thread.
    pub(crate) fn spawn<T>(
        &mut self,
        name: String,
        make: impl FnOnce() -> io::Result<T> + Send + 'static,
        run: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<()> {
        let (made, is_made) = mpsc::channel();
        let thread = thread::Builder::new().name(name).spawn(move || {
            let (it, told) = match make() {
                Ok(it) => (Some(it), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ = made.send(told);
            if let Some(it) = it {
                run_or_abort(|| run(it));
            }
        })?;
        self.0.push(thread);
        is_made.recv().map_err(io::Error::other)?
    }

    /// Starts a detached thread.
    ///
    /// # Errors
    /// Errors of a new thread.
    pub(crate) fn detach(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = thread::Builder::new().name(name);
        builder.spawn(move || run_or_abort(run)).map(drop)
    }

    /// Waits for all threads.
    pub(crate) fn join(&mut self) {
        for thread in self.0.drain(..) {
            // A session may own the last handle on its server.
            if thread.thread().id() != thread::current().id() {
                // The hook has reported a panic.
                let _ = thread.join();
            }
        }
    }
}

/// Aborts on a panic; those of sessions are caught earlier. Connections and a listen queue that
/// nothing serves would be worse than no server.
fn run_or_abort(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        messages::write("bug: an event loop panicked; please report it\n");
        process::abort();
    }
}
