//! One shard: all connections of one core, and their shared state. Shards share nothing.
//!
//! ```text
//!            expire(now)           receive(now, addresses, segment)         transmit(now, …)
//!                │                          │                                   │
//!   [wheel] ─────┤      [table] four-tuple ─┤                   [send queue] ───┤
//!                ▼                          ▼                                   ▼
//!           ┌──────────────────── slab of flows ──────────────────────┐   segments, and which
//!           │ Connection │ receive ring │ send ring (of those that     │   bytes follow them
//!           │            │              │ write by copying)            │
//!           └─────────────────────────────────────────────────────────┘
//!                │                                     │
//!         next_event() ──▶ the application      [TIME-WAIT] names without flows
//! ```
//!
//! A round of the loop that owns it: timers, a burst of arrivals, the application's reaction to the
//! events, a burst of departures. Events are values that the caller takes; the shard calls only the
//! [`Writer`] of the leaving bytes.
//!
//! Packets cause no allocation: slab, table, queues and rings grow with the highest number of
//! connections so far, and do not shrink.
//!
//! # Limits
//!
//! | limit | what happens at it | counter |
//! |---|---|---|
//! | [`ShardLimits::flows_max`] | a SYN is dropped; `connect` fails | `flows_refused` |
//! | [`ShardLimits::time_wait_max`] | the oldest name goes early | `time_wait_evicted` |
//! | [`TcpConfig::fin_wait_2_timeout`] | a connection without an owner is forgotten | `fin_wait_2_timeouts` |
//! | [`ShardLimits::send_memory_max`] | a write takes less than would otherwise fit | `writes_cut_short` |
//! | [`ShardLimits::receive_memory_max`] | data in order makes other connections drop data out of order; failing that, a segment that needs more than a short ring is dropped | `out_of_order_given_up`, `receive_memory_refused` |
//! | [`ShardLimits::replies_max`] | a RST or ACK without a flow is not sent | `replies_dropped` |
//! | [`Backlog::syn_queue_max`] | a SYN is answered with a cookie | `cookies_sent` |
//! | [`Backlog::accept_queue_max`] | SYNs and last ACKs of handshakes are dropped | `accept_overflows` |

mod arrivals;
mod departures;
pub mod frames;
pub mod listener;
mod table;
mod time_wait;
pub mod wheel;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slab::Slab;

use crate::tcp::secret::FourTuple;
use crate::tcp::{
    Connection, End, Outgoing, ReceiveBuffer, RingPool, Secret, SendBuffer, TcpConfig, TcpCounters,
    TcpEvents, TcpState,
};
use crate::time::Instant;
use crate::wire::DSCP_MAX;
use listener::Listeners;
use table::FlowTable;
use time_wait::TimeWait;
use wheel::TimerWheel;

pub use departures::{Departure, Pieces, Writer};
pub use listener::Backlog;

/// Identifier of a connection for the application. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    index: u32,
    serial: u32,
}

impl FlowId {
    /// A small number that no other connection of the shard has at the same time: an index for
    /// tables of the application.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Limits of a shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// Connections, open and half open.
    pub flows_max: usize,
    /// Names in TIME-WAIT.
    pub time_wait_max: usize,
    /// Queued answers to segments that belong to no connection.
    pub replies_max: usize,
    /// Segments that one connection sends before the next has its turn.
    pub turn_segments_max: usize,
    /// Bytes that a connection takes from an application that writes by copying.
    pub send_capacity: usize,
    /// Memory for copied bytes that are not acknowledged, of all connections together. From half of
    /// it on a connection gets less than `send_capacity`, and beyond it
    /// [`SHARE_LEN_MIN`](crate::tcp::buffer::SHARE_LEN_MIN).
    pub send_memory_max: usize,
    /// Memory for received bytes that were not read, of all connections together. Beyond it data
    /// out of order is dropped in favour of data in order, and then each connection has a short
    /// ring: [`RING_LEN_MIN`](crate::tcp::buffer::RING_LEN_MIN).
    pub receive_memory_max: usize,
    /// Port range of active opens. RFC 6335 6
    pub ephemeral_ports: (u16, u16),
}

impl Default for ShardLimits {
    fn default() -> ShardLimits {
        ShardLimits {
            flows_max: 1 << 20,
            time_wait_max: 1 << 16,
            replies_max: 256,
            turn_segments_max: 16,
            send_capacity: 256 << 10,
            send_memory_max: 256 << 20,
            receive_memory_max: 256 << 20,
            ephemeral_ports: (49_152, 65_535),
        }
    }
}

/// Counters of a shard; [`ShardCounters::tcp`] is the sum over flows that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ShardCounters {
    pub opened_passively: u64,
    pub flows_refused: u64,
    pub accept_overflows: u64,
    pub cookies_sent: u64,
    pub cookies_accepted: u64,
    pub resets_sent: u64,
    pub replies_dropped: u64,
    pub time_wait_evicted: u64,
    pub time_wait_reused: u64,
    pub fin_wait_2_timeouts: u64,
    pub receive_memory_refused: u64,
    pub out_of_order_given_up: u64,
    pub writes_cut_short: u64,
    pub tcp: TcpCounters,
}

/// Reason why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// [`ShardLimits::flows_max`].
    TooMany,
    /// All ports to this peer are in use.
    NoPort,
    /// The connection exists already.
    InUse,
    /// No route to the peer: no gateway leads there, or no own address fits.
    NoAddress,
    /// The host has several shards, and the peer's answers could come to any of them: over AF_XDP,
    /// and over TAP without `CAP_BPF`.
    NotAlone,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectError::TooMany => "too many connections",
            ConnectError::NoPort => "no free port to this peer",
            ConnectError::InUse => "a connection of these addresses and ports exists",
            ConnectError::NoAddress => "no way to the peer",
            ConnectError::NotAlone => {
                "the host has several shards, and the answer could come to any of them: open it \
                 with one"
            }
        })
    }
}

impl std::error::Error for ConnectError {}

/// One shard.
#[derive(Debug)]
pub struct Shard {
    configs: Configs,
    limits: ShardLimits,
    secret: Keyed,
    flows: Slab<Flow>,
    table: FlowTable,
    wheel: TimerWheel,
    time_wait: TimeWait,
    listeners: Listeners,
    /// Flows that may have something to send, once each.
    send_queue: VecDeque<u32>,
    /// Flows with events that were not taken, once each.
    event_queue: VecDeque<u32>,
    /// Flows that hold data out of order, once each, the oldest first; and some that did.
    hole_queue: VecDeque<FlowId>,
    replies: VecDeque<(FourTuple, Outgoing)>,
    /// Peers that recently stopped answering: [`Shard::next_silent`].
    silent: VecDeque<IpAddr>,
    send_rings: RingPool,
    receive_rings: RingPool,
    serial: u32,
    next_port: u32,
    /// Longest payload that the device cuts for flows that may send long ones.
    long_len_max: u32,
    counters: ShardCounters,
}

/// Initial settings of connections, over IPv4 and over IPv6.
#[derive(Debug)]
struct Configs {
    v4: TcpConfig,
    v6: TcpConfig,
}

impl Configs {
    fn of(&self, tuple: &FourTuple) -> &TcpConfig {
        match tuple.remote {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        }
    }
}

/// The secret, which must not be printed.
struct Keyed(Secret);

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[derive(Debug)]
struct Flow {
    connection: Connection,
    tuple: FourTuple,
    receive: ReceiveBuffer,
    send: SendBuffer,
    serial: u32,
    /// Port of the listener at which it is half open or waits for accept.
    waits_at: Option<u16>,
    events: TcpEvents,
    /// Class of service. RFC 2474
    dscp: u8,
    /// True if the device cuts longer payloads for it: [`Shard::long_len_max`].
    is_long: bool,
    /// True if the application owns it, or will.
    is_owned: bool,
    /// True if its four-tuple belongs to another flow by now, or to TIME-WAIT.
    is_unhashed: bool,
    is_in_send_queue: bool,
    is_in_event_queue: bool,
    /// The flow is in the queue of those with bytes out of order.
    is_in_hole_queue: bool,
}

/// Limit of silent peers not yet taken; more are left out.
const SILENT_MAX: usize = 64;

/// Flag of the table's numbers: set for names in TIME-WAIT, clear for flows by index.
const IN_TIME_WAIT: u32 = 1 << 31;

impl Shard {
    /// `key` is drawn from a random source; with the same key, a run repeats itself.
    pub fn new(config: TcpConfig, limits: ShardLimits, key: [u8; 16]) -> Shard {
        Shard::new_dual(config, config, limits, key)
    }

    /// Makes a shard as [`Shard::new`], with settings for IPv4 and for IPv6, whose segments differ.
    ///
    /// # Panics
    ///
    /// If they differ in how much a connection holds.
    pub fn new_dual(v4: TcpConfig, v6: TcpConfig, limits: ShardLimits, key: [u8; 16]) -> Shard {
        assert_eq!(v4.receive_limit(), v6.receive_limit(), "one pool of rings");
        Shard {
            configs: Configs { v4, v6 },
            limits,
            secret: Keyed(Secret::new(key)),
            flows: Slab::new(),
            table: FlowTable::new(),
            wheel: TimerWheel::default(),
            time_wait: TimeWait::new(),
            listeners: Listeners::default(),
            send_queue: VecDeque::new(),
            event_queue: VecDeque::new(),
            hole_queue: VecDeque::new(),
            replies: VecDeque::with_capacity(limits.replies_max),
            silent: VecDeque::with_capacity(SILENT_MAX),
            send_rings: RingPool::new(limits.send_capacity, limits.send_memory_max),
            receive_rings: RingPool::new(v4.receive_limit() as usize, limits.receive_memory_max),
            serial: 0,
            next_port: 0,
            long_len_max: 0,
            counters: ShardCounters::default(),
        }
    }

    /// Listens at `port`. An existing listener stays as it is.
    pub fn listen(&mut self, port: u16, backlog: Backlog) {
        self.listeners.add(port, backlog);
    }

    /// Refuses further handshakes: a SYN is answered with a RST. Handshakes under way complete and
    /// can be accepted.
    pub fn refuse_handshakes(&mut self, port: u16) {
        if let Some(listening) = self.listeners.get_mut(port) {
            listening.refuses_handshakes = true;
        }
    }

    /// Number of connections at `port` that are half open or wait to be accepted.
    pub fn backlog_len(&self, port: u16) -> usize {
        let listening = self.listeners.get(port);
        listening.map_or(0, |listening| listening.half_open + listening.waiting.len())
    }

    /// Stops listening. Half-open connections are forgotten, those waiting for accept reset.
    pub fn unlisten(&mut self, port: u16) {
        self.listeners.remove(port);
        for index in 0..self.flows.capacity() {
            let waits = self.flows.get(index).is_some_and(|flow| flow.waits_at == Some(port));
            if waits {
                self.flows[index].waits_at = None;
                self.flows[index].is_owned = false;
                self.flows[index].connection.abort();
                self.wake(index as u32);
            }
        }
    }

    /// The next connection at `port` whose handshake is complete.
    pub fn accept(&mut self, port: u16) -> Option<FlowId> {
        let index = self.listeners.get_mut(port)?.waiting.pop_front()?;
        let flow = &mut self.flows[index as usize];
        flow.waits_at = None;
        let id = FlowId { index, serial: flow.serial };
        if flow.events != TcpEvents::NOTHING {
            self.announce(index, TcpEvents::NOTHING);
        }
        Some(id)
    }

    /// Opens a connection from a free port. RFC 6056 3.3.3
    ///
    /// # Errors
    ///
    /// [`ConnectError`]
    pub fn connect(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<FlowId, ConnectError> {
        self.connect_from_any(now, local, remote, |_| true)
    }

    /// Connects as [`Shard::connect`], from a port that `may_use` agrees to.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]
    pub fn connect_from_any(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
        may_use: impl Fn(u16) -> bool,
    ) -> Result<FlowId, ConnectError> {
        let tuple =
            FourTuple { local, local_port: 0, remote: remote.ip(), remote_port: remote.port() };
        let (first, last) = self.limits.ephemeral_ports;
        let count = u32::from(last - first) + 1;
        let offset = self.secret.0.port_offset(&tuple);
        for _ in 0..count {
            let step = offset.wrapping_add(self.next_port) % count;
            self.next_port = self.next_port.wrapping_add(1);
            let port = first + step as u16;
            if !may_use(port) {
                continue;
            }
            match self.connect_from(now, port, tuple) {
                Err(ConnectError::InUse) => {}
                other => return other,
            }
        }
        Err(ConnectError::NoPort)
    }

    /// Opens a connection from a port of the caller's choice.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]
    pub fn connect_from(
        &mut self,
        now: Instant,
        local_port: u16,
        tuple: FourTuple,
    ) -> Result<FlowId, ConnectError> {
        let tuple = FourTuple { local_port, ..tuple };
        let hash = self.secret.0.table_hash(&tuple);
        if self.find(hash, &tuple).is_some() {
            return Err(ConnectError::InUse);
        }
        if self.flows.len() >= self.limits.flows_max {
            self.counters.flows_refused += 1;
            return Err(ConnectError::TooMany);
        }
        let iss = self.secret.0.isn(now, &tuple);
        let offset = self.secret.0.timestamp_offset(&tuple);
        let ports = (tuple.local_port, tuple.remote_port);
        let connection = Connection::connect(self.configs.of(&tuple), now, ports, iss, offset);
        let index = self.add(connection, tuple, hash);
        self.flows[index as usize].is_owned = true;
        Ok(self.id_of(index))
    }

    // ---- what the application does with a connection

    /// Copies as much of `bytes` as fits to the send buffer; returns the number of bytes.
    pub fn write(&mut self, id: FlowId, bytes: &[u8]) -> usize {
        let Some(index) = self.index_of(id) else {
            return 0;
        };
        let flow = &mut self.flows[index];
        if flow.connection.is_finished() {
            return 0;
        }
        let taken = flow.send.write(&mut self.send_rings, bytes);
        if taken < bytes.len() && flow.send.is_cut_short(&self.send_rings) {
            self.counters.writes_cut_short += 1;
        }
        flow.connection.queue(taken as u64);
        self.wake(id.index);
        taken
    }

    /// Number of bytes that [`Shard::write`] would take.
    pub fn writable_len(&self, id: FlowId) -> usize {
        self.flow(id).map_or(0, |flow| flow.send.writable_len(&self.send_rings))
    }

    /// Queues `len` more bytes, which the [`Writer`] of [`Shard::transmit`] will supply. A
    /// connection uses either this or [`Shard::write`], not both.
    ///
    /// # Panics
    ///
    /// After [`Shard::finish`].
    pub fn queue(&mut self, id: FlowId, len: u64) {
        if let Some(flow) = self.flow_mut(id) {
            flow.connection.queue(len);
            self.wake(id.index);
        }
    }

    /// Received bytes that were not read, in two pieces if they wrap around the end of a ring.
    pub fn peek(&self, id: FlowId) -> (&[u8], &[u8]) {
        match self.flow(id) {
            Some(flow) => flow.receive.peek(flow.connection.readable_len()),
            None => (&[], &[]),
        }
    }

    /// Drops the first `len` of those bytes.
    pub fn consume(&mut self, id: FlowId, len: usize) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        let flow = &mut self.flows[index];
        flow.connection.read(len);
        flow.receive.consume(len);
        if flow.connection.holds_nothing() {
            flow.receive.release_ring(&mut self.receive_rings);
        }
        self.wake(id.index);
    }

    /// Copies received bytes to `buffer` and returns how many. Zero does not mean the end:
    /// [`Connection::is_peer_closed`].
    pub fn read(&mut self, id: FlowId, buffer: &mut [u8]) -> usize {
        let (front, back) = self.peek(id);
        let front_len = front.len().min(buffer.len());
        buffer[..front_len].copy_from_slice(&front[..front_len]);
        let back_len = back.len().min(buffer.len() - front_len);
        buffer[front_len..front_len + back_len].copy_from_slice(&back[..back_len]);
        let len = front_len + back_len;
        if len > 0 {
            self.consume(id, len);
        }
        len
    }

    /// Half-closes the connection: written bytes are still sent, and nothing after them.
    pub fn finish(&mut self, id: FlowId) {
        if let Some(flow) = self.flow_mut(id) {
            flow.connection.finish();
            self.wake(id.index);
        }
    }

    /// Closes the connection: the application neither writes nor reads nor names it any more.
    /// Written bytes are still sent.
    pub fn close(&mut self, now: Instant, id: FlowId) {
        let fin_wait_2_timeout = self.configs.v4.fin_wait_2_timeout;
        if let Some(index) = self.index_of(id) {
            let flow = &mut self.flows[index];
            flow.is_owned = false;
            flow.connection.finish();
            flow.connection.shut_read(now, now + fin_wait_2_timeout);
            // The network may need the connection for minutes; received bytes are of no use.
            flow.receive.release_ring(&mut self.receive_rings);
            self.wake(id.index);
        }
    }

    /// Ends the connection with a RST.
    pub fn abort(&mut self, id: FlowId) {
        if let Some(flow) = self.flow_mut(id) {
            flow.is_owned = false;
            flow.connection.abort();
            self.wake(id.index);
        }
    }

    /// Sets whether short segments leave at once. RFC 9293 3.7.4
    pub fn set_nodelay(&mut self, id: FlowId, is_nodelay: bool) {
        if let Some(flow) = self.flow_mut(id) {
            flow.connection.set_nodelay(is_nodelay);
            self.wake(id.index);
        }
    }

    /// Switches keep-alive probes on or off. RFC 9293 3.8.4, MUST-24
    pub fn set_keep_alive(&mut self, now: Instant, id: FlowId, is_on: bool) {
        self.set(id, |connection, config| {
            connection.set_keep_alive(config, now, is_on);
        });
    }

    /// Sets the user time-out. RFC 9293 3.8.3, MUST-21
    pub fn set_user_timeout(&mut self, now: Instant, id: FlowId, timeout: Duration) {
        self.set(id, |connection, config| {
            connection.set_user_timeout(config, now, timeout);
        });
    }

    /// Sets the class of service (DSCP) of its segments from now on; zero by default. RFC 9293
    /// 3.9.1.9, MUST-48
    ///
    /// # Panics
    ///
    /// Above [`DSCP_MAX`].
    pub fn set_dscp(&mut self, id: FlowId, dscp: u8) {
        assert!(dscp <= DSCP_MAX, "a DSCP of {dscp}");
        if let Some(flow) = self.flow_mut(id) {
            flow.dscp = dscp;
        }
    }

    fn set(&mut self, id: FlowId, change: impl FnOnce(&mut Connection, &TcpConfig)) {
        if let Some(index) = self.index_of(id) {
            let flow = &mut self.flows[index];
            change(&mut flow.connection, self.configs.of(&flow.tuple));
            self.wake(id.index);
        }
    }

    /// The connection machine, read-only.
    pub fn connection(&self, id: FlowId) -> Option<&Connection> {
        self.flow(id).map(|flow| &flow.connection)
    }

    /// Addresses and ports of a connection.
    pub fn tuple(&self, id: FlowId) -> Option<&FourTuple> {
        self.flow(id).map(|flow| &flow.tuple)
    }

    /// Reason of its end, if the connection has ended.
    pub fn end(&self, id: FlowId) -> Option<End> {
        self.flow(id)?.connection.end()
    }

    // ---- the loop

    /// The next connection with events, and the events.
    pub fn next_event(&mut self) -> Option<(FlowId, TcpEvents)> {
        while let Some(index) = self.event_queue.pop_front() {
            let Some(flow) = self.flows.get_mut(index as usize) else {
                continue;
            };
            flow.is_in_event_queue = false;
            let events = std::mem::take(&mut flow.events);
            if events != TcpEvents::NOTHING && flow.is_owned {
                return Some((self.id_of(index), events));
            }
        }
        None
    }

    /// Does the work that is due by now.
    pub fn expire(&mut self, now: Instant) {
        while let Some((index, expires_at)) = self.time_wait.oldest() {
            if expires_at > now {
                break;
            }
            self.forget(index);
        }
        while let Some(index) = self.wheel.expired(now) {
            let flow = &mut self.flows[index as usize];
            if flow.connection.deadline() <= now {
                let events = flow.connection.expire(self.configs.of(&flow.tuple), now);
                if events.contains(TcpEvents::TROUBLED) && self.silent.len() < SILENT_MAX {
                    self.silent.push_back(flow.tuple.remote);
                }
                // Of all deadlines, only FIN-WAIT-2 without an owner ends a connection as closed.
                let is_closed = flow.connection.end() == Some(End::Closed);
                if events.contains(TcpEvents::ENDED) && is_closed {
                    self.counters.fin_wait_2_timeouts += 1;
                }
                self.announce(index, events);
                self.wake(index);
            } else {
                // The deadline was put off.
                let deadline = flow.connection.deadline();
                self.wheel.arm(index, deadline);
            }
        }
    }

    /// Next peer that [`Shard::expire`] found silent for some time: the route may be the cause. RFC
    /// 9293 3.8.3 (b), RFC 1122 3.3.1.4
    pub fn next_silent(&mut self) -> Option<IpAddr> {
        self.silent.pop_front()
    }

    /// Time of the next call of [`Shard::expire`].
    pub fn wakes_at(&self) -> Instant {
        let names = self.time_wait.oldest();
        let names = names.map_or(Instant::NEVER, |(_, expires_at)| expires_at);
        self.wheel.wakes_at().min(names)
    }

    /// Connections, open and half open.
    pub fn flows_len(&self) -> usize {
        self.flows.len()
    }

    /// True if some connection still has its FIN to send, or its peer has not acknowledged it.
    pub fn has_unacknowledged_ends(&self) -> bool {
        self.flows.iter().any(|(_, flow)| {
            let connection = &flow.connection;
            connection.is_finished() && connection.state().is_sending()
        })
    }

    /// Names in TIME-WAIT.
    pub fn time_wait_len(&self) -> usize {
        self.time_wait.len()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &ShardCounters {
        &self.counters
    }

    // ---- shared by the modules

    fn id_of(&self, index: u32) -> FlowId {
        FlowId { index, serial: self.flows[index as usize].serial }
    }

    fn flow(&self, id: FlowId) -> Option<&Flow> {
        let flow = self.flows.get(id.index as usize)?;
        (flow.serial == id.serial).then_some(flow)
    }

    fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let index = self.index_of(id)?;
        self.flows.get_mut(index)
    }

    fn index_of(&self, id: FlowId) -> Option<usize> {
        self.flow(id).map(|_| id.index as usize)
    }

    fn find(&self, hash: u64, tuple: &FourTuple) -> Option<u32> {
        self.table.find(hash, |what| match what & IN_TIME_WAIT {
            0 => self.flows[what as usize].tuple == *tuple,
            _ => self.time_wait.get(what & !IN_TIME_WAIT).tuple == *tuple,
        })
    }

    fn add(&mut self, connection: Connection, tuple: FourTuple, hash: u64) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let index = self.flows.insert(Flow {
            connection,
            tuple,
            receive: ReceiveBuffer::default(),
            send: SendBuffer::default(),
            serial: self.serial,
            waits_at: None,
            events: TcpEvents::NOTHING,
            dscp: 0,
            is_long: false,
            is_owned: false,
            is_unhashed: false,
            is_in_send_queue: false,
            is_in_event_queue: false,
            is_in_hole_queue: false,
        }) as u32;
        self.table.insert(hash, index);
        self.wake(index);
        index
    }

    /// Queues the flow for transmission, and arms its deadline again.
    fn wake(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !flow.is_in_send_queue {
            flow.is_in_send_queue = true;
            self.send_queue.push_back(index);
        }
    }

    fn announce(&mut self, index: u32, events: TcpEvents) {
        let flow = &mut self.flows[index as usize];
        flow.events |= events;
        let is_wanted = flow.is_owned && flow.waits_at.is_none();
        if is_wanted && flow.events != TcpEvents::NOTHING && !flow.is_in_event_queue {
            flow.is_in_event_queue = true;
            self.event_queue.push_back(index);
        }
    }

    /// Frees the flow's four-tuple for others.
    fn unhash(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !flow.is_unhashed {
            flow.is_unhashed = true;
            let hash = self.secret.0.table_hash(&flow.tuple);
            self.table.remove(hash, index);
        }
    }

    /// Frees the flow if neither the network nor the application needs it.
    fn free_if_done(&mut self, index: u32) {
        let flow = &self.flows[index as usize];
        let is_over = flow.connection.is_done() || flow.connection.state() == TcpState::TimeWait;
        if !is_over {
            return;
        }
        self.unhash(index);
        self.leave_listener(index);
        if self.flows[index as usize].is_owned {
            return;
        }
        self.wheel.disarm(index);
        let mut flow = self.flows.remove(index as usize);
        flow.receive.release_ring(&mut self.receive_rings);
        flow.send.release(&mut self.send_rings, u64::MAX);
        self.counters.tcp.add(flow.connection.counters());
    }

    /// Ends the wait of a four-tuple in TIME-WAIT.
    fn forget(&mut self, entry: u32) {
        let tuple = self.time_wait.get(entry).tuple;
        let hash = self.secret.0.table_hash(&tuple);
        self.table.remove(hash, entry | IN_TIME_WAIT);
        self.time_wait.remove(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: 1,049 bytes for each of 100,000 connections. Cause: each had the hash, the send
    /// buffer's capacity and the initial window, which follow from other values. Cure: 32 bytes
    /// less.
    #[test]
    fn idle_connections_take_under_a_kibibyte() {
        // The slab's entry; two slots of the table, since it is half full; its timer and its places
        // in the two queues. The first pieces of the scoreboard, which the SYN needs, take the
        // rest. Rings have no memory before something is written.
        let entry = size_of::<Flow>() + 8;
        let (table, timer, queues) = (2 * 2 * 8, 24, 2 * 2 * 4);
        let sum = entry + table + timer + queues;
        assert!(sum <= 960, "{sum} bytes, of which {entry} for the flow");
    }
}
