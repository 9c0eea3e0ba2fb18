//! The io_uring back end, and the only unsafe code of this crate.
//!
//! A *port* is one connection's place: its socket and what it sends. All memory that the kernel is
//! told of belongs to a port, or is a shared [buffer](Buffers); ports lie in one box that is never
//! moved, and are given back only when the kernel has nothing of them any more.
//!
//! ```text
//! Port ┌ socket ┬ out ─── sent next; untouched while the kernel has it ┐
//!      │        ├ staged ─ what came while the kernel had `out`         │
//!      └        └ held ── the buffer that its last receive filled       ┘
//! ```
//!
//! One `io_uring_enter` per turn submits everything and waits. What keeps it cheap, each measured
//! (docs/performance.md):
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

use crate::io::operation::{Completion, DISCARD_BYTES, What};

const SUBMISSIONS_MIN: u32 = 64;
const SUBMISSIONS_MAX: u32 = 4096;
const COMPLETIONS_MAX: u32 = 65_536;
/// How many buffers the kernel has at first: few stay in the cache. If a turn's receives find none,
/// it gets twice as many, up to one for each connection; those receives are begun again.
const BUFFERS_FIRST: u16 = 64;
const BUFFERS_MAX: u16 = 4096;
/// After so many receives a connection is worth a call that registers it, and one that ends that.
const REGISTER_AFTER: u32 = 4;
/// A send that is longer is made in parts: the kernel takes at most 2 GiB at a time. send(2)
const SEND_BYTES_MAX: usize = if cfg!(test) { 1 << 24 } else { 1 << 30 };
/// io_uring_prep_recv(3).
const RECVSEND_POLL_FIRST: u16 = 1;

/// How long the end of a run waits for the kernel to give buffers back. Longer than any operation
/// takes that is cancelled; after it the buffers are left to the kernel for good.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Ring {
    ring: IoUring,
    ports: Box<[Port]>,
    buffers: Option<Buffers>,
    /// Whether the ring has a table of descriptors, with a place for each port.
    has_table: bool,
    /// Ports with bytes to send, each once.
    dirty: Vec<u32>,
    /// Sends that the next turn submits: they nearly always complete at once.
    sends_queued: usize,
    /// Operations that the kernel has, or will have at the next turn.
    under_way: usize,
    input_bytes: usize,
    /// Receives that found no buffer.
    starved: Vec<u32>,
    discarded: Box<[u8]>,
}

#[derive(Default)]
struct Port {
    socket: Option<OwnedFd>,
    /// Of its connect; apart, so that what every request touches lies together.
    address: Option<Box<SocketAddrAny>>,
    out: Vec<u8>,
    staged: Vec<u8>,
    held: Option<u16>,
    receives: u32,
    is_registered: bool,
    /// The last receive left bytes in the socket.
    has_more: bool,
    under_way: u8,
    is_sending: bool,
    is_dirty: bool,
    is_cancelled: bool,
}

/// Builds an operation on a port's socket: a registered one goes by the port's number in the table.
macro_rules! of_socket {
    ($place:expr, $socket:expr, $port:expr, $fd:ident => $operation:expr) => {
        if $place.is_registered {
            let $fd = Fixed($port);
            $operation.build()
        } else {
            let $fd = Fd($socket.as_raw_fd());
            $operation.build()
        }
    };
}

impl Port {
    /// A receive on an empty socket waits at once, without the attempt.
    fn when_to_try(&self) -> u16 {
        if self.has_more {
            0
        } else {
            RECVSEND_POLL_FIRST
        }
    }

    /// Notes how a send ended. Says whether that is news for the worker.
    fn sent(&mut self, result: i32) -> bool {
        let is_over = result < 0 || self.is_cancelled;
        let sent = result.max(0) as usize;
        self.is_sending = false;
        if is_over || sent == self.out.len() {
            self.out.clear();
            // Else it keeps its buffer: most connections never need a second one.
            if !self.staged.is_empty() {
                std::mem::swap(&mut self.out, &mut self.staged);
            }
        } else {
            // The kernel gets so much in parts, or took less than it could.
            self.out.drain(..sent);
            self.out.append(&mut self.staged);
        }
        is_over
    }
}

impl Ring {
    pub(crate) fn new(ports: u32, input_bytes: usize) -> io::Result<Ring> {
        let most = ports.next_power_of_two().min(BUFFERS_MAX.into()) as u16;
        Ring::with_buffers(ports, input_bytes, BUFFERS_FIRST.min(most), most)
    }

    fn with_buffers(ports: u32, input_bytes: usize, first: u16, most: u16) -> io::Result<Ring> {
        let submissions = (2 * ports).clamp(SUBMISSIONS_MIN, SUBMISSIONS_MAX);
        let completions = (4 * ports).clamp(4 * SUBMISSIONS_MIN, COMPLETIONS_MAX);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(completions.next_power_of_two())
            .build(submissions.next_power_of_two())?;
        let buffers = Buffers::new(&ring.submitter(), first, most, input_bytes)?;
        // Refused if there are more ports than descriptors (ulimit -n): it goes without.
        let has_table = ring.submitter().register_files_sparse(ports).is_ok();
        Ok(Ring {
            ring,
            buffers: Some(buffers),
            has_table,
            ports: (0..ports).map(|_| Port::default()).collect(),
            dirty: Vec::new(),
            sends_queued: 0,
            under_way: 0,
            input_bytes,
            starved: Vec::new(),
            // Never written, so it never gets pages (calloc).
            discarded: vec![0; DISCARD_BYTES].into(),
        })
    }

    pub(crate) fn open(&mut self, port: u32, socket: OwnedFd, to: SocketAddrAny) {
        let place = &mut self.ports[port as usize];
        assert!(
            place.socket.is_none() && place.under_way == 0,
            "port {port} is in use"
        );
        let fd = Fd(socket.as_raw_fd());
        place.socket = Some(socket);
        let address = place.address.insert(Box::new(to));
        let (at, length) = (address.as_ptr(), address.addr_len());
        self.push(
            port,
            What::Connected,
            opcode::Connect::new(fd, at.cast(), length).build(),
        );
    }

    pub(crate) fn output(&mut self, port: u32) -> &mut Vec<u8> {
        let place = &mut self.ports[port as usize];
        if !place.is_dirty {
            place.is_dirty = true;
            self.dirty.push(port);
        }
        match place.is_sending {
            true => &mut place.staged,
            false => &mut place.out,
        }
    }

    pub(crate) fn receive(&mut self, port: u32) {
        self.give_back(port);
        self.register(port);
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        let length = self.input_bytes as u32;
        let entry = of_socket!(place, socket, port, fd => {
            opcode::Recv::new(fd, std::ptr::null_mut(), length)
                .buf_group(GROUP)
                .ioprio(place.when_to_try())
        });
        let entry = entry.flags(squeue::Flags::BUFFER_SELECT);
        self.push(port, What::Received, entry);
    }

    pub(crate) fn discard(&mut self, port: u32, bytes: u64) {
        self.give_back(port);
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        let length = bytes.min(DISCARD_BYTES as u64) as u32;
        let at = self.discarded.as_mut_ptr();
        let entry = of_socket!(place, socket, port, fd => {
            opcode::Recv::new(fd, at, length)
                .flags(libc::MSG_TRUNC)
                .ioprio(place.when_to_try())
        });
        self.push(port, What::Received, entry);
    }

    pub(crate) fn input(&self, port: u32, length: usize) -> &[u8] {
        match (self.ports[port as usize].held, &self.buffers) {
            (Some(id), Some(buffers)) => buffers.bytes(id, length),
            _ => &[],
        }
    }

    fn give_back(&mut self, port: u32) {
        if let (Some(id), Some(buffers)) =
            (self.ports[port as usize].held.take(), &mut self.buffers)
        {
            buffers.give(id);
        }
    }

    /// Gives a connection that lasts a place in the ring's table.
    fn register(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        place.receives = place.receives.saturating_add(1);
        if place.receives == REGISTER_AFTER
            && self.has_table
            && let Some(socket) = &place.socket
        {
            let result = self
                .ring
                .submitter()
                .register_files_update(port, &[socket.as_raw_fd()]);
            place.is_registered = result.is_ok();
        }
    }

    pub(crate) fn is_busy(&self, port: u32) -> bool {
        self.ports[port as usize].under_way > 0
    }

    pub(crate) fn cancel(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        place.staged.clear();
        if !place.is_sending {
            place.out.clear();
        }
        place.is_cancelled = true;
        if let (Some(socket), true) = (&place.socket, place.under_way > 0) {
            let all = CancelBuilder::fd(Fd(socket.as_raw_fd())).all();
            self.push(
                port,
                What::Cancelled,
                opcode::AsyncCancel2::new(all).build(),
            );
        }
    }

    pub(crate) fn close(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        assert!(
            place.under_way == 0,
            "port {port} has {} operations",
            place.under_way
        );
        if place.is_registered {
            // Else the table would keep the connection open. It was accepted once, so this is as
            // well.
            self.ring
                .submitter()
                .register_files_update(port, &[-1])
                .expect("a place of the table can be emptied");
        }
        place.socket = None;
        place.out.clear();
        place.staged.clear();
        place.receives = 0;
        (place.is_registered, place.has_more) = (false, false);
        place.is_cancelled = false;
        self.give_back(port);
    }

    pub(crate) fn turn(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.send_dirty();
        // A send completes while it is submitted, unless the socket is full; it is no reason to
        // wake.
        let want = 1 + std::mem::take(&mut self.sends_queued);
        self.enter(if wait.is_zero() { 0 } else { want }, wait)?;
        self.reap(completions);
        Ok(())
    }

    fn send_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for port in dirty.drain(..) {
            let place = &mut self.ports[port as usize];
            place.is_dirty = false;
            // What is staged behind a send that is under way goes out after its completion.
            if !place.is_sending && !place.out.is_empty() {
                self.send(port);
            }
        }
        self.dirty = dirty;
    }

    fn send(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        place.is_sending = true;
        let length = place.out.len().min(SEND_BYTES_MAX) as u32;
        let entry = of_socket!(place, socket, port, fd => {
            opcode::Send::new(fd, place.out.as_ptr(), length)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
        });
        self.sends_queued += 1;
        self.push(port, What::Sent, entry);
    }

    /// Enters the ring, with nothing to do: a filter may forbid that by itself.
    pub(crate) fn try_enter(&mut self) -> io::Result<()> {
        self.enter(0, Duration::ZERO)
    }

    fn enter(&mut self, want: usize, wait: Duration) -> io::Result<()> {
        let result = if want == 0 {
            const GETEVENTS: u32 = 1;
            let queued = self.ring.submission().len() as u32;
            // With DEFER_TASKRUN completions are made in io_uring_enter with GETEVENTS only.
            // SAFETY: no argument is passed; the entries are argued in `push`.
            unsafe {
                self.ring
                    .submitter()
                    .enter::<()>(queued, 0, GETEVENTS, None)
            }
        } else {
            let timeout = Timespec::from(wait);
            let arguments = SubmitArgs::new().timespec(&timeout);
            self.ring.submitter().submit_with_args(want, &arguments)
        };
        match result {
            Ok(_) => Ok(()),
            // The time is over; a signal came; the completion queue must be emptied first.
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            let port = (entry.user_data() >> 3) as u32;
            let what = What::from_bits(entry.user_data() & 7);
            let place = &mut self.ports[port as usize];
            place.under_way -= 1;
            self.under_way -= 1;
            let mut is_news = true;
            if what == What::Received {
                place.held = cqueue::buffer_select(entry.flags());
                place.has_more = cqueue::sock_nonempty(entry.flags());
                if entry.result() == -libc::ENOBUFS && !place.is_cancelled {
                    is_news = false;
                    self.starved.push(port);
                }
            } else if what == What::Sent {
                is_news = place.sent(entry.result());
                if !place.out.is_empty() && !place.is_dirty {
                    place.is_dirty = true;
                    self.dirty.push(port);
                }
            }
            if is_news {
                completions.push(Completion {
                    port,
                    what,
                    result: entry.result(),
                });
            }
        }
        if let (false, Some(buffers)) = (self.starved.is_empty(), &mut self.buffers) {
            buffers.grow();
        }
        // Begun now, so that the port stays busy; submitted by the next turn.
        for port in std::mem::take(&mut self.starved) {
            self.receive(port);
        }
    }

    fn push(&mut self, port: u32, what: What, entry: squeue::Entry) {
        let entry = entry.user_data(u64::from(port) << 3 | what as u64);
        self.ports[port as usize].under_way += 1;
        self.under_way += 1;
        loop {
            // SAFETY: the entry points to a port's memory or to `discarded`. Both live in boxes of
            // this ring that are freed only when nothing is under way (see `drop`), and so do the
            // buffers that a receive is given; `out` is not touched while `is_sending`.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // Full: hand over what is there. If that fails now, the next turn says why.
            if self.ring.submit().is_err() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Ring {
    /// Cancels what is under way and waits until the kernel has given every buffer back.
    fn drop(&mut self) {
        for port in 0..self.ports.len() as u32 {
            self.cancel(port);
        }
        let until = Instant::now() + GIVE_BACK_TIMEOUT;
        let mut completions = Vec::new();
        while self.under_way > 0 && Instant::now() < until {
            let _ = self.enter(1, Duration::from_millis(100));
            self.reap(&mut completions);
        }
        if self.under_way > 0 {
            // The kernel may still read and write there: the memory must stay.
            std::mem::forget(std::mem::take(&mut self.ports));
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
