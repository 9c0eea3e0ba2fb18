//! Goodput over a lossy link: one flow from one shard to another for some seconds of virtual time,
//! by loss, delay, algorithm and the receiver's buffer. The numbers are exact: the same in every
//! run, so a change of congestion control or loss recovery shows here: check its effect on the
//! table, and replace the table.

extern crate weftwork_netstack as netstack;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netstack::stack::{Backlog, FlowId, Pieces, Shard, ShardLimits, Writer};
use netstack::tcp::{CongestionControl, TcpConfig};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::tcp::Segment;

const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))];
const PORT: u16 = 80;
const TIME: Duration = Duration::from_secs(10);

/// 20 Mbit/s, and the limit of the queue before it.
const BYTES_PER_S: u64 = 2_500_000;

struct Link {
    queue: Duration,
    /// Interval of the return path, whose segments arrive at multiples of it, as over a radio.
    back_every: Duration,
}

const USUAL: Link = Link { queue: Duration::from_millis(50), back_every: Duration::from_nanos(1) };

/// Each bunch of acknowledgements lets out more than the queue holds.
const BUNCHED: Link =
    Link { queue: Duration::from_millis(10), back_every: Duration::from_millis(20) };

/// Mbit/s that were read: by one-way delay, and by a loss of 0, 0.1, 1 and 5 percent.
const TABLE: &str = "\
newreno               1 ms   19.27  19.26  19.00  14.88
newreno              10 ms   19.16  18.44   7.52   2.49
newreno              40 ms   17.82   9.77   2.40   0.75
newreno without SACK  1 ms   19.15  19.15  18.53   7.64
newreno without SACK 10 ms   18.78  17.78   6.29   2.00
newreno without SACK 40 ms   15.86   7.69   2.09   0.63
cubic                 1 ms   19.27  19.27  19.24  15.22
cubic                10 ms   19.16  19.15   7.64   2.75
cubic                40 ms   17.96  10.45   2.88   0.86
cubic, ACKs bunched   1 ms   15.28  12.84   4.61   2.40
cubic, ACKs bunched  10 ms   15.97  13.34   2.96   1.19
cubic, ACKs bunched  40 ms   15.22   8.06   1.40   0.74
cubic, 16 KiB         1 ms   19.27  19.24  18.83  13.99
cubic, 16 KiB        10 ms    5.61   5.56   4.53   2.29
cubic, 16 KiB        40 ms    1.50   1.40   1.15   0.76
cubic, 64 KiB         1 ms   19.27  19.25  19.24  15.22
cubic, 64 KiB        10 ms   19.18  18.67   6.78   2.73
cubic, 64 KiB        40 ms    6.20   5.65   2.66   0.86
cubic, 256 KiB        1 ms   19.27  19.27  19.24  15.22
cubic, 256 KiB       10 ms   19.16  18.70   7.92   2.75
cubic, 256 KiB       40 ms   18.60  10.75   2.54   0.86
cubic, it grows       1 ms   19.27  19.27  19.23  15.22
cubic, it grows      10 ms   19.18  18.35   7.93   2.73
cubic, it grows      40 ms   18.35  11.67   2.89   0.86
";

struct Zeros([u8; 1460]);

impl Writer for Zeros {
    fn gather<'a>(&'a self, _: FlowId, _: u64, len: usize, pieces: &mut Pieces<'a>) {
        pieces.push(&self.0[..len]);
    }
}

/// Arrival time, number in order of departure, destination, and index of the segment.
type Packet = (Instant, u64, usize, usize);

fn goodput_mbit(config: TcpConfig, link: &Link, delay: Duration, loss_per_mille: u64) -> f64 {
    let mut shards = [1, 2].map(|key| Shard::new(config, ShardLimits::default(), [key; 16]));
    shards[1].listen(PORT, Backlog::default());
    let mut now = Instant::START;
    let remote = SocketAddr::new(ADDRESSES[1], PORT);
    let near = shards[0].connect(now, ADDRESSES[0], remote).expect("a port");
    let source = Zeros([0; 1460]);
    let mut flying = BinaryHeap::<Reverse<Packet>>::new();
    let mut line_free_at = Instant::START;
    let mut segments: Vec<Segment<'static>> = Vec::new();
    let (mut random, mut read, mut far) = (1_u64, 0_u64, None);
    shards[0].queue(near, 1 << 40);
    while now < Instant::START + TIME {
        while let Some(&Reverse((at, number, to, len))) = flying.peek()
            && at <= now
        {
            flying.pop();
            let segment = Segment { payload: &source.0[..len], ..segments[number as usize] };
            shards[to].receive(now, ADDRESSES[to], ADDRESSES[1 - to], &segment, Ecn::NotCapable);
        }
        far = far.or_else(|| shards[1].accept(PORT));
        if let Some(id) = far {
            let (front, back) = shards[1].peek(id);
            let len = front.len() + back.len();
            shards[1].consume(id, len);
            read += len as u64;
        }
        for (from, shard) in shards.iter_mut().enumerate() {
            shard.expire(now);
            while shard.next_event().is_some() {}
            while shard.has_to_transmit() {
                shard.transmit(now, 0, &source, |departure| {
                    let len = departure.pieces.len();
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let is_lost = from == 0 && (random >> 33) % 1000 < loss_per_mille;
                    let back_every = link.back_every.as_nanos() as u64;
                    let nanos = (now + delay).as_nanos();
                    let mut at = Instant::from_nanos(nanos.next_multiple_of(back_every));
                    if from == 0 {
                        let waits = line_free_at.max(now).since(now);
                        let nanos = (len as u64 + 54) * 1_000_000_000 / BYTES_PER_S;
                        if waits > link.queue || is_lost {
                            return true;
                        }
                        line_free_at = line_free_at.max(now) + Duration::from_nanos(nanos);
                        at = line_free_at + delay;
                    }
                    segments.push(*departure.segment);
                    flying.push(Reverse((at, segments.len() as u64 - 1, 1 - from, len)));
                    true
                });
            }
        }
        let wakes = shards.iter().map(Shard::wakes_at).min().expect("two");
        let arrival = flying.peek().map_or(Instant::NEVER, |next| next.0.0);
        now = now.max(wakes.min(arrival));
    }
    read as f64 * 8.0 / TIME.as_secs_f64() / 1e6
}

#[test]
fn goodput_by_loss() {
    let large = TcpConfig { receive_capacity: 4 << 20, ..TcpConfig::default() };
    let newreno = TcpConfig { congestion: CongestionControl::NewReno, ..large };
    let without_sack = TcpConfig { has_sack: false, ..newreno };
    // The buffer does not grow.
    let buffer = |kib: u32| TcpConfig {
        receive_capacity: kib << 10,
        receive_capacity_max: 0,
        ..TcpConfig::default()
    };
    let mut table = String::new();
    for (name, config, link) in [
        ("newreno", newreno, USUAL),
        ("newreno without SACK", without_sack, USUAL),
        ("cubic", large, USUAL),
        ("cubic, ACKs bunched", large, BUNCHED),
        ("cubic, 16 KiB", buffer(16), USUAL),
        ("cubic, 64 KiB", buffer(64), USUAL),
        ("cubic, 256 KiB", buffer(256), USUAL),
        ("cubic, it grows", TcpConfig::default(), USUAL),
    ] {
        for delay_ms in [1, 10, 40] {
            let row = [0, 1, 10, 50].map(|loss| {
                let delay = Duration::from_millis(delay_ms);
                let mbit = goodput_mbit(config, &link, delay, loss);
                format!("{mbit:6.2}")
            });
            table += &format!("{name:20} {delay_ms:2} ms  {}\n", row.join(" "));
        }
    }
    assert!(table == TABLE, "the table was\n{TABLE}\nand is\n{table}");
}
