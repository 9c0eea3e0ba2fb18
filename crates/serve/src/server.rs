//! A server: an engine that serves connections with sessions, from start to drain.

mod drain;

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use fiber::{Inspector, ProcessorCounters, Runtime};
use session::{Opening, Session};

use crate::access_log::AccessLog;
use crate::counters::CounterSnapshot;
use crate::datagrams::{self, DatagramCounters};
use crate::engine::admission::{Admission, Start};
#[cfg(feature = "netstack")]
use crate::engine::netstack::NetstackInterface;
use crate::engine::{Engine, Running};
use crate::limits::Limits;
use crate::listen::Bound;
use crate::messages;
use crate::metrics::MetricsWriter;
use crate::shared::Shared;

/// Settings of a server, apart from the session. The default has no listeners: add those from
/// [`bind`](crate::listen::bind).
#[derive(Debug, Default)]
pub struct Settings {
    /// Concurrency model.
    pub engine: Engine,
    /// Listeners, already bound.
    pub listeners: Vec<Bound>,
    /// Source of connections for [`Engine::Netstack`], in place of listeners. It is separate from
    /// the engine, a value that can be compared and copied, because it has open devices. That
    /// engine does not start without it; any other closes it.
    #[cfg(feature = "netstack")]
    pub netstack: Option<NetstackInterface>,
    /// Limits on the resources that a peer may use.
    pub limits: Limits,
    /// Number of fibers (or threads) started in advance, each of which accepts a connection and
    /// then serves it. `None`: as many as there are connections, plus some spare ones.
    pub fibers: Option<usize>,
    /// Log for the lines that sessions write about their replies.
    pub log: Option<Arc<AccessLog>>,
    /// Give sessions their peer's address even without a log, for a system call per connection.
    pub names_peers: bool,
}

/// A running server. Dropping it cuts open connections; see [`drain`](Server::drain).
///
/// At its connection limit a server *pauses accepting*: the kernel keeps further connections in the
/// listen queue, in order, until one ends.
pub struct Server {
    shared: Arc<Shared>,
    /// Ends the tasks that run beside the connections.
    is_over: Arc<AtomicBool>,
    running: Running,
}

impl Server {
    /// Starts accepting. `open` makes the session of a new connection, after the handshake on a TLS
    /// listener; it gets the peer's address if there is one and the settings request it.
    ///
    /// # Errors
    /// Errors of new threads, rings and descriptors. `InvalidInput` for [`Engine::Netstack`]
    /// without a netstack.
    pub fn start<S, O>(settings: Settings, open: O) -> io::Result<Server>
    where
        S: Session + 'static,
        O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
    {
        let shared = Arc::new(Shared::new(settings.limits, settings.log));
        let start = Start {
            admission: Admission::new(Arc::clone(&shared), settings.names_peers, open),
            listeners: settings.listeners,
            workers: settings.fibers,
        };
        let running = Running::start(
            &settings.engine,
            #[cfg(feature = "netstack")]
            settings.netstack,
            start,
        )?;
        Ok(Server { shared, is_over: Arc::default(), running })
    }

    /// Serves datagrams as well, until the server ends: `answer` gets each with its sender, and
    /// calls its last argument with each datagram to send back.
    ///
    /// # Errors
    /// Errors of new threads and descriptors.
    pub fn serve_datagrams(
        &self,
        socket: UdpSocket,
        answer: impl Fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8])) + Send + Sync + 'static,
    ) -> io::Result<Arc<DatagramCounters>> {
        let is_over = Arc::clone(&self.is_over);
        match self.running.runtime() {
            Some(runtime) => datagrams::start_on_fibers(runtime, socket, is_over, answer),
            None => datagrams::start_on_threads(socket, is_over, answer),
        }
    }

    /// Runs `work` beside the connections, on its own fiber or kernel thread. It must end soon
    /// after its argument has become true, and on a fiber it must yield periodically.
    ///
    /// # Errors
    /// Errors of a new thread or stack.
    pub fn run_beside(
        &self,
        name: &str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<()> {
        let is_over = Arc::clone(&self.is_over);
        let work = move || work(&is_over);
        let name = name.to_owned();
        match self.running.runtime() {
            Some(runtime) => {
                let builder = fiber::Builder::new().name(name);
                runtime.spawn_with(builder, work).map(drop)
            }
            None => thread::Builder::new().name(name).spawn(work).map(drop),
        }
    }

    /// The engine in a few words: `fibers on 2 processors, io_uring`, with a reason if necessary.
    pub fn describe(&self) -> String {
        self.running.describe()
    }

    /// Counters of the driver.
    pub fn counters(&self) -> CounterSnapshot {
        self.shared.counters.snapshot()
    }

    /// Writes the counters of driver and engine.
    pub fn write_metrics(&self, out: &mut MetricsWriter) {
        self.counters().write_to(out);
        self.shared.jobs.write_metrics(out);
        self.shared.buffers.write_metrics(out);
        self.shared.memory.write_metrics(out);
        self.shared.lingering.write_metrics(out);
        messages::write_metrics(out);
        self.running.write_metrics(out);
    }

    /// Counters of each processor; empty on engines without fibers.
    pub fn processor_counters(&self) -> Vec<ProcessorCounters> {
        let runtime = self.running.runtime();
        runtime.map(Runtime::counters).unwrap_or_default()
    }

    /// Describes the engine's current activity, for people.
    pub fn dump(&self) -> String {
        self.running.dump()
    }

    /// Inspector of the server's fibers; `None` if the engine has none.
    pub fn inspector(&self) -> Option<Inspector> {
        self.running.runtime().map(Runtime::inspector)
    }

    /// Number of open connections.
    pub fn connection_count(&self) -> usize {
        self.running.connection_count()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("engine", &self.describe())
            .field("connections", &self.connection_count())
            .finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.server_state.drain();
        self.stop_listening(Instant::now() + self.shared.limits.drain_deadline);
        self.shared.server_state.cut();
        self.running.cut();
    }
}
