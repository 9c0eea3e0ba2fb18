//! Back end over our own TCP: a shard of crate `netstack` on a device of its own.
//!
//! ```text
//!   output(slot) ─▶ out ─▶ send ring ───▶┐           ┌─▶ device: TAP, packet socket, AF_XDP
//!                                        │ Netstack  │
//!   input(slot)  ◀──────── receive ring ◀┘           └──
//! ```
//!
//! One iteration frees the input of the last one, sends, and receives frames, after a sleep if
//! there are none. An acknowledgement therefore travels with the next request, if there is one.
//!
//! **Reused port pairs.** The server may still have a connection of an earlier run in TIME-WAIT. It
//! accepts a new one with the same addresses and ports if sequence numbers and timestamps have
//! advanced (RFC 6191). So the clock is the system's, and the key stays the same until reboot. For
//! the same reason TIME-WAIT lasts no longer than late segments on a test's link.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use netstack::Netstack;
use netstack::device::Device;
use netstack::interface_config::{DeviceQueue, InterfaceConfig};
use netstack::stack::{self, ConnectError, FlowId, ShardLimits};
use netstack::tcp::{End, TcpConfig, TcpEvents};
use netstack::time::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::LoadError;
use crate::io::operation::{Completion, CompletionKind, DISCARD_BYTES};
use crate::io::slots::{Receive, Slots};
use crate::plan::{LoadTarget, Plan};

/// Ports of an address: all but those of servers.
const PORTS: RangeInclusive<u16> = 1_024..=u16::MAX;
/// Maximum of connections in TIME-WAIT; beyond it the oldest goes early. Fewer than an address has
/// ports.
const TIME_WAIT_MAX: usize = 1 << 15;
const TIME_WAIT: Duration = Duration::from_secs(1);
/// Requests are short; the rest of a long one is written as the first part is acknowledged.
const SEND_CAPACITY: usize = 16 << 10;
/// Maximum wait, at the end of a run, for the server to close its side of the connections; the rest
/// are reset.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum of open connections from one address to one target.
pub(crate) const CONNECTIONS_PER_PAIR: u64 =
    (*PORTS.end() - *PORTS.start()) as u64 + 1 - TIME_WAIT_MAX as u64;

pub(crate) struct UserTcp<D: Device> {
    netstack: Netstack<D>,
    pub(crate) slots: Slots<NetstackState>,
    /// Slot of each connection, by [`FlowId::index`].
    owners: Vec<u32>,
    /// Slots whose input is in use until the next iteration.
    shown: Vec<u32>,
}

/// Connection.
#[derive(Default)]
pub(crate) struct NetstackState {
    flow: Option<FlowId>,
    /// Length of the input in use.
    shown_bytes: usize,
}

impl UserTcp<DeviceQueue> {
    /// Opens the device, and sees that the targets can be reached.
    pub(crate) fn of_interface(
        interface: &InterfaceConfig,
        plan: &Plan,
        slots: u32,
    ) -> Result<UserTcp<DeviceQueue>, LoadError> {
        let opened = interface.open_keyed(1, tcp(), limits(), || Ok(key()));
        let netstacks = opened.map_err(|error| LoadError(error.to_string()))?;
        let netstack = netstacks.into_iter().next().expect("one was asked for");
        let mut tcp = UserTcp::new(netstack, slots);
        tcp.probe(plan)?;
        Ok(tcp)
    }
}

/// TCP settings of the connections.
pub(crate) fn tcp() -> TcpConfig {
    TcpConfig { time_wait: TIME_WAIT, ..TcpConfig::default() }
}

pub(crate) fn limits() -> ShardLimits {
    ShardLimits {
        time_wait_max: TIME_WAIT_MAX,
        send_capacity: SEND_CAPACITY,
        ephemeral_ports: (*PORTS.start(), *PORTS.end()),
        ..ShardLimits::default()
    }
}

/// Secret of this boot, unknown to other hosts. random(4)
pub(crate) fn key() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = text.chars().filter_map(|digit| digit.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    number.to_be_bytes()
}

impl<D: Device> UserTcp<D> {
    pub(crate) fn new(mut netstack: Netstack<D>, slots: u32) -> UserTcp<D> {
        // Sleep precisely, as for epoll. PR_SET_TIMERSLACK(2const)
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        // Start its timers now.
        netstack.shard().expire(now());
        UserTcp { netstack, slots: Slots::new(slots), owners: Vec::new(), shown: Vec::new() }
    }

    /// Begins to connect to `to`, from `from` or an address that the netstack picks.
    pub(crate) fn open(
        &mut self,
        slot: u32,
        to: SocketAddr,
        from: Option<IpAddr>,
        is_chatty: bool,
    ) -> Result<(), Errno> {
        let entry = &mut self.slots[slot];
        assert!(entry.state.flow.is_none(), "slot {slot} is in use");
        let flow = match from {
            Some(from) => self.netstack.connect_from_address(now(), from, to),
            None => self.netstack.connect(now(), to),
        };
        let flow = flow.map_err(errno_of_connect)?;
        self.netstack.shard().set_nodelay(flow, is_chatty);
        if self.owners.len() <= flow.index() {
            self.owners.resize(flow.index() + 1, 0);
        }
        self.owners[flow.index()] = slot;
        entry.state.flow = Some(flow);
        entry.is_connecting = true;
        Ok(())
    }

    pub(crate) fn input(&mut self, slot: u32, length: usize) -> &[u8] {
        let flow = self.slots[slot].state.flow;
        let (front, _) = flow.map_or((&[][..], &[][..]), |flow| self.netstack.shard().peek(flow));
        &front[..length]
    }

    /// Closes as the kernel does: sent bytes still arrive; unread input makes it a reset.
    pub(crate) fn close(&mut self, slot: u32) {
        self.drop_shown(slot);
        if let Some(flow) = self.slots.close(slot).flow {
            self.netstack.shard().close(now(), flow);
        }
    }

    pub(crate) fn submit_and_wait(
        &mut self,
        wait: Duration,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        while let Some(slot) = self.shown.pop() {
            self.drop_shown(slot);
        }
        self.write_dirty();
        self.netstack.transmit(now(), &())?;
        self.receive_ready();
        let frames = self.netstack.receive(now())?;
        if frames == 0 && !self.slots.has_ended() && !wait.is_zero() {
            self.sleep(wait)?;
            self.netstack.receive(now())?;
        }
        self.note_events();
        self.receive_ready();
        self.slots.take_ended(completions);
        Ok(())
    }

    fn drop_shown(&mut self, slot: u32) {
        let state = &mut self.slots[slot].state;
        let bytes = std::mem::take(&mut state.shown_bytes);
        if let (Some(flow), 1..) = (state.flow, bytes) {
            self.netstack.shard().consume(flow, bytes);
        }
    }

    fn write_dirty(&mut self) {
        while let Some(slot) = self.slots.next_dirty() {
            let entry = &mut self.slots[slot];
            if let Some(flow) = entry.state.flow {
                let taken = self.netstack.shard().write(flow, entry.unsent());
                entry.advance(taken);
            }
        }
    }

    /// Sleeps until a frame, a timer or the timeout.
    fn sleep(&mut self, wait: Duration) -> io::Result<()> {
        let wait = wait.min(self.netstack.wakes_at().since(now()));
        let timeout =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
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
        while let Some((flow, events)) = self.netstack.shard().next_event() {
            let slot = self.owners[flow.index()];
            let is_open = events.contains(TcpEvents::CONNECTED);
            let has_begun = is_open || events.contains(TcpEvents::ENDED);
            if has_begun && std::mem::take(&mut self.slots[slot].is_connecting) {
                let end = self.netstack.shard().end(flow).filter(|_| !is_open);
                let result = end.map_or(0, result_of_end);
                self.slots.end(slot, CompletionKind::Connected, result);
            }
            self.slots.set_writable(slot);
            self.slots.set_readable(slot);
        }
    }

    fn receive_ready(&mut self) {
        while let Some(slot) = self.slots.next_ready() {
            let entry = &mut self.slots[slot];
            let Some(flow) = entry.state.flow else {
                continue;
            };
            let shard = self.netstack.shard();
            let (front, back) = shard.peek(flow);
            let front = front.len();
            let back = back.len();
            let result = match entry.receive {
                Receive::None => continue,
                _ if front == 0 => match result_at_end(shard, flow) {
                    Some(result) => result,
                    None => {
                        entry.is_readable = false;
                        continue;
                    }
                },
                Receive::Read => {
                    entry.state.shown_bytes = front;
                    self.shown.push(slot);
                    front as i32
                }
                Receive::Discard(bytes) => {
                    let here = (front + back).min(DISCARD_BYTES);
                    let dropped = bytes.min(here as u64) as usize;
                    shard.consume(flow, dropped);
                    dropped as i32
                }
            };
            entry.receive = Receive::None;
            self.slots.end(slot, CompletionKind::Received, result);
        }
    }

    /// Opens one connection to each target, so that a run without a server ends with an error and
    /// not with counters.
    pub(crate) fn probe(&mut self, plan: &Plan) -> Result<(), LoadError> {
        for target in plan.targets.iter().filter_map(LoadTarget::address) {
            let timeout = plan.connect_timeout;
            let probed = self.stream(target, timeout, timeout).map(|_| ());
            probed.map_err(|error| {
                let error = match error.kind() {
                    io::ErrorKind::TimedOut => io::Error::other("no answer (is the link up?)"),
                    _ => error,
                };
                LoadError::unreachable(&target.into(), &error)
            })?;
        }
        Ok(())
    }

    /// Opens a blocking connection in the first slot, for work before the run. A read or write
    /// fails after `wait`.
    pub(crate) fn stream(
        &mut self,
        to: SocketAddr,
        connect_timeout: Duration,
        wait: Duration,
    ) -> io::Result<Stream<'_, D>> {
        self.open(STREAM_SLOT, to, None, true)?;
        let mut stream = Stream { tcp: self, timeout: connect_timeout };
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
    /// Closes the connections, since no kernel does it later.
    fn drop(&mut self) {
        let slots = self.slots.iter();
        let open: Vec<_> = slots.filter_map(|(slot, it)| Some((slot, it.state.flow?))).collect();
        for &(slot, _) in &open {
            self.close(slot);
        }
        let until = now() + FAREWELL_TIMEOUT;
        while self.netstack.shard().flows_len() > 0 && now() < until {
            if self.submit_and_wait(until.since(now()), &mut Vec::new()).is_err() {
                return;
            }
        }
        for (_, flow) in open {
            self.netstack.shard().abort(flow);
        }
        // The device may be gone; then nothing can be sent.
        let _ = self.netstack.transmit(now(), &());
    }
}

/// See [`UserTcp::stream`].
pub(crate) struct Stream<'s, D: Device> {
    tcp: &'s mut UserTcp<D>,
    timeout: Duration,
}

const STREAM_SLOT: u32 = 0;

impl<D: Device> Stream<'_, D> {
    /// Iterates until there is a result.
    fn until<T>(
        &mut self,
        mut result: impl FnMut(&mut stack::Shard, FlowId) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let flow = self.tcp.slots[STREAM_SLOT].state.flow;
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
            self.tcp.submit_and_wait(left, &mut Vec::new())?;
        }
    }
}

impl<D: Device> Read for Stream<'_, D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.until(|shard, flow| match shard.read(flow, buffer) {
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
        self.tcp.close(STREAM_SLOT);
    }
}

/// Result of a receive without bytes: 0 if the peer has closed, or an error; `None` if more may
/// come.
fn result_at_end(shard: &stack::Shard, flow: FlowId) -> Option<i32> {
    let machine = shard.connection(flow)?;
    match machine.end() {
        Some(end) => Some(result_of_end(end)),
        None => machine.is_peer_closed().then_some(0),
    }
}

/// Result of the system call in the kernel.
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
