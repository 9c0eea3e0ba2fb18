//! The smallest engine: one kernel thread, `poll(2)`, and a slab of carriages.
//!
//! It is built and tested, and not offered. `docs/adding-an-engine.md` walks through it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Poll, Token};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags};
use session::{Now, Opening, Session};
use slab::Slab;

use super::admission::{Admission, Start};
use crate::carriage::{Carriage, SEALED_LEN_MAX, Want};
use crate::clock;
use crate::counters::Closed;
use crate::file::{self, COPIED_PIECE_LEN, Way};
use crate::listen::Bound;
use crate::shared::{CUTTING, DRAINING};
use crate::stream::untaken_len;

/// The engine, as the server sees it.
pub(crate) struct Smallest {
    state: Arc<State>,
    bound: Vec<Bound>,
}

/// What the server and the loop tell each other.
struct State {
    is_accepting: AtomicBool,
    connection_count: AtomicUsize,
}

impl Smallest {
    /// # Errors
    /// What the kernel says to a new thread and new descriptors.
    pub(crate) fn start<S, O>(start: Start<O>) -> io::Result<Smallest>
    where
        S: Session + 'static,
        O: Fn(Opening<'_>) -> S + Send + Sync + 'static,
    {
        let (is_accepting, connection_count) = (AtomicBool::new(true), AtomicUsize::new(0));
        let state = Arc::new(State {
            is_accepting,
            connection_count,
        });
        let listeners = start.listeners.iter().map(Bound::try_clone);
        let event_loop = Loop {
            admission: start.admission,
            state: Arc::clone(&state),
            listeners: listeners.collect::<io::Result<_>>()?,
            connections: Slab::new(),
        };
        let run = || event_loop.run().expect("poll(2) has memory");
        thread::Builder::new().name("loop".to_owned()).spawn(run)?;
        Ok(Smallest {
            state,
            bound: start.listeners,
        })
    }

    pub(crate) fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    pub(crate) fn stop_accepting(&self) {
        self.state.is_accepting.store(false, SeqCst);
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.state.connection_count.load(SeqCst)
    }

    /// Nothing to do: the loop sees that the server drains, and tells its carriages.
    pub(crate) fn close_idle(&self, _after_start: Duration) {}

    /// The same.
    pub(crate) fn cut(&self) -> usize {
        self.connection_count()
    }
}

/// What the thread owns.
struct Loop<S, O> {
    admission: Admission<O>,
    state: Arc<State>,
    listeners: Vec<Bound>,
    connections: Slab<Connection<S>>,
}

struct Connection<S> {
    socket: OwnedFd,
    carriage: Carriage<S>,
    /// Which of the listeners it came from.
    listener: usize,
    wait: Wait,
    /// When to look how much the peer has not taken.
    look_at: Option<Instant>,
}

/// What a connection waits for: its socket, if anything of it, until this time.
struct Wait(Option<Interest>, Instant);

/// So often the loop looks whether the server has something to say.
const TICK: Duration = Duration::from_millis(10);

/// So many things are done for one connection before the others have their turn.
const STEPS_MAX: usize = 16;

impl<S: Session, O: Fn(Opening<'_>) -> S> Loop<S, O> {
    fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        while self.state.is_accepting.load(SeqCst) || !self.connections.is_empty() {
            let mut poll = Poll::new();
            let has_room = self.connections.len() < self.admission.shared.limits.connections_max;
            let accepts = has_room && self.state.is_accepting.load(SeqCst);
            for (number, bound) in self.listeners.iter().enumerate().filter(|_| accepts) {
                poll.add(bound.as_fd(), Token(number as u64), Interest::READ)?;
            }
            let mut until = Instant::now() + TICK;
            for (key, connection) in &self.connections {
                let Wait(interest, ends) = connection.wait;
                until = until.min(ends);
                if let Some(interest) = interest {
                    let token = Token((self.listeners.len() + key) as u64);
                    poll.add(connection.socket.as_fd(), token, interest)?;
                }
            }
            let timeout = until.saturating_duration_since(Instant::now());
            poll.wait(&mut ready, Some(timeout))?;
            for report in &ready {
                let Token(token) = report.token;
                match (token as usize).checked_sub(self.listeners.len()) {
                    Some(key) => self.connections[key].wait.1 = Instant::now(),
                    None => self.accept(token as usize),
                }
            }
            self.go_on();
        }
        Ok(())
    }

    /// Accepts one connection. If more wait, the next round reports the listener again.
    fn accept(&mut self, listener: usize) {
        let (Admission { shared, .. }, bound) = (&self.admission, &self.listeners[listener]);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(bound, flags) {
            Ok(socket) => socket,
            Err(error) => {
                shared.counters.accept_failed(&error.into());
                return thread::sleep(TICK); // Out of descriptors or memory: some may end.
            }
        };
        if let Err(line) = self.admission.admit() {
            let _ = send(&socket, &[IoSlice::new(line.as_bytes())]);
            return self.admission.refused();
        }
        let now = clock::now();
        match self.admission.carriage(bound.tls.as_ref(), now) {
            None => self.admission.dismiss(),
            Some(carriage) => {
                let (wait, look_at) = (Wait(None, now.monotonic), None);
                self.connections.insert(Connection {
                    socket,
                    carriage,
                    listener,
                    wait,
                    look_at,
                });
            }
        }
    }

    /// Goes on with each connection whose wait is over; with all of them when the server ends.
    fn go_on(&mut self) {
        let Loop {
            admission,
            connections,
            ..
        } = self;
        let (stage, now) = (admission.shared.stage.get(), clock::now());
        connections.retain(|_, connection| {
            match stage {
                DRAINING => connection.carriage.drain(now),
                CUTTING => connection.carriage.cut(now),
                _ if now.monotonic < connection.wait.1 => return true,
                _ => {}
            }
            // A session that panics ends its own connection. The panic hook has reported it.
            let gone_on = catch_unwind(AssertUnwindSafe(|| connection.go_on(admission)));
            let closed = match gone_on.unwrap_or(Err(Closed::Error)) {
                Ok(wait) => {
                    connection.wait = wait;
                    return true;
                }
                Err(closed) => closed,
            };
            admission.dismiss();
            admission.shared.counters.closed(closed);
            false
        });
        self.state.connection_count.store(connections.len(), SeqCst);
    }
}

impl<S: Session> Connection<S> {
    /// Does what the carriage wants until it has to wait.
    fn go_on(&mut self, admission: &Admission<impl Fn(Opening<'_>) -> S>) -> Result<Wait, Closed> {
        for _ in 0..STEPS_MAX {
            let now = clock::now();
            match self.step(admission, now)? {
                Some(Wait(_, until)) if until <= now.monotonic => self.carriage.expired(now),
                Some(wait) => return Ok(wait),
                None => {}
            }
        }
        Ok(Wait(None, Instant::now()))
    }

    /// Does one thing that the carriage wants, and tells it what came of that; or says what it has
    /// to wait for first.
    fn step(
        &mut self,
        admission: &Admission<impl Fn(Opening<'_>) -> S>,
        now: Now,
    ) -> Result<Option<Wait>, Closed> {
        let (carriage, socket) = (&mut self.carriage, &self.socket);
        let read_until = |until| Wait(Some(Interest::READ), until);
        let write_until = |until| Wait(Some(Interest::WRITE), until);
        let at_once = Wait(None, now.monotonic);
        Ok(match carriage.want() {
            Want::Open { tls } => {
                let peer = || rustix::net::getpeername(socket).ok()??.try_into().ok();
                let session = admission.session(self.listener, peer, tls, now);
                carriage.opened(session, now);
                None
            }
            Want::Receive { until } => {
                let mut room = [0; 16 * 1024];
                let len = rustix::io::read(socket, &mut room);
                let input =
                    |carriage: &mut Carriage<S>, len, now| carriage.input(&room[..len], now);
                tell(carriage, len, now, input, read_until(until))
            }
            Want::Fill { room, until } => {
                let len = rustix::io::read(socket, room);
                tell(carriage, len, now, Carriage::filled, read_until(until))
            }
            Want::Send { out, until, .. } => {
                let mut slices = [IoSlice::new(&[]); 16];
                let count = out.gather(&mut slices);
                let len = send(socket, &slices[..count]);
                tell(carriage, len, now, Carriage::sent, write_until(until))
            }
            Want::File(piece) => {
                let (wait, mut at) = (write_until(piece.until), piece.range.range.start);
                let file = piece.range.file.as_fd();
                let len = match file::has_changed(&piece) {
                    true => Ok(0),
                    false => rustix::fs::sendfile(socket, file, Some(&mut at), piece.len as usize),
                };
                tell(
                    carriage,
                    len.map(|len| len as u64),
                    now,
                    Carriage::sent,
                    wait,
                )
            }
            Want::Copy { range, len, until } => {
                let copy = file::read(range, Way::Read, len.min(COPIED_PIECE_LEN));
                let len = copy.and_then(|copy| send(socket, &[IoSlice::new(&copy)]));
                tell(carriage, len, now, Carriage::sent, write_until(until))
            }
            Want::Read { range } => {
                let bytes = file::read(range, Way::Read, SEALED_LEN_MAX as u64);
                tell(carriage, bytes, now, Carriage::file_bytes, at_once)
            }
            Want::Untaken { after } => {
                let look_at = *self.look_at.get_or_insert(now.monotonic + after);
                if now.monotonic < look_at {
                    return Ok(Some(Wait(None, look_at)));
                }
                self.look_at = None;
                let len = untaken_len(socket.as_fd());
                tell(carriage, len, now, Carriage::untaken, at_once)
            }
            Want::Turn => {
                carriage.go_on(now);
                None
            }
            Want::Work => {
                // All connections wait for it. A real engine has threads for it.
                let job = carriage.begin_work().run(now);
                carriage.worked(job, clock::now());
                None
            }
            Want::Nothing => unreachable!("work is done at once"),
            Want::Finish => {
                let ended = rustix::net::shutdown(socket, Shutdown::Write);
                tell(carriage, ended, now, Carriage::finished, at_once)
            }
            Want::Close(closed) => return Err(closed),
        })
    }
}

/// Tells the carriage what came of a call. If the call would have blocked, says what to wait for.
fn tell<S: Session, R>(
    carriage: &mut Carriage<S>,
    result: Result<R, impl Into<io::Error>>,
    now: Now,
    told: impl FnOnce(&mut Carriage<S>, R, Now),
    wait: Wait,
) -> Option<Wait> {
    match result.map_err(Into::into) {
        Ok(result) => told(carriage, result, now),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(wait),
        Err(error) => carriage.failed(&error, now),
    }
    None
}

fn send(socket: &OwnedFd, slices: &[IoSlice<'_>]) -> io::Result<u64> {
    let mut ancillary = SendAncillaryBuffer::default();
    let len = rustix::net::sendmsg(socket, slices, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(len as u64)
}

#[cfg(test)]
mod tests;
