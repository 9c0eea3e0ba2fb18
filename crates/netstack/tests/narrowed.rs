//! A device whose MTU is lowered while connections are open, and paths that are known to be narrow.

extern crate weftwork_netstack as netstack;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netstack::Netstack;
use netstack::device::mem::{self, Mem};
use netstack::device::{Capabilities, Device, Offload, OutgoingFrame, ReceiveBurst, TransmitError};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, ShardLimits};
use netstack::tcp::TcpConfig;
use netstack::time::Instant;
use netstack::wire::ethernet::{self, EthernetAddress};

const PORT: u16 = 80;

/// Device like a packet socket: a frame that is not cut must fit into the MTU.
struct Narrowed {
    device: Mem,
    mtu: usize,
    refused: usize,
}

impl Device for Narrowed {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now: Instant, burst: &mut ReceiveBurst) -> io::Result<()> {
        self.device.receive(now, burst)
    }

    fn transmit(&mut self, now: Instant, frame: &OutgoingFrame<'_>) -> Result<(), TransmitError> {
        let is_cut = matches!(frame.offload, Offload::Segmentation(_));
        if !is_cut && frame.len() > ethernet::HEADER_LEN + self.mtu {
            self.refused += 1;
            return Err(TransmitError::TooLong { mtu: self.mtu });
        }
        self.device.transmit(now, frame)
    }
}

fn host(number: u8, device: Mem) -> Netstack<Narrowed> {
    let mtu = device.capabilities().mtu;
    let interface = IpConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, number]),
        mtu,
        addresses: vec![Prefix { address: address(number), len: 24 }],
        gateway_v4: None,
        gateway_v6: None,
    };
    let tcp = TcpConfig::default();
    let limits = ShardLimits::default();
    let device = Narrowed { device, mtu, refused: 0 };
    Netstack::new(device, interface, tcp, limits, [number; 16])
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number).into()
}

/// Seen: after `ip link set mtu` on the interface of a packet socket, no connection sent anything
/// any more. Cause: EMSGSIZE counted as a device error, which pauses the device, and the same
/// segment was sent again. Cure: it is handled like a router's report of a narrow path.
#[test]
fn a_lowered_device_mtu_shortens_segments() {
    let (near, far) = mem::pair(Capabilities::plain(1500), 64);
    let mut near = host(1, near);
    let mut far = host(2, far);
    far.shard().listen(PORT, Backlog::default());
    let mut now = Instant::START;
    let client = near.connect(now, SocketAddr::new(address(2), PORT)).unwrap();
    let sent: Vec<u8> = (0..200_000_u32).map(|at| (at / 7) as u8).collect();
    let (mut written, mut server, mut came) = (0, None, Vec::new());
    let end = now + Duration::from_secs(10);
    while came.len() < sent.len() {
        assert!(now < end, "{} of {} bytes came", came.len(), sent.len());
        if came.len() >= sent.len() / 2 {
            near.device().mtu = 1000;
        }
        for netstack in [&mut near, &mut far] {
            netstack.receive(now).unwrap();
            while netstack.shard().next_event().is_some() {}
        }
        written += near.shard().write(client, &sent[written..]);
        server = server.or_else(|| far.shard().accept(PORT));
        if let Some(server) = server {
            let mut buffer = [0; 10_000];
            let len = far.shard().read(server, &mut buffer);
            came.extend_from_slice(&buffer[..len]);
        }
        for netstack in [&mut near, &mut far] {
            netstack.transmit(now, &()).unwrap();
        }
        now += Duration::from_millis(1);
    }
    assert!(came == sent, "the received bytes differ from the sent ones");
    assert_eq!(near.device().mtu, 1000);
    let tcp = near.shard().connection(client).unwrap().counters();
    assert_eq!(tcp.timeouts, 0);
}

/// Seen: each connection over a narrow path lost its first full segments again. Cause: routers'
/// reports were kept, and never read. Cure: a connection that opens reads them.
#[test]
fn the_next_connection_knows_the_path_mtu() {
    // By its own SYN, by the peer's, and by a cookie.
    for (is_active, syn_queue_max) in [(true, 64), (false, 64), (false, 0)] {
        let (near, far) = mem::pair(Capabilities::plain(1500), 64);
        let mut near = host(1, near);
        let mut far = host(2, far);
        let mut now = Instant::START;
        assert!(near.interface().path_mtu_lowered(now, address(2), 1000));
        near.device().mtu = 1000;
        let backlog = Backlog { syn_queue_max, ..Backlog::default() };
        let mut sender = None;
        let mut receiver = None;
        if is_active {
            far.shard().listen(PORT, backlog);
            let remote = SocketAddr::new(address(2), PORT);
            sender = Some(near.connect(now, remote).unwrap());
        } else {
            near.shard().listen(PORT, backlog);
            let remote = SocketAddr::new(address(1), PORT);
            receiver = Some(far.connect(now, remote).unwrap());
        }
        let mut left = 50_000;
        let mut came = 0;
        let end = now + Duration::from_secs(10);
        while came < 50_000 {
            assert!(now < end, "{came} bytes came");
            near.receive(now).unwrap();
            far.receive(now).unwrap();
            sender = sender.or_else(|| near.shard().accept(PORT));
            receiver = receiver.or_else(|| far.shard().accept(PORT));
            if let Some(sender) = sender {
                left -= near.shard().write(sender, &vec![7; left]);
            }
            if let Some(receiver) = receiver {
                came += far.shard().read(receiver, &mut [0; 10_000]);
            }
            near.transmit(now, &()).unwrap();
            far.transmit(now, &()).unwrap();
            now += Duration::from_millis(1);
        }
        let cookies = near.shard().counters().cookies_accepted;
        assert_eq!(cookies, u64::from(syn_queue_max == 0));
        assert_eq!(near.device().refused, 0, "segments that were too long");
    }
}
