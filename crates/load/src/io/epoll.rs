//! epoll back end, for kernels without io_uring. Turns readiness into completions.
//!
//! Sockets are registered once, edge-triggered. A receive is tried when the slot is known to be
//! readable; after a short read the socket is empty and the next edge announces more (epoll(7)).

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, connect, recv, send, sockopt,
};
use rustix::thread::set_current_timer_slack;

use crate::io::operation::{Completion, CompletionKind, DISCARD_BYTES};
use crate::io::slots::{Receive, Slots};

const EVENTS_PER_WAIT: usize = 512;
/// Shorter waits end to the nanosecond, for one more system call.
const FINE_BELOW: Duration = Duration::from_millis(5);
/// Pause before a Unix socket with a full listen queue is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(1);

pub(crate) struct Poll {
    epoll: OwnedFd,
    pub(crate) slots: Slots<EpollState>,
    input_bytes: usize,
    discarded: Box<[u8]>,
    /// Connects to Unix sockets whose listen queue was full; no event reports free space.
    refused: Vec<(u32, SocketAddrAny)>,
    events: Vec<epoll::Event>,
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// Connection.
#[derive(Default)]
pub(crate) struct EpollState {
    socket: Option<OwnedFd>,
    input: Box<[u8]>,
    is_writable: bool,
    /// True if each receive takes one datagram, and more may follow.
    is_udp: bool,
    /// True if the peer has closed or the connection is broken; no edge follows.
    has_ended: bool,
}

impl Poll {
    pub(crate) fn new(slots: u32, input_bytes: usize) -> io::Result<Poll> {
        // Sleep precisely: by default the kernel delays wake-ups to batch them.
        // PR_SET_TIMERSLACK(2const)
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(Poll {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            slots: Slots::new(slots),
            input_bytes,
            discarded: vec![0; DISCARD_BYTES].into(),
            refused: Vec::new(),
            events: Vec::with_capacity(EVENTS_PER_WAIT),
        })
    }

    pub(crate) fn open(&mut self, slot: u32, socket: OwnedFd, to: SocketAddrAny, is_udp: bool) {
        let entry = &mut self.slots[slot];
        assert!(entry.state.socket.is_none(), "slot {slot} is in use");
        if entry.state.input.is_empty() {
            entry.state.input = vec![0; self.input_bytes].into();
        }
        entry.state.socket = Some(socket);
        entry.state.is_udp = is_udp;
        self.connect(slot, to);
    }

    fn connect(&mut self, slot: u32, to: SocketAddrAny) {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(slot));
        let entry = &mut self.slots[slot];
        let Some(socket) = &entry.state.socket else { return };
        let result = match connect(socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {
                epoll::add(&self.epoll, socket, data, flags)
            }
            // connect(2): a Unix socket's, with a full listen queue.
            Err(Errno::AGAIN) if to.address_family() == AddressFamily::UNIX => {
                self.refused.push((slot, to));
                return;
            }
            Err(error) => Err(error),
        };
        entry.is_connecting = result.is_ok();
        if let Err(error) = result {
            self.slots.end(slot, CompletionKind::Connected, -error.raw_os_error());
        }
    }

    pub(crate) fn input(&self, slot: u32, length: usize) -> &[u8] {
        &self.slots[slot].state.input[..length]
    }

    pub(crate) fn close(&mut self, slot: u32) {
        // Closing removes the socket from the interest list: it has no duplicate. epoll(7)
        let closed = self.slots.close(slot);
        self.refused.retain(|(refused, _)| *refused != slot);
        self.slots[slot].state.input = closed.input;
    }

    pub(crate) fn submit_and_wait(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        for (slot, to) in std::mem::take(&mut self.refused) {
            self.connect(slot, to);
        }
        self.send_dirty();
        self.receive_ready();
        let wait = match wait {
            _ if self.slots.has_ended() => Duration::ZERO,
            wait if self.refused.is_empty() => wait,
            wait => wait.min(RETRY_AFTER),
        };
        self.collect(wait)?;
        self.send_dirty();
        self.receive_ready();
        self.slots.take_ended(completions);
        Ok(())
    }

    fn collect(&mut self, wait: Duration) -> io::Result<()> {
        let wait = match wait {
            Duration::ZERO => wait,
            _ if wait < FINE_BELOW => self.sleep(wait)?,
            // Round down: a thread that wakes early sleeps again.
            _ => Duration::from_millis(wait.as_millis() as u64),
        };
        let timeout = timespec(wait);
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let spare = rustix::buffer::spare_capacity(&mut events);
        let result = epoll::wait(&self.epoll, spare, Some(&timeout));
        for event in &events {
            self.note(event.data.u64() as u32, event.flags);
        }
        self.events = events;
        match result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until an event or the timeout, to the nanosecond. epoll_wait(2) counts milliseconds;
    /// epoll_pwait2(2) is newer than the kernels that need this back end.
    fn sleep(&self, wait: Duration) -> io::Result<Duration> {
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(wait))) {
            Ok(_) | Err(Errno::INTR) => Ok(Duration::ZERO),
            Err(error) => Err(error.into()),
        }
    }

    fn note(&mut self, slot: u32, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        let entry = &mut self.slots[slot];
        let Some(socket) = &entry.state.socket else {
            return;
        };
        let is_over = flags.intersects(F::ERR | F::HUP);
        let may_write = flags.contains(F::OUT) || is_over;
        let connected = (entry.is_connecting && may_write).then(|| sockopt::socket_error(socket));
        entry.state.is_writable |= may_write;
        entry.state.has_ended |= is_over || flags.contains(F::RDHUP);
        if let Some(connected) = connected {
            entry.is_connecting = false;
            let result = match connected {
                Ok(Ok(())) => 0,
                Ok(Err(error)) | Err(error) => -error.raw_os_error(),
            };
            self.slots.end(slot, CompletionKind::Connected, result);
        }
        if may_write {
            self.slots.set_writable(slot);
        }
        if flags.intersects(F::IN | F::RDHUP) || is_over {
            self.slots.set_readable(slot);
        }
    }

    fn send_dirty(&mut self) {
        while let Some(slot) = self.slots.next_dirty() {
            if let Err(error) = self.send(slot) {
                self.slots.end(slot, CompletionKind::Sent, -error.raw_os_error());
            }
        }
    }

    fn send(&mut self, slot: u32) -> Result<(), Errno> {
        let entry = &mut self.slots[slot];
        while entry.state.is_writable && !entry.is_connecting && !entry.unsent().is_empty() {
            let Some(socket) = &entry.state.socket else {
                break;
            };
            match send(socket, entry.unsent(), SendFlags::NOSIGNAL) {
                Ok(sent_bytes) => entry.advance(sent_bytes),
                Err(Errno::AGAIN) => entry.state.is_writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive_ready(&mut self) {
        while let Some(slot) = self.slots.next_ready() {
            let entry = &mut self.slots[slot];
            let EpollState { socket, input, .. } = &mut entry.state;
            let Some(socket) = socket else { continue };
            let received = match entry.receive {
                Receive::None => continue,
                Receive::Read => {
                    let asked = input.len();
                    recv(socket, &mut **input, RecvFlags::DONTWAIT).map(|(n, _)| (n, asked))
                }
                Receive::Discard(bytes) => {
                    let asked = bytes.min(DISCARD_BYTES as u64) as usize;
                    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
                    // With MSG_TRUNC the second number is the true length.
                    recv(socket, &mut self.discarded[..asked], flags).map(|(_, n)| (n, asked))
                }
            };
            let result = match received {
                Err(Errno::AGAIN) => {
                    entry.is_readable = false;
                    continue;
                }
                Err(error) => -error.raw_os_error(),
                Ok((n, asked)) => {
                    // A short read: the socket is empty, and the next edge announces more.
                    let is_all = n < asked && !entry.state.is_udp;
                    entry.is_readable = !is_all || entry.state.has_ended;
                    n as i32
                }
            };
            entry.receive = Receive::None;
            self.slots.end(slot, CompletionKind::Received, result);
        }
    }
}
