//! The kernel threads of an engine.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Threads that end with their engine.
#[derive(Debug, Default)]
pub(crate) struct LoopThreads(Vec<JoinHandle<()>>);

impl LoopThreads {
    /// Starts a thread that makes what it runs: a dispatcher may belong to its thread.
    ///
    /// # Errors
    /// What `make` says, or the kernel to a new thread.
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
            let Some(it) = it else { return };
            // Sessions that panic are caught before. Connections and a listen queue that nothing
            // serves are worse than no server.
            if catch_unwind(AssertUnwindSafe(|| run(it))).is_err() {
                eprintln!("an event loop panicked, which is a mistake of the engine's");
                process::abort();
            }
        })?;
        self.0.push(thread);
        is_made.recv().map_err(io::Error::other)?
    }

    /// Waits for all of them.
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
