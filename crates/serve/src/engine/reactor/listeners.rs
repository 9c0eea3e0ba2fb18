//! The listeners of a loop: when it accepts from them, and when it leaves connections in the
//! kernel's listen queue.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Token, Trigger};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::listen::Bound;

/// Pause after running out of descriptors or memory: long enough for some connections to end, short
/// enough that few in the listen queue notice.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(20);

/// The listeners of a loop.
pub(crate) struct Listeners {
    listeners: Vec<ListeningSocket>,
    state: Accepting,
    is_level: bool,
    /// Reports may be lost.
    may_lose: bool,
}

struct ListeningSocket {
    socket: OwnedFd,
    /// Number of the server's listener.
    listener: usize,
    /// Its token in reports.
    token: Token,
    /// Connections may wait in its queue.
    has_some: bool,
    is_watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepting {
    Open,
    /// The connection limit is reached.
    Full,
    /// Accepting has failed, and would fail again at once.
    BackedOff(Instant),
    /// Closed for good.
    Closed,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Option<SocketAddr>,
    /// Number of the server's listener that accepted it.
    pub(crate) listener: usize,
}

/// Sockets that a thread accepts from, each with the number of its listener.
pub(crate) type Sockets = Vec<(usize, OwnedFd)>;

/// Duplicates the sockets of the listener with this number. They are non-blocking.
pub(crate) fn sockets(number: usize, bound: &Bound) -> io::Result<Sockets> {
    let own = |socket: BorrowedFd<'_>| {
        let socket = socket.try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok((number, socket))
    };
    bound.sockets().map(own).collect()
}

/// Duplicates the sockets of all listeners.
pub(crate) fn all_sockets(listeners: &[Bound]) -> io::Result<Sockets> {
    let each = listeners.iter().enumerate();
    let each = each.map(|(number, bound)| sockets(number, bound));
    Ok(each.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

impl Listeners {
    /// Listening, non-blocking sockets, each with the number of its listener; `first` is the token
    /// of the first one.
    pub(crate) fn new(sockets: Sockets, first: u64) -> Listeners {
        let state = if sockets.is_empty() { Accepting::Closed } else { Accepting::Open };
        let listeners = sockets.into_iter().zip(first..).map(|(socket, token)| ListeningSocket {
            socket: socket.1,
            listener: socket.0,
            token: Token(token),
            has_some: false,
            is_watched: false,
        });
        Listeners { listeners: listeners.collect(), state, is_level: false, may_lose: false }
    }

    /// Begins to watch them.
    ///
    /// # Errors
    /// Errors of the dispatcher.
    pub(crate) fn open(&mut self, dispatcher: &mut dyn Dispatcher) -> io::Result<()> {
        self.is_level = dispatcher.trigger() == Trigger::Level;
        self.may_lose = dispatcher.may_lose_reports();
        self.listeners.iter_mut().try_for_each(|listener| listener.watch(dispatcher))
    }

    /// Notes the report of the listener with this token.
    pub(crate) fn set_ready(&mut self, token: u64) {
        if let Some(listener) = self.listeners.iter_mut().find(|listener| listener.token.0 == token)
        {
            listener.has_some = true;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.listeners.len()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == Accepting::Open
    }

    /// True if connections may be waiting.
    pub(crate) fn has_some(&self) -> bool {
        self.is_open() && self.listeners.iter().any(|listener| listener.has_some)
    }

    /// The same for one listener.
    pub(crate) fn has_some_at(&self, at: usize) -> bool {
        self.listeners[at].has_some
    }

    /// True if a connection may wait unnoticed because a report was lost.
    pub(crate) fn may_have_missed(&self) -> bool {
        self.may_lose && self.is_open()
    }

    /// Assumes that every listener is ready.
    pub(crate) fn recheck(&mut self) {
        self.listeners.iter_mut().for_each(|listener| listener.has_some = true);
    }

    /// Accepts a connection from one listener.
    ///
    /// # Errors
    /// Errors of accept(2).
    pub(crate) fn accept(&mut self, at: usize, names_peers: bool) -> io::Result<Option<Accepted>> {
        let listener = &mut self.listeners[at];
        let accepted = accept(listener.socket.as_fd(), names_peers)?;
        listener.has_some &= accepted.is_some();
        Ok(accepted.map(|(socket, peer)| Accepted { socket, peer, listener: listener.listener }))
    }

    /// Ends the turn of a listener. With level-triggered reports, remaining connections are
    /// reported again.
    pub(crate) fn end_turn(&mut self, at: usize) {
        self.listeners[at].has_some &= !self.is_level;
    }

    /// Leaves connections in the listen queue until [`resume`](Listeners::resume).
    pub(crate) fn pause(&mut self, dispatcher: &mut dyn Dispatcher) {
        self.suspend(Accepting::Full, dispatcher);
    }

    /// Resumes accepting: a connection has ended.
    pub(crate) fn resume(&mut self, now: Instant, dispatcher: &mut dyn Dispatcher) {
        if self.state == Accepting::Full {
            self.reopen(now, dispatcher);
        }
    }

    /// Accepts nothing for a while.
    pub(crate) fn back_off(&mut self, now: Instant, dispatcher: &mut dyn Dispatcher) {
        self.suspend(Accepting::BackedOff(now + BACK_OFF), dispatcher);
    }

    pub(crate) fn backed_off_until(&self) -> Option<Instant> {
        match self.state {
            Accepting::BackedOff(until) => Some(until),
            _ => None,
        }
    }

    pub(crate) fn end_back_off(&mut self, now: Instant, dispatcher: &mut dyn Dispatcher) {
        if self.backed_off_until().is_some_and(|until| until <= now) {
            self.reopen(now, dispatcher);
        }
    }

    fn suspend(&mut self, state: Accepting, dispatcher: &mut dyn Dispatcher) {
        self.state = state;
        // With level-triggered reports they would be reported all the time.
        if self.is_level {
            self.listeners.iter_mut().for_each(|listener| listener.unwatch(dispatcher));
        }
    }

    fn reopen(&mut self, now: Instant, dispatcher: &mut dyn Dispatcher) {
        self.state = Accepting::Open;
        for listener in &mut self.listeners {
            // The kernel may lack the memory just now.
            if listener.watch(dispatcher).is_err() {
                self.state = Accepting::BackedOff(now + BACK_OFF);
            }
            // With edge-triggered reports, connections from before the pause are not reported.
            listener.has_some = true;
        }
    }

    /// Closes them for good.
    pub(crate) fn close(&mut self, dispatcher: &mut dyn Dispatcher) {
        self.state = Accepting::Closed;
        for mut listener in self.listeners.drain(..) {
            listener.unwatch(dispatcher);
        }
    }

    pub(crate) fn are_closed(&self) -> bool {
        self.state == Accepting::Closed
    }
}

impl ListeningSocket {
    fn watch(&mut self, dispatcher: &mut dyn Dispatcher) -> io::Result<()> {
        if !self.is_watched {
            let fd = self.socket.as_fd();
            dispatcher.add(fd, self.token, Interest::READ.pinned())?;
            self.is_watched = true;
        }
        Ok(())
    }

    fn unwatch(&mut self, dispatcher: &mut dyn Dispatcher) {
        if std::mem::take(&mut self.is_watched) {
            // It is watched, so this cannot fail.
            let _ = dispatcher.remove(self.socket.as_fd());
        }
    }
}

/// Accepts a connection from a non-blocking socket, with the peer's address if requested and
/// available.
fn accept(
    listener: BorrowedFd<'_>,
    names_peer: bool,
) -> io::Result<Option<(OwnedFd, Option<SocketAddr>)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let accepted = if names_peer {
            rustix::net::acceptfrom_with(listener, flags)
        } else {
            rustix::net::accept_with(listener, flags).map(|socket| (socket, None))
        };
        return match accepted {
            Ok((socket, peer)) => {
                let peer = peer.and_then(|peer| peer.try_into().ok());
                Ok(Some((socket, peer)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}
