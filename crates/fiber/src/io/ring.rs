//! Operations by way of the ring.

use std::io;
use std::os::fd::RawFd;
use std::time::Instant;

use io_uring::{opcode, squeue};

use crate::backend::{Backend, Completion, Uring};
use crate::base::abort::while_lent;
use crate::base::cancelled::Cancelled;
use crate::io::end;
use crate::io::op::Op;
use crate::sched::processor::{self, Processor};
use crate::switch::reason::Operation;

/// Hands over an operation. `op`, and the memory `entry` points to, must not move until it is
/// complete.
pub(crate) fn begin(
    processor: &Processor,
    uring: &Uring,
    op: &Op,
    entry: squeue::Entry,
    deadline: Option<Instant>,
) {
    uring.begin(&processor.shared().counters, op.address(), entry);
    if op.watch(processor, deadline) {
        end::end(processor, op, Completion::error(libc::ECANCELED));
    }
}

/// Hands an operation to the ring and suspends the calling fiber until it is complete. When the
/// deadline passes first, the operation is cancelled *and awaited*: the kernel may be writing into
/// the caller's buffer until then.
///
/// # Errors
/// `TimedOut`, [`Cancelled`], or what the kernel reports for the operation.
pub(crate) fn operate(entry: squeue::Entry, deadline: Option<Instant>) -> io::Result<Completion> {
    let (op, deadline) = Op::begin(deadline)?;
    let (fd, operation) = described(&entry);
    let completion = while_lent(|| {
        processor::here(|processor| {
            let Backend::Uring(uring) = &processor.backend else {
                unreachable!("a ring operation on another back end")
            };
            if operation == Operation::Connect {
                // The socket is connecting by then: connect(2) fails with EALREADY.
                op.bind();
            }
            begin(processor, uring, &op, entry, deadline);
            if operation == Operation::Send {
                uring.expect_completion();
            }
        });
        op.wait_for(fd, operation)
    });
    outcome(&op, completion)
}

/// The descriptor and the kind of an entry, for the list of fibers.
fn described(entry: &squeue::Entry) -> (RawFd, Operation) {
    let entry = std::ptr::from_ref(entry).cast::<u8>();
    // SAFETY: an entry is the kernel's `struct io_uring_sqe` (the crate declares it so), whose
    // first byte is the operation and whose bytes 4 to 7 are the descriptor. io_uring_enter(2)
    let (code, fd) = unsafe { (entry.read(), entry.add(4).cast::<RawFd>().read()) };
    let operation = match code {
        opcode::Recv::CODE | opcode::RecvMsg::CODE => Operation::Receive,
        opcode::Send::CODE | opcode::SendMsg::CODE => Operation::Send,
        opcode::Connect::CODE => Operation::Connect,
        opcode::Read::CODE => Operation::Read,
        opcode::Write::CODE => Operation::Write,
        _ => Operation::Other,
    };
    (fd, operation)
}

/// True if the kernel gave an operation up by itself: it would block, and no thread could be
/// started for it. There are too many (`RLIMIT_NPROC`, `pids.max`), or signals came at each
/// attempt. Nothing has been done then: an operation of which a part was done ends with the length
/// of that part (`io_rw_fail` in the kernel's `io_uring/rw.c`, since Linux 6.0).
pub(crate) fn has_no_thread(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}

/// Result of a completed operation, for the fiber that waited.
pub(crate) fn outcome(op: &Op, completion: Completion) -> io::Result<Completion> {
    match completion.result {
        result if result >= 0 => Ok(completion),
        // EINTR: a cancelled operation that was running in a worker thread.
        errno if [-libc::ECANCELED, -libc::EINTR].contains(&errno) && op.is_cancelled() => {
            Err(Cancelled.into())
        }
        errno if [-libc::ECANCELED, -libc::EINTR].contains(&errno) && op.is_timed_out() => {
            Err(io::ErrorKind::TimedOut.into())
        }
        // To be repeated, and the next attempt is on another processor.
        errno if errno == -libc::ECANCELED && op.is_relocated() => {
            Err(io::Error::from_raw_os_error(libc::EINTR))
        }
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}
