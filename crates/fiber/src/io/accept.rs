//! Accepting, on demand: a connection is taken out of the listen queue when a fiber or a thread
//! asks for one, and for it. The others stay in the queue, where they cost no descriptor and any
//! process that shares the listener may have them. So a limit on connections is a limit on those
//! that ask.
//!
//! Any number of fibers may wait in `accept` on one listener, and any number of processors may
//! share it. When a connection comes, a processor accepts as many as it has waiters for. The fiber
//! that has waited for the shortest time is served first: its stack is warm, and the stacks of the
//! others stay untouched. Plain threads may accept beside them.
//!
//! ```text
//!   listen queue    [c9 c8 c7 c6]
//!                         │ ring: an accept, then accept4(2);  epoll: accept4(2) at an edge
//!   waiters         f3 ◀──┘ c6      then f2 ◀── c7, f1 ◀── c8;  c9 stays in the queue
//! ```
//!
//! A ring has one accept, while a fiber waits. It follows a poll, because an accept on an empty
//! queue makes a socket for nothing. Where it left connections in the queue, accept4(2) takes a few
//! more, and the ring's next accept comes at once: one for each turn would keep the others waiting
//! when turns are long, and all of them would be too many when other processors have none. As long
//! as some are left each time, each turn takes twice as many as the one before. The
//! ring's multishot accept is no use: it takes the whole queue in one burst, thousands of
//! connections that no fiber has asked for, and with them the descriptors that files need. For the
//! same reason the last fiber that waits cannot go while the accept is in the ring: the accept is
//! cancelled first, and what it brings all the same is the fiber's.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::backend::{Backend, Completion};
use crate::base::cancelled::{Cancelled, is_cancellation};
use crate::base::home::Home;
use crate::base::lock::lock;
use crate::io::op::{Op, OpCarrier, check_cancelled};
use crate::sched::acceptors::{Acceptor, Acceptors, ListenerEnd, ListenerState};
use crate::sched::block::consume_budget;
use crate::sched::cluster::Message;
use crate::sched::processor::{self, Processor};
use crate::switch::reason::Operation;

/// Connections that the processors of a listener take together after one that came by a ring: the
/// first time, and at most.
const MORE: (usize, usize) = (8, 1024);

/// A fiber that waits for a connection; on its stack.
struct Waiter {
    op: Op,
    connection: Cell<Option<OwnedFd>>,
}

/// The waiter at an address of an acceptor's list, or one just removed and not yet completed.
fn waiter_at<'a>(address: *const ()) -> &'a Waiter {
    // SAFETY: only `Acceptor::push` adds addresses, and they are of waiters. A waiter's fiber stays
    // in `accept` until it is completed, which takes it off the list first; no caller keeps the
    // reference beyond that.
    unsafe { &*address.cast::<Waiter>() }
}

impl ListenerState {
    /// Ends all waits.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let users = lock(&self.users);
        // In the child of a fork they are the parent's, as is the listener.
        for (cluster, index) in users.iter().filter(|(cluster, _)| cluster.process.is_here()) {
            cluster.processors[*index].send(Message::Call(close_here, [self.id, 0]));
        }
        drop(users);
        if let Ok(end) = self.end_here() {
            // Fails only if the counter is readable many times over.
            let _ = rustix::io::write(&end.eventfd, &1u64.to_ne_bytes());
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn send_to_others(&self, from: &Processor, message: impl Fn() -> Message) {
        for (cluster, index) in lock(&self.users).iter() {
            let is_other = *index != from.index || !Arc::ptr_eq(cluster, &from.cluster);
            if is_other && cluster.process.is_here() {
                cluster.processors[*index].send(message());
            }
        }
    }

    /// Eventfd that tells a waiting plain thread of the close.
    fn end(&self) -> io::Result<&OwnedFd> {
        use rustix::event::{EventfdFlags, eventfd};
        let cell = match self.end_here() {
            Ok(end) => return Ok(&end.eventfd),
            Err(cell) => cell,
        };
        rustix::io::ioctl_fionbio(self, true)?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let made = ListenerEnd { process: Home::here(), eventfd, of_child: OnceLock::new() };
        Ok(&cell.get_or_init(|| Box::new(made)).eventfd)
    }

    /// The end for plain threads of this process, or else the cell in which to create it.
    fn end_here(&self) -> Result<&ListenerEnd, &OnceLock<Box<ListenerEnd>>> {
        let mut cell = &self.end;
        while let Some(end) = cell.get() {
            if end.process.is_here() {
                return Ok(end);
            }
            cell = &end.of_child;
        }
        Err(cell)
    }
}

/// Handles the close of a listener on a processor that accepts from it.
fn close_here([id, _]: [u64; 2]) {
    processor::here(|processor| processor.acceptors.close(processor, id));
}

/// Checks the listen queue on a processor that accepts from the listener.
fn check_queue_here([id, _]: [u64; 2]) {
    processor::here(|processor| processor.acceptors.readable(processor, id));
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the listener was closed")
}

/// Result of `incoming` for an accept: `None` once no accept waits any more, so that a loop that
/// skips errors ends. `TimedOut` is the deadline of the fiber.
pub(crate) fn unless_over<T>(accepted: io::Result<T>) -> Option<io::Result<T>> {
    const OVER: [io::ErrorKind; 2] = [io::ErrorKind::NotConnected, io::ErrorKind::TimedOut];
    let is_over = |error: &io::Error| OVER.contains(&error.kind()) || is_cancellation(error);
    match accepted {
        Err(error) if is_over(&error) => None,
        accepted => Some(accepted),
    }
}

/// Waits for the next connection on `listener`.
///
/// # Errors
/// `NotConnected` if the listener was closed; else what `accept4(2)` reports: running out of
/// descriptors and a connection that was reset in the queue are the caller's to survive.
pub(crate) fn accept(listener: &Arc<ListenerState>) -> io::Result<OwnedFd> {
    let Some(fiber) = processor::with_current(|_, fiber| fiber) else {
        return accept_plain(listener);
    };
    loop {
        check_cancelled(fiber)?;
        let waiter =
            Waiter { op: Op::carried_by(OpCarrier::Acceptors, fiber), connection: Cell::new(None) };
        if let Some(connection) = processor::here(|p| p.acceptors.begin(p, listener, &waiter))? {
            consume_budget(0);
            return Ok(connection);
        }
        let completion = waiter.op.wait_for(listener.fd.as_raw_fd(), Operation::Accept);
        match waiter.connection.take() {
            Some(connection) => return Ok(connection),
            None if waiter.op.is_cancelled() => return Err(Cancelled.into()),
            None if waiter.op.is_timed_out() => return Err(io::ErrorKind::TimedOut.into()),
            None if listener.is_closed() => return Err(closed_error()),
            None if waiter.op.is_relocated() => {} // It is queued again, on another processor.
            None => return Err(io::Error::from_raw_os_error(-completion.result)),
        }
    }
}

/// Accepts on a plain thread.
fn accept_plain(listener: &ListenerState) -> io::Result<OwnedFd> {
    use rustix::event::{PollFd, PollFlags, poll};
    let end = listener.end()?;
    // The eventfd was made before the check, so a close after the check is noticed.
    loop {
        if listener.is_closed() {
            return Err(closed_error());
        }
        match accept_now(listener)? {
            Some(connection) => return Ok(connection),
            None => {
                let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
                match poll(&mut [of(listener.as_fd()), of(end.as_fd())], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// Accepts if a connection is there. The listener is non-blocking, and so is the connection.
fn accept_now(listener: &ListenerState) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(connection) => Ok(Some(connection)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// True if a connection is in the listen queue just now.
fn has_connection(listener: &ListenerState) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let at_once = Timespec::default();
    let mut listeners = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut listeners, Some(&at_once)).is_ok_and(|count| count > 0)
}

impl Acceptors {
    /// Takes a connection that is there already, or queues `waiter`.
    fn begin(
        &self,
        processor: &Processor,
        listener: &Arc<ListenerState>,
        waiter: &Waiter,
    ) -> io::Result<Option<OwnedFd>> {
        let mut list = self.list.borrow_mut();
        let index = match list.iter().position(|a| a.listener.id == listener.id) {
            Some(index) => index,
            None if listener.is_closed() => return Err(closed_error()),
            None => {
                list.push(Acceptor::new(processor, listener)?);
                list.len() - 1
            }
        };
        let acceptor = &mut list[index];
        if listener.is_closed() {
            // It may have been closed just before this processor was listed as a user.
            list.retain(|acceptor| !acceptor.is_over());
            return Err(closed_error());
        }
        match &processor.backend {
            // An armed accept checks the queue itself.
            Backend::Uring(_) => {
                if let Some(connection) = acceptor.accept_one_more()? {
                    processor.shared().counters.accepted.add(1);
                    return Ok(Some(connection));
                }
                acceptor.arm(processor);
            }
            // Registered before, so an edge after this attempt is seen.
            Backend::Epoll(_) => {
                if let Some(connection) = accept_now(listener)? {
                    processor.shared().counters.accepted.add(1);
                    return Ok(Some(connection));
                }
            }
        }
        acceptor.push(waiter);
        // The list is free again: the watch may end the wait at once.
        drop(list);
        let deadline = waiter.op.fiber().deadline();
        if waiter.op.watch(processor, deadline) && self.withdraw(processor, &waiter.op) {
            let cancelled = Completion::error(libc::ECANCELED);
            waiter.op.complete(processor, cancelled);
        }
        Ok(None)
    }

    /// Ends the wait of `op` without a connection. Returns `false` if it ends later, because the
    /// ring's accept has to end first.
    pub(crate) fn withdraw(&self, processor: &Processor, op: &Op) -> bool {
        let mut list = self.list.borrow_mut();
        let is_of = |&waiter: &*const ()| std::ptr::eq(&raw const waiter_at(waiter).op, op);
        for acceptor in list.iter_mut() {
            if let Some(at) = acceptor.waiters.iter().position(is_of) {
                if acceptor.is_armed && acceptor.waiters.len() == 1 {
                    acceptor.disarm(processor);
                    return false;
                }
                acceptor.remove(at);
                return true;
            }
        }
        true
    }

    /// Stops accepting where no fiber waits, because the processor retires. Returns true if no
    /// listener is left. A fiber that waits here cannot leave, and is served until it does.
    pub(crate) fn wind_down(&self, processor: &Processor) -> bool {
        let mut list = self.list.borrow_mut();
        list.retain(|acceptor| {
            if !acceptor.waiters.is_empty() {
                return true;
            }
            acceptor.leave(processor);
            false
        });
        list.is_empty()
    }

    /// Leaves all listeners after the processor has stopped. A fiber left in `accept` stays there.
    pub(crate) fn leave_all(&self, processor: &Processor) {
        for acceptor in self.list.take() {
            acceptor.leave(processor);
        }
    }

    /// Handles the end of the ring's accept: a connection, a disarm, or an error.
    pub(crate) fn accepted(&self, processor: &Processor, id: u64, completion: Completion) {
        let mut list = self.list.borrow_mut();
        let Some(index) = list.iter().position(|acceptor| acceptor.listener.id == id) else {
            unreachable!("a completion of listener {id}, which no fiber accepts from")
        };
        let acceptor = &mut list[index];
        let is_to_go_on = !(acceptor.is_disarming || acceptor.listener.is_closed());
        (acceptor.is_armed, acceptor.is_disarming) = (false, false);
        acceptor.is_queue_filled = io_uring::cqueue::sock_nonempty(completion.flags);
        if completion.result >= 0 {
            // SAFETY: this completion hands the descriptor over, and nothing else owns it.
            let connection = unsafe { OwnedFd::from_raw_fd(completion.result) };
            acceptor.deliver(processor, connection);
            acceptor.allow_more(is_to_go_on && !processor.cluster.is_stopping());
            acceptor.accept_more(processor);
        } else {
            match -completion.result {
                // EAGAIN: another processor or program was faster.
                libc::EAGAIN | libc::EINTR | libc::ECANCELED => {}
                _ => acceptor.fail(processor, completion),
            }
        }
        acceptor.end_withdrawn(processor);
        if acceptor.listener.is_closed() {
            acceptor.fail(processor, Completion::error(libc::ECANCELED));
        }
        if acceptor.waiters.is_empty() {
            acceptor.pass_on(processor);
        } else {
            acceptor.arm(processor);
        }
        if acceptor.is_over() {
            list.swap_remove(index);
        }
    }

    /// Repeats the disarm of an accept that the kernel did not find: it was between its poll and
    /// its beginning, and waits now if no connection was there.
    pub(crate) fn missed(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        if let Some(acceptor) = list.iter_mut().find(|acceptor| acceptor.listener.id == id)
            && std::mem::take(&mut acceptor.is_disarming)
        {
            acceptor.disarm(processor);
        }
    }

    /// Handles an edge of epoll, or a connection that another processor was notified of and left in
    /// the listen queue.
    pub(crate) fn readable(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        if let Some(acceptor) = list.iter_mut().find(|acceptor| acceptor.listener.id == id) {
            match processor.backend {
                // The accept under way has seen an empty queue. The next one checks again.
                Backend::Uring(_) => acceptor.disarm(processor),
                Backend::Epoll(_) => {
                    acceptor.more_now = usize::MAX;
                    acceptor.accept_more(processor);
                }
            }
        }
    }

    /// Handles the close of the listener: ends the waits, and the kernel's accept.
    pub(crate) fn close(&self, processor: &Processor, id: u64) {
        let mut list = self.list.borrow_mut();
        let Some(index) = list.iter().position(|acceptor| acceptor.listener.id == id) else {
            return;
        };
        let acceptor = &mut list[index];
        if acceptor.is_armed {
            // The other waits end when the accept has ended.
            return acceptor.disarm(processor);
        }
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
        rustix::io::ioctl_fionbio(listener, true)?;
        if let Backend::Epoll(epoll) = &processor.backend {
            epoll.register(listener.as_fd(), listener.id, true)?;
        }
        lock(&listener.users).push((Arc::clone(&processor.cluster), processor.index));
        Ok(Acceptor {
            listener: Arc::clone(listener),
            is_armed: false,
            is_disarming: false,
            is_queue_filled: false,
            more: 0,
            more_now: 0,
            waiters: Vec::new(),
        })
    }

    fn arm(&mut self, processor: &Processor) {
        if let Backend::Uring(uring) = &processor.backend
            && !self.is_armed
            && !self.listener.is_closed()
            && !processor.cluster.is_stopping()
        {
            self.is_armed = true;
            let listener = &self.listener;
            let counters = &processor.shared().counters;
            uring.arm_accept(counters, listener, listener.id, !self.is_queue_filled);
        }
    }

    /// Sets how many more connections this turn may take, after an accept of the ring.
    fn allow_more(&mut self, is_to_go_on: bool) {
        if self.is_queue_filled && is_to_go_on {
            self.more = (2 * self.more).clamp(MORE.0, MORE.1);
            self.more_now = self.more / lock(&self.listener.users).len().max(1);
        } else {
            (self.more, self.more_now) = (0, 0);
        }
    }

    /// Accepts one more connection; `None` if this turn may take no more, or none is queued.
    fn accept_one_more(&mut self) -> io::Result<Option<OwnedFd>> {
        if self.more_now == 0 {
            return Ok(None);
        }
        let accepted = accept_now(&self.listener)?;
        match accepted {
            Some(_) => self.more_now -= 1,
            None => (self.is_queue_filled, self.more_now) = (false, 0),
        }
        Ok(accepted)
    }

    /// Accepts for all waiters, within this turn's limit and while connections are queued.
    fn accept_more(&mut self, processor: &Processor) {
        while !self.waiters.is_empty() {
            match self.accept_one_more() {
                Ok(Some(connection)) => self.deliver(processor, connection),
                Ok(None) => return,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return self.fail(processor, Completion::error(errno));
                }
            }
        }
    }

    /// Gives a connection to the fiber that has waited for the shortest time, except fibers whose
    /// wait is ending.
    fn deliver(&mut self, processor: &Processor, connection: OwnedFd) {
        processor.shared().counters.accepted.add(1);
        let waits = |&waiter: &*const ()| !waiter_at(waiter).op.is_ending();
        let at = self.waiters.iter().rposition(waits).unwrap_or(0);
        let waiter = waiter_at(self.remove(at));
        waiter.connection.set(Some(connection));
        waiter.op.complete(processor, Completion::READY);
    }

    /// Ends the waits that had to wait for the ring's accept.
    fn end_withdrawn(&mut self, processor: &Processor) {
        let is_ending = |&waiter: &*const ()| waiter_at(waiter).op.is_ending();
        while let Some(at) = self.waiters.iter().position(is_ending) {
            let waiter = waiter_at(self.remove(at));
            let cancelled = Completion::error(libc::ECANCELED);
            waiter.op.complete(processor, cancelled);
        }
    }

    fn disarm(&mut self, processor: &Processor) {
        if let Backend::Uring(uring) = &processor.backend
            && self.is_armed
            && !self.is_disarming
        {
            self.is_disarming = true;
            uring.disarm_accept(&processor.shared().counters, self.listener.id);
        }
    }

    fn push(&mut self, waiter: &Waiter) {
        self.listener.waiting.fetch_add(1, Ordering::SeqCst);
        self.waiters.push(std::ptr::from_ref(waiter).cast());
    }

    fn remove(&mut self, at: usize) -> *const () {
        self.listener.waiting.fetch_sub(1, Ordering::SeqCst);
        self.waiters.remove(at)
    }

    /// Stops accepting from the listener on this processor.
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

    /// Tells the other processors of a queued connection when no fiber waits here any more. Of
    /// several rings the kernel wakes one (EPOLLEXCLUSIVE), which was this one, or would have been
    /// but for its disarming.
    fn pass_on(&self, processor: &Processor) {
        let listener = &self.listener;
        if listener.waiting.load(Ordering::SeqCst) > 0 && has_connection(listener) {
            listener
                .send_to_others(processor, || Message::Call(check_queue_here, [listener.id, 0]));
        }
    }

    /// Ends all waits with an error. Fibers that call again arm again.
    fn fail(&mut self, processor: &Processor, completion: Completion) {
        while let Some(last) = self.waiters.len().checked_sub(1) {
            let waiter = waiter_at(self.remove(last));
            waiter.op.complete(processor, completion);
        }
    }

    /// True if closed, with nothing in the kernel and no waiting fiber.
    fn is_over(&self) -> bool {
        !self.is_armed && self.waiters.is_empty() && self.listener.is_closed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{BackendChoice, Runtime};

    /// Seen (in review): a program that starts its runtime anew now and then, and keeps its
    /// listener, kept the memory of all of them. Cause: a listener knows the processors that accept
    /// from it, and keeps their clusters; those that were removed took leave of it, and those that
    /// were stopped did not. Cure: they do.
    #[test]
    fn a_stopped_processor_leaves_its_listeners() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = ListenerState::new(socket.into(), u64::MAX >> 8);
        for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
            let builder = Runtime::builder().processors(1);
            let runtime = builder.backend(backend).start().unwrap();
            let accepts = Arc::clone(&listener);
            let moment = Duration::from_millis(1);
            let accepted = runtime.run(move || crate::timeout(moment, || accept(&accepts)));
            assert_eq!(accepted.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(lock(&listener.users).len(), 1);
            assert_eq!(runtime.shutdown(Duration::from_secs(10)), 0);
            assert_eq!(lock(&listener.users).len(), 0, "{backend:?}");
        }
    }
}
