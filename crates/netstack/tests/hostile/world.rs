//! Input bytes as the actions of a hostile peer, a clock and an application on a shard.
//!
//! Numbers of segments are drawn near those that the shard has shown, so that many are believed:
//! the peer sees all that is sent. Whatever it does, the shard must not panic, must send what was
//! written, must keep its limits, and must not wait forever. Used by the test beside it and by the
//! fuzz target `segments`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netstack::stack::{Backlog, FlowId, Shard, ShardLimits};
use netstack::tcp::{CongestionControl, KeepAlive, TcpConfig};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::tcp::{Flags, SackBlock, SackBlocks, Segment, SeqNumber, TcpOptions};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PORT: u16 = 80;
const PEER_PORT: u16 = 1000;

/// Limit on segments in answer to one action: a window of the smallest ones, and some.
const SEGMENTS_MAX: usize = 20_000;

const LIMITS: ShardLimits = ShardLimits {
    flows_max: 4,
    time_wait_max: 2,
    replies_max: 8,
    turn_segments_max: 16,
    send_capacity: 30_000,
    send_memory_max: 40_000,
    receive_memory_max: 100_000,
    ephemeral_ports: (49_152, 49_160),
};

/// The input, to its end; then zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *byte
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A distance that is often small, and sometimes very large.
    fn distance(&mut self) -> u32 {
        let kind = self.byte();
        match kind % 8 {
            0..=3 => 0,
            4 => u32::from(self.byte()),
            5 => 0_u32.wrapping_sub(self.byte().into()),
            6 => u32::from(self.word()),
            _ => u32::from(self.word()) << 16,
        }
    }
}

struct World<'a> {
    bytes: Bytes<'a>,
    shard: Shard,
    now: Instant,
    flows: Vec<FlowId>,
    /// The last numbers that the shard has shown: what it would send next, what it waits for.
    shown: (SeqNumber, SeqNumber),
    stamp: u32,
    written: u64,
    isn: SeqNumber,
}

/// Plays `input`.
pub(crate) fn play(input: &[u8]) {
    let mut bytes = Bytes(input);
    let settings = bytes.byte();
    let config = TcpConfig {
        receive_capacity: [100, 3_000, 65_536, 200_000][usize::from(settings & 3)],
        has_sack: settings & 4 == 0,
        has_timestamps: settings & 8 == 0,
        congestion: match settings & 16 {
            0 => CongestionControl::Cubic,
            _ => CongestionControl::NewReno,
        },
        has_nagle: settings & 32 == 0,
        keep_alive: (settings & 64 == 0).then(KeepAlive::default),
        ..TcpConfig::default()
    };
    let mut shard = Shard::new(config, LIMITS, [5; 16]);
    let backlog = Backlog { syn_queue_max: 2, accept_queue_max: 2 };
    shard.listen(PORT, backlog);
    let mut world = World {
        bytes,
        shard,
        now: Instant::START,
        flows: Vec::new(),
        shown: (SeqNumber(0), SeqNumber(0)),
        stamp: 0,
        written: 0,
        isn: SeqNumber(0),
    };
    if settings & 128 != 0 {
        let remote = SocketAddr::new(REMOTE, PEER_PORT);
        let id = world.shard.connect(world.now, LOCAL, remote).expect("a port");
        world.flows.push(id);
    } else {
        world.open();
    }
    world.settle();
    while !world.bytes.0.is_empty() {
        world.step();
        world.settle();
    }
}

/// Byte `offset` of what is written.
fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(13) >> 2) as u8
}

impl World<'_> {
    /// The peer opens a connection as it should.
    fn open(&mut self) {
        let syn = Segment {
            src_port: PEER_PORT,
            dst_port: PORT,
            seq: SeqNumber(0),
            ack: None,
            flags: Flags::SYN,
            window: 60_000,
            urgent: 0,
            options: TcpOptions {
                mss: Some(1000),
                window_scale: Some(2),
                sack_permitted: true,
                timestamps: Some((0, 0)),
                ..TcpOptions::NONE
            },
            payload: &[],
        };
        self.shard.receive(self.now, LOCAL, REMOTE, &syn, Ecn::NotCapable);
        self.settle();
        let stamps = (0, self.stamp);
        let ack = Segment {
            seq: SeqNumber(1),
            ack: Some(self.shown.0),
            flags: Flags::NONE,
            options: TcpOptions { timestamps: Some(stamps), ..TcpOptions::NONE },
            ..syn
        };
        self.shard.receive(self.now, LOCAL, REMOTE, &ack, Ecn::NotCapable);
        self.flows.extend(self.shard.accept(PORT));
    }

    fn step(&mut self) {
        let which = self.bytes.byte();
        let flow = self.flows.last().copied();
        match (which % 16, flow) {
            (0..=7, _) => self.segment(),
            (8, _) => {
                let ms = self.bytes.byte().into();
                self.pass(Duration::from_millis(ms));
            }
            (9, _) => {
                let ms = u64::from(self.bytes.word()) * 4;
                self.pass(Duration::from_millis(ms));
            }
            (10, Some(id)) => self.write(id),
            (11, Some(id)) => {
                let mut buffer = vec![0; usize::from(self.bytes.word())];
                self.shard.read(id, &mut buffer);
            }
            (12, Some(id)) => match self.bytes.byte() % 8 {
                0 => self.shard.abort(id),
                1 => self.shard.close(self.now, id),
                2..=4 => self.shard.finish(id),
                _ => self.shard.set_nodelay(id, true),
            },
            (13, Some(id)) => {
                let quoted = self.shown.0 - self.bytes.distance();
                let Some(&tuple) = self.shard.tuple(id) else {
                    return;
                };
                match self.bytes.byte() % 2 {
                    0 => {
                        let mss = self.bytes.word();
                        self.shard.path_takes(&tuple, quoted, mss);
                    }
                    _ => self.shard.unreachable(&tuple, quoted, true),
                }
            }
            (14, _) => self.flows.extend(self.shard.accept(PORT)),
            _ => {
                let remote = SocketAddr::new(REMOTE, PEER_PORT);
                self.flows.extend(self.shard.connect(self.now, LOCAL, remote));
            }
        }
    }

    fn write(&mut self, id: FlowId) {
        let is_finished = self.shard.connection(id).is_none_or(|machine| machine.is_finished());
        if is_finished || self.flows.first() != Some(&id) {
            return;
        }
        let len = u64::from(self.bytes.word());
        let bytes: Vec<u8> = (self.written..self.written + len).map(pattern).collect();
        self.written += self.shard.write(id, &bytes) as u64;
    }

    fn segment(&mut self) {
        let kind = self.bytes.byte();
        let mut flags = Flags::NONE;
        // Most segments have none of these flags, or a connection would not live long.
        let controls = if self.bytes.byte() < 16 { self.bytes.byte() } else { 0 };
        for (bit, flag) in [(1, Flags::SYN), (2, Flags::RST), (4, Flags::FIN), (8, Flags::URG)] {
            if controls & bit != 0 {
                flags |= flag;
            }
        }
        let has_ack = kind & 0x30 != 0x10;
        let (snd_nxt, rcv_nxt) = self.shown;
        let seq = rcv_nxt + self.bytes.distance();
        let ack = snd_nxt - self.bytes.distance();
        let payload = vec![0xaa; usize::from(self.bytes.word()) % 3000 * usize::from(kind & 1)];
        let extra = self.bytes.byte();
        let mut sacks = SackBlocks::NONE;
        for _ in 0..extra & 3 {
            let left = snd_nxt - u32::from(self.bytes.word()) % 5000;
            let right = left + self.bytes.distance() + 500;
            sacks.push(SackBlock { left, right });
        }
        let value = (self.now.as_millis() as u32).wrapping_add(self.bytes.byte().into());
        let segment = Segment {
            src_port: PEER_PORT + u16::from(extra >> 7),
            dst_port: self.shown_port(extra),
            seq,
            ack: has_ack.then_some(ack),
            flags,
            window: self.bytes.word(),
            urgent: 5,
            options: TcpOptions {
                mss: (extra & 4 != 0).then(|| self.bytes.word()),
                window_scale: (extra & 8 != 0).then(|| self.bytes.byte() % 15),
                sack_permitted: extra & 16 != 0,
                sacks,
                timestamps: (extra & 32 == 0).then_some((value, self.stamp)),
                ..TcpOptions::NONE
            },
            payload: &payload,
        };
        let ecn = Ecn::of_traffic_class(extra >> 5);
        self.shard.receive(self.now, LOCAL, REMOTE, &segment, ecn);
    }

    /// Mostly the port of the latest connection.
    fn shown_port(&self, extra: u8) -> u16 {
        let flow = self.flows.last().and_then(|&id| self.shard.tuple(id));
        match flow {
            Some(tuple) if extra & 64 == 0 => tuple.local_port,
            _ => PORT,
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.shard.wakes_at() <= until {
            self.now = self.now.max(self.shard.wakes_at());
            self.shard.expire(self.now);
            self.settle();
        }
        self.now = until;
    }

    /// Takes the shard's segments, and checks its invariants afterwards.
    fn settle(&mut self) {
        let mut count = 0;
        let now = self.now;
        while self.shard.has_to_transmit() {
            let (shown, stamp, isn) = (&mut self.shown, &mut self.stamp, &mut self.isn);
            // The connection that is written to.
            let first = self.flows.first().and_then(|&id| self.shard.tuple(id)).copied();
            let is_opening = self.flows.is_empty();
            self.shard.transmit(now, 0, &(), |departure| {
                count += 1;
                let segment = departure.segment;
                let is_first = is_opening || first.as_ref() == Some(departure.tuple);
                if segment.flags.contains(Flags::SYN) && is_first {
                    *isn = segment.seq;
                }
                if !segment.flags.contains(Flags::RST) {
                    let len = departure.pieces.len() as u32 + segment.seq_len();
                    shown.0 = segment.seq + len;
                    shown.1 = segment.ack.unwrap_or(shown.1);
                    *stamp = segment.options.timestamps.map_or(*stamp, |(value, _)| value);
                }
                // Sent bytes equal the written bytes at the same offset.
                let from = u64::from((segment.seq - 1).0.wrapping_sub(isn.0));
                let bytes = departure.pieces.as_slice().concat();
                for (offset, &byte) in (from..).zip(&bytes) {
                    assert!(!is_first || byte == pattern(offset), "byte {offset}");
                }
                assert!(segment.options.len() <= 40, "options of {}", segment.options.len());
                true
            });
            assert!(count < SEGMENTS_MAX, "{count} segments at once");
        }
        while self.shard.next_event().is_some() {}
        assert!(self.shard.flows_len() <= LIMITS.flows_max);
        assert!(self.shard.time_wait_len() <= LIMITS.time_wait_max);
        for &id in &self.flows {
            if let Some(machine) = self.shard.connection(id) {
                machine.assert_consistent();
            }
        }
    }
}
