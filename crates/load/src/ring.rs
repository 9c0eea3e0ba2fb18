//! The io_uring back end, and the only unsafe code of this crate.
//!
//! A *port* is one connection's place: its socket and its two buffers. All memory that the kernel is
//! told of belongs to a port; ports lie in one box that is never moved, and are given back only when the
//! kernel has nothing of them any more.
//!
//! ```text
//! Port ┌ socket ┬ out ─── being sent, untouched until its completion ┐
//!      │        ├ staged ─ what is to be sent next                   │
//!      └        └ input ─ being received into, or being read by us   ┘
//! ```
//!
//! One `io_uring_enter` per turn submits everything and waits. Bytes that need no look are received
//! with `MSG_TRUNC`, which for TCP means that the kernel drops them without copying (tcp(7)).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::net::SocketAddrAny;

use crate::carrier::{Completion, DISCARD_BYTES, What};

const SUBMISSIONS_MIN: u32 = 64;
const SUBMISSIONS_MAX: u32 = 4096;
const COMPLETIONS_MAX: u32 = 65_536;

/// How long the end of a run waits for the kernel to give buffers back. Longer than any operation
/// takes that is cancelled; after it the buffers are left to the kernel for good.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Ring {
    ring: IoUring,
    ports: Box<[Port]>,
    /// Ports with bytes to send, each once.
    dirty: Vec<u32>,
    /// Sends that the next turn submits: they nearly always complete at once.
    sends_queued: usize,
    /// Operations that the kernel has, or will have at the next turn.
    under_way: usize,
    input_bytes: usize,
    discarded: Box<[u8]>,
}

#[derive(Default)]
struct Port {
    socket: Option<OwnedFd>,
    address: Option<SocketAddrAny>,
    out: Vec<u8>,
    staged: Vec<u8>,
    input: Box<[u8]>,
    under_way: u8,
    is_sending: bool,
    is_dirty: bool,
    is_cancelled: bool,
}

impl Ring {
    pub(crate) fn new(ports: u32, input_bytes: usize) -> io::Result<Ring> {
        let submissions = (2 * ports).clamp(SUBMISSIONS_MIN, SUBMISSIONS_MAX);
        let completions = (4 * ports).clamp(4 * SUBMISSIONS_MIN, COMPLETIONS_MAX);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(completions.next_power_of_two())
            .build(submissions.next_power_of_two())?;
        Ok(Ring {
            ring,
            ports: (0..ports).map(|_| Port::default()).collect(),
            dirty: Vec::new(),
            sends_queued: 0,
            under_way: 0,
            input_bytes,
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
        if place.input.is_empty() {
            place.input = vec![0; self.input_bytes].into();
        }
        let fd = Fd(socket.as_raw_fd());
        place.socket = Some(socket);
        let address = place.address.insert(to);
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
        &mut place.staged
    }

    pub(crate) fn receive(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        let (at, length) = (place.input.as_mut_ptr(), place.input.len() as u32);
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), at, length).build();
        self.push(port, What::Received, entry);
    }

    pub(crate) fn discard(&mut self, port: u32, bytes: u64) {
        let Some(socket) = &self.ports[port as usize].socket else {
            return;
        };
        let length = bytes.min(DISCARD_BYTES as u64) as u32;
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), self.discarded.as_mut_ptr(), length)
            .flags(libc::MSG_TRUNC)
            .build();
        self.push(port, What::Received, entry);
    }

    pub(crate) fn input(&self, port: u32, length: usize) -> &[u8] {
        &self.ports[port as usize].input[..length]
    }

    pub(crate) fn is_busy(&self, port: u32) -> bool {
        self.ports[port as usize].under_way > 0
    }

    pub(crate) fn cancel(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        place.staged.clear();
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
        place.socket = None;
        place.out.clear();
        place.staged.clear();
        place.is_cancelled = false;
    }

    pub(crate) fn turn(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.send_dirty();
        // A send completes while it is submitted, unless the socket is full; it is no reason to wake.
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
            if !place.is_sending && !place.staged.is_empty() {
                self.send(port);
            }
        }
        self.dirty = dirty;
    }

    fn send(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        std::mem::swap(&mut place.out, &mut place.staged);
        place.is_sending = true;
        let length = u32::try_from(place.out.len()).expect("plans bound what is sent at once");
        let entry = opcode::Send::new(Fd(socket.as_raw_fd()), place.out.as_ptr(), length)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        self.sends_queued += 1;
        self.push(port, What::Sent, entry);
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
            if what == What::Sent {
                is_news = entry.result() < place.out.len() as i32 || place.is_cancelled;
                place.is_sending = false;
                place.out.clear();
                if !place.staged.is_empty() && !place.is_dirty {
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
    }

    fn push(&mut self, port: u32, what: What, entry: squeue::Entry) {
        let entry = entry.user_data(u64::from(port) << 3 | what as u64);
        self.ports[port as usize].under_way += 1;
        self.under_way += 1;
        loop {
            // SAFETY: the entry points to a port's memory or to `discarded`. Both live in boxes of
            // this ring that are freed only when nothing is under way (see `drop`); `out` is not
            // touched while `is_sending`, and `input` is lent out only when no receive is under way
            // (the worker asks for it between a completion and the next receive).
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
        }
    }
}
