//! Engines: the user's choice, and each running engine behind the same few calls.
//!
//! An engine owns how it listens, how it waits and on which threads sessions run. To add one: a
//! file here with a type that has the methods that `Running` forwards, a variant of [`Engine`] to
//! select it by, and a variant of `Running`. Making a session from an accepted socket is common to
//! all (`admission`); so are counting and the ends of connections, because the machine decides
//! them.

pub(crate) mod admission;
#[cfg(feature = "event")]
pub mod event;
mod fiber;
#[cfg(feature = "netstack")]
pub mod netstack;
#[cfg(feature = "pipeline")]
pub mod pipeline;
mod pool;
mod processors;
#[cfg(feature = "event")]
#[cfg_attr(not(all(feature = "netstack", feature = "pipeline")), allow(dead_code, unused_imports))]
mod reactor;
mod serving;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::time::Duration;

use ::fiber::{BackendChoice, Runtime};
use session::Session;

use crate::listen::Bound;
use crate::metrics::MetricsWriter;
use admission::{Opens, Start};
#[cfg(feature = "event")]
use event::Events;
#[cfg(feature = "event")]
pub use event::{Accept, EventOptions};
use fiber::Fibers;
#[cfg(feature = "netstack")]
use netstack::{NetstackInterface, Netstacks};
#[cfg(feature = "pipeline")]
use pipeline::Pipeline;
#[cfg(feature = "pipeline")]
pub use pipeline::PipelineOptions;
pub use thread::THREADS_MAX;
use thread::Threads;

/// Concurrency model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A fiber per connection.
    Fiber {
        /// Number of processors that run the fibers.
        processors: usize,
        /// Back end of the runtime.
        backend: BackendChoice,
    },
    /// A kernel thread per connection.
    Thread,
    /// A few kernel threads, each of which waits for many connections.
    #[cfg(feature = "event")]
    Event(EventOptions),
    /// Stages with threads of their own, which pass connections on.
    #[cfg(feature = "pipeline")]
    Pipeline(PipelineOptions),
    /// A few kernel threads with an in-process TCP/IP: [`Settings::netstack`](crate::Settings).
    #[cfg(feature = "netstack")]
    Netstack,
}

impl Default for Engine {
    /// Fibers, on as many processors as CPU affinity and cgroup quota allow.
    fn default() -> Engine {
        Engine::Fiber {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            backend: BackendChoice::Auto,
        }
    }
}

impl Engine {
    /// Binds what the engine needs in addition to `listeners`. Call it before the process changes
    /// its user, who may lack the permission; otherwise a server does it at start.
    ///
    /// # Errors
    /// Errors of new sockets.
    #[cfg_attr(not(feature = "event"), allow(unused_variables))]
    pub fn prepare(&self, listeners: &mut [Bound]) -> io::Result<()> {
        match self {
            #[cfg(feature = "event")]
            Engine::Event(options) => event::prepare(options, listeners),
            #[cfg(feature = "pipeline")]
            Engine::Pipeline(_) => Ok(()),
            #[cfg(feature = "netstack")]
            Engine::Netstack => Ok(()),
            Engine::Fiber { .. } | Engine::Thread => Ok(()),
        }
    }
}

/// A running engine. Dropping it ends its threads.
pub(crate) enum Running {
    Fiber(Fibers),
    Thread(Threads),
    #[cfg(feature = "event")]
    Event(Events),
    #[cfg(feature = "pipeline")]
    Pipeline(Pipeline),
    #[cfg(feature = "netstack")]
    Netstack(Netstacks),
}

/// Calls a method on the holder of the engine's connections.
macro_rules! each {
    ($self:ident, $holder:ident => $call:expr) => {
        match $self {
            Running::Fiber(Fibers { workers: $holder, .. }) => $call,
            Running::Thread(Threads { workers: $holder }) => $call,
            #[cfg(feature = "event")]
            Running::Event(Events { loops: $holder, .. }) => $call,
            #[cfg(feature = "pipeline")]
            Running::Pipeline(Pipeline { loops: $holder, .. }) => $call,
            #[cfg(feature = "netstack")]
            Running::Netstack(Netstacks { loops: $holder, .. }) => $call,
        }
    };
}

impl Running {
    /// Starts accepting.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        engine: &Engine,
        #[cfg(feature = "netstack")] netstack: Option<NetstackInterface>,
        start: Start<O>,
    ) -> io::Result<Running> {
        Ok(match engine.clone() {
            Engine::Fiber { processors, backend } => {
                Running::Fiber(Fibers::start(processors, backend, start)?)
            }
            Engine::Thread => Running::Thread(Threads::start(start)?),
            #[cfg(feature = "event")]
            Engine::Event(options) => Running::Event(Events::start(options, start)?),
            #[cfg(feature = "pipeline")]
            Engine::Pipeline(options) => Running::Pipeline(Pipeline::start(options, start)?),
            #[cfg(feature = "netstack")]
            Engine::Netstack => {
                let none =
                    || io::Error::new(io::ErrorKind::InvalidInput, "no netstack to serve on");
                let interface = netstack.ok_or_else(none)?;
                Running::Netstack(Netstacks::start(interface, start)?)
            }
        })
    }

    /// A short description for people: what runs, on what and why.
    pub(crate) fn describe(&self) -> String {
        match self {
            Running::Fiber(fibers) => fibers.describe(),
            Running::Thread(threads) => threads.describe(),
            #[cfg(feature = "event")]
            Running::Event(events) => events.describe(),
            #[cfg(feature = "pipeline")]
            Running::Pipeline(pipeline) => pipeline.describe(),
            #[cfg(feature = "netstack")]
            Running::Netstack(netstacks) => netstacks.describe(),
        }
    }

    /// Describes the current activity for people, in lines.
    pub(crate) fn dump(&self) -> String {
        match self {
            Running::Fiber(fibers) => fibers.dump(),
            Running::Thread(_) => String::new(),
            #[cfg(feature = "event")]
            Running::Event(events) => events.loops.dump(),
            #[cfg(feature = "pipeline")]
            Running::Pipeline(pipeline) => pipeline.dump(),
            #[cfg(feature = "netstack")]
            Running::Netstack(netstacks) => netstacks.dump(),
        }
    }

    /// Writes counters that not all engines have.
    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        match self {
            Running::Fiber(fibers) => fibers.write_metrics(out),
            Running::Thread(_) => {}
            #[cfg(feature = "event")]
            Running::Event(events) => events.loops.write_metrics(out),
            #[cfg(feature = "pipeline")]
            Running::Pipeline(pipeline) => pipeline.write_metrics(out),
            #[cfg(feature = "netstack")]
            Running::Netstack(netstacks) => netstacks.write_metrics(out),
        }
    }

    /// The runtime, for other uses of fibers than serving connections; engines without one use
    /// threads.
    pub(crate) fn runtime(&self) -> Option<&Runtime> {
        match self {
            Running::Fiber(fibers) => Some(fibers.runtime()),
            _ => None,
        }
    }

    /// The listening sockets.
    pub(crate) fn listeners(&self) -> &[Bound] {
        each!(self, holder => holder.listeners())
    }

    /// Announces a drain to engines whose loops can notify their connections at once. Connections
    /// of other engines check for it when a wait of theirs ends: with input, or by
    /// [`close_idle`](Running::close_idle).
    pub(crate) fn drain(&self) {
        match self {
            #[cfg(feature = "event")]
            Running::Event(events) => events.loops.wake(),
            #[cfg(feature = "pipeline")]
            Running::Pipeline(pipeline) => pipeline.loops.wake(),
            #[cfg(feature = "netstack")]
            Running::Netstack(netstacks) => netstacks.loops.wake(),
            Running::Fiber(_) | Running::Thread(_) => {}
        }
    }

    /// Ends all waits for connections; the sockets stay open.
    pub(crate) fn stop_accepting(&self) {
        each!(self, holder => holder.stop_accepting());
    }

    /// Number of open connections.
    pub(crate) fn connection_count(&self) -> usize {
        each!(self, holder => holder.connection_count())
    }

    /// Closes the connections that have been idle for long enough at this time after the server's
    /// start.
    pub(crate) fn close_idle(&self, after_start: Duration) {
        match self {
            Running::Fiber(fibers) => fibers.workers.close_idle(after_start),
            Running::Thread(threads) => threads.workers.close_idle(after_start),
            // Connections of the other engines have timers for that.
            #[cfg(feature = "event")]
            Running::Event(_) => {}
            #[cfg(feature = "pipeline")]
            Running::Pipeline(_) => {}
            #[cfg(feature = "netstack")]
            Running::Netstack(_) => {}
        }
    }

    /// Cuts all connections. Returns their number.
    pub(crate) fn cut(&self) -> usize {
        each!(self, holder => holder.cut())
    }
}
