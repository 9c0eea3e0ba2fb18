//! Accepting: one operation, both encodings side by side.
//!
//! Any number of fibers may wait in `accept` on one listener, and any number of processors may share it.
//! On a ring, each processor that has waiters arms one multishot accept; on epoll, an edge makes the
//! processor accept for as many waiters as it has. Who has waited for the shortest time is served
//! first: its stack is warm, and the stacks of the others stay untouched.
//!
//! Plain threads may accept beside them. They need a non-blocking listener, on which the ring's accept fails instead of
//! waiting, so from then on the rings wait for readiness as epoll does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::backend::{Backend, Completion, Op, OpCarrier};
use crate::cancel::Cancelled;
use crate::cluster::{Cluster, Message, lock};
use crate::processor::{self, Processor};
use crate::waiting::Operation;

/// Connections that the kernel handed over and no fiber has taken: from this number on a processor where nobody waits
/// stops accepting, so that they stay in the listen queue.
const UNCLAIMED_MAX: usize = 16;

/// What all processors share of one listener.
#[derive(Debug)]
pub(crate) struct ListenerState {
    fd: OwnedFd,
    id: u64,
    closed: AtomicBool,
    /// Connections that came to a processor where nobody waited: for whoever asks next, anywhere.
    unclaimed: Mutex<VecDeque<OwnedFd>>,
    /// How many fibers wait, on all processors.
    waiting: AtomicUsize,
    /// The listener is gone, so nobody will ever ask for a connection.
    dropped: AtomicBool,
    /// The processors that accept from it: they are told when it closes.
    users: Mutex<Vec<(Arc<Cluster>, usize)>>,
    /// Somebody needs a listener that does not block. Changed with the lock of `users`.
    is_nonblocking: AtomicBool,
    /// For plain threads that wait: readable while something is unclaimed that was put by since it was made, and for ever
    /// once the listener is closed.
    wake_up: OnceLock<OwnedFd>,
}

/// The listeners that fibers of one processor wait on. Few, so a list.
#[derive(Default)]
pub(crate) struct Acceptors {
    list: RefCell<Vec<Acceptor>>,
}

/// One listener on one processor.
struct Acceptor {
    listener: Arc<ListenerState>,
    /// What is in the ring (from push to its last completion).
    armed: Option<Armed>,
    disarming: bool,
    /// Last in, first out.
    waiters: Vec<*const Waiter>,
}

/// How a ring waits for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    /// By a multishot accept.
    Accept,
    /// By a poll; the accept is a system call.
    Poll,
}

/// A fiber that waits for a connection; on its stack.
struct Waiter {
    op: Op,
    connection: Cell<Option<OwnedFd>>,
}

impl ListenerState {
    pub(crate) fn new(fd: OwnedFd, id: u64) -> Arc<ListenerState> {
        Arc::new(ListenerState {
            fd,
            id,
            closed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            unclaimed: Mutex::default(),
            waiting: AtomicUsize::new(0),
            users: Mutex::default(),
            is_nonblocking: AtomicBool::new(false),
            wake_up: OnceLock::new(),
        })
    }

    /// Ends all waits; connections that have been accepted already are still given out.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for (cluster, index) in lock(&self.users).iter() {
            cluster.processors[*index].send(Message::CloseListener(self.id));
        }
        self.wake_threads(&lock(&self.unclaimed));
    }

    /// As [`close`](ListenerState::close), when the listener is dropped: connections that nobody has taken are closed.
    pub(crate) fn abandon(&self) {
        self.dropped.store(true, Ordering::SeqCst);
        lock(&self.unclaimed).clear();
        self.close();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Puts a connection by for whoever asks next, and tells the other processors if somebody waits there.
    ///
    /// Whoever begins to wait does it the other way round (first it is counted, then it looks here), so that
    /// a connection and a fiber that waits for it always find each other.
    fn put_by(&self, from: &Processor, connection: OwnedFd) {
        let mut unclaimed = lock(&self.unclaimed);
        // With the lock: `abandon` says so first, and clears then.
        if self.is_dropped() {
            return;
        }
        unclaimed.push_back(connection);
        self.wake_threads(&unclaimed);
        drop(unclaimed);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.tell_others(from, || Message::Connection(self.id));
        }
    }

    fn tell_others(&self, from: &Processor, message: impl Fn() -> Message) {
        for (cluster, index) in lock(&self.users).iter() {
            if *index != from.index || !Arc::ptr_eq(cluster, &from.cluster) {
                cluster.processors[*index].send(message());
            }
        }
    }

    fn take_unclaimed(&self) -> Option<OwnedFd> {
        let mut unclaimed = lock(&self.unclaimed);
        let first = unclaimed.pop_front();
        if let Some(wake_up) = self.wake_up.get()
            && first.is_some()
            && unclaimed.is_empty()
            && !self.is_closed()
        {
            // Nothing to read is as good.
            let _ = rustix::io::read(wake_up, &mut [0; 8]);
        }
        first
    }

    /// With the lock of what is unclaimed.
    fn wake_threads(&self, _: &MutexGuard<'_, VecDeque<OwnedFd>>) {
        if let Some(wake_up) = self.wake_up.get() {
            // It can fail only when it is readable many times over.
            let _ = rustix::io::write(wake_up, &1u64.to_ne_bytes());
        }
    }

    /// For a plain thread that will wait: what it hears of connections by that are put by, and of the end.
    fn wake_up(&self) -> io::Result<&OwnedFd> {
        use rustix::event::{EventfdFlags, eventfd};
        if let Some(wake_up) = self.wake_up.get() {
            return Ok(wake_up);
        }
        self.set_nonblocking(true)?;
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(self.wake_up.get_or_init(|| made))
    }

    /// Makes the listener non-blocking, or blocking if nobody needs it to be otherwise.
    fn set_nonblocking(&self, is_needed: bool) -> io::Result<()> {
        let _alone = lock(&self.users);
        let nonblocking = is_needed || self.is_nonblocking();
        self.is_nonblocking.store(nonblocking, Ordering::SeqCst);
        Ok(rustix::io::ioctl_fionbio(self, nonblocking)?)
    }

    fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::SeqCst)
    }

    fn unclaimed_count(&self) -> usize {
        lock(&self.unclaimed).len()
    }
}

impl AsFd for ListenerState {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the listener was closed")
}

/// Waits for the next connection on `listener`.
///
/// # Errors
/// `NotConnected` if the listener was closed; else what `accept4(2)` reports: running out of descriptors and a
/// connection that was reset in the queue are the caller's to survive.
pub(crate) fn accept(listener: &Arc<ListenerState>) -> io::Result<OwnedFd> {
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return accept_plain(listener);
    };
    loop {
        fiber.control().cancellation().check()?;
        let waiter = Waiter {
            op: Op::carried_by(OpCarrier::Acceptors, fiber),
            connection: Cell::new(None),
        };
        if let Some(connection) = processor::here(|p| p.acceptors.begin(p, listener, &waiter))? {
            return Ok(connection);
        }
        let completion = waiter
            .op
            .wait_for(listener.fd.as_raw_fd(), Operation::Accept);
        match waiter.connection.take() {
            Some(connection) => return Ok(connection),
            None if waiter.op.is_cancelled() => return Err(Cancelled.into()),
            None if waiter.op.is_timed_out() => return Err(io::ErrorKind::TimedOut.into()),
            None if listener.is_closed() => return Err(closed_error()),
            None if waiter.op.is_relocated() => {} // Stands in line again, on another processor.
            None => return Err(io::Error::from_raw_os_error(-completion.result)),
        }
    }
}

/// On a plain thread.
fn accept_plain(listener: &ListenerState) -> io::Result<OwnedFd> {
    use rustix::event::{PollFd, PollFlags, poll};
    let wake_up = listener.wake_up()?;
    // It was made before we look, so what is put by or closed after that look is heard of.
    loop {
        if let Some(connection) = listener.take_unclaimed() {
            return Ok(connection);
        }
        if listener.is_closed() {
            return Err(closed_error());
        }
        match accept_now(listener, false)? {
            Some(connection) => return Ok(connection),
            None => {
                let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
                match poll(&mut [of(listener.as_fd()), of(wake_up.as_fd())], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// Accepts if a connection is there, which blocks if a ring is to carry it. The listener is non-blocking.
fn accept_now(listener: &ListenerState, for_ring: bool) -> io::Result<Option<OwnedFd>> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, !for_ring);
    match rustix::net::accept_with(listener, flags) {
        Ok(connection) => Ok(Some(connection)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a connection is in the listen queue just now.
fn may_accept(listener: &ListenerState) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let at_once = Timespec::default();
    let mut listeners = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut listeners, Some(&at_once)).is_ok_and(|count| count > 0)
}

impl Acceptors {
    /// Takes a connection that is there already, or puts `waiter` in line.
    fn begin(
        &self,
        processor: &Processor,
        listener: &Arc<ListenerState>,
        waiter: &Waiter,
    ) -> io::Result<Option<OwnedFd>> {
        let mut list = self.list.borrow_mut();
        let index = match list.iter().position(|a| a.listener.id == listener.id) {
            Some(index) => index,
            None if listener.is_closed() => {
                // Those that were accepted before are still given out.
                return listener
                    .take_unclaimed()
                    .map_or_else(|| Err(closed_error()), |c| Ok(Some(c)));
            }
            None => {
                list.push(Acceptor::new(processor, listener)?);
                list.len() - 1
            }
        };
        let acceptor = &mut list[index];
        if let Some(connection) = listener.take_unclaimed() {
            return Ok(Some(connection));
        }
        if listener.is_closed() {
            // It may have been closed just before this processor was listed as a user.
            list.retain(|acceptor| !acceptor.is_over());
            return Err(closed_error());
        }
        match &processor.backend {
            Backend::Uring(_) => acceptor.arm(processor),
            // Registered before, so an edge after this attempt is seen.
            Backend::Epoll(_) => {
                if let Some(connection) = accept_now(listener, false)? {
                    processor.shared().counters.accepted.add(1);
                    return Ok(Some(connection));
                }
            }
        }
        acceptor.push(waiter);
        // Again: who put one by in the meantime did not see that we wait.
        if let Some(connection) = listener.take_unclaimed() {
            acceptor.remove(acceptor.waiters.len() - 1);
            return Ok(Some(connection));
        }
        // The list is free again: the watch may end the wait at once.
        drop(list);
        let deadline = waiter.op.fiber().deadline();
        waiter.op.watch(processor, deadline);
        Ok(None)
    }

    /// The wait that `op` stands for ends without a connection, which nobody may bring it any more.
    pub(crate) fn withdraw(&self, processor: &Processor, op: &Op) {
        let mut list = self.list.borrow_mut();
        // SAFETY: a waiter's fiber stays in `accept` until it is completed, and then it is not in a list.
        let is_of = |&waiter: &*const Waiter| std::ptr::eq(unsafe { &raw const (*waiter).op }, op);
        for acceptor in list.iter_mut() {
            if let Some(at) = acceptor.waiters.iter().position(is_of) {
                acceptor.remove(at);
                if acceptor.waiters.is_empty() {
                    // Whoever comes back arms again.
                    acceptor.disarm(processor);
                }
                return;
            }
        }
    }

    /// The processor goes: stops accepting where nobody waits. Says whether there is no listener left. Who waits here
    /// cannot leave, and is served until it does.
    pub(crate) fn wind_down(&self, processor: &Processor) -> bool {
        let mut list = self.list.borrow_mut();
        list.retain_mut(|acceptor| {
            if !acceptor.waiters.is_empty() {
                return true;
            }
            acceptor.disarm(processor);
            if acceptor.armed.is_none() {
                acceptor.leave(processor);
            }
            acceptor.armed.is_some()
        });
        list.is_empty()
    }

    /// Another processor has put a connection by.
    pub(crate) fn adopt(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        let acceptor = list.iter_mut().find(|acceptor| acceptor.listener.id == id);
        if let Some(acceptor) = acceptor.filter(|acceptor| !acceptor.waiters.is_empty())
            && let Some(connection) = acceptor.listener.take_unclaimed()
        {
            acceptor.deliver(processor, connection);
        }
    }

    /// Another processor was told of a connection by the kernel, and left it in the listen queue.
    pub(crate) fn look_again(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        let acceptor = list.iter_mut().find(|acceptor| acceptor.listener.id == id);
        if let Some(acceptor) = acceptor.filter(|acceptor| !acceptor.waiters.is_empty()) {
            // Armed anew when that has come back, and then the kernel looks into the queue.
            acceptor.disarm(processor);
        }
    }

    /// A completion of the ring's multishot accept; `more` says that it goes on.
    pub(crate) fn accepted(
        &self,
        processor: &Processor,
        id: u64,
        completion: Completion,
        more: bool,
    ) {
        let mut list = self.list.borrow_mut();
        let Some(index) = list.iter().position(|acceptor| acceptor.listener.id == id) else {
            unreachable!("a completion of listener {id}, which nobody accepts from")
        };
        let acceptor = &mut list[index];
        let was_armed = acceptor.armed;
        if !more {
            (acceptor.armed, acceptor.disarming) = (None, false);
        }
        if completion.result >= 0 && was_armed == Some(Armed::Poll) {
            acceptor.accept_all(processor);
        } else if completion.result >= 0 {
            processor.shared().counters.accepted.add(1);
            // SAFETY: the kernel made this descriptor for us, in this completion.
            let connection = unsafe { OwnedFd::from_raw_fd(completion.result) };
            acceptor.deliver(processor, connection);
        }
        // EAGAIN: somebody else made the listener non-blocking, in another process perhaps.
        let is_again = completion.result == -libc::EAGAIN;
        let switched = if is_again {
            acceptor.listener.set_nonblocking(true)
        } else {
            Ok(())
        };
        let failed = completion.result < 0 && completion.result != -libc::ECANCELED;
        if failed && (!is_again || switched.is_err()) {
            acceptor.fail(processor, completion);
        } else if !acceptor.waiters.is_empty() {
            acceptor.arm(processor);
        } else if acceptor.listener.unclaimed_count() >= UNCLAIMED_MAX {
            acceptor.disarm(processor);
        }
        if acceptor.armed.is_none() && acceptor.waiters.is_empty() {
            acceptor.pass_on(processor);
        }
        if acceptor.is_over() {
            list.swap_remove(index);
        }
    }

    /// An edge of the epoll back end.
    pub(crate) fn readable(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        let Some(acceptor) = list.iter_mut().find(|acceptor| acceptor.listener.id == id) else {
            return;
        };
        acceptor.accept_all(processor);
    }

    /// The listener was closed: those who wait are told, and the kernel is.
    pub(crate) fn close(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        let Some(index) = list.iter().position(|acceptor| acceptor.listener.id == id) else {
            return;
        };
        let acceptor = &mut list[index];
        acceptor.disarm(processor);
        acceptor.fail(processor, Completion::error(libc::ECANCELED));
        if let Backend::Epoll(epoll) = &processor.backend {
            epoll.forget(acceptor.listener.as_fd(), id);
        }
        if acceptor.is_over() {
            list.swap_remove(index);
        }
    }
}

impl Acceptor {
    fn new(processor: &Processor, listener: &Arc<ListenerState>) -> io::Result<Acceptor> {
        // The ring fails a request on a non-blocking file instead of waiting; epoll wants one.
        listener.set_nonblocking(matches!(processor.backend, Backend::Epoll(_)))?;
        if let Backend::Epoll(epoll) = &processor.backend {
            epoll.register(listener.as_fd(), listener.id, true)?;
        }
        lock(&listener.users).push((Arc::clone(&processor.cluster), processor.index));
        Ok(Acceptor {
            listener: Arc::clone(listener),
            armed: None,
            disarming: false,
            waiters: Vec::new(),
        })
    }

    fn arm(&mut self, processor: &Processor) {
        if let Backend::Uring(uring) = &processor.backend
            && self.armed.is_none()
            && !self.listener.is_closed()
            && !processor.cluster.is_stopping()
        {
            if self.listener.is_nonblocking() {
                self.armed = Some(Armed::Poll);
                uring.arm_accept_poll(processor, &self.listener.fd, self.listener.id);
            } else {
                self.armed = Some(Armed::Accept);
                uring.arm_accept(processor, &self.listener.fd, self.listener.id);
            }
        }
    }

    /// Accepts for as many as wait, as long as connections are there.
    fn accept_all(&mut self, processor: &Processor) {
        let for_ring = matches!(processor.backend, Backend::Uring(_));
        while !self.waiters.is_empty() {
            match accept_now(&self.listener, for_ring) {
                Ok(Some(connection)) => {
                    processor.shared().counters.accepted.add(1);
                    self.deliver(processor, connection);
                }
                Ok(None) => return,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return self.fail(processor, Completion::error(errno));
                }
            }
        }
    }

    fn disarm(&mut self, processor: &Processor) {
        if let Backend::Uring(uring) = &processor.backend
            && self.armed.is_some()
            && !self.disarming
        {
            self.disarming = true;
            uring.disarm_accept(processor, self.listener.id);
        }
    }

    fn deliver(&mut self, processor: &Processor, connection: OwnedFd) {
        let last = self.waiters.len().checked_sub(1);
        match last.map(|last| self.remove(last)) {
            Some(waiter) => {
                // SAFETY: a waiter's fiber stays in `accept` until it is completed, which is here.
                let waiter = unsafe { &*waiter };
                waiter.connection.set(Some(connection));
                waiter.op.complete(processor, Completion::READY);
            }
            None => self.listener.put_by(processor, connection),
        }
    }

    fn push(&mut self, waiter: *const Waiter) {
        self.listener.waiting.fetch_add(1, Ordering::SeqCst);
        self.waiters.push(waiter);
    }

    fn remove(&mut self, at: usize) -> *const Waiter {
        self.listener.waiting.fetch_sub(1, Ordering::SeqCst);
        self.waiters.remove(at)
    }

    /// This processor accepts from the listener no longer.
    fn leave(&self, processor: &Processor) {
        if let Backend::Epoll(epoll) = &processor.backend {
            epoll.forget(self.listener.as_fd(), self.listener.id);
        }
        let mut users = lock(&self.listener.users);
        users.retain(|(cluster, index)| {
            *index != processor.index || !Arc::ptr_eq(cluster, &processor.cluster)
        });
        drop(users);
        self.pass_on(processor);
    }

    /// After the accept in the ring has ended, and nobody waits here. Of several rings that wait for connections the
    /// kernel tells one (io_uring polls for accept with EPOLLEXCLUSIVE). If it was this one, and the news met the
    /// cancellation, the connection is still in the listen queue and no other ring knows.
    fn pass_on(&self, processor: &Processor) {
        if !self.listener.is_closed() && may_accept(&self.listener) {
            let id = self.listener.id;
            self.listener
                .tell_others(processor, || Message::ListenQueue(id));
        }
    }

    /// Gives an error to all who wait. Those who come back arm again.
    fn fail(&mut self, processor: &Processor, completion: Completion) {
        while let Some(last) = self.waiters.len().checked_sub(1) {
            let waiter = self.remove(last);
            // SAFETY: as in `deliver`.
            unsafe { &*waiter }.op.complete(processor, completion);
        }
    }

    /// Closed, nothing in the kernel, and nobody waits.
    fn is_over(&self) -> bool {
        self.armed.is_none() && self.waiters.is_empty() && self.listener.is_closed()
    }
}
