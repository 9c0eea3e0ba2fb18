//! The event engine: a few kernel threads, each of which waits for many connections at once and
//! goes on with those that are ready.
//!
//! ```text
//!                      ┌───────────── one loop ─────────────┐
//!  listener ─ accept ─▶│ dispatcher ─▶ connections ─▶ timers │◀─ letters ─ threads that work and read
//!                      └─────────────────────────────────────┘
//! ```
//!
//! Nothing in a loop waits but the dispatcher. What may block, `Session::work` and files that are
//! not in memory, is done by the runtime's offload threads, which post a letter when it is done.
//!
//! Each loop accepts for itself ([`Accept::Own`]) or gets its connections from a thread that does
//! nothing else ([`Accept::Dealt`]). A connection stays with its loop. `worker` (the loop) ·
//! `connection`, `wire` (what it goes on with) · `doors`, `dealer` (how connections come in) ·
//! `mailbox` (what other threads have for it) · `counters`.

mod connection;
mod counters;
mod dealer;
mod doors;
mod mailbox;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use event::{Dispatcher, Mechanism};
use session::{Opening, Session};

use super::admission::{Admission, Start};
use crate::listen::Bound;
use crate::metrics::MetricsWriter;
use crate::shared::Shared;
use crate::tls::Tls;
use counters::LoopCounters;
use dealer::Dealer;
use doors::Doors;
use mailbox::{Bell, Mailbox};
use worker::{DOORS, Worker};

/// How the event engine works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOptions {
    /// How many loops there are, each on a thread of its own.
    pub loops: usize,
    /// How a loop finds out what is ready.
    pub dispatcher: Mechanism,
    /// How connections come to the loops.
    pub accept: Accept,
    /// Whether all connections that wait are accepted at once, up to a limit, or one before the
    /// next look around.
    pub accepts_many: bool,
    /// Whether files that are not in memory are read by threads beside the loops, which wait for
    /// the disk themselves otherwise.
    pub has_file_threads: bool,
}

impl Default for EventOptions {
    /// A loop on each core, each with a socket and an edge-triggered epoll of its own.
    fn default() -> EventOptions {
        EventOptions {
            loops: thread::available_parallelism().map_or(1, usize::from),
            dispatcher: Mechanism::EpollEdge,
            accept: Accept::Own,
            accepts_many: true,
            has_file_threads: true,
        }
    }
}

/// How connections come to the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Each loop accepts from a socket of its own, and the kernel spreads connections over them
    /// (`SO_REUSEPORT`): nginx's way. An inherited socket and a Unix socket are shared by all
    /// loops.
    Own,
    /// One thread accepts and deals them out in turn: memcached's way.
    Dealt,
}

/// Connections that a loop takes in one go, so that those inside wait for a bounded time.
const ACCEPTS_MAX: usize = 64;

/// How long loops may take to close their listeners.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
const CLOSE_STEP: Duration = Duration::from_millis(1);

/// The engine at work.
pub(crate) struct Events {
    options: EventOptions,
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    loops: Vec<Arc<Loop>>,
    threads: Vec<JoinHandle<()>>,
    /// A Unix socket's file goes when its `Bound` does.
    bound: Vec<Bound>,
}

/// What all loops share.
struct House<O> {
    admission: Admission<O>,
    options: EventOptions,
    gate: Arc<Gate>,
    /// By the number of the listener.
    tls: Vec<Option<Arc<Tls>>>,
    open_dispatcher: OpenDispatcher,
}

/// Opens the dispatcher of a loop, on the thread that it belongs to.
type OpenDispatcher = Box<dyn Fn() -> io::Result<Box<dyn Dispatcher>> + Send + Sync>;

/// What is known of one loop elsewhere.
struct Loop {
    bell: Bell,
    /// How many connections it may have, if it accepts them itself.
    connections_max: usize,
    counters: LoopCounters,
}

/// Connections that come in and go out, over all loops.
struct Gate {
    /// Those that were accepted and have not ended.
    open: AtomicUsize,
    is_closing: AtomicBool,
    /// Threads that still accept.
    accepting: AtomicUsize,
    /// Wakes the dealer, which waits for room at the limit of connections.
    bell: Bell,
    dealer_waits: AtomicBool,
}

impl Gate {
    fn new(accepting: usize) -> io::Result<Gate> {
        Ok(Gate {
            open: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            accepting: AtomicUsize::new(accepting),
            bell: Bell::new()?,
            dealer_waits: AtomicBool::new(false),
        })
    }

    /// Whether listeners are to be closed.
    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// A thread has closed its listeners.
    fn has_closed(&self) {
        self.accepting.fetch_sub(1, Ordering::SeqCst);
    }

    /// A connection has ended.
    fn has_ended(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        if self.dealer_waits.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }
}

impl<O> House<O> {
    fn accepts_per_turn(&self) -> usize {
        match self.options.accepts_many {
            true => ACCEPTS_MAX,
            false => 1,
        }
    }
}

impl Events {
    /// # Errors
    /// What the kernel says to new threads, sockets and dispatchers.
    pub(crate) fn start<S, O>(options: EventOptions, start: Start<O>) -> io::Result<Events>
    where
        S: Session + 'static,
        O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
    {
        let dispatcher = options.dispatcher;
        Events::start_over(options, start, Box::new(move || dispatcher.open()))
    }

    fn start_over<S, O>(
        mut options: EventOptions,
        start: Start<O>,
        open_dispatcher: OpenDispatcher,
    ) -> io::Result<Events>
    where
        S: Session + 'static,
        O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
    {
        let Start {
            admission,
            mut listeners,
            carriers,
        } = start;
        let shared = Arc::clone(&admission.shared);
        let connections_max = shared.limits.connections_max;
        let connections_max = carriers.unwrap_or(connections_max).min(connections_max);
        // A loop without room would let those wait for ever that come to its socket.
        options.loops = options.loops.clamp(1, connections_max.max(1));
        let tls = listeners.iter().map(|bound| bound.tls.clone()).collect();
        let (mut doors, accepting) = match options.accept {
            Accept::Own => (share(&mut listeners, options.loops)?, options.loops),
            Accept::Dealt => (share(&mut listeners, 1)?, 1),
        };
        let gate = Arc::new(Gate::new(accepting)?);
        let house = Arc::new(House {
            admission,
            options: options.clone(),
            gate: Arc::clone(&gate),
            tls,
            open_dispatcher,
        });
        let mut events = Events {
            shared,
            gate,
            loops: Vec::new(),
            threads: Vec::new(),
            bound: listeners,
            options,
        };
        let mut mailboxes = Vec::new();
        for at in 0..events.options.loops {
            let own = Arc::new(Loop {
                bell: Bell::new()?,
                connections_max: nth_share(connections_max, events.options.loops, at),
                counters: LoopCounters::default(),
            });
            let mailbox = Arc::new(Mailbox::new(Arc::clone(&own)));
            mailboxes.push(Arc::clone(&mailbox));
            events.loops.push(Arc::clone(&own));
            let doors = match events.options.accept {
                Accept::Own => mem::take(&mut doors[at]),
                Accept::Dealt => Vec::new(),
            };
            let (house, doors) = (Arc::clone(&house), Doors::new(doors, DOORS));
            let make = move || Worker::new(house, own, mailbox, doors);
            events.spawn(format!("loop {at}"), make, Worker::run)?;
        }
        if let Accept::Dealt = events.options.accept {
            let doors = Doors::new(mem::take(&mut doors[0]), DOORS);
            let make = move || Dealer::new(house, mailboxes, doors, connections_max);
            events.spawn("dealer".to_owned(), make, Dealer::run)?;
        }
        Ok(events)
    }

    /// Starts a thread that makes what it runs: a dispatcher may belong to its thread.
    fn spawn<T>(
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
            it.map(run);
        })?;
        self.threads.push(thread);
        is_made.recv().map_err(io::Error::other)?
    }

    pub(crate) fn describe(&self) -> String {
        let EventOptions {
            loops, dispatcher, ..
        } = self.options;
        let (plural, accepts) = match (loops, self.options.accept) {
            (1, Accept::Own) => ("", "which accepts"),
            (_, Accept::Own) => ("s", "each of which accepts"),
            (1, Accept::Dealt) => ("", "to which connections are dealt"),
            (_, Accept::Dealt) => ("s", "to which connections are dealt"),
        };
        format!("{loops} event loop{plural} on {dispatcher}, {accepts}")
    }

    /// What each loop has counted.
    pub(crate) fn dump(&self) -> String {
        let lines = self.loops.iter().enumerate().map(|(at, one)| {
            let counted = one.counters.iter();
            let counted = counted.map(|(name, _, count)| format!("{name} {count}"));
            format!("  loop {at}: {}\n", counted.collect::<Vec<_>>().join(", "))
        });
        lines.collect()
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        for (at, one) in self.loops.iter().enumerate() {
            for (name, help, count) in one.counters.iter() {
                let name = format!("weft_loop_{name}_total");
                out.counter(&name, help, &[("loop", &at.to_string())], count);
            }
        }
    }

    pub(crate) fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    /// The server has come to another stage of its life.
    pub(crate) fn wake(&self) {
        self.loops.iter().for_each(|one| one.bell.ring());
    }

    /// Closes the listeners of the loops, and waits until that is done.
    pub(crate) fn stop_accepting(&self) {
        self.gate.is_closing.store(true, Ordering::Relaxed);
        self.gate.bell.ring();
        self.wake();
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while self.gate.accepting.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(CLOSE_STEP);
        }
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.gate.open.load(Ordering::SeqCst)
    }

    /// The loops cut their connections: the stage says so.
    pub(crate) fn cut(&self) -> usize {
        let open = self.connection_count();
        self.wake();
        open
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // If it could not be started, this ends what was.
        self.shared.stage.cut();
        self.gate.is_closing.store(true, Ordering::Relaxed);
        self.gate.bell.ring();
        self.wake();
        for thread in self.threads.drain(..) {
            // A session may own the last handle on its server.
            if thread.thread().id() != thread::current().id() {
                // The hook has reported a panic.
                let _ = thread.join();
            }
        }
    }
}

/// What each of so many loops listens on: a socket of its own where that can be, which is added to
/// `listeners`, so that a drain finds it; else the same one.
fn share(listeners: &mut Vec<Bound>, loops: usize) -> io::Result<Vec<Vec<(usize, OwnedFd)>>> {
    let mut doors: Vec<Vec<_>> = (0..loops).map(|_| Vec::new()).collect();
    for number in 0..listeners.len() {
        for (at, doors) in doors.iter_mut().enumerate() {
            let sibling = match at {
                0 => None,
                // Once the process has become another user, the kernel lets it join no group of its
                // former one, and bind no port below 1024. The loops share the socket then.
                _ => listeners[number]
                    .sibling()
                    .or_else(|error| match error.kind() {
                        io::ErrorKind::PermissionDenied | io::ErrorKind::AddrInUse => Ok(None),
                        _ => Err(error),
                    })?,
            };
            let bound = sibling.as_ref().unwrap_or(&listeners[number]);
            let socket = bound.as_fd().try_clone_to_owned()?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            doors.push((number, socket));
            listeners.extend(sibling);
        }
    }
    Ok(doors)
}

/// How many of `all` fall to the one with this number.
fn nth_share(all: usize, parts: usize, nth: usize) -> usize {
    all / parts + usize::from(nth < all % parts)
}
