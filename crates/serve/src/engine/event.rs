//! The event engine: a few kernel threads, each of which waits for many connections at once and
//! drives those that are ready.
//!
//! ```text
//!                      ┌───────────── one loop ─────────────┐
//!  listener ─ accept ─▶│ dispatcher ─▶ connections ─▶ timers │◀─ messages ─ offload threads
//!                      └─────────────────────────────────────┘
//! ```
//!
//! A loop blocks only in its dispatcher. Operations that may block, `Session::work` and reads of
//! uncached files, run on the runtime's offload threads, which post a message when done.
//!
//! Each loop accepts for itself ([`Accept::Own`]) or gets its connections from a dedicated thread
//! ([`Accept::Distributed`]). A connection stays with its loop. `event_loop` (the loop) ·
//! `connection` (one connection) · `inbox` (messages of other threads). The parts shared with the
//! pipeline engine are in `reactor`.

mod connection;
mod event_loop;
mod inbox;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread;

use event::Mechanism;
use session::Session;

use super::admission::{Opens, Start};
use super::reactor::{
    Accepted, EngineContext, FIRST_LISTENER, Listeners, LoopHandle, Loops, OpenDispatcher, Sockets,
    sockets,
};
use crate::listen::Bound;
use event_loop::EventLoop;
use inbox::{Inbox, Inboxes};

/// Options of the event engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOptions {
    /// Number of loops, each on a thread of its own.
    pub loops: usize,
    /// Mechanism that reports readiness to a loop.
    pub dispatcher: Mechanism,
    /// Distribution of connections over the loops.
    pub accept: Accept,
    /// Accept all waiting connections at once, up to a limit, instead of one per turn.
    pub accepts_many: bool,
    /// Read uncached files on threads beside the loops; otherwise the loops wait for the disk
    /// themselves.
    pub has_file_threads: bool,
}

impl Default for EventOptions {
    /// One loop per core, each with its own socket and its own edge-triggered epoll.
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

/// Distribution of connections over the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Each loop accepts from a socket of its own, and the kernel spreads connections over them
    /// (`SO_REUSEPORT`), as in nginx. A loop that has clearly more than another passes on accepted
    /// connections. Those of inherited and Unix sockets, which cannot be split, are distributed.
    Own,
    /// One thread accepts and gives each connection to the loop with the fewest, as in memcached.
    Distributed,
}

/// The running engine.
pub(crate) struct Events {
    options: EventOptions,
    pub(super) loops: Loops,
}

impl Events {
    /// # Errors
    /// Errors of new threads, sockets and dispatchers.
    pub(crate) fn start<S: Session + 'static, O: Opens<S>>(
        options: EventOptions,
        start: Start<O>,
    ) -> io::Result<Events> {
        let dispatcher = options.dispatcher;
        Events::start_over(options, start, Box::new(move || dispatcher.open()))
    }

    pub(super) fn start_over<S: Session + 'static, O: Opens<S>>(
        mut options: EventOptions,
        mut start: Start<O>,
        open_dispatcher: OpenDispatcher,
    ) -> io::Result<Events> {
        options.loops = options.loops.max(1);
        prepare(&options, &mut start.listeners)?;
        let (own, distributed) = divide(&options, &start.listeners)?;
        if own.iter().all(Vec::is_empty) {
            options.accept = Accept::Distributed;
        }
        let accepting = own.iter().chain([&distributed]).filter(|it| !it.is_empty());
        let accepting = (accepting.count(), options.accepts_many);
        let (engine, bound) = EngineContext::over_sockets(start, accepting);
        let open_dispatcher = Arc::new(open_dispatcher);
        let mut loops = Loops::new(&engine, bound);
        for at in 0..own.len() {
            loops.named.push((at.to_string(), LoopHandle::new()?));
        }
        let inbox = |(_, own): &(_, Arc<LoopHandle>)| Arc::new(Inbox::new(Arc::clone(own)));
        let inboxes = loops.named.iter().map(inbox).collect();
        let inboxes = Arc::new(Inboxes::new(inboxes));
        for (at, sockets) in own.into_iter().enumerate() {
            let (engine, inboxes) = (Arc::clone(&engine), Arc::clone(&inboxes));
            let (own, listeners) =
                (Arc::clone(&loops.named[at].1), Listeners::new(sockets, FIRST_LISTENER));
            let has_file_threads = options.has_file_threads;
            let open = Arc::clone(&open_dispatcher);
            let make = move || {
                EventLoop::new(engine, own, inboxes, at, listeners, has_file_threads, open()?)
            };
            (loops.threads).spawn(format!("loop {at}"), make, EventLoop::run)?;
        }
        if !distributed.is_empty() {
            // The first connection goes to the first loop.
            let mut last = options.loops - 1;
            // An inbox has space for all possible connections.
            let to_the_emptiest = move |accepted: Accepted| {
                last = inboxes.emptiest(last);
                inboxes.distribute(last, accepted);
            };
            loops.spawn_accept_thread(&engine, distributed, to_the_emptiest)?;
        }
        Ok(Events { options, loops })
    }

    pub(crate) fn describe(&self) -> String {
        let EventOptions { loops, dispatcher, .. } = self.options;
        let (plural, accepts) = match (loops, self.options.accept) {
            (1, Accept::Own) => ("", "which accepts"),
            (_, Accept::Own) => ("s", "each of which accepts"),
            (1, Accept::Distributed) => ("", "to which connections are distributed"),
            (_, Accept::Distributed) => ("s", "to which connections are distributed"),
        };
        format!("{loops} event loop{plural} on {dispatcher}, {accepts}")
    }
}

/// Binds the additional sockets that the loops accept from.
///
/// # Errors
/// Errors of new sockets.
pub(super) fn prepare(options: &EventOptions, listeners: &mut [Bound]) -> io::Result<()> {
    match options.accept {
        Accept::Own => (listeners.iter_mut()).try_for_each(|bound| bound.split(options.loops)),
        Accept::Distributed => Ok(()),
    }
}

/// Divides the sockets among the loops and the accept thread, which gets those that are not one per
/// loop. A socket shared by the loops would wake all of them for every connection; with real-time
/// signals, which go to one thread, only one loop would ever wake. With these an inherited socket
/// is distributed even to a single loop: other processes may listen on it as well, and the last one
/// to request signals would get them all.
fn divide(options: &EventOptions, listeners: &[Bound]) -> io::Result<(Vec<Sockets>, Sockets)> {
    let mut own: Vec<_> = (0..options.loops).map(|_| Vec::new()).collect();
    let mut distributed = Vec::new();
    let has_signals = matches!(options.dispatcher, Mechanism::RtSig(_));
    for (number, bound) in listeners.iter().enumerate() {
        let is_own = options.accept == Accept::Own
            && bound.sockets().count() >= options.loops
            && !(has_signals && bound.is_inherited());
        for (at, socket) in sockets(number, bound)?.into_iter().enumerate() {
            if is_own { own[at % options.loops].push(socket) } else { distributed.push(socket) }
        }
    }
    Ok((own, distributed))
}
