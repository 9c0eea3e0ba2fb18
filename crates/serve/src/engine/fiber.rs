//! The fiber engine: one fiber per connection, on the processors of a [`Runtime`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use fiber::net::{Input, TcpListener, UnixListener};
use fiber::{BackendChoice, Flow, Runtime, Source, Stackless};
use session::{Now, Session};

use super::admission::{Opens, Start};
use super::pool::{self, AcceptPool, Workers};
use super::processors;
use super::serving::{self, Serving};
use crate::blocking::Driver;
use crate::clock;
use crate::listen::{Address, Bound};
use crate::metrics::MetricsWriter;
use crate::stream::FiberStream;

pub(crate) struct Fibers {
    backend_asked: BackendChoice,
    runtime: Runtime,
    pub(super) workers: Workers<Listener>,
}

impl Fibers {
    /// # Errors
    /// Errors of new threads, rings and descriptors.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        processors: usize,
        backend: BackendChoice,
        start: Start<O>,
    ) -> io::Result<Fibers> {
        let runtime = processors::start(processors, backend)?;
        let processors = runtime.processor_count();
        let (pool, workers) = AcceptPool::new(start, Listener::new, processors, usize::MAX)?;
        pool.start(|point| {
            let worker = ConnectionFiber::new(&pool, point);
            runtime.spawn_stackless_with(worker.builder(), worker);
            Ok(())
        })?;
        Ok(Fibers { backend_asked: backend, runtime, workers })
    }

    /// Describes the engine: `fibers on 2 processors, io_uring`, with a reason if necessary.
    pub(crate) fn describe(&self) -> String {
        let why = match (self.runtime.denied(), self.backend_asked) {
            (Some(denied), _) => format!(": {denied}"),
            (None, BackendChoice::Auto) => String::new(),
            (None, _) => ", as asked for".to_owned(),
        };
        let processors = match self.runtime.processor_count() {
            1 => "1 processor".to_owned(),
            many => format!("{many} processors"),
        };
        format!("fibers on {processors}, {}{why}", self.runtime.backend())
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        processors::write_metrics(&self.runtime, out);
    }

    pub(crate) fn dump(&self) -> String {
        processors::dump(&self.runtime)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// A stackless fiber that accepts, serves, and repeats. It waits for a connection on a stack
/// (few do), and for input without one.
struct ConnectionFiber<S: Session, O> {
    pool: Arc<AcceptPool<Listener, O>>,
    point: usize,
    serving: Option<Serving<S, FiberStream>>,
}

impl<S: Session + 'static, O: Opens<S>> ConnectionFiber<S, O> {
    fn new(pool: &Arc<AcceptPool<Listener, O>>, point: usize) -> ConnectionFiber<S, O> {
        ConnectionFiber { pool: Arc::clone(pool), point, serving: None }
    }

    fn builder(&self) -> fiber::Builder {
        static NAMED: LazyLock<fiber::Builder> =
            LazyLock::new(|| fiber::Builder::new().name("connection"));
        let processor = self.pool.point(self.point).processor;
        NAMED.clone().processor(processor)
    }

    fn accept(&mut self) -> Flow {
        loop {
            let Some(stream) = self.pool.accept(self.point, Listener::accept) else {
                return Flow::Done;
            };
            if self.pool.point(self.point).tls.is_some() {
                // Queue behind the handshakes in progress, or a flood of new ones would be admitted
                // faster than they complete.
                fiber::yield_now();
            }
            let spawn = |point| {
                let another = ConnectionFiber::<S, O>::new(&self.pool, point);
                let builder = another.builder();
                builder.spawn_stackless_detached(another).map(drop)
            };
            if self.pool.admit(self.point, &stream, spawn) {
                self.serving = Some(Serving::begin(&self.pool, self.point, stream));
                if self.resume_with(|_| clock::now()) && self.take_first_input() {
                    return Flow::Receive;
                }
            }
            if !self.pool.is_to_stay(self.point) {
                return Flow::Done;
            }
        }
    }

    /// Takes the first request if it has arrived already, as for most clients from the listen
    /// queue; `false` if the connection has ended.
    fn take_first_input(&mut self) -> bool {
        // Handshakes wait for their turn.
        if self.pool.point(self.point).tls.is_some() {
            return true;
        }
        self.resume_with(|driver| {
            let connection = Arc::clone(&driver.connection);
            let stream = &connection.stream;
            match stream.receive_now(|input| driver.handle_received(input)) {
                Ok(received) => received.unwrap_or_else(clock::now),
                Err(error) => driver.handle_receive_error(&error),
            }
        })
    }

    /// Passes an event to the driver and drives it; `false` if the connection has ended.
    fn resume_with(&mut self, event: impl FnOnce(&mut Driver<S, FiberStream>) -> Now) -> bool {
        let open = serving::open(&self.pool, self.point);
        let goes_on = self.serving.as_mut().is_some_and(|serving| {
            serving.guard(|driver| {
                let now = event(driver);
                driver.drive(now, open).map(drop)
            })
        });
        if !goes_on {
            self.serving = None;
            self.pool.admission.release();
        }
        goes_on
    }

    fn driver(&self) -> &Driver<S, FiberStream> {
        let serving = self.serving.as_ref();
        serving.expect("a receiving engine is serving").driver()
    }
}

impl<S: Session + 'static, O: Opens<S>> Stackless for ConnectionFiber<S, O> {
    fn begin(&mut self) -> Flow {
        self.accept()
    }

    fn source(&self) -> Source<'_> {
        self.driver().connection.stream.source()
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.driver().machine.deadline())
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        let goes_on = self.resume_with(|driver| match input {
            // A handshake takes as long as many requests: those that wait now go first.
            Ok(input) if driver.machine.is_handshaking() => {
                let records = input.to_vec();
                drop(input);
                fiber::yield_now();
                driver.handle_received(&records)
            }
            // The input's buffer is returned before anything is sent.
            Ok(input) => driver.handle_received(&input),
            Err(error) => driver.handle_receive_error(&error),
        });
        if goes_on {
            return Flow::Receive;
        }
        if self.pool.is_to_stay(self.point) { self.accept() } else { Flow::Done }
    }
}

/// A listener that fibers accept from.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn new(bound: &Bound) -> io::Result<Listener> {
        let fd: OwnedFd = bound.as_fd().try_clone_to_owned()?;
        Ok(match &bound.address {
            Address::Unix { .. } => Listener::Unix(fd.into()),
            _ => Listener::Tcp(fd.into()),
        })
    }

    fn accept(&self) -> io::Result<FiberStream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(FiberStream::Tcp),
            Listener::Unix(listener) => listener.accept().map(FiberStream::Unix),
        }
    }
}

impl pool::Listener for Listener {
    fn close(&self) {
        match self {
            Listener::Tcp(listener) => listener.close(),
            Listener::Unix(listener) => listener.close(),
        }
    }
}
