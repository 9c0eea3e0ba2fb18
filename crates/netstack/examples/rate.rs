//! How fast two shards are that talk to each other in memory, on one core, without a wire: the cost
//! of TCP itself. Both ends' work is in each number.
//!
//! ```sh
//! cargo run --release -p weftwork-netstack --example rate
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant as Clock};

use netstack::host::{Backlog, FlowId, Shard, ShardLimits};
use netstack::tcp::TcpConfig;
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::tcp::Segment;

const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
];
const PORT: u16 = 80;
const RUN: Duration = Duration::from_secs(2);

struct Pair {
    shards: [Shard; 2],
    link: Vec<(Segment<'static>, [u8; 128], usize)>,
    now: Instant,
    packets: u64,
}

impl Pair {
    fn new() -> Pair {
        let config = TcpConfig {
            time_wait: Duration::from_millis(1),
            ..TcpConfig::default()
        };
        let mut shards = [1, 2].map(|key| Shard::new(config, ShardLimits::default(), [key; 16]));
        shards[1].listen(PORT, Backlog::default());
        Pair {
            shards,
            link: Vec::with_capacity(4096),
            now: Instant::START,
            packets: 0,
        }
    }

    /// What one end has to send is with the other.
    fn carry(&mut self, from: usize) {
        self.link.clear();
        let link = &mut self.link;
        self.shards[from].transmit(self.now, 0, &(), |departure| {
            let mut bytes = [0; 128];
            let mut len = 0;
            for piece in departure.pieces.as_slice() {
                bytes[len..len + piece.len()].copy_from_slice(piece);
                len += piece.len();
            }
            link.push((*departure.segment, bytes, len));
            true
        });
        self.packets += link.len() as u64;
        for (segment, bytes, len) in link {
            let segment = Segment {
                payload: &bytes[..*len],
                ..*segment
            };
            let (to, from) = (ADDRESSES[1 - from], ADDRESSES[from]);
            self.shards[usize::from(to == ADDRESSES[1])].receive(self.now, to, from, &segment, Ecn::NotCapable);
        }
    }

    fn connect(&mut self) -> FlowId {
        let remote = SocketAddr::new(ADDRESSES[1], PORT);
        self.shards[0]
            .connect(self.now, ADDRESSES[0], remote)
            .expect("a port")
    }

    fn later(&mut self) {
        self.now += Duration::from_micros(10);
        for shard in &mut self.shards {
            shard.expire(self.now);
        }
    }
}

fn answer(shard: &mut Shard, now: Instant) {
    let mut room = [0; 128];
    while shard.accept(PORT).is_some() {}
    while let Some((id, _)) = shard.next_event() {
        let len = shard.read(id, &mut room);
        if len > 0 {
            shard.write(id, &room[..len]);
        } else if shard
            .connection(id)
            .is_some_and(|machine| machine.is_peer_closed())
        {
            shard.close(now, id);
        }
    }
}

/// Requests of 64 bytes on so many connections, one at a time on each.
fn requests(connections: usize) {
    let mut pair = Pair::new();
    let flows: Vec<FlowId> = (0..connections).map(|_| pair.connect()).collect();
    for _ in 0..4 {
        pair.carry(0);
        pair.carry(1);
    }
    let (mut done, begin, packets) = (0_u64, Clock::now(), pair.packets);
    while begin.elapsed() < RUN {
        for _ in 0..100 {
            for &id in &flows {
                pair.shards[0].write(id, &[7; 64]);
            }
            pair.carry(0);
            let now = pair.now;
            answer(&mut pair.shards[1], now);
            pair.carry(1);
            let mut room = [0; 128];
            while let Some((id, _)) = pair.shards[0].next_event() {
                done += u64::from(pair.shards[0].read(id, &mut room) > 0);
            }
            pair.later();
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let packets = (pair.packets - packets) as f64 / done as f64;
    let rate = done as f64 / seconds / 1e3;
    println!("{connections:4} connections: {rate:7.0} k requests/s, {packets:.2} packets each");
}

/// Connections that are opened, carry a request and its reply, and are closed.
fn connections() {
    let mut pair = Pair::new();
    let (mut done, begin) = (0_u64, Clock::now());
    while begin.elapsed() < RUN {
        for _ in 0..100 {
            let id = pair.connect();
            pair.shards[0].write(id, &[7; 64]);
            for _ in 0..6 {
                pair.carry(0);
                let now = pair.now;
                answer(&mut pair.shards[1], now);
                pair.carry(1);
                let mut room = [0; 128];
                while let Some((id, _)) = pair.shards[0].next_event() {
                    if pair.shards[0].read(id, &mut room) > 0 {
                        pair.shards[0].close(now, id);
                        done += 1;
                    }
                }
            }
            pair.later();
        }
    }
    let rate = done as f64 / begin.elapsed().as_secs_f64() / 1e3;
    println!(
        "{rate:7.0} k connections/s: {} packets in all",
        pair.packets
    );
}

fn main() {
    requests(1);
    requests(100);
    connections();
}
