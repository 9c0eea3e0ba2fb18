//! World of a script: one shard, and peers that do as the script says.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netstack::stack::{Backlog, FlowId, Shard, ShardLimits};
use netstack::tcp::secret::FourTuple;
use netstack::tcp::{CongestionControl, Connection, KeepAlive, TcpConfig, TcpEvents};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::tcp::{Flags, SackBlock, SackBlocks, Segment, SeqNumber, TcpOptions};

use super::line::{Line, Pattern, What, duration, number};

const PORT: u16 = 80;

/// The port of the first peer; the others have the next ones.
const PEER_PORT: u16 = 10_000;

/// Limit on segments between two lines that no line expects: more is a loop.
const SEGMENTS_MAX: usize = 10_000;

pub(crate) struct World {
    /// The shard's address, and that of all peers.
    local: IpAddr,
    remote: IpAddr,
    config: TcpConfig,
    limits: ShardLimits,
    backlog: Backlog,
    shard: Option<Shard>,
    now: Instant,
    /// Sent by the shard, not yet expected.
    sent: VecDeque<Sent>,
    peers: BTreeMap<u16, Peer>,
    peer: u16,
    /// The port that the current peer sends to.
    to: u16,
    peer_iss: u32,
    events: TcpEvents,
    trace: Vec<String>,
}

struct Sent {
    peer: u16,
    segment: Segment<'static>,
    len: u32,
    ecn: Ecn,
    /// The first byte of the payload that is not the pattern's.
    wrong_at: Option<usize>,
}

/// One peer's view: everything is relative to it.
#[derive(Default)]
struct Peer {
    iss: u32,
    /// Initial sequence number of the shard, known from its first segment.
    irs: Option<u32>,
    /// The one before, if the name was used before.
    irs_before: Option<u32>,
    clock_offset: Option<u32>,
    local_port: u16,
    flow: Option<FlowId>,
    read: u64,
    written: u64,
}

/// Byte `offset` of either stream.
fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8 ^ offset as u8
}

fn bytes(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(pattern).collect()
}

impl World {
    pub(crate) fn new((local, remote): (IpAddr, IpAddr)) -> World {
        World {
            local,
            remote,
            config: TcpConfig {
                mss: 1000,
                quick_acks: 0,
                receive_capacity_max: 0,
                has_ecn: false,
                congestion: CongestionControl::NewReno,
                ..TcpConfig::default()
            },
            limits: ShardLimits::default(),
            backlog: Backlog::default(),
            shard: None,
            now: Instant::START,
            sent: VecDeque::new(),
            peers: BTreeMap::new(),
            peer: PEER_PORT,
            to: PORT,
            peer_iss: 1_000_000,
            events: TcpEvents::NOTHING,
            trace: Vec::new(),
        }
    }

    /// IP version of this run.
    pub(crate) fn family(&self) -> &'static str {
        match self.remote {
            IpAddr::V4(_) => "IPv4",
            IpAddr::V6(_) => "IPv6",
        }
    }

    /// The latest lines of the trace.
    pub(crate) fn trace(&self) -> &[String] {
        &self.trace[self.trace.len().saturating_sub(25)..]
    }

    pub(crate) fn step(&mut self, line: &Line) -> Result<(), String> {
        if !line.after.is_zero() {
            self.nothing_is_left()?;
            self.pass(line.after)?;
        }
        match &line.what {
            What::Nothing => Ok(()),
            What::Expect(expected) => self.expect(expected),
            What::Send(pattern) => {
                self.nothing_is_left()?;
                self.send(pattern);
                self.transmit()
            }
            What::SendMore(pattern) => {
                self.nothing_is_left()?;
                self.send(pattern);
                Ok(())
            }
            What::Command(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                if words[0] == "config" {
                    return self.configure(&words[1..]);
                }
                self.command(&words)?;
                self.transmit()
            }
        }
    }

    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.nothing_is_left()
    }

    // ---- time

    /// Segments that leave meanwhile must leave at the end: the following lines expect them there.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now + time;
        while self.shard().wakes_at() <= until {
            self.now = self.now.max(self.shard().wakes_at());
            let now = self.now;
            self.shard_mut().expire(now);
            self.transmit()?;
            if self.now < until {
                self.nothing_is_left()?;
            }
        }
        self.now = until;
        Ok(())
    }

    fn nothing_is_left(&self) -> Result<(), String> {
        match self.sent.front() {
            None => Ok(()),
            Some(sent) => Err(format!(
                "at {}: the script does not expect  > {}",
                self.clock(),
                self.describe(sent)
            )),
        }
    }

    fn clock(&self) -> String {
        format!("{:.3} ms", self.now.as_nanos() as f64 / 1e6)
    }

    // ---- segments

    fn shard(&self) -> &Shard {
        self.shard.as_ref().expect("listen or connect comes first")
    }

    fn shard_mut(&mut self) -> &mut Shard {
        let config = self.config;
        let limits = self.limits;
        let shard = &mut self.shard;
        shard.get_or_insert_with(|| Shard::new(config, limits, *b"a secret of ours"))
    }

    fn peer(&mut self) -> &mut Peer {
        let iss = self.peer_iss;
        let to = self.to;
        self.peers.entry(self.peer).or_insert_with(|| Peer {
            iss,
            local_port: to,
            ..Peer::default()
        })
    }

    fn send(&mut self, pattern: &Pattern) {
        let (now, local, remote) = (self.now, self.local, self.remote);
        let src_port = self.peer;
        let peer = self.peer();
        let irs = peer.irs.unwrap_or(0);
        let mut sacks = SackBlocks::NONE;
        for &(left, right) in &pattern.sacks {
            sacks.push(SackBlock { left: SeqNumber(irs) + left, right: SeqNumber(irs) + right });
        }
        let offset = peer.clock_offset.unwrap_or(0);
        let stamps = pattern.timestamps;
        let stamps = stamps.map(|(value, echo)| (value, echo.wrapping_add(offset)));
        let text_at = u64::from(pattern.seq).saturating_sub(1);
        let payload = bytes(text_at, pattern.len as usize);
        let segment = Segment {
            src_port,
            dst_port: peer.local_port,
            seq: SeqNumber(peer.iss) + pattern.seq,
            ack: pattern.ack.map(|ack| SeqNumber(irs) + ack),
            flags: pattern.flags,
            window: pattern.window.unwrap_or(0),
            urgent: pattern.urgent,
            options: TcpOptions {
                mss: pattern.mss,
                window_scale: pattern.scale,
                sack_permitted: pattern.sack_permitted == Some(true),
                sacks,
                timestamps: stamps,
                ..TcpOptions::NONE
            },
            payload: &payload,
        };
        let line = format!("{}  < {:?}", self.clock(), Brief(pattern));
        self.trace.push(line);
        let ecn = pattern.ecn.unwrap_or_default();
        let shard = self.shard_mut();
        shard.receive(now, local, remote, &segment, ecn);
    }

    /// Compares the shard's segments with the script.
    fn transmit(&mut self) -> Result<(), String> {
        let now = self.now;
        let mut sent = Vec::new();
        let Some(shard) = &mut self.shard else {
            return Ok(());
        };
        while shard.has_to_transmit() && sent.len() < SEGMENTS_MAX {
            shard.transmit(now, 0, &(), |departure| {
                let payload = departure.pieces.as_slice().concat();
                let port = departure.tuple.remote_port;
                sent.push((port, *departure.segment, payload, departure.ecn));
                true
            });
        }
        if sent.len() >= SEGMENTS_MAX {
            return Err(format!("{SEGMENTS_MAX} segments at once"));
        }
        for (port, segment, payload, ecn) in sent {
            let peer = self.peers.entry(port).or_default();
            if segment.flags.contains(Flags::SYN) {
                let irs = Some(segment.seq.0);
                if peer.irs != irs {
                    peer.irs_before = std::mem::replace(&mut peer.irs, irs);
                }
                peer.local_port = segment.src_port;
            }
            if let (None, Some((value, _))) = (peer.clock_offset, segment.options.timestamps) {
                peer.clock_offset = Some(value.wrapping_sub(now.as_millis() as u32));
            }
            let relative = segment.seq.0.wrapping_sub(peer.irs.unwrap_or(0));
            let expected = bytes(u64::from(relative).saturating_sub(1), payload.len());
            let wrong_at = (0..payload.len()).find(|&at| payload[at] != expected[at]);
            let sent = Sent { peer: port, segment, len: payload.len() as u32, ecn, wrong_at };
            let line = format!("{}  > {}", self.clock(), self.describe(&sent));
            self.trace.push(line);
            self.sent.push_back(sent);
        }
        while let Some((id, events)) = self.shard_mut().next_event() {
            let peer = self.shard().tuple(id).expect("a flow").remote_port;
            self.peers.entry(peer).or_default().flow = Some(id);
            self.events |= events;
        }
        Ok(())
    }

    fn relative(&self, sent: &Sent) -> Pattern {
        let none = Peer::default();
        let peer = self.peers.get(&sent.peer).unwrap_or(&none);
        let segment = &sent.segment;
        let irs = peer.irs.unwrap_or(0);
        let ours = |seq: SeqNumber| seq.0.wrapping_sub(irs);
        let theirs = |seq: SeqNumber| seq.0.wrapping_sub(peer.iss);
        let offset = peer.clock_offset.unwrap_or(0);
        let blocks = segment.options.sacks;
        let blocks = blocks.as_slice().iter();
        Pattern {
            flags: segment.flags,
            has_ack: segment.ack.is_some(),
            seq: ours(segment.seq),
            len: sent.len,
            ack: segment.ack.map(theirs),
            window: Some(segment.window),
            mss: segment.options.mss,
            scale: segment.options.window_scale,
            sack_permitted: Some(segment.options.sack_permitted),
            timestamps: (segment.options.timestamps)
                .map(|(value, echo)| (value.wrapping_sub(offset), echo)),
            sacks: blocks.map(|block| (theirs(block.left), theirs(block.right))).collect(),
            urgent: 0,
            has_no_options: segment.options.is_empty(),
            ecn: Some(sent.ecn),
        }
    }

    fn describe(&self, sent: &Sent) -> String {
        let from = if sent.peer == self.peer {
            String::new()
        } else {
            format!("   (to peer {})", sent.peer - PEER_PORT)
        };
        format!("{:?}{from}", Brief(&self.relative(sent)))
    }

    fn expect(&mut self, expected: &Pattern) -> Result<(), String> {
        let Some(sent) = self.sent.pop_front() else {
            return Err(format!("nothing was sent at {}", self.clock()));
        };
        let got = self.relative(&sent);
        let described = self.describe(&sent);
        if sent.peer != self.peer {
            return Err(format!("in its place came  > {described}"));
        }
        let mut compared = got.clone();
        compared.window = expected.window.and(got.window);
        compared.mss = expected.mss.and(got.mss);
        compared.scale = expected.scale.and(got.scale);
        compared.sack_permitted = expected.sack_permitted.and(got.sack_permitted);
        compared.timestamps = expected.timestamps.and(got.timestamps);
        compared.ecn = expected.ecn.and(got.ecn);
        compared.has_no_options &= expected.has_no_options;
        let is_reset_without_peer = got.flags.contains(Flags::RST) && expected.seq != got.seq;
        if compared != *expected && !(is_reset_without_peer && self.is_own_number(expected, &sent))
        {
            return Err(format!("in its place came  > {described}"));
        }
        if let Some(at) = sent.wrong_at {
            return Err(format!("byte {at} of the payload differs"));
        }
        Ok(())
    }

    /// A RST for an unknown connection has the number that the peer gave.
    fn is_own_number(&self, expected: &Pattern, sent: &Sent) -> bool {
        sent.segment.seq.0 == expected.seq
    }

    // ---- commands

    fn configure(&mut self, words: &[&str]) -> Result<(), String> {
        if self.shard.is_some() {
            return Err("config comes before anything else".to_owned());
        }
        let config = &mut self.config;
        let value = words.get(1).copied();
        let is_on = value == Some("on");
        let time = || duration(value.unwrap_or_default());
        match words[0] {
            "ecn" => config.has_ecn = is_on,
            "sack" => config.has_sack = is_on,
            "timestamps" => config.has_timestamps = is_on,
            "scale" => config.has_window_scale = is_on,
            "nagle" => config.has_nagle = is_on,
            "mss" => config.mss = number(value, "mss")?,
            "capacity_max" => config.receive_capacity_max = number(value, "capacity_max")?,
            "capacity" => config.receive_capacity = number(value, "capacity")?,
            "quick_acks" => config.quick_acks = number(value, "quick_acks")?,
            "initial_window" => config.initial_window_segments = number(value, "segments")?,
            "challenge_acks" => config.challenge_acks_max = number(value, "challenge_acks")?,
            "congestion" if value == Some("cubic") => config.congestion = CongestionControl::Cubic,
            "congestion" => config.congestion = CongestionControl::NewReno,
            "ack_delay" => config.ack_delay = time()?,
            "user_timeout" => config.user_timeout = time()?,
            "connect_timeout" => config.connect_timeout = time()?,
            "accept_timeout" => config.accept_timeout = time()?,
            "fin_wait_2_timeout" => config.fin_wait_2_timeout = time()?,
            "time_wait" => config.time_wait = time()?,
            "rto_min" => config.rto.min = time()?,
            "keep_alive" => {
                config.keep_alive = Some(KeepAlive {
                    idle: time()?,
                    interval: duration(words.get(2).copied().unwrap_or_default())?,
                    probes_max: number(words.get(3).copied(), "probes")?,
                });
            }
            "syn_queue" => self.backlog.syn_queue_max = number(value, "syn_queue")?,
            "accept_queue" => self.backlog.accept_queue_max = number(value, "accept_queue")?,
            "time_wait_max" => self.limits.time_wait_max = number(value, "time_wait_max")?,
            "flows_max" => self.limits.flows_max = number(value, "flows_max")?,
            "peer_iss" => self.peer_iss = number(value, "peer_iss")?,
            "receive_memory" => self.limits.receive_memory_max = number(value, "receive_memory")?,
            "send_capacity" => self.limits.send_capacity = number(value, "send_capacity")?,
            other => return Err(format!("there is no setting {other}")),
        }
        Ok(())
    }

    fn command(&mut self, words: &[&str]) -> Result<(), String> {
        let value = words.get(1).copied();
        let now = self.now;
        match words[0] {
            "listen" => {
                let port = self.to;
                let backlog = self.backlog;
                self.shard_mut().listen(port, backlog);
            }
            "unlisten" => self.shard_mut().unlisten(PORT),
            "connect" => self.connect(value)?,
            "peer" => {
                let which: u16 = number(value, "peer")?;
                self.peer = PEER_PORT + which;
            }
            "to" => self.to = number(value, "to")?,
            "accept" => {
                let id = self.shard_mut().accept(PORT).ok_or("there is nothing to accept")?;
                let port = self.shard().tuple(id).expect("a flow").remote_port;
                self.peers.entry(port).or_default().flow = Some(id);
            }
            "write" => {
                let len: usize = number(value, "write")?;
                let id = self.flow()?;
                let from = self.peer().written;
                let taken = self.shard_mut().write(id, &bytes(from, len));
                self.peer().written += taken as u64;
                if taken != len {
                    return Err(format!("{taken} of {len} bytes were taken"));
                }
            }
            "read" => self.read(value)?,
            "finish" => {
                let id = self.flow()?;
                self.shard_mut().finish(id);
            }
            "close" => {
                let id = self.flow()?;
                self.shard_mut().close(now, id);
            }
            "abort" => {
                let id = self.flow()?;
                self.shard_mut().abort(id);
            }
            "nodelay" => {
                let id = self.flow()?;
                self.shard_mut().set_nodelay(id, true);
            }
            "keepalive" => {
                let id = self.flow()?;
                self.shard_mut().set_keep_alive(now, id, value == Some("on"));
            }
            "user_timeout" => {
                let id = self.flow()?;
                let timeout = duration(value.unwrap_or_default())?;
                self.shard_mut().set_user_timeout(now, id, timeout);
            }
            "toobig" | "unreachable" => self.icmp(words)?,
            _ => return self.assert(words),
        }
        Ok(())
    }

    fn connect(&mut self, value: Option<&str>) -> Result<(), String> {
        let now = self.now;
        let port = self.peer;
        let local = self.local;
        let remote = self.remote;
        let id = match value {
            None => (self.shard_mut()).connect(now, local, SocketAddr::new(remote, port)),
            Some(local_port) => {
                let tuple = FourTuple { local, local_port: 0, remote, remote_port: port };
                let local_port = number(Some(local_port), "connect")?;
                self.shard_mut().connect_from(now, local_port, tuple)
            }
        };
        let id = id.map_err(|error| error.to_string())?;
        let local_port = self.shard().tuple(id).expect("a flow").local_port;
        let iss = self.peer_iss;
        let flow = Some(id);
        let peer = Peer { iss, local_port, flow, ..Peer::default() };
        self.peers.insert(port, peer);
        Ok(())
    }

    fn read(&mut self, value: Option<&str>) -> Result<(), String> {
        let id = self.flow()?;
        let readable = self.machine()?.readable_len();
        let len = match value {
            Some("all") => readable,
            value => number(value, "read")?,
        };
        let mut buffer = vec![0; len];
        let got = self.shard_mut().read(id, &mut buffer);
        let from = self.peer().read;
        self.peer().read += got as u64;
        if got != len {
            return Err(format!("{got} of {len} bytes were there"));
        }
        if buffer == bytes(from, len) {
            Ok(())
        } else {
            Err("other bytes than the peer sent".to_owned())
        }
    }

    fn icmp(&mut self, words: &[&str]) -> Result<(), String> {
        let seq: u32 = number(words.get(1).copied(), "sequence number")?;
        let quoted = SeqNumber(self.peer().irs.unwrap_or(0)) + seq;
        let tuple = self.tuple();
        if words[0] == "toobig" {
            let mss = number(words.get(2).copied(), "mss")?;
            self.shard_mut().path_takes(&tuple, quoted, mss);
        } else {
            let is_hard = words.get(2) == Some(&"hard");
            self.shard_mut().unreachable(&tuple, quoted, is_hard);
        }
        Ok(())
    }

    /// The name of the current peer's connection.
    fn tuple(&mut self) -> FourTuple {
        FourTuple {
            local: self.local,
            local_port: self.peer().local_port,
            remote: self.remote,
            remote_port: self.peer,
        }
    }

    fn flow(&mut self) -> Result<FlowId, String> {
        if self.peer().flow.is_none()
            && let Some(id) = self.shard_mut().accept(PORT)
        {
            let port = self.shard().tuple(id).expect("a flow").remote_port;
            self.peers.entry(port).or_default().flow = Some(id);
        }
        let flow = self.peer().flow;
        flow.ok_or_else(|| "there is no connection of this peer".to_owned())
    }

    fn machine(&mut self) -> Result<&Connection, String> {
        let id = self.flow()?;
        let machine = self.shard().connection(id);
        machine.ok_or_else(|| "the connection has ended".to_owned())
    }

    // ---- assertions

    fn assert(&mut self, words: &[&str]) -> Result<(), String> {
        let value = words.get(1).copied();
        let config = self.config;
        match words[0] {
            "state" => {
                let state = format!("{:?}", self.machine()?.state());
                same("state", state.as_str(), value.unwrap_or_default())
            }
            "ended" => {
                let end = self.machine()?.end();
                let end = end.map_or("none".to_owned(), |end| format!("{end:?}"));
                same("end", end.as_str(), value.unwrap_or_default())
            }
            "gone" => {
                let id = self.flow()?;
                let is_gone = self.shard().connection(id).is_none();
                same("gone", is_gone, true)
            }
            "cwnd" => same("cwnd", self.machine()?.cwnd(), number(value, "cwnd")?),
            "ssthresh" => same("ssthresh", self.machine()?.ssthresh(), number(value, "ssthresh")?),
            "flight" => same("flight", self.machine()?.flight_len(), number(value, "flight")?),
            "released" => same("released", self.machine()?.released(), number(value, "released")?),
            "readable" => {
                same("readable", self.machine()?.readable_len(), number(value, "readable")?)
            }
            "rto" => {
                let expected = duration(value.unwrap_or_default())?;
                same("rto", self.machine()?.rto(&config), expected)
            }
            "srtt" => {
                let expected = duration(value.unwrap_or_default())?;
                same("srtt", self.machine()?.srtt(), Some(expected))
            }
            "flows" => same("flows", self.shard().flows_len(), number(value, "flows")?),
            "time_wait" => same("time_wait", self.shard().time_wait_len(), number(value, "names")?),
            "trouble" => {
                let trouble = self.machine()?.trouble();
                let trouble = trouble.map_or("none".to_owned(), |it| format!("{it:?}"));
                same("trouble", trouble.as_str(), value.unwrap_or_default())
            }
            "isn_beyond" => {
                let used: i32 = number(value, "isn_beyond")?;
                let peer = self.peer();
                let ends = peer.irs.zip(peer.irs_before);
                let (irs, before) = ends.ok_or("there was no connection before")?;
                let ahead = irs.wrapping_sub(before) as i32;
                same("it is beyond", ahead > used, true)
            }
            "silent" => {
                let is_silent = self.shard_mut().next_silent() == Some(self.remote);
                same("silent", is_silent, true)
            }
            "event" => {
                self.flow()?;
                self.transmit()?;
                let expected = match value.unwrap_or_default() {
                    "connected" => TcpEvents::CONNECTED,
                    "readable" => TcpEvents::READABLE,
                    "peer_closed" => TcpEvents::PEER_CLOSED,
                    "released" => TcpEvents::RELEASED,
                    "ended" => TcpEvents::ENDED,
                    "troubled" => TcpEvents::TROUBLED,
                    other => return Err(format!("there is no event {other}")),
                };
                let did = self.events.contains(expected);
                self.events = TcpEvents::NOTHING;
                same("event", did, true)
            }
            "counter" => {
                let name = value.unwrap_or_default();
                let expected: u64 = number(words.get(2).copied(), "count")?;
                let tuple = self.tuple();
                let flow = self.peer().flow.or(self.shard().named(&tuple));
                let tcp = flow.and_then(|id| self.shard().connection(id));
                let tcp = tcp.map_or(self.shard().counters().tcp, |machine| *machine.counters());
                let all = format!("{tcp:?} {:?}", self.shard().counters());
                let count = counter(&all, name).ok_or_else(|| format!("no counter {name}"))?;
                same(name, count, expected)
            }
            other => Err(format!("there is no command {other}")),
        }
    }
}

/// The first `name: N` in what `Debug` prints.
fn counter(all: &str, name: &str) -> Option<u64> {
    let at = all.find(&format!(" {name}: "))?;
    let rest = &all[at + name.len() + 3..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn same<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what} is {got:?}")) }
}

/// A segment as a script writes it.
struct Brief<'a>(&'a Pattern);

impl Debug for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pattern = self.0;
        let names = [
            (Flags::SYN, 'S'),
            (Flags::FIN, 'F'),
            (Flags::RST, 'R'),
            (Flags::PSH, 'P'),
            (Flags::URG, 'U'),
            (Flags::ECE, 'E'),
            (Flags::CWR, 'C'),
        ];
        let mut flags: String = names
            .iter()
            .filter(|(flag, _)| pattern.flags.contains(*flag))
            .map(|(_, name)| *name)
            .collect();
        if pattern.has_ack {
            flags.push('.');
        }
        let flags = if flags.is_empty() { "-" } else { &flags };
        write!(f, "{flags} {}", pattern.seq)?;
        if pattern.len > 0 {
            write!(f, ":{}", pattern.len)?;
        }
        if let Some(ack) = pattern.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = pattern.window {
            write!(f, " win {window}")?;
        }
        if let Some(mss) = pattern.mss {
            write!(f, " mss {mss}")?;
        }
        if let Some(scale) = pattern.scale {
            write!(f, " scale {scale}")?;
        }
        if pattern.sack_permitted == Some(true) {
            f.write_str(" sackok")?;
        }
        if let Some((value, echo)) = pattern.timestamps {
            write!(f, " ts {value} {echo}")?;
        }
        match pattern.ecn {
            Some(Ecn::Congested) => f.write_str(" ce")?,
            Some(Ecn::Capable0 | Ecn::Capable1) => f.write_str(" ect")?,
            Some(Ecn::NotCapable) | None => {}
        }
        for (at, (left, right)) in pattern.sacks.iter().enumerate() {
            let mark = if at == 0 { " sack " } else { "," };
            write!(f, "{mark}{left}-{right}")?;
        }
        Ok(())
    }
}
