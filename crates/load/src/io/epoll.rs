//! The epoll back end, for kernels without io_uring: readiness made into completions.
//!
//! Sockets are registered once, edge-triggered. A receive is tried when the port is known to be
//! readable; a short read means that the socket is empty and the next edge will tell (epoll(7)).

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, connect, recv, send, sockopt};
use rustix::thread::set_current_timer_slack;

use crate::io::operation::{Completion, DISCARD_BYTES, What};
use crate::io::slots::{Ports, Want};

const EVENTS_PER_WAIT: usize = 512;
/// A wait shorter than this ends to the nanosecond, for one more system call.
const FINE_BELOW: Duration = Duration::from_millis(5);

pub(crate) struct Poll {
    epoll: OwnedFd,
    pub(crate) ports: Ports<Line>,
    input_bytes: usize,
    discarded: Box<[u8]>,
    events: Vec<epoll::Event>,
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// A connection.
#[derive(Default)]
pub(crate) struct Line {
    socket: Option<OwnedFd>,
    input: Box<[u8]>,
    is_writable: bool,
    /// The peer has closed, or the connection is broken: no edge will follow.
    has_ended: bool,
}

impl Poll {
    pub(crate) fn new(ports: u32, input_bytes: usize) -> io::Result<Poll> {
        // Sleeps of this thread are not drawn out to save wake-ups: PR_SET_TIMERSLACK(2const).
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(Poll {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            ports: Ports::new(ports),
            input_bytes,
            discarded: vec![0; DISCARD_BYTES].into(),
            events: Vec::with_capacity(EVENTS_PER_WAIT),
        })
    }

    pub(crate) fn open(&mut self, port: u32, socket: OwnedFd, to: SocketAddrAny) {
        let place = &mut self.ports[port];
        assert!(place.line.socket.is_none(), "port {port} is in use");
        if place.line.input.is_empty() {
            place.line.input = vec![0; self.input_bytes].into();
        }
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(port));
        let result = match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {
                epoll::add(&self.epoll, &socket, data, flags)
            }
            Err(error) => Err(error),
        };
        place.line.socket = Some(socket);
        place.is_connecting = result.is_ok();
        if let Err(error) = result {
            self.ports.end(port, What::Connected, -error.raw_os_error());
        }
    }

    pub(crate) fn input(&self, port: u32, length: usize) -> &[u8] {
        &self.ports[port].line.input[..length]
    }

    pub(crate) fn close(&mut self, port: u32) {
        // Closing takes it out of the interest list: the socket has no duplicate (epoll(7)).
        let closed = self.ports.close(port);
        self.ports[port].line.input = closed.input;
    }

    pub(crate) fn turn(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.send_dirty();
        self.receive_ready();
        let wait = match self.ports.has_ended() {
            true => Duration::ZERO,
            false => wait,
        };
        self.collect(wait)?;
        self.send_dirty();
        self.receive_ready();
        self.ports.take_ended(completions);
        Ok(())
    }

    fn collect(&mut self, wait: Duration) -> io::Result<()> {
        let wait = match wait {
            Duration::ZERO => wait,
            _ if wait < FINE_BELOW => self.sleep(wait)?,
            // Rounded down: a thread that wakes early sleeps again.
            _ => Duration::from_millis(wait.as_millis() as u64),
        };
        let timeout = timespec(wait);
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let room = rustix::buffer::spare_capacity(&mut events);
        let result = epoll::wait(&self.epoll, room, Some(&timeout));
        for event in &events {
            self.note(event.data.u64() as u32, event.flags);
        }
        self.events = events;
        match result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until there is an event or the time is over, to the nanosecond; epoll_wait(2) counts
    /// milliseconds, and epoll_pwait2(2) is younger than the kernels that this back end is for.
    fn sleep(&self, wait: Duration) -> io::Result<Duration> {
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(wait))) {
            Ok(_) | Err(Errno::INTR) => Ok(Duration::ZERO),
            Err(error) => Err(error.into()),
        }
    }

    fn note(&mut self, port: u32, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        let place = &mut self.ports[port];
        let Some(socket) = &place.line.socket else {
            return;
        };
        let is_over = flags.intersects(F::ERR | F::HUP);
        let may_write = flags.contains(F::OUT) || is_over;
        let connected = (place.is_connecting && may_write).then(|| sockopt::socket_error(socket));
        place.line.is_writable |= may_write;
        place.line.has_ended |= is_over || flags.contains(F::RDHUP);
        if let Some(connected) = connected {
            place.is_connecting = false;
            let result = match connected {
                Ok(Ok(())) => 0,
                Ok(Err(error)) | Err(error) => -error.raw_os_error(),
            };
            self.ports.end(port, What::Connected, result);
        }
        if may_write {
            self.ports.is_writable(port);
        }
        if flags.intersects(F::IN | F::RDHUP) || is_over {
            self.ports.is_readable(port);
        }
    }

    fn send_dirty(&mut self) {
        while let Some(port) = self.ports.next_dirty() {
            if let Err(error) = self.send(port) {
                self.ports.end(port, What::Sent, -error.raw_os_error());
            }
        }
    }

    fn send(&mut self, port: u32) -> Result<(), Errno> {
        let place = &mut self.ports[port];
        while place.line.is_writable && !place.is_connecting && !place.unsent().is_empty() {
            let Some(socket) = &place.line.socket else {
                break;
            };
            match send(socket, place.unsent(), SendFlags::NOSIGNAL) {
                Ok(sent_bytes) => place.has_sent(sent_bytes),
                Err(Errno::AGAIN) => place.line.is_writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive_ready(&mut self) {
        while let Some(port) = self.ports.next_ready() {
            let place = &mut self.ports[port];
            let Line { socket, input, .. } = &mut place.line;
            let Some(socket) = socket else { continue };
            let received = match place.want {
                Want::Nothing => continue,
                Want::Look => {
                    let room = input.len();
                    recv(socket, &mut **input, RecvFlags::DONTWAIT).map(|(n, _)| (n, room))
                }
                Want::Discard(bytes) => {
                    let room = bytes.min(DISCARD_BYTES as u64) as usize;
                    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
                    // With MSG_TRUNC the second number is the true length.
                    recv(socket, &mut self.discarded[..room], flags).map(|(_, n)| (n, room))
                }
            };
            let result = match received {
                Err(Errno::AGAIN) => {
                    place.is_readable = false;
                    continue;
                }
                Err(error) => -error.raw_os_error(),
                Ok((n, room)) => {
                    // Less than asked for: it is empty, and the next edge tells.
                    place.is_readable = n == room || place.line.has_ended;
                    n as i32
                }
            };
            place.want = Want::Nothing;
            self.ports.end(port, What::Received, result);
        }
    }
}
