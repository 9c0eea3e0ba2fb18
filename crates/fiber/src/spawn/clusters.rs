//! Several clusters in one process, and fibers that go from one to another.
//!
//! ```text
//!   cluster A                                      cluster B
//!   a step ends, or a migratable fiber suspends
//!        │  counted in and listed at B, and no longer at A (under both locks of the lists)
//!        └───────────────────────────────────────▶ in a run queue of B
//! ```
//!
//! A fiber without frames is moved by naming another queue. Its control block keeps every cluster
//! that it has been in: a thread that unparks or cancels it may still hold the address of its
//! former processor, which looks, finds it gone and sends on.

use std::io;
use std::panic::Location;
use std::sync::Arc;

use crate::io::offload::offload;
use crate::sched::block::{suspend, suspendable};
use crate::sched::cluster::stopped;
use crate::sched::fiber::Suspend;
use crate::sched::processor;
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
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let started = Builder::new().spawn_in(&self.0, Location::caller(), f);
        started.expect("failed to spawn a fiber")
    }

    /// Runs `f` in a fiber there and waits for it, from a fiber or a plain thread. It may borrow,
    /// because the caller waits until it has finished; a caller that is
    /// [cancelled](crate::Fiber::cancel) meanwhile cancels it, and goes on waiting.
    ///
    /// This is what pinned fibers do instead of [`move_to`]. If the runtime of the cluster is shut
    /// down and leaves the fiber behind, the caller waits for ever, as for any fiber that was left
    /// behind.
    ///
    /// # Panics
    /// With the panic of `f`; or if no stack can be had, or the runtime of the cluster has been
    /// shut down.
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
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
        // In a fiber, without holding its processor up: a thread has to start, and another may be
        // at it.
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

/// Moves the calling fiber to another cluster.
///
/// | the caller is | it goes |
/// |---|---|
/// | [stackless](crate::Stackless) | when the present step is over: the next one, or the wait for its input, is there |
/// | [migratable](Builder::migratable) | at once: the call returns there |
/// | pinned | not at all: its frames may hold what belongs to the kernel thread. Use [`ClusterHandle::run`] |
///
/// It takes its handles, its fiber-locals, its deadline and a request to end along; a thread that
/// joins, unparks or cancels it notices nothing. From then on the other runtime counts and lists
/// it, and its shutdown waits for it.
///
/// A stackless fiber that reads a file where blocking is allowed, and answers where it is not:
///
/// ```
/// use std::io::{Read, Write};
/// use fiber::net::{Input, TcpListener, TcpStream};
/// use fiber::{ClusterHandle, Flow, Source, Stackless};
///
/// struct Serve {
///     stream: TcpStream,
///     home: ClusterHandle,
///     disk: ClusterHandle,
///     text: Option<Vec<u8>>,
/// }
///
/// impl Stackless for Serve {
///     fn source(&self) -> Source<'_> {
///         self.stream.source()
///     }
///
///     fn received(&mut self, _: std::io::Result<Input<'_>>) -> Flow {
///         fiber::move_to(&self.disk).unwrap();
///         Flow::Yield
///     }
///
///     fn resumed(&mut self) -> Flow {
///         match self.text.take() {
///             None => {
///                 // On the disk cluster.
///                 self.text = std::fs::read("/proc/self/cmdline").ok();
///                 fiber::move_to(&self.home).unwrap();
///                 Flow::Yield
///             }
///             Some(text) => {
///                 self.stream.write_all(&text).unwrap();
///                 Flow::Done
///             }
///         }
///     }
/// }
///
/// let disk = fiber::Runtime::builder().processors(1).start().unwrap();
/// let to_disk = disk.cluster();
/// fiber::run(move || {
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
///     let stream = listener.accept().unwrap();
///     let home = ClusterHandle::current().unwrap();
///     let serve = fiber::spawn_stackless(Serve { stream, home, disk: to_disk, text: None });
///     client.write_all(b"?").unwrap();
///     let mut text = Vec::new();
///     client.read_to_end(&mut text).unwrap();
///     assert_eq!(text, std::fs::read("/proc/self/cmdline").unwrap());
///     serve.join().unwrap();
/// });
/// ```
///
/// # Errors
/// `Unsupported` if the caller is pinned or a plain thread; `NotConnected` if the other runtime has
/// been shut down. A stackless fiber whose target is shut down between the call and the end of the
/// step stays where they are.
pub fn move_to(cluster: &ClusterHandle) -> io::Result<()> {
    let target = &cluster.0;
    target.process.check("move to a cluster");
    let current = processor::with_current(|processor, fiber| {
        (fiber, Arc::ptr_eq(&processor.cluster, target))
    });
    let Some((fiber, is_there)) = current else {
        return Err(unsupported(
            "not in a fiber: use ClusterHandle::spawn or ClusterHandle::run",
        ));
    };
    if !fiber.control().is_migratable() && !fiber.control().is_stackless() {
        return Err(unsupported(
            "a pinned fiber stays where it has started, because its frames may hold what belongs to the kernel thread: \
             use ClusterHandle::run, or a stackless fiber",
        ));
    }
    if target.is_closed() {
        return Err(stopped());
    }
    fiber.set_target((!is_there).then(|| Arc::clone(target)));
    if is_there || !fiber.control().is_migratable() {
        return Ok(());
    }
    suspend(Suspend::Move);
    let arrived = processor::with_current(|processor, _| Arc::ptr_eq(&processor.cluster, target));
    match arrived {
        Some(true) => Ok(()),
        _ => Err(stopped()),
    }
}

fn unsupported(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, message)
}
