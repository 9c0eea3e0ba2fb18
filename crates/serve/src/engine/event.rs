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
//! `connection`, `wire` (what it goes on with) · `entrance`, `doors`, `gate`, `dealer` (how
//! connections come in) · `mailbox` (what other threads have for it) · `counters`.

mod connection;
mod counters;
mod dealer;
mod doors;
mod entrance;
mod gate;
mod mailbox;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use event::{Dispatcher, Mechanism};
use session::{Opening, Session};

use super::admission::{Admission, Start};
use super::pool::REFUSERS;
use crate::listen::Bound;
use crate::metrics::MetricsWriter;
use crate::shared::Shared;
use crate::tls::Tls;
use counters::LoopCounters;
use dealer::Dealer;
use doors::Doors;
use gate::Gate;
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
    /// (`SO_REUSEPORT`): nginx's way. What comes to an inherited socket and to a Unix socket, which
    /// cannot be split, is dealt.
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
    dealer: Option<Arc<Loop>>,
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

/// What is known elsewhere of one loop, or of the dealer.
struct Loop {
    bell: Bell,
    /// There is room for a connection, for which it has waited.
    has_room: AtomicBool,
    counters: LoopCounters,
}

impl Loop {
    fn new() -> io::Result<Arc<Loop>> {
        Ok(Arc::new(Loop {
            bell: Bell::new()?,
            has_room: AtomicBool::new(false),
            counters: LoopCounters::default(),
        }))
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
        options.loops = options.loops.max(1);
        let tls = listeners.iter().map(|bound| bound.tls.clone()).collect();
        prepare(&options, &mut listeners)?;
        let (own, dealt) = divide(&options, &listeners)?;
        if own.iter().all(Vec::is_empty) {
            options.accept = Accept::Dealt;
        }
        let connections_max = shared.limits.connections_max;
        let connections_max = carriers.map_or(connections_max, |few| few.min(connections_max));
        let refusers = match admission.has_refusal() {
            true => REFUSERS,
            false => 0,
        };
        let accepting = own.iter().chain([&dealt]).filter(|it| !it.is_empty());
        let open_max = connections_max.saturating_add(refusers);
        let gate = Arc::new(Gate::new(open_max, accepting.count()));
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
            dealer: None,
            threads: Vec::new(),
            bound: listeners,
            options,
        };
        let mut mailboxes = Vec::new();
        for (at, sockets) in own.into_iter().enumerate() {
            let own = Loop::new()?;
            let mailbox = Arc::new(Mailbox::new(Arc::clone(&own)));
            mailboxes.push(Arc::clone(&mailbox));
            events.loops.push(Arc::clone(&own));
            let (house, doors) = (Arc::clone(&house), Doors::new(sockets, DOORS));
            let make = move || Worker::new(house, own, mailbox, doors);
            events.spawn(format!("loop {at}"), make, Worker::run)?;
        }
        if !dealt.is_empty() {
            let (own, doors) = (Loop::new()?, Doors::new(dealt, DOORS));
            events.dealer = Some(Arc::clone(&own));
            let make = move || Dealer::new(house, own, mailboxes, doors);
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
            let Some(it) = it else { return };
            // Sessions that panic are caught before. Connections and a listen queue that nothing
            // serves are worse than no server.
            if catch_unwind(AssertUnwindSafe(|| run(it))).is_err() {
                eprintln!("an event loop panicked, which is a mistake of the engine's");
                std::process::abort();
            }
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

    /// The server has come to another stage of its life, or is to accept no more.
    pub(crate) fn wake(&self) {
        let all = self.loops.iter().chain(&self.dealer);
        all.for_each(|one| one.bell.ring());
    }

    /// Closes the listeners of the loops, and waits until that is done.
    pub(crate) fn stop_accepting(&self) {
        self.gate.close();
        self.wake();
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while !self.gate.are_all_closed() && Instant::now() < deadline {
            thread::sleep(CLOSE_STEP);
        }
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.gate.open()
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
        self.gate.close();
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

/// Binds what the loops accept from beside the listeners.
///
/// # Errors
/// What the kernel says to new sockets.
pub(super) fn prepare(options: &EventOptions, listeners: &mut [Bound]) -> io::Result<()> {
    match options.accept {
        Accept::Own => (listeners.iter_mut()).try_for_each(|bound| bound.split(options.loops)),
        Accept::Dealt => Ok(()),
    }
}

/// Sockets that a thread accepts from, each with the number of its listener.
type Sockets = Vec<(usize, OwnedFd)>;

/// What each loop accepts from, and what the dealer does: all that the loops cannot have a socket
/// of each. Shared by them, it would wake them all for every connection, and with real-time
/// signals, which go to one thread, all but one never.
fn divide(options: &EventOptions, listeners: &[Bound]) -> io::Result<(Vec<Sockets>, Sockets)> {
    let mut own: Vec<_> = (0..options.loops).map(|_| Vec::new()).collect();
    let mut dealt = Vec::new();
    for (number, bound) in listeners.iter().enumerate() {
        let is_own = options.accept == Accept::Own && bound.sockets().count() >= options.loops;
        for (at, socket) in bound.sockets().enumerate() {
            let socket = socket.try_clone_to_owned()?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            match is_own {
                true => own[at % options.loops].push((number, socket)),
                false => dealt.push((number, socket)),
            }
        }
    }
    Ok((own, dealt))
}
