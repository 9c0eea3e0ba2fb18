//! A runtime: a cluster of processors, started and stopped together.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::backend::{BackendChoice, BackendKind, Denied, probe};
use crate::base::clock::after;
use crate::base::counters::ProcessorCounters;
use crate::inspect::dump::{self, Dump};
use crate::inspect::monitor::{Deadlock, Listeners, Monitor, Stall};
use crate::io::fork::notice_forks;
use crate::sched::cluster::Cluster;
use crate::sched::fiber::Fiber;
use crate::spawn::builder::Builder;
use crate::spawn::handle::ClusterHandle;
use crate::spawn::packet::JoinHandle;
use crate::spawn::processors::{ProcessorStatus, Retirement};
use crate::spawn::stackless::Stackless;

/// Processors that run fibers. Dropping it stops them; see [`shutdown`](Runtime::shutdown).
///
/// One of its own fibers may drop it, such as the last one that shares it. That fiber continues
/// until it waits or finishes; then its processor ends.
///
/// # After a fork
/// `fork(2)` copies the calling thread only, so a runtime stays with the parent, which does not
/// notice. In the child, a fiber that forked continues as a plain thread, whose calls block, and
/// should exec or `_exit`; if it returns to the runtime, the child is aborted with a message.
/// Spawning on the parent's runtime and joining its fibers panics there, dropping it does nothing,
/// and a new one may be started. What the runtime opens is closed on exec, and its rings are not
/// mapped in the child. [`process::Command`](crate::process::Command) needs no such care.
pub struct Runtime {
    cluster: Arc<Cluster>,
    denied: Option<Denied>,
    monitor: Option<Monitor>,
}

/// Result of a [`shutdown`](Runtime::shutdown_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Fibers that had not finished in time, and were cancelled.
    pub cancelled: usize,
    /// Fibers that had not finished even then, and were left behind.
    pub left: usize,
}

/// Settings of a new [`Runtime`].
#[derive(Clone, Debug, Default)]
pub struct RuntimeBuilder {
    processors: Option<usize>,
    processors_max: Option<usize>,
    backend: BackendChoice,
    stall_threshold: Option<Duration>,
    listeners: Listeners,
}

/// Shows a runtime's fibers, from any thread and for as long as one likes. From
/// [`Runtime::inspector`].
#[derive(Clone)]
pub struct Inspector(Arc<Cluster>);

impl Inspector {
    /// Number of fibers by what each does or waits for. Takes some nanoseconds a fiber.
    pub fn count_by_state(&self) -> BTreeMap<&'static str, usize> {
        dump::count_by_state(&self.0)
    }

    /// All fibers that there are. Takes some microseconds a fiber.
    pub fn dump(&self) -> Dump {
        Dump::of(&self.0, false)
    }

    /// Lists all fibers, with backtraces of those that wait (the first thousand): each of these
    /// gets its processor for as long as its backtrace takes. Not from a fiber, whose processor
    /// would have to wait for itself.
    pub fn dump_with_backtraces(&self) -> Dump {
        Dump::of(&self.0, crate::current().is_none())
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inspector")
    }
}

/// Runs `f` in a fiber of a new runtime with as many processors as the machine offers, and returns
/// what it returns. Fibers that are still there then are left behind; for one that keeps its
/// processor, it waits for two seconds.
///
/// ```
/// let sum = weftwork_fiber::run(|| {
///     let half = weftwork_fiber::spawn(|| 1 + 2);
///     3 + half.join().unwrap()
/// });
/// assert_eq!(sum, 6);
/// ```
///
/// # Panics
/// If no runtime can be started, or with the panic of `f`.
#[track_caller]
pub fn run<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let runtime = Runtime::builder().start().expect("failed to start a fiber runtime");
    runtime.run(f)
}

impl Runtime {
    /// Settings to start from: a processor per CPU, the back end chosen by itself.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Starts a fiber.
    ///
    /// # Panics
    /// If no stack can be had.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.spawn_with(Builder::new(), f).expect("failed to spawn a fiber")
    }

    /// Starts a fiber with a builder's settings.
    ///
    /// # Errors
    /// `OutOfMemory` if no stack can be had.
    #[track_caller]
    pub fn spawn_with<T: Send + 'static>(
        &self,
        builder: Builder,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        builder.spawn_in(Arc::clone(&self.cluster), Location::caller(), f)
    }

    /// Starts a [stackless fiber](Stackless).
    #[track_caller]
    pub fn spawn_stackless_with(&self, builder: Builder, value: impl Stackless) -> JoinHandle<()> {
        let started =
            builder.spawn_stackless_in(Arc::clone(&self.cluster), Location::caller(), value);
        started.expect("a live runtime takes fibers")
    }

    /// Runs `f`, which may borrow, in a fiber and waits for it. See [`ClusterHandle::run`].
    ///
    /// # Panics
    /// With the panic of `f`; or if no stack can be had.
    #[track_caller]
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        crate::spawn::builder::run_in(&self.cluster, Location::caller(), f)
    }

    /// A handle to its cluster, to spawn and move fibers there from elsewhere.
    pub fn cluster(&self) -> ClusterHandle {
        ClusterHandle(Arc::clone(&self.cluster))
    }

    /// Number of processors, without those that are being removed.
    pub fn processor_count(&self) -> usize {
        self.cluster.processor_count()
    }

    /// Its processors, and those that are being removed and have not gone yet.
    pub fn processors(&self) -> Vec<ProcessorStatus> {
        self.cluster.processor_statuses()
    }

    /// Starts one more processor, and returns its number: the lowest that is free. From any thread
    /// or fiber; a call that adds or removes at the same time is served one after the other.
    ///
    /// # Errors
    /// `QuotaExceeded` if there are [as many as there may be](RuntimeBuilder::max_processors); else
    /// what the kernel says to a new thread, ring or epoll instance.
    pub fn add_processor(&self) -> io::Result<usize> {
        self.cluster().add_processor()
    }

    /// Removes processor `index`. It takes no new fibers at once. A fiber that is not started, is
    /// between two steps or is [migratable](Builder::migratable) continues elsewhere, and what it
    /// waited for is begun anew there: nothing that had come is lost. Listeners are accepted from
    /// elsewhere, timers kept elsewhere. But **fibers that have frames there stay, and the
    /// processor runs them until they have finished**, whatever they wait for: see [`Retirement`]
    /// for how many there are, and [`dump`](Runtime::dump) for which. Stackless fibers count as
    /// such in the middle of a step. The program has to [cancel](Fiber::cancel) those that last
    /// too long.
    ///
    /// Then its thread ends, its descriptors are closed, and its number may be used again. Its
    /// counters [stay](Runtime::counters). Any thread or fiber may call this.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = weftwork_fiber::Runtime::builder().processors(1).start().unwrap();
    /// let number = runtime.add_processor().unwrap();
    /// assert_eq!(runtime.processor_count(), 2);
    /// let retirement = runtime.remove_processor(number).unwrap();
    /// assert!(retirement.wait(Duration::from_secs(10)));
    /// assert!(runtime.remove_processor(0).is_err(), "the last one");
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if it is the last one that runs, `NotFound` if there is none with this number
    /// or it is being removed.
    pub fn remove_processor(&self, index: usize) -> io::Result<Retirement> {
        self.cluster().remove_processor(index)
    }

    /// Number of fibers, started or not.
    pub fn fiber_count(&self) -> usize {
        self.cluster.fiber_count()
    }

    /// The back end in use.
    pub fn backend(&self) -> BackendKind {
        self.cluster.backend
    }

    /// Reason why the back end is epoll although [`BackendChoice::Auto`] prefers io_uring.
    pub fn denied(&self) -> Option<&Denied> {
        self.denied.as_ref()
    }

    /// All fibers that there are: what each is doing, what it waits for, where it was spawned. See
    /// [`Inspector`] for backtraces, and for looking from elsewhere.
    pub fn dump(&self) -> Dump {
        self.inspector().dump()
    }

    /// An inspector of its fibers, which may outlive the runtime.
    pub fn inspector(&self) -> Inspector {
        Inspector(Arc::clone(&self.cluster))
    }

    /// Number of times that the stall detector found a fiber that kept its processor for too long.
    pub fn stall_count(&self) -> u64 {
        self.cluster.stalls.load(Ordering::Relaxed)
    }

    /// Counters of each processor, by number. Those of processors that were removed stay, and one
    /// that gets the same number continues counting there.
    pub fn counters(&self) -> Vec<ProcessorCounters> {
        self.cluster.open_slots().iter().map(|processor| processor.counters.snapshot()).collect()
    }

    /// Waits up to `patience` for all fibers to finish, then [cancels](crate::Fiber::cancel) those
    /// that are left, waits for them for a second more, and stops the processors. Returns how many
    /// fibers were left even so.
    pub fn shutdown(self, patience: Duration) -> usize {
        self.shutdown_with(patience, Duration::from_secs(1)).left
    }

    /// Same as [`shutdown`](Runtime::shutdown), and waits up to `grace` for fibers that were
    /// cancelled.
    ///
    /// Nothing is lost: a cancelled fiber gets the data it had received, connections that
    /// were not accepted are closed, the kernel gives all buffers back before the rings go, and no
    /// signal handler or thread of the runtime stays behind (the [`offload`](crate::offload())
    /// threads are the process's, and end by themselves). A fiber that neither finishes nor waits
    /// in anything that can be cancelled is left behind: it never runs again, and its stack stays
    /// as it is, so nothing that it borrows or owns is touched. The thread that it ran on stays
    /// too, asleep, because the fiber may have lent a `thread_local!` of it;
    /// [`resources`](crate::resources()) counts these threads.
    ///
    /// Nothing can take its thread from a fiber that blocks it, or computes without an end. It has
    /// two seconds more to give it away; then both are left behind, and the fiber goes on until it
    /// waits or finishes.
    pub fn shutdown_with(mut self, patience: Duration, grace: Duration) -> Shutdown {
        if !self.cluster.process.is_here() {
            let left = self.fiber_count();
            return Shutdown { cancelled: 0, left };
        }
        let wait = |patience| self.cluster.wait_until_empty(Some(after(patience)));
        let mut outcome = Shutdown { cancelled: wait(patience), left: 0 };
        let mut left = outcome.cancelled;
        if left > 0 {
            self.cancel_all();
            left = wait(grace);
        }
        let was_empty = left == 0;
        // No fiber moves here after this. One may have, since the runtime was seen empty.
        outcome.left = self.cluster.close();
        if was_empty && outcome.left > 0 {
            outcome.cancelled += outcome.left;
            self.cancel_all();
            outcome.left = wait(grace);
        }
        self.stop();
        outcome
    }

    /// [Cancels](crate::Fiber::cancel) all fibers that there are.
    pub fn cancel_all(&self) {
        self.cluster.fibers().iter().for_each(Fiber::cancel);
    }

    fn stop(&mut self) {
        if !self.cluster.process.is_here() {
            // The child of a fork has no such threads: the handles must not be dropped.
            std::mem::forget(Arc::clone(&self.cluster));
            std::mem::forget(self.monitor.take());
            return;
        }
        self.monitor = None;
        self.cluster.close();
        self.cluster.stop_and_join();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("processors", &self.processor_count())
            .field("backend", &self.backend())
            .field("fibers", &self.fiber_count())
            .finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Number of processors (kernel threads that run fibers); at least 1.
    #[must_use]
    pub fn processors(mut self, count: usize) -> RuntimeBuilder {
        self.processors = Some(count.max(1));
        self
    }

    /// Limit on processors at a time, those that are being removed included; at least as many as it
    /// starts with. 64 by default, and at most 8,192. Each costs some 800 bytes, in use or not.
    #[must_use]
    pub fn max_processors(mut self, count: usize) -> RuntimeBuilder {
        self.processors_max = Some(count);
        self
    }

    /// Sets the back end.
    #[must_use]
    pub fn backend(mut self, choice: BackendChoice) -> RuntimeBuilder {
        self.backend = choice;
        self
    }

    /// Watches for fibers that keep their processor for longer than `threshold`, and for fibers
    /// that wait for each other in a ring. Time in which the processor's thread waits for a CPU,
    /// because the machine has too much to do, does not count. Costs a kernel thread that looks
    /// twice per threshold while anything is awake (for rings about once a second), and once a
    /// second otherwise. Off unless asked for.
    ///
    /// It sends `SIGURG` to a stalled processor, to see what it is doing.
    #[must_use]
    pub fn stall_detector(mut self, threshold: Duration) -> RuntimeBuilder {
        self.stall_threshold = Some(threshold.max(Duration::from_millis(2)));
        self
    }

    /// Sets the callback for stalls, on the monitor's thread; without it, standard error gets them.
    /// It is called only with a [`stall_detector`](Self::stall_detector).
    #[must_use]
    pub fn on_stall(mut self, f: impl Fn(&Stall) + Send + Sync + 'static) -> RuntimeBuilder {
        self.listeners.stall = Arc::new(f);
        self
    }

    /// Sets the callback for deadlocks, on the monitor's thread; without it, they are printed on
    /// standard error. It is called only with a [`stall_detector`](Self::stall_detector).
    #[must_use]
    pub fn on_deadlock(mut self, f: impl Fn(&Deadlock) + Send + Sync + 'static) -> RuntimeBuilder {
        self.listeners.deadlock = Arc::new(f);
        self
    }

    /// Starts the processors.
    ///
    /// # Errors
    /// Errors of the kernel for a new thread, ring or epoll instance. [`BackendChoice::Uring`]
    /// fails with [`Denied`], which gives the reason; if a ring is refused, [`BackendChoice::Auto`]
    /// tries epoll. `InvalidInput` for more processors than 8,192.
    pub fn start(self) -> io::Result<Runtime> {
        let count = self.processors.unwrap_or_else(available_processors);
        let count_max = self.processors_max.unwrap_or(PROCESSORS_MAX_DEFAULT);
        if count.max(count_max) > PROCESSORS_MAX {
            let asked = count.max(count_max);
            let message = format!("{asked} processors are more than {PROCESSORS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let (backend, denied) = choose(self.backend)?;
        notice_forks();
        crate::inspect::panic_hook::install();
        let slots = count_max.max(count);
        let (started, denied) = match (with_processors(count, slots, backend), self.backend) {
            // The probe got a ring, but a processor did not. EAGAIN: pthread_create(3).
            (Err(error), BackendChoice::Auto)
                if backend == BackendKind::Uring && error.kind() != io::ErrorKind::WouldBlock =>
            {
                let started = with_processors(count, slots, BackendKind::Epoll);
                (started, Some(Denied::from_error(error)))
            }
            (started, _) => (started, denied),
        };
        let mut runtime = started?;
        runtime.denied = denied;
        if let Some(threshold) = self.stall_threshold {
            let monitor = Monitor::start(&runtime.cluster, threshold, self.listeners)?;
            runtime.monitor = Some(monitor);
        }
        Ok(runtime)
    }
}

fn with_processors(count: usize, slots: usize, backend: BackendKind) -> io::Result<Runtime> {
    let runtime = Runtime { cluster: Cluster::new(slots, backend), denied: None, monitor: None };
    crate::inspect::debugger::register(&runtime.cluster);
    for _ in 0..count {
        // If one fails, dropping the runtime stops the others.
        runtime.cluster.add_processor()?;
    }
    Ok(runtime)
}

const PROCESSORS_MAX_DEFAULT: usize = 64;

/// CPUs that Linux supports; more processors are a mistake.
const PROCESSORS_MAX: usize = 8192;

fn available_processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn choose(choice: BackendChoice) -> io::Result<(BackendKind, Option<Denied>)> {
    match choice {
        BackendChoice::Epoll => Ok((BackendKind::Epoll, None)),
        BackendChoice::Uring => match probe() {
            Ok(_) => Ok((BackendKind::Uring, None)),
            Err(denied) => Err(io::Error::new(denied.error.kind(), denied)),
        },
        BackendChoice::Auto => Ok(match probe() {
            Ok(_) => (BackendKind::Uring, None),
            Err(denied) => (BackendKind::Epoll, Some(denied)),
        }),
    }
}
