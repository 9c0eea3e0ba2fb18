//! The epoll back end: a system call is tried first; only what would block registers its
//! descriptor, once per processor and for both directions, edge-triggered, and parks the fiber.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::backend::completion::{Completed, Completion, SleepLimit};
use crate::base::counters::Counters;

/// Events per turn; the rest comes with the next.
const EVENTS_PER_TURN: usize = 256;

/// Longest sleep: what fits into the milliseconds of epoll_wait(2). For more, rustix calls
/// epoll_pwait2(2), which kernels before Linux 5.11 do not have, nor some containers. A processor
/// that wakes for nothing sleeps again.
const SLEEP_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// The wake-up eventfd's event; descriptors of sources are never this.
const WAKE: u64 = u64::MAX;

/// Direction that a fiber waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
    /// Whichever comes first.
    Either,
}

pub(crate) struct Epoll {
    fd: OwnedFd,
    wake_fd: Arc<OwnedFd>,
    /// Events of the latest wait; the capacity is the limit of a wait.
    events: RefCell<Vec<epoll::Event>>,
    /// Sources by descriptor. Numbers are reused after a close: `io_id` tells the sockets apart.
    sources: RefCell<Vec<Descriptor>>,
}

/// State of one descriptor on this processor.
#[derive(Default)]
struct Descriptor {
    /// Number of the socket that is described; 0 for none.
    io_id: u64,
    /// Edges that came and were not used up.
    readable: bool,
    writable: bool,
    /// Reset or closed by the peer: every attempt returns at once from now on.
    hung_up: bool,
    /// Urgent data has come: a read ends where it was, and more may follow.
    urgent: bool,
    /// A listener: readiness goes to its acceptors.
    listener: bool,
    /// Waits, by the addresses of their operations.
    waiting: Vec<(Interest, *const ())>,
}

impl Epoll {
    pub(super) fn new(wake_fd: Arc<OwnedFd>) -> io::Result<Epoll> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&fd, &wake_fd, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(Epoll {
            fd,
            wake_fd,
            events: RefCell::new(Vec::with_capacity(EVENTS_PER_TURN)),
            sources: RefCell::default(),
        })
    }

    pub(super) fn turn(&self, counters: &Counters, wait: SleepLimit, done: &mut Vec<Completed>) {
        let timeout = match wait {
            SleepLimit::Poll => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            SleepLimit::For(timeout) => {
                let timeout = timeout.map(|timeout| timeout.min(SLEEP_MAX));
                timeout.map(|timeout| Timespec {
                    tv_sec: timeout.as_secs() as i64,
                    tv_nsec: timeout.subsec_nanos() as i64,
                })
            }
        };
        counters.enters.add(1);
        let mut events = self.events.borrow_mut();
        events.clear();
        // Nothing is written where the kernel will write.
        match epoll::wait(&self.fd, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("epoll_wait failed: {error}"),
        }
        for event in events.iter() {
            match event.data.u64() {
                WAKE => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.wake_fd, &mut count);
                }
                data => self.ready(data, event.flags, done),
            }
        }
    }

    /// Notes an edge, and completes the waits for it.
    fn ready(&self, data: u64, flags: epoll::EventFlags, completed: &mut Vec<Completed>) {
        let (fd, io_id_low) = ((data >> 32) as usize, data as u32);
        let mut sources = self.sources.borrow_mut();
        let Some(source) = sources.get_mut(fd).filter(|source| source.io_id as u32 == io_id_low)
        else {
            return; // A descriptor that was closed after the event had been queued.
        };
        use epoll::EventFlags as Flags;
        let hung_up = flags.intersects(Flags::HUP | Flags::RDHUP | Flags::ERR);
        let (read, write) =
            (flags.contains(Flags::IN) || hung_up, flags.contains(Flags::OUT) || hung_up);
        source.hung_up |= hung_up;
        source.urgent |= flags.contains(Flags::PRI);
        source.readable |= read;
        source.writable |= write;
        if source.listener {
            return completed.push(Completed::Listener(source.io_id));
        }
        let woken = |&mut (interest, op): &mut (Interest, *const ())| {
            let ready = match interest {
                Interest::Read => read,
                Interest::Write => write,
                Interest::Either => read || write,
            };
            if ready {
                completed.push(Completed::Operation(op, Completion::READY));
            }
            !ready
        };
        source.waiting.retain_mut(woken);
    }

    /// True unless the last attempt in this direction came up short and no edge has come since.
    /// True for unknown descriptors.
    pub(crate) fn may_try(&self, fd: BorrowedFd<'_>, io_id: u64, interest: Interest) -> bool {
        let may_try = |source: &mut Descriptor| {
            source.hung_up
                || match interest {
                    Interest::Read => source.readable,
                    Interest::Write => source.writable,
                    Interest::Either => source.readable || source.writable,
                }
        };
        self.with_source(fd, io_id, may_try).unwrap_or(true)
    }

    /// True if an edge has come, of either direction, that was not used up.
    pub(crate) fn has_edge(&self, fd: BorrowedFd<'_>, io_id: u64) -> bool {
        let has_edge = |source: &mut Descriptor| source.readable || source.writable;
        self.with_source(fd, io_id, has_edge).unwrap_or(false)
    }

    /// Notes that an attempt came up short: the next one would get EAGAIN.
    pub(crate) fn used_up(&self, fd: BorrowedFd<'_>, io_id: u64, interest: Interest) {
        self.note(fd, io_id, interest, false);
    }

    /// Notes that the next attempt may succeed.
    pub(crate) fn try_again(&self, fd: BorrowedFd<'_>, io_id: u64, interest: Interest) {
        self.note(fd, io_id, interest, true);
    }

    fn note(&self, fd: BorrowedFd<'_>, io_id: u64, interest: Interest, may_try: bool) {
        self.with_source(fd, io_id, |source| match interest {
            Interest::Read => source.readable = may_try,
            Interest::Write => source.writable = may_try,
            Interest::Either => (source.readable, source.writable) = (may_try, may_try),
        });
    }

    /// True if urgent data has come since the descriptor was registered.
    pub(crate) fn has_urgent(&self, fd: BorrowedFd<'_>, io_id: u64) -> bool {
        self.with_source(fd, io_id, |source| source.urgent).unwrap_or(false)
    }

    /// Calls `f` with the state of a descriptor; `None` if it is not registered.
    #[inline]
    fn with_source<R>(
        &self,
        fd: BorrowedFd<'_>,
        io_id: u64,
        f: impl FnOnce(&mut Descriptor) -> R,
    ) -> Option<R> {
        let mut sources = self.sources.borrow_mut();
        let source = sources.get_mut(fd.as_raw_fd() as usize)?;
        (source.io_id == io_id).then(|| f(source))
    }

    /// Registers the descriptor with this processor, if it is not registered. The kernel then
    /// reports its present state as the first edge.
    pub(crate) fn register(&self, fd: BorrowedFd<'_>, io_id: u64, listens: bool) -> io::Result<()> {
        let mut sources = self.sources.borrow_mut();
        let index = fd.as_raw_fd() as usize;
        if sources.len() <= index {
            sources.resize_with(index + 1, Descriptor::default);
        }
        if sources[index].io_id == io_id {
            return Ok(());
        }
        use epoll::EventFlags as Flags;
        // A listener's edge goes to all processors that share it, not to one of them (EXCLUSIVE):
        // that one might have no waiting fiber while another has.
        let direction =
            if listens { Flags::empty() } else { Flags::OUT | Flags::RDHUP | Flags::PRI };
        let flags = Flags::IN | Flags::ET | direction;
        let data = epoll::EventData::new_u64((index as u64) << 32 | u64::from(io_id as u32));
        match epoll::add(&self.fd, fd, data, flags) {
            // A descriptor that was closed while a duplicate kept its file, and is that file again.
            Err(rustix::io::Errno::EXIST) => epoll::modify(&self.fd, fd, data, flags)?,
            result => result?,
        }
        sources[index] = Descriptor { io_id, listener: listens, ..Descriptor::default() };
        Ok(())
    }

    /// Same as [`forget`](Epoll::forget), for one of several descriptors of a file: closing it does
    /// not end its registration. epoll(7)
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>, io_id: u64) {
        if self.with_source(fd, io_id, |_| ()).is_some() {
            // It is there, so it can be removed.
            let _ = epoll::delete(&self.fd, fd);
        }
        self.forget(fd, io_id);
    }

    /// Forgets a descriptor that is closed (which ends its registration) or no longer of interest.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>, io_id: u64) {
        self.with_source(fd, io_id, |source| *source = Descriptor::default());
    }

    /// Completes the operation at this address when an attempt may succeed.
    pub(crate) fn begin_wait(
        &self,
        fd: BorrowedFd<'_>,
        io_id: u64,
        interest: Interest,
        op: *const (),
    ) -> io::Result<()> {
        self.register(fd.as_fd(), io_id, false)?;
        let mut sources = self.sources.borrow_mut();
        sources[fd.as_raw_fd() as usize].waiting.push((interest, op));
        Ok(())
    }

    /// Takes a wait off the list of its descriptor: it ends for another reason than an edge.
    pub(crate) fn end_wait(&self, fd: RawFd, op: *const ()) {
        if let Some(source) = self.sources.borrow_mut().get_mut(fd as usize) {
            let waits = &mut source.waiting;
            waits.retain(|&(_, waiting)| !std::ptr::eq(waiting, op));
        }
    }
}
