//! The epoll back end, for kernels without io_uring: readiness made into completions.
//!
//! Sockets are registered once, edge-triggered. A receive is tried when the port is known to be
//! readable; a short read means that the socket is empty and the next edge will tell (epoll(7)).

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, connect, recv, send, sockopt};
use rustix::thread::set_current_timer_slack;

use crate::backend::{Completion, DISCARD_BYTES, What};

const EVENTS_PER_WAIT: usize = 512;
/// A wait shorter than this ends to the nanosecond, for one more system call.
const FINE_BELOW: Duration = Duration::from_millis(5);

pub(crate) struct Poll {
    epoll: OwnedFd,
    ports: Vec<Port>,
    /// Ports with bytes to send, each once.
    dirty: Vec<u32>,
    /// Ports with a receive under way whose socket may have bytes.
    ready: VecDeque<u32>,
    ended: Vec<Completion>,
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

#[derive(Default)]
struct Port {
    socket: Option<OwnedFd>,
    out: Vec<u8>,
    sent_bytes: usize,
    input: Box<[u8]>,
    want: Want,
    is_connecting: bool,
    is_dirty: bool,
    is_readable: bool,
    is_writable: bool,
    /// The peer has closed, or the connection is broken: no edge will follow.
    has_ended: bool,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Want {
    #[default]
    Nothing,
    Look,
    Discard(u64),
}

impl Poll {
    pub(crate) fn new(ports: u32, input_bytes: usize) -> io::Result<Poll> {
        // Sleeps of this thread are not drawn out to save wake-ups: PR_SET_TIMERSLACK(2const).
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(Poll {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            ports: (0..ports).map(|_| Port::default()).collect(),
            dirty: Vec::new(),
            ready: VecDeque::new(),
            ended: Vec::new(),
            input_bytes,
            discarded: vec![0; DISCARD_BYTES].into(),
            events: Vec::with_capacity(EVENTS_PER_WAIT),
        })
    }

    pub(crate) fn open(&mut self, port: u32, socket: OwnedFd, to: SocketAddrAny) {
        let place = &mut self.ports[port as usize];
        assert!(place.socket.is_none(), "port {port} is in use");
        if place.input.is_empty() {
            place.input = vec![0; self.input_bytes].into();
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
        place.socket = Some(socket);
        place.is_connecting = result.is_ok();
        if let Err(error) = result {
            self.ended.push(Completion {
                port,
                what: What::Connected,
                result: -error.raw_os_error(),
            });
        }
    }

    pub(crate) fn output(&mut self, port: u32) -> &mut Vec<u8> {
        let place = &mut self.ports[port as usize];
        if !place.is_dirty {
            place.is_dirty = true;
            self.dirty.push(port);
        }
        &mut place.out
    }

    pub(crate) fn receive(&mut self, port: u32) {
        self.want(port, Want::Look);
    }

    pub(crate) fn discard(&mut self, port: u32, bytes: u64) {
        self.want(port, Want::Discard(bytes));
    }

    fn want(&mut self, port: u32, want: Want) {
        let place = &mut self.ports[port as usize];
        place.want = want;
        if place.is_readable {
            self.ready.push_back(port);
        }
    }

    pub(crate) fn input(&self, port: u32, length: usize) -> &[u8] {
        &self.ports[port as usize].input[..length]
    }

    /// The kernel never holds an operation.
    pub(crate) fn is_busy(&self, _port: u32) -> bool {
        false
    }

    pub(crate) fn cancel(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        place.want = Want::Nothing;
        place.is_connecting = false;
        place.out.clear();
        place.sent_bytes = 0;
    }

    pub(crate) fn close(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let (input, is_dirty) = (std::mem::take(&mut place.input), place.is_dirty);
        // Closing takes it out of the interest list: the socket has no duplicate (epoll(7)).
        *place = Port {
            input,
            is_dirty,
            ..Port::default()
        };
        self.ended.retain(|completion| completion.port != port);
    }

    pub(crate) fn turn(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.send_dirty();
        self.receive_ready();
        let wait = if self.ended.is_empty() {
            wait
        } else {
            Duration::ZERO
        };
        self.collect(wait)?;
        self.send_dirty();
        self.receive_ready();
        completions.append(&mut self.ended);
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
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        let is_over = flags.intersects(F::ERR | F::HUP);
        if place.is_connecting && (is_over || flags.contains(F::OUT)) {
            place.is_connecting = false;
            let result = match sockopt::socket_error(socket) {
                Ok(Ok(())) => 0,
                Ok(Err(error)) | Err(error) => -error.raw_os_error(),
            };
            self.ended.push(Completion {
                port,
                what: What::Connected,
                result,
            });
        }
        if flags.contains(F::OUT) || is_over {
            place.is_writable = true;
            if !place.out.is_empty() && !place.is_dirty {
                place.is_dirty = true;
                self.dirty.push(port);
            }
        }
        place.has_ended |= is_over || flags.contains(F::RDHUP);
        if flags.intersects(F::IN | F::RDHUP) || is_over {
            let was_readable = std::mem::replace(&mut place.is_readable, true);
            if !was_readable && place.want != Want::Nothing {
                self.ready.push_back(port);
            }
        }
    }

    fn send_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for port in dirty.drain(..) {
            self.ports[port as usize].is_dirty = false;
            self.send(port);
        }
        self.dirty = dirty;
    }

    fn send(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let Some(socket) = &place.socket else { return };
        while place.is_writable && !place.is_connecting && place.sent_bytes < place.out.len() {
            match send(socket, &place.out[place.sent_bytes..], SendFlags::NOSIGNAL) {
                Ok(sent_bytes) => place.sent_bytes += sent_bytes,
                Err(Errno::AGAIN) => place.is_writable = false,
                Err(Errno::INTR) => {}
                Err(error) => {
                    let result = -error.raw_os_error();
                    self.ended.push(Completion {
                        port,
                        what: What::Sent,
                        result,
                    });
                    break;
                }
            }
        }
        if place.sent_bytes == place.out.len() {
            place.out.clear();
            place.sent_bytes = 0;
        }
    }

    fn receive_ready(&mut self) {
        // A port may be here twice, or for a receive that was cancelled; then it has nothing to do.
        while let Some(port) = self.ready.pop_front() {
            let place = &mut self.ports[port as usize];
            let Some(socket) = &place.socket else {
                continue;
            };
            let received = match place.want {
                Want::Nothing => continue,
                Want::Look => {
                    let room = place.input.len();
                    recv(socket, &mut *place.input, RecvFlags::DONTWAIT).map(|(n, _)| (n, room))
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
                    place.is_readable = n == room || place.has_ended;
                    n as i32
                }
            };
            place.want = Want::Nothing;
            self.ended.push(Completion {
                port,
                what: What::Received,
                result,
            });
        }
    }
}
