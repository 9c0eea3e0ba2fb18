//! io_uring back end.
//!
//! A slot holds one connection: its socket and its output. All memory that the kernel may access
//! belongs to a slot or is a shared [buffer](Buffers). The slots lie in a box that never moves, and
//! are freed only when the kernel has no operation on them.
//!
//! ```text
//! RingSlot ┌ socket ┬ out ─── sent next; untouched while the kernel has it ┐
//!      │        ├ staged ─ what came while the kernel had `out`         │
//!      └        └ held ── the buffer that its last receive filled       ┘
//! ```
//!
//! One `io_uring_enter` per iteration submits everything and waits. Three optimisations, each
//! measured (docs/performance.md):
//!
//! - Bytes that need no look are received with `MSG_TRUNC`, which for TCP means that the kernel
//!   drops them without copying (tcp(7)).
//! - A receive does not try a socket that is known to be empty: a reply takes longer than its
//!   request's submission (`IORING_RECVSEND_POLL_FIRST`).
//! - A connection that lasts is registered with the ring, so that no operation looks its descriptor
//!   up.

#![allow(unsafe_code)]

mod buffers;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::net::SocketAddrAny;

use buffers::{Buffers, GROUP};

use crate::io::operation::{Completion, CompletionKind, DISCARD_BYTES, Gather};

const SUBMISSIONS_MIN: u32 = 64;
const SUBMISSIONS_MAX: u32 = 4096;
const COMPLETIONS_MAX: u32 = 65_536;
/// Number of buffers that the kernel gets at first; few stay in the cache. If receives find none,
/// the number doubles, up to one per connection, and those receives are begun again.
const BUFFERS_FIRST: u16 = 64;
const BUFFERS_MAX: u16 = 4096;
/// Receives after which a connection is worth the two calls that register and unregister it.
const REGISTER_AFTER: u32 = 4;
/// Longest send; longer ones are split. The kernel takes at most 2 GiB at a time. send(2)
const SEND_BYTES_MAX: usize = if cfg!(test) { 1 << 24 } else { 1 << 30 };
/// Longest send that a socket takes at once: the default send buffer (tcp_wmem, tcp(7)).
const SEND_AT_ONCE_BYTES: u32 = 16 * 1024;
/// io_uring_prep_recv(3).
const RECVSEND_POLL_FIRST: u16 = 1;

/// Maximum wait, at the end of a run, for the kernel to return its buffers. Longer than a cancelled
/// operation takes; afterwards the buffers are leaked.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Ring {
    ring: IoUring,
    slots: Box<[RingSlot]>,
    buffers: Option<Buffers>,
    /// True if the ring has a table of descriptors, with an entry for each slot.
    has_table: bool,
    /// Slots with bytes to send, each once.
    dirty: Vec<u32>,
    /// Short sends of the next submission; they nearly always complete at once.
    sends_queued: usize,
    gather: Gather,
    /// Operations that the kernel has, or will get with the next submission.
    under_way: usize,
    input_bytes: usize,
    /// Slots whose receive found no buffer.
    starved: Vec<u32>,
    discarded: Box<[u8]>,
}

#[derive(Default)]
struct RingSlot {
    socket: Option<OwnedFd>,
    /// Address of the connect. Boxed, so that the fields that every request touches lie together.
    address: Option<Box<SocketAddrAny>>,
    out: Vec<u8>,
    staged: Vec<u8>,
    held: Option<u16>,
    receives: u32,
    is_registered: bool,
    /// True if the last receive left bytes in the socket.
    has_more: bool,
    under_way: u8,
    is_sending: bool,
    is_dirty: bool,
    is_cancelled: bool,
}

/// Builds an operation on a slot's socket; a registered one is named by its number in the table.
macro_rules! of_socket {
    ($entry:expr, $socket:expr, $slot:expr, $fd:ident => $operation:expr) => {
        if $entry.is_registered {
            let $fd = Fixed($slot);
            $operation.build()
        } else {
            let $fd = Fd($socket.as_raw_fd());
            $operation.build()
        }
    };
}

impl RingSlot {
    /// Flag that makes a receive on an empty socket wait at once, without an attempt.
    fn when_to_try(&self) -> u16 {
        if self.has_more { 0 } else { RECVSEND_POLL_FIRST }
    }

    /// Notes the end of a send; returns true if the worker must be told.
    fn sent(&mut self, result: i32) -> bool {
        let is_over = result < 0 || self.is_cancelled;
        let sent = result.max(0) as usize;
        self.is_sending = false;
        if is_over || sent == self.out.len() {
            self.out.clear();
            // Keep the buffer otherwise: most connections never need a second one.
            if !self.staged.is_empty() {
                std::mem::swap(&mut self.out, &mut self.staged);
            }
        } else {
            // The send was split, or the kernel took less than it could.
            self.out.drain(..sent);
            self.out.append(&mut self.staged);
        }
        is_over
    }
}

impl Ring {
    pub(crate) fn new(slots: u32, input_bytes: usize) -> io::Result<Ring> {
        let most = slots.next_power_of_two().min(BUFFERS_MAX.into()) as u16;
        Ring::with_buffers(slots, input_bytes, BUFFERS_FIRST.min(most), most)
    }

    fn with_buffers(slots: u32, input_bytes: usize, first: u16, most: u16) -> io::Result<Ring> {
        let submissions = (2 * slots).clamp(SUBMISSIONS_MIN, SUBMISSIONS_MAX);
        let completions = (4 * slots).clamp(4 * SUBMISSIONS_MIN, COMPLETIONS_MAX);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(completions.next_power_of_two())
            .build(submissions.next_power_of_two())?;
        let buffers = Buffers::new(&ring.submitter(), first, most, input_bytes)?;
        // Fails with more slots than descriptors (ulimit -n); works without.
        let has_table = ring.submitter().register_files_sparse(slots).is_ok();
        Ok(Ring {
            ring,
            buffers: Some(buffers),
            has_table,
            slots: (0..slots).map(|_| RingSlot::default()).collect(),
            dirty: Vec::new(),
            sends_queued: 0,
            gather: Gather::default(),
            under_way: 0,
            input_bytes,
            starved: Vec::new(),
            // Never written, so it never gets pages (calloc).
            discarded: vec![0; DISCARD_BYTES].into(),
        })
    }

    pub(crate) fn open(&mut self, slot: u32, socket: OwnedFd, to: SocketAddrAny) {
        let entry = &mut self.slots[slot as usize];
        assert!(entry.socket.is_none() && entry.under_way == 0, "slot {slot} is in use");
        let fd = Fd(socket.as_raw_fd());
        entry.socket = Some(socket);
        let address = entry.address.insert(Box::new(to));
        let at = address.as_ptr();
        let length = address.addr_len();
        let connect = opcode::Connect::new(fd, at.cast(), length).build();
        self.push(slot, CompletionKind::Connected, connect);
    }

    pub(crate) fn output(&mut self, slot: u32) -> &mut Vec<u8> {
        let entry = &mut self.slots[slot as usize];
        if !entry.is_dirty {
            entry.is_dirty = true;
            self.dirty.push(slot);
        }
        if entry.is_sending { &mut entry.staged } else { &mut entry.out }
    }

    pub(crate) fn unsent(&self, slot: u32) -> usize {
        let entry = &self.slots[slot as usize];
        entry.out.len() + entry.staged.len()
    }

    pub(crate) fn receive(&mut self, slot: u32) {
        self.give_back(slot);
        self.register(slot);
        let entry = &mut self.slots[slot as usize];
        let Some(socket) = &entry.socket else { return };
        let length = self.input_bytes as u32;
        let entry = of_socket!(entry, socket, slot, fd => {
            opcode::Recv::new(fd, std::ptr::null_mut(), length)
                .buf_group(GROUP)
                .ioprio(entry.when_to_try())
        });
        let entry = entry.flags(squeue::Flags::BUFFER_SELECT);
        self.push(slot, CompletionKind::Received, entry);
    }

    pub(crate) fn discard(&mut self, slot: u32, bytes: u64) {
        self.give_back(slot);
        let entry = &mut self.slots[slot as usize];
        let Some(socket) = &entry.socket else { return };
        let length = bytes.min(DISCARD_BYTES as u64) as u32;
        let at = self.discarded.as_mut_ptr();
        let entry = of_socket!(entry, socket, slot, fd => {
            opcode::Recv::new(fd, at, length)
                .flags(libc::MSG_TRUNC)
                .ioprio(entry.when_to_try())
        });
        self.push(slot, CompletionKind::Received, entry);
    }

    pub(crate) fn input(&self, slot: u32, length: usize) -> &[u8] {
        match (self.slots[slot as usize].held, &self.buffers) {
            (Some(id), Some(buffers)) => buffers.bytes(id, length),
            _ => &[],
        }
    }

    fn give_back(&mut self, slot: u32) {
        if let (Some(id), Some(buffers)) =
            (self.slots[slot as usize].held.take(), &mut self.buffers)
        {
            buffers.give(id);
        }
    }

    /// Registers a long-lived connection in the ring's table.
    fn register(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.receives = entry.receives.saturating_add(1);
        if entry.receives == REGISTER_AFTER
            && self.has_table
            && let Some(socket) = &entry.socket
        {
            let result = self.ring.submitter().register_files_update(slot, &[socket.as_raw_fd()]);
            entry.is_registered = result.is_ok();
        }
    }

    pub(crate) fn is_busy(&self, slot: u32) -> bool {
        self.slots[slot as usize].under_way > 0
    }

    pub(crate) fn cancel(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.staged.clear();
        if !entry.is_sending {
            entry.out.clear();
        }
        entry.is_cancelled = true;
        if let (Some(socket), true) = (&entry.socket, entry.under_way > 0) {
            let all = CancelBuilder::fd(Fd(socket.as_raw_fd())).all();
            self.push(slot, CompletionKind::Cancelled, opcode::AsyncCancel2::new(all).build());
        }
    }

    pub(crate) fn close(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        assert!(entry.under_way == 0, "slot {slot} has {} operations", entry.under_way);
        if entry.is_registered {
            // The table would keep the connection open. Its registration succeeded, so this does
            // too.
            self.ring
                .submitter()
                .register_files_update(slot, &[-1])
                .expect("a place of the table can be emptied");
        }
        entry.socket = None;
        entry.out.clear();
        entry.staged.clear();
        entry.receives = 0;
        (entry.is_registered, entry.has_more) = (false, false);
        entry.is_cancelled = false;
        self.give_back(slot);
    }

    /// Sets the number of completions to wait for; needs Linux 6.12.
    pub(crate) fn gather(&mut self, gather: Gather) {
        if self.ring.params().is_feature_min_timeout() {
            self.gather = gather;
        }
    }

    pub(crate) fn submit_and_wait(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.send_dirty();
        // A short send completes while it is submitted, unless the socket is full; it is no reason
        // to wake.
        let sends = std::mem::take(&mut self.sends_queued);
        let want = sends + self.gather.count.max(1) as usize;
        self.enter(if wait.is_zero() { 0 } else { want }, wait)?;
        self.reap(completions);
        Ok(())
    }

    fn send_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let entry = &mut self.slots[slot as usize];
            entry.is_dirty = false;
            // Bytes staged behind a send in progress leave after its completion.
            if !entry.is_sending && !entry.out.is_empty() {
                self.send(slot);
            }
        }
        self.dirty = dirty;
    }

    fn send(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        let Some(socket) = &entry.socket else { return };
        entry.is_sending = true;
        let length = entry.out.len().min(SEND_BYTES_MAX) as u32;
        let entry = of_socket!(entry, socket, slot, fd => {
            opcode::Send::new(fd, entry.out.as_ptr(), length)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
        });
        self.sends_queued += usize::from(length <= SEND_AT_ONCE_BYTES);
        self.push(slot, CompletionKind::Sent, entry);
    }

    /// Enters the ring without work: a filter may forbid just that.
    pub(crate) fn try_enter(&mut self) -> io::Result<()> {
        self.enter(0, Duration::ZERO)
    }

    fn enter(&mut self, want: usize, wait: Duration) -> io::Result<()> {
        let result = if want == 0 {
            const GETEVENTS: u32 = 1;
            let queued = self.ring.submission().len() as u32;
            // With DEFER_TASKRUN completions are made in io_uring_enter with GETEVENTS only.
            // SAFETY: no argument is passed; the entries are argued in `push`.
            unsafe { self.ring.submitter().enter::<()>(queued, 0, GETEVENTS, None) }
        } else {
            let timeout = Timespec::from(wait);
            let mut arguments = SubmitArgs::new().timespec(&timeout);
            if self.gather.count > 1 {
                // The kernel compares it with no time-out.
                let within = self.gather.within.min(wait);
                arguments = arguments.min_wait_usec(within.as_micros() as u32);
            }
            self.ring.submitter().submit_with_args(want, &arguments)
        };
        match result {
            Ok(_) => Ok(()),
            // Timeout, signal, or a completion queue that must be emptied first.
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        for cqe in self.ring.completion() {
            let slot = (cqe.user_data() >> 3) as u32;
            let kind = CompletionKind::from_bits(cqe.user_data() & 7);
            let entry = &mut self.slots[slot as usize];
            entry.under_way -= 1;
            self.under_way -= 1;
            let mut is_news = true;
            if kind == CompletionKind::Received {
                entry.held = cqueue::buffer_select(cqe.flags());
                entry.has_more = cqueue::sock_nonempty(cqe.flags());
                if cqe.result() == -libc::ENOBUFS && !entry.is_cancelled {
                    is_news = false;
                    self.starved.push(slot);
                }
            } else if kind == CompletionKind::Sent {
                is_news = entry.sent(cqe.result());
                if !entry.out.is_empty() && !entry.is_dirty {
                    entry.is_dirty = true;
                    self.dirty.push(slot);
                }
            }
            if is_news {
                completions.push(Completion { slot, kind, result: cqe.result() });
            }
        }
        if let (false, Some(buffers)) = (self.starved.is_empty(), &mut self.buffers) {
            buffers.grow();
        }
        // Begin now, so that the slot stays busy; the next call submits it.
        for slot in std::mem::take(&mut self.starved) {
            self.receive(slot);
        }
    }

    fn push(&mut self, slot: u32, kind: CompletionKind, entry: squeue::Entry) {
        let entry = entry.user_data(u64::from(slot) << 3 | kind as u64);
        self.slots[slot as usize].under_way += 1;
        self.under_way += 1;
        loop {
            // SAFETY: the entry points to a slot's memory or to `discarded`. Both live in boxes of
            // this ring that are freed only when nothing is under way (see `drop`), and so do the
            // buffers that a receive is given; `out` is not touched while `is_sending`.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The queue is full: submit it. If that fails, the next call returns the error.
            if self.ring.submit().is_err() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Ring {
    /// Cancels all operations and waits until the kernel has returned every buffer.
    fn drop(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            self.cancel(slot);
        }
        let until = Instant::now() + GIVE_BACK_TIMEOUT;
        let mut completions = Vec::new();
        while self.under_way > 0 && Instant::now() < until {
            let _ = self.enter(1, Duration::from_millis(100));
            self.reap(&mut completions);
        }
        if self.under_way > 0 {
            // The kernel may still access this memory, so leak it.
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.discarded));
            std::mem::forget(self.buffers.take());
        } else if let Some(buffers) = &self.buffers
            && buffers.unregister(&self.ring.submitter()).is_err()
        {
            std::mem::forget(self.buffers.take());
        }
    }
}

#[cfg(test)]
mod tests;
