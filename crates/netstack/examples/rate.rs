//! Speed of two shards that talk to each other in memory on one core: the cost of TCP itself. Each
//! number includes the work of both ends. The laboratory's `netstack-no-wire` measures whole
//! netstacks on a pair of devices in memory.
//!
//! ```sh
//! cargo run --release -p weftwork-netstack --example rate
//! valgrind --tool=callgrind target/release/examples/rate 10000      # number of requests
//! ```

extern crate weftwork_netstack as netstack;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant as Clock};

use netstack::stack::{Backlog, FlowId, Shard, ShardLimits};
use netstack::tcp::TcpConfig;
use netstack::tcp::secret::FourTuple;
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::tcp::Segment;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PORT: u16 = 80;
const RUN: Duration = Duration::from_secs(2);
/// Requests between two looks at the clock.
const ROUND: u64 = 1000;

struct Pair {
    shards: [Shard; 2],
    link: Vec<Packet>,
    now: Instant,
    packets: u64,
    opened: u32,
}

struct Packet {
    tuple: FourTuple,
    segment: Segment<'static>,
    ecn: Ecn,
    bytes: [u8; 64],
    len: usize,
}

impl Pair {
    fn new() -> Pair {
        let config = TcpConfig { time_wait: Duration::from_millis(1), ..TcpConfig::default() };
        let mut shards = [1, 2].map(|key| Shard::new(config, ShardLimits::default(), [key; 16]));
        shards[1].listen(PORT, Backlog::default());
        Pair { shards, link: Vec::with_capacity(4096), now: Instant::START, packets: 0, opened: 0 }
    }

    /// Carries all segments of one end to the other.
    fn carry(&mut self, from: usize) {
        self.link.clear();
        let link = &mut self.link;
        self.shards[from].transmit(self.now, 0, &(), |departure| {
            let mut bytes = [0; 64];
            let mut len = 0;
            for piece in departure.pieces.as_slice() {
                bytes[len..len + piece.len()].copy_from_slice(piece);
                len += piece.len();
            }
            link.push(Packet {
                tuple: *departure.tuple,
                segment: *departure.segment,
                ecn: departure.ecn,
                bytes,
                len,
            });
            true
        });
        self.packets += link.len() as u64;
        for packet in link {
            let segment = Segment { payload: &packet.bytes[..packet.len], ..packet.segment };
            let here = packet.tuple.local;
            let there = packet.tuple.remote;
            self.shards[1 - from].receive(self.now, there, here, &segment, packet.ecn);
        }
    }

    /// Opens a connection from an address and a port of its own.
    fn connect(&mut self) -> FlowId {
        self.opened = (self.opened + 1) % (1 << 24);
        let tuple = FourTuple {
            local: Ipv4Addr::from(0x0a00_0000 | self.opened).into(),
            local_port: 0,
            remote: SERVER,
            remote_port: PORT,
        };
        self.shards[0].connect_from(self.now, 4000, tuple).expect("a free port")
    }

    /// Opens `count` connections on both ends.
    fn connect_all(&mut self, count: usize) -> Vec<FlowId> {
        let mut flows = Vec::with_capacity(count);
        while flows.len() < count {
            let more = (count - flows.len()).min(100);
            flows.extend((0..more).map(|_| self.connect()));
            for _ in 0..2 {
                self.carry(0);
                self.carry(1);
            }
            while self.shards[0].next_event().is_some() {}
            answer(&mut self.shards[1], self.now);
            self.later();
        }
        flows
    }

    /// A request of 64 bytes on each connection, and its answer. Returns how many were answered.
    fn ask(&mut self, flows: &[FlowId]) -> u64 {
        for &id in flows {
            self.shards[0].write(id, &[7; 64]);
        }
        self.carry(0);
        answer(&mut self.shards[1], self.now);
        self.carry(1);
        let mut buffer = [0; 64];
        let mut answered = 0;
        while let Some((id, _)) = self.shards[0].next_event() {
            answered += u64::from(self.shards[0].read(id, &mut buffer) > 0);
        }
        self.later();
        answered
    }

    /// A connection that is opened, carries a request and its answer, and is closed.
    fn visit(&mut self) -> u64 {
        let id = self.connect();
        self.shards[0].write(id, &[7; 64]);
        let mut answered = 0;
        for _ in 0..6 {
            self.carry(0);
            answer(&mut self.shards[1], self.now);
            self.carry(1);
            let mut buffer = [0; 64];
            while let Some((id, _)) = self.shards[0].next_event() {
                if self.shards[0].read(id, &mut buffer) > 0 {
                    self.shards[0].close(self.now, id);
                    answered += 1;
                }
            }
        }
        self.later();
        answered
    }

    fn later(&mut self) {
        self.now += Duration::from_micros(10);
        for shard in &mut self.shards {
            shard.expire(self.now);
        }
    }
}

fn answer(shard: &mut Shard, now: Instant) {
    let mut buffer = [0; 64];
    while shard.accept(PORT).is_some() {}
    while let Some((id, _)) = shard.next_event() {
        let len = shard.read(id, &mut buffer);
        if len > 0 {
            shard.write(id, &buffer[..len]);
        } else if shard.connection(id).is_some_and(|machine| machine.is_peer_closed()) {
            shard.close(now, id);
        }
    }
}

/// Repeats `once` until the time or the limit is over; returns the count, and thousands a second.
fn repeat(limit: Option<u64>, mut once: impl FnMut() -> u64) -> (u64, f64) {
    let (mut done, mut looked_at, begin) = (0, 0, Clock::now());
    while limit.is_none_or(|limit| done < limit) {
        done += once();
        if done >= looked_at + ROUND {
            looked_at = done;
            if limit.is_none() && begin.elapsed() >= RUN {
                break;
            }
        }
    }
    (done, done as f64 / begin.elapsed().as_secs_f64() / 1e3)
}

/// Measures requests on `active` connections at once, while `idle` others wait.
fn requests(limit: Option<u64>, active: usize, idle: usize) {
    let mut pair = Pair::new();
    let flows = pair.connect_all(active);
    let before = resident_bytes();
    pair.connect_all(idle);
    let taken = (resident_bytes() - before) / (2 * idle.max(1)) as f64;
    let packets = pair.packets;
    let (done, rate) = repeat(limit, || pair.ask(&flows));
    let packets = (pair.packets - packets) as f64 / done as f64;
    println!(
        "{active:4} active, {idle:6} idle of {taken:5.0} bytes: {rate:6.0} k requests/s, \
         {packets:.2} packets each"
    );
}

fn connections(limit: Option<u64>) {
    let mut pair = Pair::new();
    let (done, rate) = repeat(limit, || pair.visit());
    let packets = pair.packets as f64 / done as f64;
    println!("{rate:36.0} k connections/s, {packets:.2} packets each");
}

/// The memory of this process. proc(5)
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|word| word.parse().ok());
    pages.unwrap_or(0.0) * 4096.0
}

fn main() {
    let limit = std::env::args().nth(1);
    let limit = limit.map(|text| text.parse().expect("a number of requests"));
    requests(limit, 1, 0);
    let idle_counts: &[usize] = match limit {
        None => &[0, 100, 10_000, 100_000],
        Some(_) => &[0],
    };
    for &idle in idle_counts {
        requests(limit, 100, idle);
    }
    connections(limit);
}
