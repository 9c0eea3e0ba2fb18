//! A bad link between the kernel's TCP and itself, or a host of this crate that sends to it: how
//! much gets through, for the same loss and delay.
//!
//! ```text
//! relay LOSS DELAY NEAR FAR                 as root; percent, milliseconds, two TAP interfaces
//! relay LOSS DELAY ADDRESS/LEN FAR          in the place of the near one: a host that sends zeros
//!                                           to each connection to its port 80, as fast as it may
//!
//!   kernel ── NEAR ══ relay ── loss, and half of DELAY each way ══ FAR ── kernel
//! ```
//!
//! Both ends of the kernel are in network namespaces of their own:
//!
//! ```sh
//! cargo build --release --example relay
//! ip netns add near; ip netns add far
//! target/release/examples/relay 1 20 near0 far0 &
//! ip link set near0 netns near; ip -n near addr add 10.9.0.1/24 dev near0; ip -n near link set near0 up
//! ip link set far0 netns far; ip -n far addr add 10.9.0.2/24 dev far0; ip -n far link set far0 up
//! ip netns exec near nc -l -p 80 < /dev/zero > /dev/null &
//! ip netns exec far timeout 20 nc 10.9.0.1 80 | wc -c
//! ```

use std::env;
use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use netstack::Netstack;
use netstack::device::impair::{Impair, Impairment};
use netstack::device::tap::Tap;
use netstack::device::{Device, Offload, OutgoingFrame, ReceiveBurst};
use netstack::host::{Backlog, FlowId, Pieces, ShardLimits, Writer};
use netstack::ip::{InterfaceConfig, Prefix};
use netstack::tcp::{Happened, TcpConfig};
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MAC: EthernetAddress = EthernetAddress([0x02, 0x77, 0x65, 0x66, 0x74, 0x02]);
const PORT: u16 = 80;
const FRAMES_PER_BURST: usize = 64;
/// What a connection has to send: more than it ever will.
const STREAM_LEN: u64 = 1 << 50;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [loss, delay_ms, near, far] = &words[..] else {
        return Err("usage: relay LOSS DELAY NEAR|ADDRESS/LEN FAR".into());
    };
    let loss = loss.parse::<f64>()? / 100.0;
    let delay = Duration::from_micros(delay_ms.parse::<u64>()? * 1000 / 2);
    let back = Impairment {
        delay,
        ..Impairment::NONE
    };
    let there = Impairment { loss, ..back };
    let link = Impair::new(open(far)?, there, back, 1);
    match near.split_once('/') {
        Some((address, len)) => send(link, address.parse()?, len.parse()?),
        None => pass(open(near)?, link),
    }
}

fn open(name: &str) -> Result<Tap, Box<dyn Error>> {
    Ok(Tap::open(name, 1, false)?.remove(0))
}

/// What one end sends is with the other.
fn pass(mut near: Tap, mut link: Impair<Tap>) -> Result<(), Box<dyn Error>> {
    let len_max = near.capabilities().receive_len_max;
    let mut burst = ReceiveBurst::new(FRAMES_PER_BURST, len_max);
    let began = std::time::Instant::now();
    loop {
        let now = Instant::START + began.elapsed();
        burst.clear();
        near.receive(now, &mut burst)?;
        hand_on(now, &burst, &mut link);
        burst.clear();
        link.receive(now, &mut burst)?;
        hand_on(now, &burst, &mut near);
        wait(&[&near, &link], link.wakes_at().map(|at| at.since(now)))?;
    }
}

/// What is not taken, since the other end is not up or has no room, is lost.
fn hand_on(now: Instant, burst: &ReceiveBurst, to: &mut impl Device) {
    for frame in burst.frames() {
        let _ = to.transmit(
            now,
            &OutgoingFrame {
                headers: frame.bytes,
                payload: &[],
                offload: Offload::None,
            },
        );
    }
}

struct Zeros([u8; 1 << 16]);

impl Writer for Zeros {
    fn gather<'a>(&'a self, _: FlowId, _: u64, len: usize, pieces: &mut Pieces<'a>) {
        pieces.push(&self.0[..len]);
    }
}

fn send(link: Impair<Tap>, address: IpAddr, len: u8) -> Result<(), Box<dyn Error>> {
    let interface = InterfaceConfig {
        mac: MAC,
        mtu: link.capabilities().mtu,
        addresses: vec![Prefix { address, len }],
        gateway_v4: None,
        gateway_v6: None,
    };
    let (tcp, limits) = (TcpConfig::default(), ShardLimits::default());
    let mut netstack = Netstack::new(link, interface, tcp, limits, [7; 16]);
    netstack.shard().listen(PORT, Backlog::default());
    let zeros = Zeros([0; 1 << 16]);
    let began = std::time::Instant::now();
    loop {
        let now = Instant::START + began.elapsed();
        // The far end's interface may not be up yet.
        let _ = netstack.receive(now);
        while let Some(id) = netstack.shard().accept(PORT) {
            netstack.shard().queue(id, STREAM_LEN);
        }
        while let Some((id, happened)) = netstack.shard().next_event() {
            if happened.contains(Happened::ENDED) || happened.contains(Happened::PEER_CLOSED) {
                if let Some(machine) = netstack.shard().connection(id) {
                    eprintln!("{:?}", machine.counters());
                }
                netstack.shard().abort(id);
            }
        }
        let _ = netstack.transmit(now, &zeros);
        let time = netstack.wakes_at().since(now);
        wait(&[&*netstack.device()], Some(time))?;
    }
}

/// For a frame, or the time.
fn wait(devices: &[&dyn Device], time: Option<Duration>) -> Result<(), Box<dyn Error>> {
    let descriptors = devices.iter().filter_map(|device| device.descriptor());
    let mut waits: Vec<_> = descriptors
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let time = time.unwrap_or(Duration::MAX);
    let limit = Timespec {
        tv_sec: time.as_secs().min(3600) as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    match poll(&mut waits, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
