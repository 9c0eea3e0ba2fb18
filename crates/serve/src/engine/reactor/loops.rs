//! The threads of an engine, from the server's view.

use std::io;
use std::sync::Arc;

use event::Mechanism;

use super::accept_thread::{AcceptThread, Distribute};
use super::connection_limit::ConnectionLimit;
use super::context::EngineContext;
use super::listeners::{Listeners, Sockets};
use super::poller::FIRST_LISTENER;
use super::threads::LoopThreads;
use super::waker::LoopHandle;
use crate::listen::Bound;
use crate::metrics::MetricsWriter;
use crate::shared::Shared;

/// The loops of an engine, from the server's view. Dropping it ends them.
pub(crate) struct Loops {
    shared: Arc<Shared>,
    connection_limit: Arc<ConnectionLimit>,
    /// The loops that have connections, by name.
    pub(crate) named: Vec<(String, Arc<LoopHandle>)>,
    accept_thread: Option<Arc<LoopHandle>>,
    pub(crate) threads: LoopThreads,
    /// Keeps the files of Unix sockets, which are removed with their `Bound`.
    bound: Vec<Bound>,
}

impl Loops {
    /// No loops yet.
    pub(crate) fn new<O>(engine: &EngineContext<O>, bound: Vec<Bound>) -> Loops {
        Loops {
            shared: Arc::clone(&engine.admission.shared),
            connection_limit: Arc::clone(&engine.connection_limit),
            named: Vec::new(),
            accept_thread: None,
            threads: LoopThreads::default(),
            bound,
        }
    }

    /// Starts the thread that accepts from `sockets` and distributes the connections. It waits for
    /// few descriptors, and always with `epoll`.
    ///
    /// # Errors
    /// Errors of a new thread and its descriptors.
    pub(crate) fn spawn_accept_thread<O>(
        &mut self,
        engine: &Arc<EngineContext<O>>,
        sockets: Sockets,
        to: impl Distribute + Send + 'static,
    ) -> io::Result<()>
    where
        O: Send + Sync + 'static,
    {
        let (engine, own) = (Arc::clone(engine), LoopHandle::new()?);
        self.accept_thread = Some(Arc::clone(&own));
        let listeners = Listeners::new(sockets, FIRST_LISTENER);
        let make = move || AcceptThread::new(engine, own, to, listeners, Mechanism::Epoll.open()?);
        (self.threads).spawn("accept".to_owned(), make, AcceptThread::run)
    }

    pub(crate) fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    /// The loops, and the accept thread, by name.
    fn all(&self) -> impl Iterator<Item = (&str, &Arc<LoopHandle>)> {
        let named = self.named.iter().map(|(name, one)| (name.as_str(), one));
        named.chain(self.accept_thread.iter().map(|one| ("accept", one)))
    }

    /// Wakes all loops: the server's state has changed, or accepting ends.
    pub(crate) fn wake(&self) {
        self.all().for_each(|(_, one)| one.waker.wake());
    }

    /// Closes the listeners, and waits until that is done.
    pub(crate) fn stop_accepting(&self) {
        self.connection_limit.close();
        self.wake();
        self.connection_limit.wait_until_closed();
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.connection_limit.open()
    }

    /// Wakes all loops, which cut their connections because of the server's state. Returns the
    /// number of connections.
    pub(crate) fn cut(&self) -> usize {
        let open = self.connection_count();
        self.wake();
        open
    }

    /// Counters of each loop: lines for people.
    pub(crate) fn dump(&self) -> String {
        let lines = self.all();
        lines.map(|(name, one)| one.counters.line(name)).collect()
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        for (name, one) in self.all() {
            one.counters.write_metrics(name, out);
        }
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        // If the engine could not be started, this ends the threads started so far.
        self.shared.server_state.cut();
        self.connection_limit.close();
        self.wake();
        self.threads.join();
    }
}
