//! The back end of a processor: how its fibers' operations reach the kernel and how completions come back.
//!
//! An `enum`, not a trait: there are two, they are chosen once at start, and nobody else brings a third.
//!
//! | | `uring` | `epoll` |
//! |---|---|---|
//! | an operation is | a ring entry, submitted with all others of the turn | a system call, tried first |
//! | what waits | the operation itself | the fiber, for readiness (edge-triggered, registered when first needed) |
//! | files | ring reads | offload threads |
//! | a deadline | cancels the operation and awaits its completion | ends the wait |

mod doorbell;
mod epoll;
mod lent;
mod probe;
mod uring;

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use probe::{Denied, DeniedCause, Ring, probe};

pub(crate) use doorbell::Doorbell;
pub(crate) use epoll::{Epoll, Interest, wait_ready, wait_ready_plain, waited};
pub(crate) use lent::{LENT_GROUP, LentBuffer, LentMemory, RECEIVE_LEN_MAX};
pub(crate) use uring::{Uring, operate, outcome};

use crate::sched::cluster::ProcessorShared;
use crate::sched::fiber::{FiberRef, Suspend, earlier, suspend};
use crate::sched::processor::{self, Processor};
use crate::sched::waiting::{self, Operation, WaitReason};
use crate::sched::watch::NEVER;

/// Which back end a runtime was asked to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring if this kernel and its administrator allow it, else epoll.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// epoll.
    Epoll,
}

/// Which back end a runtime uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// io_uring: operations in batches.
    Uring,
    /// epoll: system calls, and waiting for readiness.
    Epoll,
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BackendKind::Uring => "io_uring",
            BackendKind::Epoll => "epoll",
        })
    }
}

#[expect(clippy::large_enum_variant, reason = "one for each processor")]
pub(crate) enum Backend {
    Uring(Uring),
    Epoll(Epoll),
}

/// Whether a turn of the back end may sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Submit and collect, do not sleep.
    Poll,
    /// Sleep until something completes, somebody wakes us, or (if any) the time is over.
    For(Option<Duration>),
}

/// An operation or a wait of one fiber, on the stack of that fiber, which waits for it.
///
/// In one cell as a whole. Whoever completes it makes the fiber ready, and another processor may then go on with the frame that
/// it lies in, and leave it, before the call that was handed a reference to it has returned. A reference to what is not in a
/// cell promises that it stays until then (Stacked and Tree Borrows call it protected); one to a cell does not.
/// The kernel never writes to it: it knows the address as a number, and hands that back.
pub(crate) struct Op(UnsafeCell<Fields>);

pub(crate) struct Fields {
    fiber: FiberRef,
    completion: Cell<Option<Completion>>,
    /// Its deadline passed first; the completion may be yet to come.
    timed_out: Cell<bool>,
    /// The descriptor in whose list of waits it stands, on epoll.
    waits_for: Cell<Option<RawFd>>,
    /// Its fiber was cancelled; the completion may be yet to come.
    cancelled: Cell<bool>,
    /// It was ended because its processor goes; whoever waits for it begins it anew, on another.
    relocated: Cell<bool>,
    /// It cannot be begun anew.
    is_bound: Cell<bool>,
    carrier: OpCarrier,
}

/// Who knows of an operation, and has to be told when it ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpCarrier {
    /// The ring, or epoll's list of waits.
    Backend,
    /// The processor's acceptors.
    Acceptors,
    /// The fiber's watch, and nobody else.
    Watch,
}

/// How much one entry of the ring transfers of a buffer of `len` bytes: no more than a system call does. read(2)
pub(crate) fn ring_len(len: usize) -> u32 {
    const MAX: usize = 0x7fff_f000;
    len.min(MAX) as u32
}

/// How an operation ended, as the ring reports it: a result or minus an errno, and flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) result: i32,
    pub(crate) flags: u32,
    /// Where in the lent buffer that the flags name the received bytes start.
    pub(crate) piece_start: u32,
}

impl std::ops::Deref for Op {
    type Target = Fields;

    #[inline(always)]
    fn deref(&self) -> &Fields {
        // SAFETY: only shared references to the fields are made; what changes is in cells of its own.
        unsafe { &*self.0.get() }
    }
}

impl Op {
    /// An operation of the calling fiber, and its deadline: the given one, or an earlier one of
    /// [`timeout`](crate::timeout).
    ///
    /// # Errors
    /// The fiber was cancelled.
    pub(crate) fn begin(deadline: Option<Instant>) -> io::Result<(Op, Option<Instant>)> {
        processor::with_current(|_, fiber| {
            fiber.control().cancellation().check()?;
            Ok((Op::new(fiber), earlier(deadline, fiber.deadline())))
        })
        .expect("operations are made by fibers")
    }

    pub(crate) fn new(fiber: FiberRef) -> Op {
        Op::carried_by(OpCarrier::Backend, fiber)
    }

    pub(crate) fn carried_by(carrier: OpCarrier, fiber: FiberRef) -> Op {
        Op(UnsafeCell::new(Fields {
            fiber,
            completion: Cell::new(None),
            timed_out: Cell::new(false),
            waits_for: Cell::new(None),
            cancelled: Cell::new(false),
            relocated: Cell::new(false),
            is_bound: Cell::new(false),
            carrier,
        }))
    }

    /// The operation stays on its processor until it is over.
    pub(crate) fn bind(&self) {
        self.is_bound.set(true);
    }

    /// From now until it is completed, the operation ends when its deadline passes or its fiber is cancelled.
    pub(crate) fn watch(&self, processor: &Processor, deadline: Option<Instant>) {
        let control = self.fiber.control();
        match deadline {
            Some(deadline) => processor.watch(self.fiber, self, deadline),
            None => control.watch().begin(processor.shared(), self, NEVER),
        }
        // On its own stack only. A fiber between two steps would become ready here, and its steps run elsewhere, while they are
        // still borrowed for the beginning of this wait: see `Processor::begin_wait`.
        if control.cancellation().is_due() && processor.running() == Some(self.fiber) {
            processor.backend.cancel(processor, self);
        }
    }

    /// The operation could not be begun: the end of [`watch`](Op::watch), which [`complete`](Op::complete) is otherwise.
    pub(crate) fn unwatch(&self) {
        self.fiber.control().watch().end();
    }

    /// How it ended, if it has.
    pub(crate) fn completion(&self) -> Option<Completion> {
        self.completion.get()
    }

    pub(crate) fn fiber(&self) -> FiberRef {
        self.fiber
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn is_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// Whether it was asked to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.relocated.get() || self.cancelled.get() || self.timed_out.get()
    }

    /// Whether it was ended for no other reason than that its processor goes. Nothing has been done then.
    pub(crate) fn is_relocated(&self) -> bool {
        self.relocated.get() && !self.cancelled.get() && !self.timed_out.get()
    }

    /// The first completion counts: a deadline and the real end may come in the same turn.
    pub(crate) fn complete(&self, processor: &Processor, completion: Completion) {
        if self.completion.get().is_none() {
            self.completion.set(Some(completion));
            // Here and not when the fiber goes on, which may be on another processor: see `Watch::operation_here`.
            self.unwatch();
            // A fiber that finds itself cancelled as it begins to wait is still on its stack, where no other processor
            // may run it. It looks before it suspends.
            let fiber = self.fiber;
            if processor.running() != Some(fiber) {
                // From here on the operation may be gone.
                processor.make_ready(fiber);
            }
        }
    }

    /// Suspends the calling fiber, which must be the one that made the operation, until it is over. The list of
    /// fibers says meanwhile that it waits for this operation on this descriptor.
    pub(crate) fn wait_for(&self, fd: RawFd, operation: Operation) -> Completion {
        self.wait(WaitReason::Io { fd, operation })
    }

    /// As [`wait_for`](Op::wait_for), for what no descriptor stands for.
    pub(crate) fn wait(&self, reason: WaitReason) -> Completion {
        let _noted = waiting::on(reason);
        loop {
            if let Some(completion) = self.completion.get() {
                return completion;
            }
            suspend(Suspend::Wait);
        }
    }
}

impl Completion {
    /// A wait that is over.
    pub(crate) const READY: Completion = Completion {
        result: 0,
        flags: 0,
        piece_start: 0,
    };

    pub(crate) fn error(errno: i32) -> Completion {
        Completion {
            result: -errno,
            flags: 0,
            piece_start: 0,
        }
    }

    /// The result as a count or an error.
    pub(crate) fn into_result(self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}

impl Backend {
    /// # Errors
    /// What the kernel says to a new ring or epoll instance.
    pub(crate) fn new(
        kind: BackendKind,
        shared: &ProcessorShared,
        wake_fd: Arc<OwnedFd>,
    ) -> io::Result<Backend> {
        Ok(match kind {
            BackendKind::Uring => Backend::Uring(Uring::new(shared, wake_fd)?),
            BackendKind::Epoll => Backend::Epoll(Epoll::new(wake_fd)?),
        })
    }

    pub(crate) fn kind(&self) -> BackendKind {
        match self {
            Backend::Uring(_) => BackendKind::Uring,
            Backend::Epoll(_) => BackendKind::Epoll,
        }
    }

    /// Hands over operations, collects completions, and makes their fibers ready.
    pub(crate) fn turn(&self, processor: &Processor, wait: Wait) {
        match self {
            Backend::Uring(uring) => uring.turn(processor, wait),
            Backend::Epoll(epoll) => epoll.turn(processor, wait),
        }
    }

    /// The deadline of `op` has passed.
    pub(crate) fn expire(&self, processor: &Processor, op: &Op) {
        if op.carrier != OpCarrier::Watch {
            processor.shared().counters.operations_timed_out.add(1);
        }
        op.timed_out.set(true);
        self.end(processor, op, Completion::error(libc::ETIMEDOUT));
    }

    /// The fiber of `op` was cancelled.
    pub(crate) fn cancel(&self, processor: &Processor, op: &Op) {
        processor.shared().counters.operations_cancelled.add(1);
        op.cancelled.set(true);
        self.end(processor, op, Completion::error(libc::ECANCELED));
    }

    /// The processor goes, and the fiber of `op` need not stay with it.
    pub(crate) fn relocate(&self, processor: &Processor, op: &Op) {
        if !op.is_bound.get() && !op.relocated.replace(true) {
            self.end(processor, op, Completion::error(libc::ECANCELED));
        }
    }

    /// Whether the kernel has nothing left to complete, nor anybody a buffer.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Backend::Uring(uring) => uring.is_quiet(),
            // Who waits is in the processor's count, or has been relocated.
            Backend::Epoll(_) => true,
        }
    }

    fn end(&self, processor: &Processor, op: &Op, early: Completion) {
        match (op.carrier, self) {
            (OpCarrier::Backend, Backend::Uring(uring)) => {
                // Its completion is yet to come: as it was cancelled, or as it ended by itself just before.
                uring.cancel(processor, std::ptr::from_ref(op).expose_provenance() as u64);
            }
            (OpCarrier::Backend, Backend::Epoll(epoll)) => {
                epoll.end_wait(op);
                op.complete(processor, early);
            }
            (OpCarrier::Watch, _) => op.complete(processor, early),
            (OpCarrier::Acceptors, _) => {
                if processor.acceptors.withdraw(processor, op) {
                    op.complete(processor, early);
                }
            }
        }
    }

    /// Before the processor's thread ends: takes back what the kernel may still write to.
    pub(crate) fn shut_down(&self, processor: &Processor) {
        match self {
            Backend::Uring(uring) => uring.shut_down(processor),
            Backend::Epoll(_) => {}
        }
    }
}
