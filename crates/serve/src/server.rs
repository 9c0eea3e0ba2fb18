//! A server: listeners, those who accept from them, and the connections, from start to drain.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fiber::net::{Input, TcpListener, UnixListener};
use fiber::{
    BackendChoice, BackendKind, Denied, Flow, Lens, ProcessorCounters, Runtime, Source, Steps,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use session::{Now, Opening, Session, TlsFacts};

use crate::access_log::AccessLog;
use crate::blocking::{Driver, converse};
use crate::carriage::{Carriage, DRAIN_GRACE, Secure};
use crate::clock;
use crate::counters::{AcceptError, Closed, Snapshot};
use crate::datagrams::{self, DatagramCounters};
use crate::limits::Limits;
use crate::listen::{Address, Bound};
use crate::registry::{Connection, Connections, IdleSince, Registered};
use crate::shared::Shared;
use crate::stream::{FiberStream, Stream, ThreadStream};
use crate::tls::Tls;

/// What carries the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A fiber per connection.
    Fiber {
        /// How many processors run them.
        processors: usize,
        /// What is under them.
        backend: BackendChoice,
    },
    /// A kernel thread per connection.
    Thread,
}

impl Default for Engine {
    /// Fibers, on as many processors as CPU affinity and cgroup quota allow.
    fn default() -> Engine {
        Engine::Fiber {
            processors: thread::available_parallelism().map_or(1, usize::from),
            backend: BackendChoice::Auto,
        }
    }
}

/// What a server is started with, apart from the session. The default has no listeners: put in those that
/// [`bind`](crate::listen::bind) gives.
#[derive(Debug, Default)]
pub struct Settings {
    /// What carries the connections.
    pub engine: Engine,
    /// Where connections come from.
    pub listeners: Vec<Bound>,
    /// What a peer may take of the server.
    pub limits: Limits,
    /// How many fibers (or threads) are made upfront, each of which accepts a connection and then
    /// serves it. `None`: as many as there are connections, and a few to spare.
    pub fibers: Option<usize>,
    /// Where the lines go that the sessions write about their replies.
    pub log: Option<Arc<AccessLog>>,
    /// Whether sessions want to know who their peer is, also without a log. It is a system call per connection.
    pub names_peers: bool,
}

/// A running server. Dropping it cuts what is open; see [`drain`](Server::drain).
///
/// At its limit of connections a server *pauses accepting*: the kernel keeps further connections in the
/// listen queue, in the order in which they came, until one ends. A 503 would cost an accept, a reply and
/// a close for each at the time when the server can least afford it, and invite the peer to try again at once.
pub struct Server {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    listeners: Vec<Listener>,
    /// Ends those who receive datagrams.
    is_over: Arc<AtomicBool>,
    runtime: Option<Runtime>,
    /// A Unix socket's file goes when its `Bound` does.
    bound: Vec<Bound>,
}

impl Server {
    /// Starts to accept. `open` makes the session of a new connection, once TLS is agreed on where it is spoken; it is
    /// told the peer's address if the peer has one and the settings ask for it.
    ///
    /// # Errors
    /// What the kernel says to new threads, rings and descriptors.
    pub fn start<S, O>(settings: Settings, open: O) -> io::Result<Server>
    where
        S: Session + 'static,
        O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
    {
        let Settings {
            engine,
            listeners: bound,
            limits,
            fibers,
            log,
            names_peers,
        } = settings;
        let shared = Arc::new(Shared::new(limits, log));
        let connections = Arc::new(Connections::default());
        let runtime = match &engine {
            Engine::Fiber {
                processors,
                backend,
            } => Some(
                Runtime::builder()
                    .processors(*processors)
                    .backend(*backend)
                    .stall_detector(STALL_THRESHOLD)
                    .start()?,
            ),
            Engine::Thread => None,
        };
        let listeners = bound
            .iter()
            .map(|bound| Listener::new(bound, &engine))
            .collect::<io::Result<Vec<_>>>()?;
        let carriers_max = match engine {
            Engine::Fiber { .. } => shared.limits.connections_max,
            Engine::Thread => shared.limits.connections_max.min(THREADS_MAX),
        };
        let refusers = match shared.limits.refusal {
            Some(_) => REFUSERS,
            None => 0,
        };
        let crew = Arc::new(Crew {
            shared: Arc::clone(&shared),
            connections: Arc::clone(&connections),
            names_peers: names_peers || shared.log.is_some(),
            open,
            total: AtomicUsize::new(0),
            // At least one for each listener, or it would be deaf.
            total_max: fibers
                .unwrap_or(carriers_max)
                .min(carriers_max)
                .max(listeners.len())
                + refusers,
            is_fixed: fibers.is_some(),
            admitted: AtomicUsize::new(0),
        });
        let tls = bound.iter().map(|bound| bound.tls.clone());
        crew.start(&listeners, &tls.collect::<Vec<_>>(), runtime.as_ref())?;
        Ok(Server {
            shared,
            connections,
            listeners,
            is_over: Arc::new(AtomicBool::new(false)),
            runtime,
            bound,
        })
    }

    /// Serves datagrams as well, until the server ends: `answer` gets each with its sender, and calls its last argument with
    /// each datagram to send back.
    ///
    /// # Errors
    /// What the kernel says to new threads and descriptors.
    pub fn serve_datagrams(
        &self,
        socket: std::net::UdpSocket,
        answer: impl Fn(&[u8], SocketAddr, &mut dyn FnMut(&[u8])) + Send + Sync + 'static,
    ) -> io::Result<Arc<DatagramCounters>> {
        let is_over = Arc::clone(&self.is_over);
        datagrams::start(socket, self.runtime.as_ref(), is_over, answer)
    }

    /// Runs `work` beside the connections, on a fiber or a kernel thread of its own. It must end soon after its argument has
    /// become true, and on a fiber it must give way to others now and then.
    ///
    /// # Errors
    /// What the kernel says to a new thread or stack.
    pub fn run_beside(
        &self,
        name: &str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<()> {
        let is_over = Arc::clone(&self.is_over);
        let work = move || work(&is_over);
        match &self.runtime {
            Some(runtime) => {
                let builder = fiber::Builder::new().name(name.to_owned());
                runtime.spawn_with(builder, work).map(drop)
            }
            None => {
                let builder = thread::Builder::new().name(name.to_owned());
                builder.spawn(work).map(drop)
            }
        }
    }

    /// The back end under the fibers, and why it is not io_uring if that was wanted. `None` on kernel threads.
    pub fn backend(&self) -> Option<(BackendKind, Option<&Denied>)> {
        self.runtime
            .as_ref()
            .map(|runtime| (runtime.backend(), runtime.denied()))
    }

    /// What the driver has counted.
    pub fn counters(&self) -> Snapshot {
        self.shared.counters.snapshot()
    }

    /// What each processor has counted; empty on kernel threads.
    pub fn processor_counters(&self) -> Vec<ProcessorCounters> {
        self.runtime
            .as_ref()
            .map(Runtime::counters)
            .unwrap_or_default()
    }

    /// Something to look at the fibers with; `None` on kernel threads.
    pub fn lens(&self) -> Option<Lens> {
        self.runtime.as_ref().map(Runtime::lens)
    }

    /// How often a fiber has kept its processor for a second or more, which is said on standard error each time.
    pub fn stall_count(&self) -> u64 {
        self.runtime.as_ref().map_or(0, Runtime::stall_count)
    }

    /// How many fibers there are, those that wait for a connection included; 0 on kernel threads.
    pub fn fiber_count(&self) -> usize {
        self.runtime.as_ref().map_or(0, Runtime::fiber_count)
    }

    /// Connections open now.
    pub fn connection_count(&self) -> usize {
        self.connections.count()
    }

    /// Ends gracefully. For a quarter of a second all goes on, but every reply says that it is the last one of its
    /// connection: a client that has a request on its way gets its reply. Then takes no more connections, closes
    /// those that are idle, lets the others finish, and cuts what is left at the
    /// [deadline](Limits::drain_deadline). Returns how many were cut.
    pub fn drain(&self) -> usize {
        let start = Instant::now();
        let deadline = start + self.shared.limits.drain_deadline;
        self.shared.stage.drain();
        thread::sleep(DRAIN_GRACE.min(self.shared.limits.drain_deadline));
        self.stop_listening();
        self.connections.close_idle(self.shared.start.elapsed());
        while self.connection_count() > 0 && Instant::now() < deadline {
            thread::sleep(DRAIN_STEP);
            // Again: those that were accepted lately have their moment, too.
            self.connections.close_idle(self.shared.start.elapsed());
        }
        self.shared.stage.cut();
        let cut = self.connections.cut();
        let deadline = Instant::now() + CUT_PATIENCE;
        while self.connection_count() > 0 && Instant::now() < deadline {
            thread::sleep(DRAIN_STEP);
        }
        cut
    }

    /// Ends all waits for connections, and the listening of sockets that are ours alone: those who connect
    /// from now on are refused, not left to wait. An inherited socket goes on listening for whoever gets it next.
    fn stop_listening(&self) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return; // Drained already.
        }
        let ours = || self.bound.iter().filter(|bound| !bound.is_inherited());
        // Deaf first, so that nobody gets into the queue who would be reset with it; then time for those in it.
        let deaf = || ours().filter(|bound| matches!(bound.address, Address::Tcp(_)));
        for bound in deaf() {
            let _ = bound.turn_deaf();
        }
        let deadline = Instant::now() + QUEUE_PATIENCE_MAX.min(self.shared.limits.drain_deadline);
        thread::sleep(QUEUE_PATIENCE.min(self.shared.limits.drain_deadline));
        while deaf().any(has_connections) && Instant::now() < deadline {
            thread::sleep(DRAIN_STEP);
        }
        self.listeners.iter().for_each(Listener::close);
        for bound in ours() {
            let _ = rustix::net::shutdown(bound, rustix::net::Shutdown::Both);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connections", &self.connection_count())
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stage.drain();
        self.stop_listening();
        self.shared.stage.cut();
        self.connections.cut();
    }
}

/// How long the connections in the listen queue may take to be accepted: those whose handshake is not over yet, and, on a
/// busy machine or at the limit of connections, those who are in it.
const QUEUE_PATIENCE: Duration = Duration::from_millis(20);
const QUEUE_PATIENCE_MAX: Duration = Duration::from_secs(1);

/// Whether a connection waits in the listen queue. A socket that was shut down has no queue, and is readable all the same.
fn has_connections(listener: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&listener, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&Timespec::default()));
    fds[0].revents() == PollFlags::IN
}

/// How often a drain looks.
const DRAIN_STEP: Duration = Duration::from_millis(2);

/// A fiber that keeps its processor for so long is a mistake of ours: the monitor says which one, and what it does.
const STALL_THRESHOLD: Duration = Duration::from_secs(1);

/// How long connections may take to notice that they were cut.
const CUT_PATIENCE: Duration = Duration::from_secs(1);

/// A kernel thread costs some 20 KiB and a place in the scheduler; beyond these, fibers are the answer.
pub const THREADS_MAX: usize = 8192;

/// A kernel thread's stack: sessions need little.
const THREAD_STACK_SIZE: usize = 256 * 1024;

/// How many carriers should wait for connections, per listener and processor: as many connections are taken in one
/// turn, so that a crowd that arrives at once is not let in one by one while those inside are served.
const SPARE_MIN: usize = 32;

/// Beyond this number of waiting carriers, one that has ended its connection ends itself.
const SPARE_MAX: usize = 128;

/// Carriers beyond the limit of connections, for those who are told that there is no room.
const REFUSERS: usize = 32;

/// How long being refused may take: a fresh socket's buffer takes the line at once.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(100);

/// After running out of descriptors or memory: long enough for some connections to end, short enough that nobody in the
/// listen queue notices much.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Those who carry connections: fibers or threads, each of which accepts one and then serves it.
struct Crew<O> {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    open: O,
    names_peers: bool,
    total: AtomicUsize,
    total_max: usize,
    is_fixed: bool,
    /// Connections that have been admitted and not ended. Counted only where the others are refused.
    admitted: AtomicUsize,
}

/// One listener on one processor: where carriers wait.
struct Post {
    listener: Listener,
    tls: Option<Arc<Tls>>,
    /// Which of the server's listeners it is.
    number: usize,
    /// For fibers.
    processor: Option<usize>,
    idle: AtomicUsize,
}

impl<S, O> Crew<O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
{
    fn start(
        self: &Arc<Self>,
        listeners: &[Listener],
        tls: &[Option<Arc<Tls>>],
        runtime: Option<&Runtime>,
    ) -> io::Result<()> {
        let processors = runtime.map_or(1, Runtime::processor_count);
        let posts: Vec<_> = (0..processors)
            .flat_map(|index| {
                let listeners = listeners.iter().zip(tls).enumerate();
                listeners.map(move |which| (index, which))
            })
            .map(|(index, (number, (listener, tls)))| {
                let processor = runtime.is_some().then_some(index);
                Arc::new(Post {
                    listener: listener.clone(),
                    tls: tls.clone(),
                    number,
                    processor,
                    idle: AtomicUsize::new(0),
                })
            })
            .collect();
        let wanted = if self.is_fixed {
            self.total_max
        } else {
            posts.len() * SPARE_MIN
        };
        for post in posts.iter().cycle().take(wanted) {
            if !self.take_place() {
                break;
            }
            self.add(post, runtime)?;
        }
        Ok(())
    }

    /// Counts one more carrier in; `false` if there are as many as there may be.
    fn take_place(&self) -> bool {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let more = |total| (total < self.total_max).then_some(total + 1);
        self.total.fetch_update(set, fetch, more).is_ok()
    }

    /// Adds a carrier, which has a place, to a post. From a fiber, `runtime` is the fiber's own.
    fn add(self: &Arc<Self>, post: &Arc<Post>, runtime: Option<&Runtime>) -> io::Result<()> {
        post.idle.fetch_add(1, Ordering::Relaxed);
        let (crew, post_of_carrier) = (Arc::clone(self), Arc::clone(post));
        let started = match post.processor {
            Some(index) => {
                let builder = fiber::Builder::new().name("connection").processor(index);
                let carrier = FiberCarrier {
                    crew,
                    post: post_of_carrier,
                    serving: None,
                };
                match runtime {
                    Some(runtime) => {
                        runtime.spawn_steps_with(builder, carrier);
                        Ok(())
                    }
                    None => builder.spawn_steps(carrier).map(drop),
                }
            }
            None => {
                let builder = thread::Builder::new().name("connection".into());
                let builder = builder.stack_size(THREAD_STACK_SIZE);
                let carry = move || crew.carry_by_thread(&post_of_carrier);
                builder.spawn(carry).map(drop)
            }
        };
        if started.is_err() {
            self.total.fetch_sub(1, Ordering::Relaxed);
            post.idle.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    /// A kernel thread's life: accept, serve, and again.
    fn carry_by_thread(self: &Arc<Self>, post: &Arc<Post>) {
        let Listener::Thread(listener) = &post.listener else {
            unreachable!("kernel threads have listeners of their own")
        };
        while let Some(stream) = self.accept(post, || listener.accept()) {
            if self.admit(post, &stream) {
                if let Some(mut serving) = self.welcome(post, stream) {
                    serving.guard(|driver| {
                        converse(driver, |stream, tls, now| {
                            self.session(post, stream, tls, now)
                        })
                    });
                }
                self.dismiss();
            }
            if !self.is_to_stay(post) {
                return;
            }
        }
    }

    /// Waits for the next connection; `None` when the listener was closed, and the carrier has been counted out.
    fn accept<T>(&self, post: &Post, mut accept: impl FnMut() -> io::Result<T>) -> Option<T> {
        loop {
            match accept() {
                Ok(stream) => return Some(stream),
                Err(error) if self.survives(&error) => {}
                Err(_) => {
                    self.total.fetch_sub(1, Ordering::Relaxed);
                    post.idle.fetch_sub(1, Ordering::Relaxed);
                    return None;
                }
            }
        }
    }

    /// After a connection: whether the carrier goes on, or is one too many and has been counted out.
    fn is_to_stay(&self, post: &Post) -> bool {
        if !self.is_fixed && post.idle.load(Ordering::Relaxed) >= SPARE_MAX {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        post.idle.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether accepting goes on after this error, and when.
    fn survives(&self, error: &io::Error) -> bool {
        if error.kind() == io::ErrorKind::NotConnected {
            return false; // The listener was closed.
        }
        if self.shared.counters.accept_failed(error) != AcceptError::Aborted {
            self.shared.counters.accept_paused();
            fiber::sleep(ACCEPT_PAUSE);
        }
        true
    }

    /// Counts a connection in. `false` if it is one too many, and has been told so.
    fn admit<T: Stream>(self: &Arc<Self>, post: &Arc<Post>, stream: &T) -> bool {
        self.shared.counters.accepted();
        let spare = post.idle.fetch_sub(1, Ordering::Relaxed) - 1;
        if spare < SPARE_MIN / 2 && !self.is_fixed {
            self.add_spare(post, SPARE_MIN - spare);
        } else if spare == 0 {
            self.shared.counters.accept_paused();
        }
        let Some(line) = self.shared.limits.refusal else {
            return true; // The carriers are as many as the connections.
        };
        if self.admitted.fetch_add(1, Ordering::Relaxed) < self.shared.limits.connections_max {
            return true;
        }
        self.dismiss();
        // In the clear also where TLS is spoken, as memcached does: a handshake is what there is no room for.
        let deadline = Instant::now() + REFUSAL_PATIENCE;
        let _ = stream.send(&[IoSlice::new(line.as_bytes())], false, deadline);
        self.shared.counters.closed(Closed::Refused);
        false
    }

    /// A connection that was admitted has ended.
    fn dismiss(&self) {
        if self.shared.limits.refusal.is_some() {
            self.admitted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins to serve a connection. `None` if it has failed already.
    fn welcome<T: Stream>(self: &Arc<Self>, post: &Post, stream: T) -> Option<Serving<S, T>> {
        let now = clock::now();
        let secure = match post.tls.as_ref().map(Secure::new).transpose() {
            Ok(secure) => secure,
            Err(_) => {
                self.shared.counters.closed(Closed::Error);
                return None;
            }
        };
        let connection = Arc::new(Connection {
            stream,
            idle: IdleSince::default(),
        });
        let registered = self.connections.register(&connection);
        let carriage = Carriage::new(Arc::clone(&self.shared), secure, now);
        let driver = Driver {
            carriage,
            connection,
        };
        Some(Serving {
            driver: Some((driver, registered)),
        })
    }

    /// Makes the session of a connection.
    fn session<T: Stream>(
        &self,
        post: &Post,
        stream: &T,
        tls: Option<TlsFacts<'_>>,
        now: Now,
    ) -> S {
        let peer = if self.names_peers {
            stream.peer()
        } else {
            None
        };
        (self.open)(Opening {
            now,
            peer,
            listener: post.number,
            tls,
        })
    }

    /// Few are left who wait: more should, up to the limit. When nobody waits, accepting pauses until a
    /// connection ends.
    fn add_spare(self: &Arc<Self>, post: &Arc<Post>, count: usize) {
        for _ in 0..count {
            if !self.take_place() || self.add(post, None).is_err() {
                break;
            }
        }
        if post.idle.load(Ordering::Relaxed) == 0 {
            self.shared.counters.accept_paused();
        }
    }
}

/// A connection that is being served, until it is counted as closed.
struct Serving<S, T: Stream> {
    /// `None` once it has ended.
    driver: Option<(Driver<S, T>, Registered)>,
}

impl<S: Session, T: Stream> Serving<S, T> {
    fn driver(&self) -> &Driver<S, T> {
        &self.driver.as_ref().expect("served until it ends").0
    }

    /// Goes on with the conversation; `false` if it has ended. A session that panics is our mistake, and ends this
    /// connection only: the hook has reported it.
    fn guard(&mut self, go_on: impl FnOnce(&mut Driver<S, T>) -> Result<(), Closed>) -> bool {
        let (driver, _) = self.driver.as_mut().expect("served until it ends");
        let gone_on = catch_unwind(AssertUnwindSafe(|| go_on(driver)));
        match gone_on.unwrap_or(Err(Closed::Error)) {
            Ok(()) => true,
            Err(closed) => {
                // The descriptor first, then the count: who counts connections may count descriptors too.
                let shared = Arc::clone(driver.carriage.shared());
                self.driver = None;
                shared.counters.closed(closed);
                false
            }
        }
    }
}

/// A fiber's life, in steps: accept, serve, and again. It waits for a connection on a stack (few do), and for input
/// without one.
struct FiberCarrier<S: Session, O> {
    crew: Arc<Crew<O>>,
    post: Arc<Post>,
    serving: Option<Serving<S, FiberStream>>,
}

impl<S, O> FiberCarrier<S, O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
{
    fn accept(&mut self) -> Flow {
        loop {
            let listener = &self.post.listener;
            let accepted = self.crew.accept(&self.post, || listener.accept_on_fiber());
            let Some(stream) = accepted else {
                return Flow::Done;
            };
            if self.crew.admit(&self.post, &stream) {
                self.serving = self.crew.welcome(&self.post, stream);
                if self.go_on(|_| clock::now()) {
                    return Flow::Receive;
                }
            }
            if !self.crew.is_to_stay(&self.post) {
                return Flow::Done;
            }
        }
    }

    /// Tells the driver what came and does what follows; `false` if the connection has ended.
    fn go_on(&mut self, tell: impl FnOnce(&mut Driver<S, FiberStream>) -> Now) -> bool {
        let FiberCarrier {
            crew,
            post,
            serving,
        } = self;
        let goes_on = serving.as_mut().is_some_and(|serving| {
            serving.guard(|driver| {
                let now = tell(driver);
                let until =
                    driver.drive(now, |stream, tls, now| crew.session(post, stream, tls, now));
                until.map(drop)
            })
        });
        if !goes_on {
            *serving = None;
            crew.dismiss();
        }
        goes_on
    }

    fn driver(&self) -> &Driver<S, FiberStream> {
        self.serving
            .as_ref()
            .expect("it serves while it receives")
            .driver()
    }
}

impl<S, O> Steps for FiberCarrier<S, O>
where
    S: Session + 'static,
    O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
{
    fn begin(&mut self) -> Flow {
        self.accept()
    }

    fn source(&self) -> Source<'_> {
        self.driver().connection.stream.source()
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.driver().carriage.deadline())
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        let goes_on = self.go_on(|driver| match input {
            // The input's buffer goes back before anything is sent.
            Ok(input) => driver.received(&input),
            Err(error) => driver.receive_failed(error),
        });
        if goes_on {
            return Flow::Receive;
        }
        if self.crew.is_to_stay(&self.post) {
            self.accept()
        } else {
            Flow::Done
        }
    }
}

/// A listener, as the engine accepts from it.
#[derive(Clone)]
enum Listener {
    Tcp(Arc<TcpListener>),
    Unix(Arc<UnixListener>),
    Thread(Arc<ThreadListener>),
}

impl Listener {
    fn new(bound: &Bound, engine: &Engine) -> io::Result<Listener> {
        let fd = bound.as_fd().try_clone_to_owned()?;
        Ok(match (engine, &bound.address) {
            (Engine::Thread, _) => Listener::Thread(Arc::new(ThreadListener::new(fd)?)),
            (_, Address::Unix { .. }) => Listener::Unix(Arc::new(fd.into())),
            _ => Listener::Tcp(Arc::new(fd.into())),
        })
    }

    fn close(&self) {
        match self {
            Listener::Tcp(listener) => listener.close(),
            Listener::Unix(listener) => listener.close(),
            Listener::Thread(listener) => listener.close(),
        }
    }
}

/// A listener that kernel threads accept from. One of them waits for the socket or the end, the others
/// for that one: `poll(2)` would wake them all for every connection.
struct ThreadListener {
    fd: OwnedFd,
    end: OwnedFd,
    turn: Mutex<()>,
}

impl Listener {
    fn accept_on_fiber(&self) -> io::Result<FiberStream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(FiberStream::Tcp),
            Listener::Unix(listener) => listener.accept().map(FiberStream::Unix),
            Listener::Thread(_) => unreachable!("a kernel thread's listener in a fiber"),
        }
    }
}

impl ThreadListener {
    fn new(fd: OwnedFd) -> io::Result<ThreadListener> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(ThreadListener {
            fd,
            end,
            turn: Mutex::new(()),
        })
    }

    fn accept(&self) -> io::Result<ThreadStream> {
        let _turn = lock(&self.turn);
        loop {
            let mut fds = [
                PollFd::new(&self.end, PollFlags::IN),
                PollFd::new(&self.fd, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !fds[0].revents().is_empty() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            match rustix::net::accept_with(&self.fd, rustix::net::SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(ThreadStream::new(fd)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn close(&self) {
        // Never read, so it stays readable for everybody.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: every stop on TCP took 1.3 s, without a single connection. Cause: the server was drained, and dropped
    /// after it; the second look at the listen queue took the hang-up of a closed socket for a client that waits.
    #[test]
    fn a_listener_that_was_shut_down_has_no_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!has_connections(&listener));
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(has_connections(&listener));
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        assert!(!has_connections(&listener));
    }
}
