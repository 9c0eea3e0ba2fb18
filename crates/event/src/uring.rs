//! `io_uring`: one multishot poll for each descriptor stays with the kernel and completes each time
//! that the descriptor becomes ready (`IORING_POLL_ADD_MULTI` in io_uring_prep_poll_multishot(3)).
//!
//! Submissions of `add`, `modify` and `remove` travel with the next wait, in the same system call.
//! The kernel holds the file until then: a connection that is removed and closed ends with the next
//! wait, not before.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use crate::table::Table;
use crate::{Dispatcher, Interest, Readiness, Ready, Token, Trigger};

const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;
/// The name of a submission whose completion says nothing.
const UNNAMED: u64 = u64::MAX;

/// Multishot polls in a ring of its own.
pub struct Uring {
    ring: IoUring,
    watched: Table<Watched>,
    /// Counts polls, so that a late completion is not taken for one of a later poll.
    polls: u32,
    waits: u64,
}

struct Watched {
    token: Token,
    events: i16,
    /// [`Uring::polls`] when its poll was submitted.
    poll: u32,
    /// The last wait that reported it, and where in the report.
    reported_by: u64,
    reported_at: usize,
}

impl Uring {
    /// A dispatcher that watches nothing yet.
    ///
    /// # Errors
    ///
    /// `EPERM` or `ENOSYS` where io_uring is denied, `EMFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Uring> {
        let mut best = IoUring::builder();
        best.setup_single_issuer()
            .setup_defer_taskrun()
            .setup_clamp();
        let mut plain = IoUring::builder();
        plain.setup_clamp();
        // Linux before 6.1 does not know the flags.
        let ring = match best.setup_cqsize(COMPLETIONS).build(SUBMISSIONS) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                plain.setup_cqsize(COMPLETIONS).build(SUBMISSIONS)?
            }
            made => made?,
        };
        Ok(Uring {
            ring,
            watched: Table::default(),
            polls: 0,
            waits: 0,
        })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: polls and their removal refer to no memory of ours.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Submits a poll of `fd`; returns which it is.
    fn begin(&mut self, fd: RawFd, events: i16) -> io::Result<u32> {
        self.polls = self.polls.wrapping_add(1);
        let poll = opcode::PollAdd::new(Fd(fd), events as u32)
            .multi(true)
            .build();
        self.push(&poll.user_data(name(fd, self.polls)))?;
        Ok(self.polls)
    }

    fn end(&mut self, fd: RawFd, poll: u32) -> io::Result<()> {
        let end = opcode::PollRemove::new(name(fd, poll)).build();
        self.push(&end.user_data(UNNAMED))
    }

    /// Submits, and waits for a completion unless there are some or the time-out is zero.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submitter_result = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(Duration::ZERO) => {
                let pending = self.ring.submission().len() as u32;
                let flags = EnterFlags::GETEVENTS.bits();
                // SAFETY: it passes no memory (io_uring_enter(2)).
                unsafe {
                    self.ring
                        .submitter()
                        .enter::<libc::sigset_t>(pending, 0, flags, None)
                }
            }
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        match submitter_result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // EBUSY: completions have to be taken first, which the caller does now.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn complete(&mut self, completion: &cqueue::Entry, ready: &mut Vec<Ready>) -> io::Result<()> {
        let (fd, poll) = (
            completion.user_data() as u32 as RawFd,
            completion.user_data() >> 32,
        );
        let is_named = completion.user_data() != UNNAMED;
        let watched = self
            .watched
            .find(fd)
            .filter(|it| is_named && u64::from(it.poll) == poll);
        let Some(watched) = watched else {
            return Ok(());
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
            ready.push(Ready {
                token: watched.token,
                readiness,
            });
        }
        // The kernel ends a multishot poll when its completions overflow, or on an error. A
        // descriptor that cannot be polled at all would end each at once: it rests until `modify`.
        if !cqueue::more(completion.flags()) && completion.result() >= 0 {
            let events = watched.events;
            let poll = self.begin(fd, events)?;
            self.watched.get_mut(fd)?.poll = poll;
        }
        Ok(())
    }
}

/// What the completions of a poll are called. No descriptor is as high as [`UNNAMED`] would need.
fn name(fd: RawFd, poll: u32) -> u64 {
    u64::from(poll) << 32 | u64::from(fd as u32)
}

impl Dispatcher for Uring {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let events = interest.poll_events();
        let watched = Watched {
            token,
            events,
            poll: 0,
            reported_by: 0,
            reported_at: 0,
        };
        self.watched.insert(fd, watched)?;
        match self.begin(fd, events) {
            Ok(poll) => {
                self.watched.get_mut(fd)?.poll = poll;
                Ok(())
            }
            Err(error) => {
                self.watched.remove(fd)?;
                Err(error)
            }
        }
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        let old = self.watched.get_mut(fd)?.poll;
        self.end(fd, old)?;
        let events = interest.poll_events();
        let poll = self.begin(fd, events)?;
        let watched = self.watched.get_mut(fd)?;
        *watched = Watched {
            token,
            events,
            poll,
            reported_by: 0,
            reported_at: 0,
        };
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let watched = self.watched.remove(fd.as_raw_fd())?;
        self.end(fd.as_raw_fd(), watched.poll)
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        self.waits += 1;
        self.enter(timeout)?;
        loop {
            let Some(completion) = self.ring.completion().next() else {
                return Ok(());
            };
            self.complete(&completion, ready)?;
        }
    }

    fn trigger(&self) -> Trigger {
        Trigger::Edge
    }
}
