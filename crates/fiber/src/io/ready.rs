//! Waits for readiness: by way of epoll in a fiber, `poll(2)` on a plain thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use crate::backend::{Backend, Completion, Epoll, Interest};
use crate::base::cancelled::Cancelled;
use crate::io::op::Op;
use crate::sched::processor::{self, Processor};
use crate::switch::reason::Operation;

/// Completes `op` when an attempt may succeed. It must not move until then.
pub(crate) fn begin(
    processor: &Processor,
    epoll: &Epoll,
    fd: BorrowedFd<'_>,
    io_id: u64,
    interest: Interest,
    op: &Op,
    deadline: Option<Instant>,
) -> io::Result<()> {
    epoll.begin_wait(fd, io_id, interest, op.address())?;
    processor.shared().counters.operations.add(1);
    op.waits_for.set(Some(fd.as_raw_fd()));
    if op.watch(processor, deadline) {
        epoll.end_wait(fd.as_raw_fd(), op.address());
        op.complete(processor, Completion::error(libc::ECANCELED));
    }
    Ok(())
}

/// Suspends the calling fiber until an attempt in this direction may succeed. It may also return
/// for no reason: a fiber that has moved to another processor has to try first, because that one
/// may have seen an edge already.
///
/// # Errors
/// `TimedOut`; [`Cancelled`]; or what `epoll_ctl(2)` says to a descriptor that cannot be waited
/// for.
pub(crate) fn wait_ready(
    fd: BorrowedFd<'_>,
    io_id: u64,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<()> {
    let (op, deadline) = Op::begin(deadline)?;
    processor::here(|processor| {
        let Backend::Epoll(epoll) = &processor.backend else {
            unreachable!("an epoll wait on another back end")
        };
        begin(processor, epoll, fd, io_id, interest, &op, deadline)
    })?;
    let operation = match interest {
        Interest::Read => Operation::Receive,
        Interest::Write | Interest::Either => Operation::Send,
    };
    let completion = op.wait_for(fd.as_raw_fd(), operation);
    if op.is_relocated() { Ok(()) } else { waited(completion) }
}

/// Result of a wait, for the fiber that waited.
pub(crate) fn waited(completion: Completion) -> io::Result<()> {
    match completion.into_result() {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => {
            Err(io::ErrorKind::TimedOut.into())
        }
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Err(Cancelled.into()),
        Err(error) => Err(error),
    }
}

/// Waits on a plain thread: `poll(2)`.
pub(crate) fn wait_ready_plain(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    let flags = match interest {
        Interest::Read => PollFlags::IN,
        Interest::Write => PollFlags::OUT,
        Interest::Either => PollFlags::IN | PollFlags::OUT,
    };
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left: Duration| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos() as i64,
        });
        match poll(&mut [PollFd::new(&fd, flags)], timeout.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
