//! Reason of each fiber's wait, for the list of fibers.
//!
//! A blocking wait notes its reason in the fiber's control block, one relaxed store at either end:
//!
//! ```text
//!  63      56 55                                    0
//! ┌──────────┬───────────────────────────────────────┐
//! │   kind   │ an address, a fiber's number, or      │    0 = waits for nothing
//! │          │ operation (8 bits) and descriptor (32)│
//! └──────────┴───────────────────────────────────────┘
//! ```
//!
//! The owner of a lock changes while others wait for it, so a waiter does not note the owner but
//! where the lock keeps its owner's number, and the reader looks there. The lock lives as long as a
//! fiber waits for it: a waiter takes its note back, and then waits for readers that may have seen
//! it.

// Read by the list of fibers.
#![allow(dead_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reason of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// A [`Mutex`](crate::sync::Mutex), and the number of the fiber that has it now: 0 if none or a
    /// plain thread. True if the wait has a time-out.
    Lock { address: usize, owner: u64, is_timed: bool },
    /// A [`RwLock`](crate::sync::RwLock).
    RwLock { address: usize },
    /// A notification.
    Condvar { address: usize },
    /// Permits of a [`Semaphore`](crate::sync::Semaphore).
    Semaphore { address: usize },
    /// An [`Event`](crate::sync::Event) to be set.
    Event { address: usize },
    /// A message, or room for one.
    Channel { address: usize },
    /// One of several channels.
    Select,
    /// The end of another fiber.
    Join { fiber: u64 },
    /// Time.
    Timer,
    /// The kernel.
    Io { fd: RawFd, operation: Operation },
    /// A call of [`Fiber::unpark`](crate::Fiber::unpark).
    Park,
    /// A call on another thread.
    Offload,
}

/// An operation of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Receive,
    Send,
    Accept,
    Connect,
    Read,
    Write,
    Other,
}

/// The note in a fiber's control block.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) note: AtomicU64,
    /// Readers that may be looking at the owner of the lock that the note names.
    pub(crate) readers: AtomicU32,
}

impl Waiting {
    /// Kind of the present reason in a word; `waiting` between two reasons. From any thread.
    pub(crate) fn kind(&self) -> &'static str {
        let note = self.note.load(Ordering::Relaxed);
        match decode(note) {
            None => "waiting",
            Some(WaitReason::Lock { .. } | WaitReason::RwLock { .. }) => "lock",
            Some(WaitReason::Condvar { .. }) => "condvar",
            Some(WaitReason::Semaphore { .. }) => "semaphore",
            Some(WaitReason::Event { .. }) => "event",
            Some(WaitReason::Channel { .. } | WaitReason::Select) => "channel",
            Some(WaitReason::Join { .. }) => "join",
            Some(WaitReason::Timer) => "timer",
            Some(WaitReason::Park) => "unpark",
            Some(WaitReason::Offload) => "offloaded call",
            Some(WaitReason::Io { operation, .. }) => match operation {
                Operation::Receive => "receive",
                Operation::Send => "send",
                Operation::Accept => "accept",
                Operation::Connect => "connect",
                Operation::Read => "read",
                Operation::Write => "write",
                Operation::Other => "other operation",
            },
        }
    }

    /// Keeps the fiber from ending a wait for a lock that it is in, for the few instructions until
    /// the guard goes: it spins as long as there are readers.
    pub(crate) fn hold(&self) -> HeldWait<'_> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        HeldWait(self)
    }

    /// Present reason. From any thread.
    pub(crate) fn reason(&self) -> Option<WaitReason> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        let mut reason = decode(self.note.load(Ordering::SeqCst));
        if let Some(WaitReason::Lock { address, owner, .. }) = &mut reason {
            let word = std::ptr::with_exposed_provenance::<AtomicU64>(*address);
            // SAFETY: the note was there after this reader was counted, so its `Noted` is not gone
            // before the reader is counted off; and until then the waiter borrows the lock.
            *owner = unsafe { &*word }.load(Ordering::Relaxed);
        }
        self.readers.fetch_sub(1, Ordering::SeqCst);
        reason
    }
}

/// Keeps a fiber in its wait for a lock: see [`Waiting::hold`].
#[derive(Debug)]
pub(crate) struct HeldWait<'a>(&'a Waiting);

impl Drop for HeldWait<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

const KIND_SHIFT: u32 = 56;
const PAYLOAD: u64 = (1 << KIND_SHIFT) - 1;

#[inline]
pub(crate) fn encode(reason: WaitReason) -> u64 {
    let (kind, payload) = match reason {
        WaitReason::Lock { address, is_timed: false, .. } => (1, address as u64),
        WaitReason::Lock { address, is_timed: true, .. } => (13, address as u64),
        WaitReason::RwLock { address } => (2, address as u64),
        WaitReason::Condvar { address } => (3, address as u64),
        WaitReason::Semaphore { address } => (4, address as u64),
        WaitReason::Event { address } => (5, address as u64),
        WaitReason::Channel { address } => (6, address as u64),
        WaitReason::Select => (7, 0),
        WaitReason::Join { fiber } => (8, fiber),
        WaitReason::Timer => (9, 0),
        WaitReason::Io { fd, operation } => (10, u64::from(fd as u32) | (operation as u64) << 32),
        WaitReason::Park => (11, 0),
        WaitReason::Offload => (12, 0),
    };
    // Addresses of user space have at most 56 bits: x86-64 with five levels of page tables, aarch64
    // with LVA.
    kind << KIND_SHIFT | payload & PAYLOAD
}

fn decode(note: u64) -> Option<WaitReason> {
    let payload = note & PAYLOAD;
    let address = payload as usize;
    Some(match note >> KIND_SHIFT {
        1 => WaitReason::Lock { address, owner: 0, is_timed: false },
        2 => WaitReason::RwLock { address },
        3 => WaitReason::Condvar { address },
        4 => WaitReason::Semaphore { address },
        5 => WaitReason::Event { address },
        6 => WaitReason::Channel { address },
        7 => WaitReason::Select,
        8 => WaitReason::Join { fiber: payload },
        9 => WaitReason::Timer,
        10 => WaitReason::Io {
            fd: payload as u32 as RawFd,
            operation: operation((payload >> 32) as u8),
        },
        11 => WaitReason::Park,
        12 => WaitReason::Offload,
        13 => WaitReason::Lock { address, owner: 0, is_timed: true },
        _ => return None,
    })
}

fn operation(number: u8) -> Operation {
    use Operation::{Accept, Connect, Other, Read, Receive, Send, Write};
    [Receive, Send, Accept, Connect, Read, Write]
        .into_iter()
        .find(|&operation| operation as u8 == number)
        .unwrap_or(Other)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_as_it_was_noted() {
        let address = 0x7fff_1234_5678;
        for reason in [
            WaitReason::Lock { address, owner: 0, is_timed: false },
            WaitReason::Lock { address, owner: 0, is_timed: true },
            WaitReason::RwLock { address },
            WaitReason::Condvar { address },
            WaitReason::Semaphore { address },
            WaitReason::Event { address },
            WaitReason::Channel { address },
            WaitReason::Select,
            WaitReason::Join { fiber: 1 << 40 },
            WaitReason::Timer,
            WaitReason::Io { fd: 7, operation: Operation::Connect },
            WaitReason::Park,
            WaitReason::Offload,
        ] {
            assert_eq!(decode(encode(reason)), Some(reason));
        }
        assert_eq!(decode(0), None);
    }
}
