//! Several clusters in one process, and fibers that go from one to another.
//!
//! ```text
//!   cluster A                                      cluster B
//!   a step ends, or a migratable fiber suspends
//!        │  counted in and listed at B, and no longer at A (under both locks of the lists)
//!        └───────────────────────────────────────▶ in a lane of B
//! ```
//!
//! Who has no frames is moved by naming another queue. Its control block keeps every cluster that it has been in: who
//! unparks or cancels it may still hold the address of its former processor, which looks, finds it gone and sends on.

use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use crate::io::offload::offload;
use crate::sched::cluster::Cluster;
use crate::sched::fiber::{FiberRef, Suspend, suspend};
use crate::sched::processor::{self, Processor};
use crate::sched::resize::{ProcessorStatus, Retirement};
use crate::spawn::builder::{self, Builder, JoinHandle};
use crate::spawn::steps::Flow;

/// A cluster of processors, which belongs to a [`Runtime`](crate::Runtime): a handle, cheap to clone, from
/// [`Runtime::cluster`](crate::Runtime::cluster). It does not keep the runtime: when that has been shut down, nothing can be
/// spawned or moved there any more.
///
/// Fibers of a cluster share its processors and no others. So what may take long gets a cluster of its own: calls that
/// block their thread, for instance, while the connections' processors go on.
///
/// ```
/// let disk = fiber::Runtime::builder().processors(2).start().unwrap();
/// let cluster = disk.cluster();
/// fiber::run(move || {
///     let name = String::from("/proc/self/stat");
///     // This fiber waits; a processor of the other cluster blocks.
///     let text = cluster.run(|| std::fs::read_to_string(&name)).unwrap();
///     assert!(!text.is_empty());
/// });
/// ```
///
/// [`Steps`](crate::Steps) and [migratable](Builder::migratable) fibers can go there themselves: see [`move_to`].
#[derive(Clone)]
pub struct ClusterHandle(pub(crate) Arc<Cluster>);

impl ClusterHandle {
    /// The cluster of the fiber that calls; `None` on a plain thread.
    pub fn current() -> Option<ClusterHandle> {
        processor::with_current(|processor, _| ClusterHandle(Arc::clone(&processor.cluster)))
    }

    /// Starts a fiber there, from anywhere. See [`Builder::cluster`] for settings, and for steps.
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

    /// Runs `f` in a fiber there and waits for it, from a fiber or a plain thread. It may borrow, because the caller waits
    /// until it has finished; a caller that is [cancelled](crate::Fiber::cancel) meanwhile cancels it, and goes on waiting.
    ///
    /// This is what pinned fibers do instead of [`move_to`]. If the runtime of the cluster is shut down and leaves the fiber
    /// behind, the caller waits for ever, as for any fiber that was left behind.
    ///
    /// # Panics
    /// With the panic of `f`; or if no stack can be had, or the runtime of the cluster has been shut down.
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        builder::run_in(&self.0, Location::caller(), f)
    }

    /// As [`Runtime::fiber_count`](crate::Runtime::fiber_count).
    pub fn fiber_count(&self) -> usize {
        self.0.fiber_count()
    }

    /// As [`Runtime::processor_count`](crate::Runtime::processor_count).
    pub fn processor_count(&self) -> usize {
        self.0.processor_count()
    }

    /// As [`Runtime::processors`](crate::Runtime::processors).
    pub fn processors(&self) -> Vec<ProcessorStatus> {
        self.0.processor_statuses()
    }

    /// As [`Runtime::add_processor`](crate::Runtime::add_processor).
    ///
    /// # Errors
    /// The same, and `NotConnected` if the runtime has been shut down.
    pub fn add_processor(&self) -> io::Result<usize> {
        // In a fiber, without holding its processor up: a thread has to start, and somebody else may be at it.
        match crate::current() {
            Some(_) => offload(|| self.0.add_processor()),
            None => self.0.add_processor(),
        }
    }

    /// As [`Runtime::remove_processor`](crate::Runtime::remove_processor).
    ///
    /// # Errors
    /// The same, and `NotConnected` if the runtime has been shut down.
    pub fn remove_processor(&self, index: usize) -> io::Result<Retirement> {
        match crate::current() {
            Some(_) => offload(|| self.0.remove_processor(index)),
            None => self.0.remove_processor(index),
        }
    }
}

/// The same cluster.
impl PartialEq for ClusterHandle {
    fn eq(&self, other: &ClusterHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ClusterHandle {}

impl fmt::Debug for ClusterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterHandle")
            .field("processors", &self.processor_count())
            .field("fibers", &self.fiber_count())
            .finish()
    }
}

/// Moves the calling fiber to another cluster.
///
/// | the caller is | it goes |
/// |---|---|
/// | [steps](crate::Steps) | when the present step is over: the next one, or the wait for its input, is there |
/// | [migratable](Builder::migratable) | at once: the call returns there |
/// | pinned | not at all: its frames may hold what belongs to the kernel thread. Use [`ClusterHandle::run`] |
///
/// It takes its handles, its fiber-locals, its deadline and a request to end along; whoever joins, unparks or cancels it
/// notices nothing. From then on the other runtime counts and lists it, and its shutdown waits for it.
///
/// Steps that read a file where blocking is allowed, and answer where it is not:
///
/// ```
/// use std::io::{Read, Write};
/// use fiber::net::{Input, TcpListener, TcpStream};
/// use fiber::{ClusterHandle, Flow, Source, Steps};
///
/// struct Serve {
///     stream: TcpStream,
///     home: ClusterHandle,
///     disk: ClusterHandle,
///     text: Option<Vec<u8>>,
/// }
///
/// impl Steps for Serve {
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
///     let serve = fiber::spawn_steps(Serve { stream, home, disk: to_disk, text: None });
///     client.write_all(b"?").unwrap();
///     let mut text = Vec::new();
///     client.read_to_end(&mut text).unwrap();
///     assert_eq!(text, std::fs::read("/proc/self/cmdline").unwrap());
///     serve.join().unwrap();
/// });
/// ```
///
/// # Errors
/// `Unsupported` if the caller is pinned or a plain thread; `NotConnected` if the other runtime has been shut down. Steps whose
/// target is shut down between the call and the end of the step stay where they are.
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
    if !fiber.control().is_migratable() && !fiber.control().is_steps() {
        return Err(unsupported(
            "a pinned fiber stays where it has started, because its frames may hold what belongs to the kernel thread: \
             use ClusterHandle::run, or Steps",
        ));
    }
    if target.is_closed() {
        return Err(crate::sched::cluster::stopped());
    }
    fiber.set_target((!is_there).then(|| Arc::clone(target)));
    if is_there || !fiber.control().is_migratable() {
        return Ok(());
    }
    suspend(Suspend::Move);
    let arrived = processor::with_current(|processor, _| Arc::ptr_eq(&processor.cluster, target));
    match arrived {
        Some(true) => Ok(()),
        _ => Err(crate::sched::cluster::stopped()),
    }
}

fn unsupported(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, message)
}

impl Processor {
    /// A fiber that may move has a target, and its step is over or it has suspended for this. `false` if it stays, because
    /// the target has been shut down.
    pub(crate) fn depart(&self, fiber: FiberRef, flow: Flow) -> bool {
        let Some(target) = fiber.take_target() else {
            return false;
        };
        if !self.cluster.hand_over(fiber, &target) {
            return false;
        }
        fiber.enter(&target);
        match flow {
            Flow::Receive => fiber.postpone_wait(),
            Flow::Park if fiber.park_after_switch() => return true,
            _ => {}
        }
        // From here on it is another's.
        target.push_arrived(fiber);
        true
    }
}
