//! Two netstacks on devices in memory, with everything between application and frame: neighbours,
//! IP, checksums, offloads, TCP. The link loses, doubles, corrupts and reorders frames.
//!
//! A seed is a run. `NETSTACK_SEED=17` plays one again, `NETSTACK_SEEDS=1000` plays more of them,
//! from `NETSTACK_FIRST_SEED` on.

extern crate weftwork_netstack as netstack;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netstack::Netstack;
use netstack::device::Capabilities;
use netstack::device::impair::{Impair, Impairment};
use netstack::device::mem::{self, Mem};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, FlowId, ShardLimits};
use netstack::tcp::TcpConfig;
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;

const SEEDS: u64 = 60;
const PORT: u16 = 80;
const TURNS_MAX: usize = 300_000;

#[test]
fn request_and_reply_cross_a_bad_link() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("NETSTACK_SEED") {
        run(seed);
        return;
    }
    let first = number("NETSTACK_FIRST_SEED").unwrap_or(0);
    for seed in first..first + number("NETSTACK_SEEDS").unwrap_or(SEEDS) {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "repeat with NETSTACK_SEED={seed}");
    }
}

/// Draws choices from a seed.
struct Choices(u64);

impl Choices {
    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        choices[(self.0 >> 33) as usize % choices.len()]
    }
}

type Host = Netstack<Impair<Mem>>;

fn address(is_v6: bool, host: u8) -> IpAddr {
    let text = if is_v6 { format!("2001:db8::{host}") } else { format!("192.0.2.{host}") };
    text.parse().expect("an address")
}

fn pattern(offset: usize) -> u8 {
    (offset.wrapping_mul(0x9e37_79b1) >> 11) as u8
}

fn run(seed: u64) {
    let mut choices = Choices(seed);
    let mtu = choices.pick(&[1280, 1500, 9000]);
    let has_offload = choices.pick(&[false, true]);
    let capabilities = Capabilities {
        mtu,
        has_checksum_offload: has_offload,
        segmentation_len_max: if has_offload { 65_535 } else { 0 },
        big_tcp: None,
        receive_len_max: if has_offload { 65_549 } else { mtu + 14 },
    };
    let is_v6 = choices.pick(&[false, true]);
    let impairment = Impairment {
        loss: choices.pick(&[0.0, 0.01, 0.1]),
        duplication: choices.pick(&[0.0, 0.05]),
        // A frame whose checksum is left to the device arrives without one that could fail.
        corruption: if has_offload { 0.0 } else { choices.pick(&[0.0, 0.02]) },
        reordering: choices.pick(&[0.0, 0.1]),
        reordering_by: Duration::from_millis(3),
        delay: Duration::from_micros(choices.pick(&[0, 500, 20_000])),
        rate_bytes_per_s: choices.pick(&[None, Some(1_000_000), Some(100_000_000)]),
        queue_bytes_max: choices.pick(&[30_000, 1_000_000]),
        ..Impairment::NONE
    };
    let (near, far) = mem::pair(capabilities, 512);
    let mut hosts = [(near, 1), (far, 2)].map(|(device, host)| {
        let device = Impair::new(device, impairment, Impairment::NONE, seed * 2 + u64::from(host));
        let addresses =
            vec![Prefix { address: address(is_v6, host), len: if is_v6 { 64 } else { 24 } }];
        let interface = IpConfig {
            mac: EthernetAddress([2, 0, 0, 0, 0, host]),
            mtu,
            addresses,
            gateway_v4: None,
            gateway_v6: None,
        };
        let tcp = TcpConfig {
            user_timeout: Duration::from_secs(100_000),
            connect_timeout: Duration::from_secs(100_000),
            accept_timeout: Duration::from_secs(100_000),
            ..TcpConfig::default()
        };
        Netstack::new(device, interface, tcp, ShardLimits::default(), [host; 16])
    });
    converse(&mut hosts, is_v6, choices.pick(&[1, 10_000, 1_000_000]));
}

/// One end sends `len` bytes, the other sends them back; then both close.
fn converse(hosts: &mut [Host; 2], is_v6: bool, len: usize) {
    let mut now = Instant::START;
    hosts[1].shard().listen(PORT, Backlog::default());
    let remote = SocketAddr::new(address(is_v6, 2), PORT);
    let flow = hosts[0].connect(now, remote).expect("a route to the peer");
    let mut near = Some(flow);
    let mut far = None;
    let mut written = 0;
    let mut read = 0;
    for _ in 0..TURNS_MAX {
        for host in &mut *hosts {
            while host.receive(now).expect("memory") > 0 {}
            while host.shard().next_event().is_some() {}
        }
        if let Some(id) = near {
            client(&mut hosts[0], now, id, len, &mut written, &mut read);
            if read == len {
                hosts[0].shard().close(now, id);
                near = None;
            }
        }
        far = far.or_else(|| hosts[1].shard().accept(PORT));
        // A duplicated SYN may open a second connection.
        while let Some(double) = hosts[1].shard().accept(PORT) {
            hosts[1].shard().abort(double);
            hosts[1].shard().close(now, double);
        }
        if let Some(id) = far {
            echo(&mut hosts[1], now, id);
        }
        for host in &mut *hosts {
            host.transmit(now, &()).expect("memory");
        }
        let is_over = hosts.iter_mut().all(|host| host.shard().flows_len() == 0);
        if is_over && far.is_some() && near.is_none() {
            return;
        }
        let wakes = hosts.iter().map(Netstack::wakes_at).min().expect("two");
        assert!(wakes != Instant::NEVER, "no event will come: {written}, {read} of {len}");
        now = now.max(wakes);
    }
    panic!("the transfer does not end: wrote {written}, read {read} of {len} at {now:?}");
}

fn client(
    host: &mut Host,
    now: Instant,
    id: FlowId,
    len: usize,
    written: &mut usize,
    read: &mut usize,
) {
    let mut buffer = [0; 4096];
    let end = host.shard().end(id);
    assert_eq!(end, None, "{now:?}, wrote {written}, read {read} of {len}");
    loop {
        let got = host.shard().read(id, &mut buffer);
        if got == 0 {
            break;
        }
        for (at, &byte) in buffer[..got].iter().enumerate() {
            assert_eq!(byte, pattern(*read + at), "byte {}", *read + at);
        }
        *read += got;
    }
    while *written < len {
        let end = (*written + 4096).min(len);
        let bytes: Vec<u8> = (*written..end).map(pattern).collect();
        match host.shard().write(id, &bytes) {
            0 => break,
            taken => *written += taken,
        }
    }
}

fn echo(host: &mut Host, now: Instant, id: FlowId) {
    let mut buffer = [0; 4096];
    loop {
        let shard = host.shard();
        let fits = shard.writable_len(id).min(buffer.len());
        let got = shard.read(id, &mut buffer[..fits]);
        if got == 0 {
            break;
        }
        assert_eq!(shard.write(id, &buffer[..got]), got);
    }
    let is_done = host.shard().connection(id).is_some_and(|machine| machine.is_peer_closed());
    if is_done {
        host.shard().close(now, id);
    }
}
