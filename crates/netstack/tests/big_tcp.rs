//! Packets of IPv4 above 64 KiB: their receivers, and intact streams.

extern crate weftwork_netstack as netstack;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netstack::Netstack;
use netstack::device::mem::{self, Mem};
use netstack::device::{BigTcp, Capabilities, Device, OutgoingFrame, ReceiveBurst, TransmitError};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, FlowId, ShardLimits};
use netstack::tcp::TcpConfig;
use netstack::time::Instant;
use netstack::wire::ethernet::{self, EthernetAddress};

const PORT: u16 = 80;
const BIG: usize = 256 << 10;
const STREAM_LEN: usize = 8 << 20;
const V6_OF_SECOND: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Notes the length of frames that leave.
struct Measured {
    device: Mem,
    longest: usize,
    /// Length of the longest frame that it takes.
    takes_max: usize,
    /// Loses every frame whose number is a multiple of this.
    loses_every: Option<u64>,
    transmitted: u64,
}

impl Device for Measured {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        self.device.receive(now, burst)
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        if frame.len() > self.takes_max {
            return Err(TransmitError::Full);
        }
        self.longest = self.longest.max(frame.len());
        self.transmitted += 1;
        let is_nth = |every| self.transmitted.is_multiple_of(every);
        if self.loses_every.is_some_and(is_nth) { Ok(()) } else { self.device.transmit(now, frame) }
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.device.wakes_at()
    }
}

fn mac(host: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, host])
}

/// Two hosts, the first of which has a device of `device_host`. `len` is the prefix length of the
/// link: with 32 the other host is behind a gateway, which is the host itself.
fn hosts(is_v6: bool, len: u8, device_host: EthernetAddress) -> [Netstack<Measured>; 2] {
    let capabilities = Capabilities {
        big_tcp: Some(BigTcp { len_max: BIG, host: device_host }),
        receive_len_max: ethernet::HEADER_LEN + BIG,
        ..Capabilities::offloading(1500)
    };
    let (near, far) = mem::pair(capabilities, 1024);
    let v4 = |host| Ipv4Addr::new(192, 0, 2, host);
    let address = |host: u8| {
        if is_v6 {
            IpAddr::V6(Ipv6Addr::from_bits(V6_OF_SECOND.to_bits() - 2 + u128::from(host)))
        } else {
            IpAddr::V4(v4(host))
        }
    };
    let mut hosts = [(near, 1), (far, 2)].map(|(device, host)| {
        let interface = IpConfig {
            mac: mac(host),
            mtu: 1500,
            addresses: vec![Prefix { address: address(host), len }],
            gateway_v4: (!is_v6 && len == 32).then(|| v4(3 - host)),
            gateway_v6: None,
        };
        let config = TcpConfig { receive_capacity: 4 << 20, ..TcpConfig::default() };
        let limits = ShardLimits { send_capacity: 1 << 20, ..ShardLimits::default() };
        let device = Measured {
            device,
            longest: 0,
            takes_max: usize::MAX,
            loses_every: None,
            transmitted: 0,
        };
        Netstack::new(device, interface, config, limits, [host; 16])
    });
    if len == 32 {
        for (host, other) in [(0, 2), (1, 1)] {
            let neighbors = hosts[host].interface().neighbors();
            neighbors.fix(Instant::START, IpAddr::V4(v4(other)), mac(other));
        }
    }
    hosts
}

/// Streams from a host to another one and returns the longest packet that left.
fn longest_packet(is_v6: bool, len: u8, device_host: EthernetAddress) -> usize {
    stream(&mut hosts(is_v6, len, device_host))
}

/// `STREAM_LEN` bytes from the first to the second. Returns the longest packet that left.
fn stream(hosts: &mut [Netstack<Measured>; 2]) -> usize {
    let second = hosts[1].interface();
    let addresses = [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), V6_OF_SECOND.into()];
    let address = addresses.into_iter().find(|it| second.is_own(*it));
    let remote = SocketAddr::new(address.expect("one of the two"), PORT);
    let bytes: Vec<u8> = (0..STREAM_LEN).map(|at| ((at * 7) >> 5) as u8).collect();
    let mut now = Instant::START;
    hosts[1].shard().listen(PORT, Backlog::default());
    let near = hosts[0].connect(now, remote).expect("a route to the peer");
    let mut far: Option<FlowId> = None;
    let mut written = 0;
    let mut read = Vec::with_capacity(STREAM_LEN);
    while read.len() < STREAM_LEN {
        for host in &mut *hosts {
            while host.receive(now).expect("memory") > 0 {}
            while host.shard().next_event().is_some() {}
        }
        written += hosts[0].shard().write(near, &bytes[written..]);
        far = far.or_else(|| hosts[1].shard().accept(PORT));
        if let Some(far) = far {
            let shard = hosts[1].shard();
            let (front, back) = shard.peek(far);
            let len = front.len() + back.len();
            read.extend_from_slice(front);
            read.extend_from_slice(back);
            shard.consume(far, len);
        }
        let before = now;
        for host in &mut *hosts {
            host.transmit(now, &()).expect("memory");
        }
        let wakes = hosts.iter().map(Netstack::wakes_at).min().expect("two");
        now = now.max(wakes.min(before + std::time::Duration::from_millis(1)));
        assert!(now.as_millis() < 600_000, "{} of {STREAM_LEN}", read.len());
    }
    assert!(read == bytes, "the received bytes differ from the sent ones");
    hosts[0].device().longest - ethernet::HEADER_LEN
}

#[test]
fn big_packets_to_the_devices_host() {
    let longest = longest_packet(false, 24, mac(2));
    assert!((BIG - 3000..=BIG).contains(&longest), "{longest}");
}

#[test]
fn others_get_packets_of_64_kib_at_most() {
    let another = longest_packet(false, 24, mac(3));
    let behind_a_gateway = longest_packet(false, 32, mac(2));
    let over_v6 = longest_packet(true, 64, mac(2));
    for longest in [another, behind_a_gateway, over_v6] {
        assert!((60_000..=0xffff).contains(&longest), "{longest}");
    }
}

#[test]
fn losses_in_big_packets_are_repaired() {
    let mut hosts = hosts(false, 24, mac(2));
    hosts[0].device().loses_every = Some(40);
    let longest = stream(&mut hosts);
    assert!(longest > 0xffff, "{longest}");
}

/// Seen in a review: a device that never has space for a long frame, as a kernel whose free memory
/// lies in single pages, was offered the same frame again and again, and nothing else left. Cure:
/// the frame counts as lost, and its connection sends shorter ones.
#[test]
fn devices_that_refuse_big_packets() {
    let mut hosts = hosts(false, 24, mac(2));
    hosts[0].device().takes_max = ethernet::HEADER_LEN + 0xffff;
    let longest = stream(&mut hosts);
    assert!((60_000..=0xffff).contains(&longest), "{longest}");
}
