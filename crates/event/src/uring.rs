//! `io_uring`: one multishot poll for each descriptor stays with the kernel and completes each time
//! that the descriptor becomes ready (`IORING_POLL_ADD_MULTI` in io_uring_prep_poll_multishot(3)).
//!
//! Submissions of `add`, `modify` and `remove` travel with the next wait, in the same system call.
//! The kernel holds the file until then: a connection that is removed and closed ends with the next
//! wait, not before.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use crate::dispatcher::{Dispatcher, Ready, Token, Trigger};
use crate::interest::{Interest, Readiness};
use crate::sys;
use crate::table::Table;

const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;
/// Completions that one wait takes from the kernel; the next wait takes the rest.
const COMPLETIONS_PER_WAIT: u32 = COMPLETIONS;
/// User data of submissions whose completions are ignored.
const UNNAMED: u64 = u64::MAX;

/// Multishot polls in a ring of its own.
///
/// The ring belongs to the thread that made it (`IORING_SETUP_SINGLE_ISSUER`), so it cannot be
/// sent:
///
/// ```compile_fail,E0277
/// let dispatcher = weftwork_event::Uring::new().unwrap();
/// std::thread::spawn(move || drop(dispatcher));
/// ```
pub struct Uring {
    ring: IoUring,
    watched: Table<Watched>,
    /// Counts polls, so that a late completion is not taken for one of a later poll.
    polls: u32,
    /// Polls that the kernel has ended, though their descriptors are watched. The next wait submits
    /// them anew. There is at most one for each completion of a wait.
    ended: Vec<PollRequest>,
    waits: u64,
    /// The ring belongs to one thread.
    not_send: PhantomData<*const ()>,
}

/// A poll in the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PollRequest {
    fd: RawFd,
    /// [`Uring::polls`] when it was submitted.
    number: u32,
}

struct Watched {
    token: Token,
    events: i16,
    poll: PollRequest,
    /// The last wait that reported it, and where in the report.
    reported_by: u64,
    reported_at: usize,
}

impl PollRequest {
    /// User data of its completions. No descriptor is as high as [`UNNAMED`] would need.
    fn name(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.fd as u32)
    }

    fn named(name: u64) -> PollRequest {
        PollRequest { fd: name as u32 as RawFd, number: (name >> 32) as u32 }
    }
}

impl Uring {
    /// A dispatcher for the calling thread, which watches nothing yet.
    ///
    /// # Errors
    ///
    /// `EPERM` or `ENOSYS` where io_uring is denied, `EMFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Uring> {
        let mut best = IoUring::builder();
        best.setup_single_issuer().setup_defer_taskrun().setup_clamp();
        let mut plain = IoUring::builder();
        plain.setup_clamp();
        // Linux before 6.1 does not know the flags.
        let ring = match best.setup_cqsize(COMPLETIONS).build(SUBMISSIONS) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                plain.setup_cqsize(COMPLETIONS).build(SUBMISSIONS)?
            }
            made => made?,
        };
        // A filter of system calls may forbid io_uring_enter by itself.
        ring.submit()?;
        Ok(Uring {
            ring,
            watched: Table::default(),
            polls: 0,
            ended: Vec::new(),
            waits: 0,
            not_send: PhantomData,
        })
    }

    /// Ensures space for `count` submissions: all that can fail, before anything has changed.
    fn reserve(&mut self, count: usize) -> io::Result<()> {
        loop {
            let queue = self.ring.submission();
            if queue.capacity() - queue.len() >= count {
                return Ok(());
            }
            drop(queue);
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                submitted => drop(submitted?),
            }
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: polls and their cancellation refer to no memory of this process.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("a slot was reserved");
    }

    /// Submits a poll of `fd`; the caller has ensured space for it.
    fn begin(&mut self, fd: RawFd, events: i16) -> PollRequest {
        self.polls = self.polls.wrapping_add(1);
        let poll = PollRequest { fd, number: self.polls };
        let entry = opcode::PollAdd::new(Fd(fd), events as u32).multi(true);
        self.push(&entry.build().user_data(poll.name()));
        poll
    }

    /// Ends a poll. It is cancelled and not removed: `IORING_OP_POLL_REMOVE` fails with `EALREADY`
    /// if an event is on its way, and then the poll holds its file for good.
    fn end(&mut self, poll: PollRequest) {
        let entry = opcode::AsyncCancel::new(poll.name());
        self.push(&entry.build().user_data(UNNAMED));
    }

    /// Submits anew what the kernel has ended, unless it was modified or removed since.
    fn resume(&mut self) -> io::Result<()> {
        while let Some(&ended) = self.ended.last() {
            self.reserve(1)?;
            self.ended.pop();
            let watched = self.watched.find(ended.fd).filter(|it| it.poll == ended);
            if let Some(events) = watched.map(|it| it.events) {
                self.watched.get_mut(ended.fd)?.poll = self.begin(ended.fd, events);
            }
        }
        Ok(())
    }

    /// Submits, and waits for a completion unless there are some or the time-out is zero.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let entered = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(Duration::ZERO) => {
                let pending = self.ring.submission().len() as u32;
                let flags = EnterFlags::GETEVENTS.bits();
                let submitter = self.ring.submitter();
                // SAFETY: it passes no memory (io_uring_enter(2)).
                unsafe { submitter.enter::<libc::sigset_t>(pending, 0, flags, None) }
            }
            Some(timeout) => {
                let timeout = Timespec::from(timeout.min(sys::DURATION_MAX));
                let args = SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        match entered.as_ref().map_err(io::Error::raw_os_error) {
            // EBUSY: completions have to be taken first, which the caller does now.
            Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
            _ => entered.map(drop),
        }
    }

    fn complete(&mut self, completion: &cqueue::Entry, ready: &mut Vec<Ready>) {
        let poll = PollRequest::named(completion.user_data());
        // Unnamed completions and those of ended polls belong to no watched descriptor.
        let watched = self.watched.find(poll.fd).filter(|it| it.poll == poll);
        let Some(watched) = watched else {
            return;
        };
        let readiness = match completion.result() {
            events @ 0.. => Readiness::from_poll(events as u32),
            _ => Readiness::ERROR,
        };
        if watched.reported_by == self.waits {
            ready[watched.reported_at].readiness |= readiness;
        } else {
            watched.reported_by = self.waits;
            watched.reported_at = ready.len();
            ready.push(Ready { token: watched.token, readiness });
        }
        // The kernel ends a multishot poll when its completions overflow, or on an error. A
        // descriptor that cannot be polled would fail again at once: it rests until `modify`.
        if !cqueue::more(completion.flags()) && completion.result() >= 0 {
            self.ended.push(poll);
        }
    }
}

impl Dispatcher for Uring {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let events = interest.poll_events();
        self.reserve(1)?;
        let watched = Watched {
            token,
            events,
            poll: PollRequest { fd, number: 0 },
            reported_by: 0,
            reported_at: 0,
        };
        self.watched.insert(fd, watched)?;
        self.watched.get_mut(fd)?.poll = self.begin(fd, events);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let old = self.watched.get_mut(fd)?.poll;
        self.reserve(2)?;
        self.end(old);
        let events = interest.poll_events();
        *self.watched.get_mut(fd)? =
            Watched { token, events, poll: self.begin(fd, events), reported_by: 0, reported_at: 0 };
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.watched.get_mut(fd.as_raw_fd())?;
        self.reserve(1)?;
        let watched = self.watched.remove(fd.as_raw_fd())?;
        self.end(watched.poll);
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        self.waits += 1;
        self.resume()?;
        self.enter(timeout)?;
        for _ in 0..COMPLETIONS_PER_WAIT {
            let Some(completion) = self.ring.completion().next() else {
                break;
            };
            self.complete(&completion, ready);
        }
        Ok(())
    }

    fn trigger(&self) -> Trigger {
        Trigger::Edge
    }

    /// More descriptors may become ready between two waits than the completion queue holds. The
    /// kernel keeps the rest, and drops it if it has no memory for that: see `IORING_FEAT_NODROP`
    /// in io_uring_setup(2).
    fn may_lose_reports(&self) -> bool {
        true
    }
}
