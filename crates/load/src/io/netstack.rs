//! The back end over our own TCP: a shard of crate `netstack`, on a device that it alone has.
//!
//! ```text
//!   output(port) ─▶ out ─▶ send ring ───▶┐           ┌─▶ device: TAP, packet socket, AF_XDP
//!                                        │ Netstack  │
//!   input(port)  ◀──────── receive ring ◀┘           └──
//! ```
//!
//! A turn: what the last one has shown is dropped, what is to be sent leaves, and frames are taken
//! in, after a sleep if there are none. So an acknowledgement travels with the next request if
//! there is one.
//!
//! **Names that come again.** The server may still have a connection of an earlier run in
//! TIME-WAIT. It takes a new one of that name if sequence numbers and timestamps have gone on since
//! (RFC 6191), so the clock is the system's, and the key is the same until the system is booted.
//! For the same reason names are needed no longer than late segments on a test's link.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use netstack::Netstack;
use netstack::device::Device;
use netstack::interface_config::{DeviceQueue, InterfaceConfig};
use netstack::stack::{self, ConnectError, FlowId, ShardLimits};
use netstack::tcp::{End, Happened, TcpConfig};
use netstack::time::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::LoadError;
use crate::io::operation::{Completion, DISCARD_BYTES, Route, What};
use crate::io::slots::{Ports, Want};
use crate::plan::Plan;

/// The ports of an address: all but those of servers.
const PORTS: RangeInclusive<u16> = 1_024..=u16::MAX;
/// Names in TIME-WAIT: beyond it the oldest goes early. Fewer than an address has ports.
const TIME_WAIT_MAX: usize = 1 << 15;
const TIME_WAIT: Duration = Duration::from_secs(1);
/// A request is short; what does not fit is written as the rest is acknowledged.
const SEND_CAPACITY: usize = 16 << 10;
/// How long the end of a run waits for the server to close its side of the connections; those that
/// it has not closed by then are reset.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// How many connections from one address to one target are open at the same time, at most.
pub(crate) const CONNECTIONS_PER_PAIR: u64 =
    (*PORTS.end() - *PORTS.start()) as u64 + 1 - TIME_WAIT_MAX as u64;

pub(crate) struct UserTcp<D: Device> {
    netstack: Netstack<D>,
    pub(crate) ports: Ports<Line>,
    /// The port of each connection, by [`FlowId::index`].
    owners: Vec<u32>,
    /// Ports whose bytes are shown until the next turn.
    shown: Vec<u32>,
}

/// A connection.
#[derive(Default)]
pub(crate) struct Line {
    flow: Option<FlowId>,
    /// Of the bytes that have come, so many are shown.
    shown_bytes: usize,
}

impl UserTcp<DeviceQueue> {
    /// Opens the device, and sees that the targets can be reached.
    pub(crate) fn of_interface(
        interface: &InterfaceConfig,
        plan: &Plan,
        ports: u32,
    ) -> Result<UserTcp<DeviceQueue>, LoadError> {
        let opened = interface.open_keyed(1, tcp(), limits(), || Ok(key()));
        let netstacks = opened.map_err(|error| LoadError::Plan(error.to_string()))?;
        let netstack = netstacks.into_iter().next().expect("one was asked for");
        let mut tcp = UserTcp::new(netstack, ports);
        tcp.probe(plan)?;
        Ok(tcp)
    }
}

/// What its connections are started with.
pub(crate) fn tcp() -> TcpConfig {
    TcpConfig {
        time_wait: TIME_WAIT,
        ..TcpConfig::default()
    }
}

pub(crate) fn limits() -> ShardLimits {
    ShardLimits {
        time_wait_max: TIME_WAIT_MAX,
        send_capacity: SEND_CAPACITY,
        ephemeral_ports: (*PORTS.start(), *PORTS.end()),
        ..ShardLimits::default()
    }
}

/// The identity of this boot, which no other host knows. random(4)
pub(crate) fn key() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = text.chars().filter_map(|digit| digit.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    number.to_be_bytes()
}

impl<D: Device> UserTcp<D> {
    pub(crate) fn new(mut netstack: Netstack<D>, ports: u32) -> UserTcp<D> {
        // As for epoll: sleeps of this thread are not drawn out. PR_SET_TIMERSLACK(2const)
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        // Its timers are counted from now.
        netstack.shard().expire(now());
        UserTcp {
            netstack,
            ports: Ports::new(ports),
            owners: Vec::new(),
            shown: Vec::new(),
        }
    }

    pub(crate) fn open(&mut self, port: u32, route: &Route) -> Result<(), Errno> {
        let place = &mut self.ports[port];
        assert!(place.line.flow.is_none(), "port {port} is in use");
        let flow = match route.from {
            Some(from) => self.netstack.connect_from_address(now(), from, route.to),
            None => self.netstack.connect(now(), route.to),
        };
        let flow = flow.map_err(errno_of_connect)?;
        self.netstack.shard().set_nodelay(flow, route.is_chatty);
        if self.owners.len() <= flow.index() {
            self.owners.resize(flow.index() + 1, 0);
        }
        self.owners[flow.index()] = port;
        place.line.flow = Some(flow);
        place.is_connecting = true;
        Ok(())
    }

    pub(crate) fn input(&mut self, port: u32, length: usize) -> &[u8] {
        let flow = self.ports[port].line.flow;
        let (front, _) = flow.map_or((&[][..], &[][..]), |flow| self.netstack.shard().peek(flow));
        &front[..length]
    }

    /// As the kernel closes: what was sent still arrives; what came and was not read makes it a
    /// reset.
    pub(crate) fn close(&mut self, port: u32) {
        self.drop_shown(port);
        if let Some(flow) = self.ports.close(port).flow {
            self.netstack.shard().close(now(), flow);
        }
    }

    pub(crate) fn turn(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        while let Some(port) = self.shown.pop() {
            self.drop_shown(port);
        }
        self.write_dirty();
        self.netstack.transmit(now(), &())?;
        self.receive_ready();
        let frames = self.netstack.receive(now())?;
        if frames == 0 && !self.ports.has_ended() && !wait.is_zero() {
            self.sleep(wait)?;
            self.netstack.receive(now())?;
        }
        self.note_events();
        self.receive_ready();
        self.ports.take_ended(completions);
        Ok(())
    }

    fn drop_shown(&mut self, port: u32) {
        let line = &mut self.ports[port].line;
        let bytes = std::mem::take(&mut line.shown_bytes);
        if let (Some(flow), 1..) = (line.flow, bytes) {
            self.netstack.shard().consume(flow, bytes);
        }
    }

    fn write_dirty(&mut self) {
        while let Some(port) = self.ports.next_dirty() {
            let place = &mut self.ports[port];
            if let Some(flow) = place.line.flow {
                let taken = self.netstack.shard().write(flow, place.unsent());
                place.has_sent(taken);
            }
        }
    }

    /// Sleeps until there is a frame or something to do, or the time is over.
    fn sleep(&mut self, wait: Duration) -> io::Result<()> {
        let wait = wait.min(self.netstack.wakes_at().since(now()));
        let timeout = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.netstack.is_held_up());
        let device = self.netstack.device().descriptor();
        let mut waits = device.map(|fd| PollFd::from_borrowed_fd(fd, flags));
        match poll(waits.as_mut_slice(), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn note_events(&mut self) {
        while let Some((flow, happened)) = self.netstack.shard().next_event() {
            let port = self.owners[flow.index()];
            let is_open = happened.contains(Happened::CONNECTED);
            let has_begun = is_open || happened.contains(Happened::ENDED);
            if has_begun && std::mem::take(&mut self.ports[port].is_connecting) {
                let end = self.netstack.shard().end(flow).filter(|_| !is_open);
                let result = end.map_or(0, result_of_end);
                self.ports.end(port, What::Connected, result);
            }
            self.ports.is_writable(port);
            self.ports.is_readable(port);
        }
    }

    fn receive_ready(&mut self) {
        while let Some(port) = self.ports.next_ready() {
            let place = &mut self.ports[port];
            let Some(flow) = place.line.flow else {
                continue;
            };
            let shard = self.netstack.shard();
            let (front, back) = shard.peek(flow);
            let (front, back) = (front.len(), back.len());
            let result = match place.want {
                Want::Nothing => continue,
                _ if front == 0 => match result_at_end(shard, flow) {
                    Some(result) => result,
                    None => {
                        place.is_readable = false;
                        continue;
                    }
                },
                Want::Look => {
                    place.line.shown_bytes = front;
                    self.shown.push(port);
                    front as i32
                }
                Want::Discard(bytes) => {
                    let here = (front + back).min(DISCARD_BYTES);
                    let dropped = bytes.min(here as u64) as usize;
                    shard.consume(flow, dropped);
                    dropped as i32
                }
            };
            place.want = Want::Nothing;
            self.ports.end(port, What::Received, result);
        }
    }

    /// One connection to each target, so that a run without a server ends with a sentence, not with
    /// counters.
    pub(crate) fn probe(&mut self, plan: &Plan) -> Result<(), LoadError> {
        for &target in &plan.targets {
            let timeout = plan.connect_timeout;
            let probed = self.stream(target, timeout, timeout).map(|_| ());
            probed.map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => LoadError::Unreachable {
                    target,
                    error: io::Error::new(error.kind(), "no answer (is the link up?)"),
                },
                _ => LoadError::Unreachable { target, error },
            })?;
        }
        Ok(())
    }

    /// Opens a connection that blocks, for what is done before the run. It has the first port. A
    /// read or a write of it fails after `wait`.
    pub(crate) fn stream(
        &mut self,
        to: SocketAddr,
        connect_timeout: Duration,
        wait: Duration,
    ) -> io::Result<Stream<'_, D>> {
        let route = Route {
            to,
            from: None,
            is_chatty: true,
        };
        self.open(STREAM_PORT, &route)?;
        let mut stream = Stream {
            tcp: self,
            timeout: connect_timeout,
        };
        stream.until(|shard, flow| {
            let machine = shard.connection(flow)?;
            match machine.end() {
                Some(end) => Some(Err(io::Error::from_raw_os_error(-result_of_end(end)))),
                None => machine.state().is_synchronized().then_some(Ok(())),
            }
        })?;
        stream.timeout = wait;
        Ok(stream)
    }
}

impl<D: Device> Drop for UserTcp<D> {
    /// No kernel closes the connections later.
    fn drop(&mut self) {
        let ports = self.ports.iter();
        let open: Vec<_> = ports
            .filter_map(|(port, it)| Some((port, it.line.flow?)))
            .collect();
        for &(port, _) in &open {
            self.close(port);
        }
        let until = now() + FAREWELL_TIMEOUT;
        while self.netstack.shard().flows_len() > 0 && now() < until {
            if self.turn(until.since(now()), &mut Vec::new()).is_err() {
                return;
            }
        }
        for (_, flow) in open {
            self.netstack.shard().abort(flow);
        }
        // The device may be gone; then nothing can be told.
        let _ = self.netstack.transmit(now(), &());
    }
}

/// See [`UserTcp::stream`].
pub(crate) struct Stream<'s, D: Device> {
    tcp: &'s mut UserTcp<D>,
    timeout: Duration,
}

const STREAM_PORT: u32 = 0;

impl<D: Device> Stream<'_, D> {
    /// Makes turns until there is a result.
    fn until<T>(
        &mut self,
        mut result: impl FnMut(&mut stack::Shard, FlowId) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let flow = self.tcp.ports[STREAM_PORT].line.flow;
        let flow = flow.expect("it is open as long as the stream");
        let until = now() + self.timeout;
        loop {
            if let Some(result) = result(self.tcp.netstack.shard(), flow) {
                return result;
            }
            let left = until.since(now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.tcp.turn(left, &mut Vec::new())?;
        }
    }
}

impl<D: Device> Read for Stream<'_, D> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.until(|shard, flow| match shard.read(flow, room) {
            0 => match result_at_end(shard, flow)? {
                0 => Some(Ok(0)),
                error => Some(Err(io::Error::from_raw_os_error(-error))),
            },
            bytes => Some(Ok(bytes)),
        })
    }
}

impl<D: Device> Write for Stream<'_, D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until(|shard, flow| match shard.write(flow, bytes) {
            0 if shard.end(flow).is_some() => Some(Err(io::ErrorKind::BrokenPipe.into())),
            0 => None,
            taken => Some(Ok(taken)),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<D: Device> Drop for Stream<'_, D> {
    fn drop(&mut self) {
        self.tcp.close(STREAM_PORT);
    }
}

/// What a receive says when there are no more bytes: 0 if the peer has closed, or an error; `None`
/// if there may be more.
fn result_at_end(shard: &stack::Shard, flow: FlowId) -> Option<i32> {
    let machine = shard.connection(flow)?;
    match machine.end() {
        Some(end) => Some(result_of_end(end)),
        None => machine.is_peer_closed().then_some(0),
    }
}

/// As a system call's in the kernel.
fn result_of_end(end: End) -> i32 {
    match end {
        End::Closed => 0,
        End::Reset => -libc::ECONNRESET,
        End::Refused => -libc::ECONNREFUSED,
        End::TimedOut => -libc::ETIMEDOUT,
        End::Aborted => -libc::ECONNABORTED,
        End::Unreachable => -libc::EHOSTUNREACH,
    }
}

fn errno_of_connect(error: ConnectError) -> Errno {
    match error {
        ConnectError::TooMany => Errno::NOBUFS,
        ConnectError::NoPort | ConnectError::InUse => Errno::ADDRNOTAVAIL,
        ConnectError::NoAddress => Errno::NETUNREACH,
        ConnectError::NotAlone => Errno::OPNOTSUPP,
    }
}

fn now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant::START + Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
pub(crate) mod tests;
