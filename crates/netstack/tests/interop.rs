//! This netstack and smoltcp talk to each other over a link in memory, in both roles: bytes that
//! one end sends come back from the other, and both ends close.

extern crate weftwork_netstack as netstack;

use std::net::SocketAddr;
use std::time::Duration;

use netstack::Netstack;
use netstack::device::impair::{Impair, Impairment};
use netstack::device::mem::{self, Mem};
use netstack::device::{Capabilities, Device, Offload, OutgoingFrame, ReceiveBurst};
use netstack::ip::{IpConfig, Prefix};
use netstack::stack::{Backlog, FlowId, ShardLimits};
use netstack::tcp::{CongestionControl, TcpConfig};
use netstack::time::Instant;
use netstack::wire::ethernet::EthernetAddress;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as TheirInstant;
use smoltcp::wire::{EthernetFrame, HardwareAddress, IpAddress, IpCidr, Ipv4Packet, TcpPacket};
use smoltcp::wire::{EthernetProtocol, IpProtocol, TcpSeqNumber};

const MTU: usize = 1500;
const PORT: u16 = 80;
const TURNS_MAX: usize = 200_000;

/// Adapts a device of this netstack to smoltcp.
struct Adapter {
    device: Mem,
    burst: ReceiveBurst,
    now: Instant,
    /// The place behind smoltcp's FIN, once that has left.
    fin_end: Option<TcpSeqNumber>,
}

impl Adapter {
    /// Seen: smoltcp stayed in LAST-ACK forever, and this end in TIME-WAIT was not asked again.
    /// Cause: its FIN had arrived, the acknowledgement of that was corrupted, and an older one came
    /// late. smoltcp 0.12 stops its timer for an older one in LAST-ACK, so the FIN is never sent
    /// again. Cure: behind smoltcp's FIN the link loses frames that do not acknowledge it; this end
    /// must be able to end nevertheless.
    fn is_lost(&self, frame: &[u8]) -> bool {
        let Some((fin_end, tcp)) = self.fin_end.zip(tcp_of(frame)) else {
            return false;
        };
        tcp.ack() && tcp.ack_number() < fin_end
    }
}

fn tcp_of(frame: &[u8]) -> Option<TcpPacket<&[u8]>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
    if packet.next_header() != IpProtocol::Tcp {
        return None;
    }
    TcpPacket::new_checked(packet.payload()).ok()
}

struct Arriving(Vec<u8>);
struct Leaving<'a>(&'a mut Adapter);

impl RxToken for Arriving {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = vec![0; len];
        let result = f(&mut bytes);
        if let Some(tcp) = tcp_of(&bytes).filter(TcpPacket::fin) {
            self.0.fin_end = Some(tcp.seq_number() + tcp.segment_len());
        }
        let frame = OutgoingFrame { headers: &bytes, payload: &[], offload: Offload::None };
        // A frame that finds the pipe full is lost.
        let _ = self.0.device.transmit(self.0.now, &frame);
        result
    }
}

impl phy::Device for Adapter {
    type RxToken<'a> = Arriving;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: TheirInstant) -> Option<(Arriving, Leaving<'_>)> {
        loop {
            self.burst.clear();
            self.device.receive(self.now, &mut self.burst).expect("memory");
            let frame = self.burst.frames().next()?.bytes.to_vec();
            if !self.is_lost(&frame) {
                return Some((Arriving(frame), Leaving(self)));
            }
        }
    }

    fn transmit(&mut self, _: TheirInstant) -> Option<Leaving<'_>> {
        Some(Leaving(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MTU + 14;
        capabilities
    }
}

/// The other end.
struct Their {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    adapter: Adapter,
}

fn their_time(now: Instant) -> TheirInstant {
    TheirInstant::from_micros(now.as_micros() as i64)
}

fn ends(impairment: Impairment, congestion: CongestionControl) -> (Netstack<Impair<Mem>>, Their) {
    let capabilities = Capabilities {
        mtu: MTU,
        has_checksum_offload: false,
        segmentation_len_max: 0,
        big_tcp: None,
        receive_len_max: MTU + 14,
    };
    let (near, far) = mem::pair(capabilities, 1024);
    let interface = IpConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
        mtu: MTU,
        addresses: vec![Prefix { address: "192.0.2.1".parse().expect("an address"), len: 24 }],
        gateway_v4: None,
        gateway_v6: None,
    };
    let tcp = TcpConfig { congestion, ..TcpConfig::default() };
    let device = Impair::new(near, impairment, impairment, 7);
    let ours = Netstack::new(device, interface, tcp, ShardLimits::default(), [3; 16]);
    let mut adapter = Adapter {
        device: far,
        burst: ReceiveBurst::new(1, MTU + 14),
        now: Instant::START,
        fin_end: None,
    };
    let mac = smoltcp::wire::EthernetAddress([2, 0, 0, 0, 0, 2]);
    let mut config = Config::new(HardwareAddress::Ethernet(mac));
    config.random_seed = 11;
    let mut interface = Interface::new(config, &mut adapter, their_time(Instant::START));
    interface.update_ip_addrs(|addresses| {
        let own = IpCidr::new(IpAddress::v4(192, 0, 2, 2), 24);
        addresses.push(own).expect("room for one address");
    });
    let mut sockets = SocketSet::new(vec![]);
    let buffer = || SocketBuffer::new(vec![0; 32 << 10]);
    let socket = sockets.add(Socket::new(buffer(), buffer()));
    let their = Their { interface, sockets, socket, adapter };
    (ours, their)
}

fn pattern(offset: usize) -> u8 {
    (offset.wrapping_mul(0x9e37_79b1) >> 9) as u8
}

/// A stream of bytes, written and read back.
#[derive(Default)]
struct Stream {
    written: usize,
    read: usize,
}

impl Stream {
    fn take(&mut self, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate() {
            assert_eq!(byte, pattern(self.read + at), "byte {}", self.read + at);
        }
        self.read += bytes.len();
    }

    fn next(&self, len: usize) -> Vec<u8> {
        (self.written..len.min(self.written + 4096)).map(pattern).collect()
    }
}

fn links() -> [Impairment; 4] {
    let delayed = Impairment { delay: Duration::from_millis(5), ..Impairment::NONE };
    [
        Impairment::NONE,
        delayed,
        Impairment { loss: 0.02, ..delayed },
        Impairment {
            loss: 0.05,
            duplication: 0.05,
            corruption: 0.01,
            reordering: 0.05,
            reordering_by: Duration::from_millis(2),
            ..delayed
        },
    ]
}

#[test]
fn our_client_their_server() {
    const LEN: usize = 300_000;
    for impairment in links() {
        for congestion in [CongestionControl::NewReno, CongestionControl::Cubic] {
            let (mut ours, mut their) = ends(impairment, congestion);
            let socket = their.sockets.get_mut::<Socket<'_>>(their.socket);
            socket.listen(PORT).expect("a socket that listens");
            let remote = SocketAddr::new("192.0.2.2".parse().expect("an address"), PORT);
            let id = ours.connect(Instant::START, remote).expect("a route");
            let mut stream = Stream::default();
            let mut flow = Some(id);
            run(&mut ours, &mut their, |ours, socket, now| {
                their_echo(socket);
                if let Some(id) = flow {
                    our_turn(ours, id, &mut stream, LEN);
                    if stream.read == LEN {
                        ours.shard().finish(id);
                        if ours.shard().connection(id).is_some_and(|c| c.is_peer_closed()) {
                            ours.shard().close(now, id);
                            flow = None;
                        }
                    }
                }
                flow.is_none() && ours.shard().flows_len() == 0 && socket.state() == State::Closed
            });
        }
    }
}

#[test]
fn their_client_our_server() {
    const LEN: usize = 200_000;
    for impairment in links() {
        let (mut ours, mut their) = ends(impairment, CongestionControl::Cubic);
        ours.shard().listen(PORT, Backlog::default());
        let remote = (IpAddress::v4(192, 0, 2, 1), PORT);
        let socket = their.sockets.get_mut::<Socket<'_>>(their.socket);
        let context = their.interface.context();
        socket.connect(context, remote, 49_500).expect("a connection");
        let mut stream = Stream::default();
        let mut flow = None;
        run(&mut ours, &mut their, |ours, socket, now| {
            flow = flow.or_else(|| ours.shard().accept(PORT));
            if let Some(id) = flow {
                our_echo(ours, id, now);
            }
            while socket.can_recv() {
                let took = socket.recv(|bytes| {
                    stream.take(bytes);
                    (bytes.len(), ())
                });
                took.expect("the socket can receive");
            }
            while stream.written < LEN && socket.can_send() {
                let next = stream.next(LEN);
                stream.written += socket.send_slice(&next).expect("the socket can send");
            }
            if stream.read == LEN {
                socket.close();
            }
            let is_closed = matches!(socket.state(), State::Closed | State::TimeWait);
            stream.read == LEN && is_closed && ours.shard().flows_len() == 0
        });
    }
}

/// Turns of both ends until `is_over`.
fn run(
    ours: &mut Netstack<Impair<Mem>>,
    their: &mut Their,
    mut is_over: impl FnMut(&mut Netstack<Impair<Mem>>, &mut Socket<'static>, Instant) -> bool,
) {
    let mut now = Instant::START;
    for _ in 0..TURNS_MAX {
        while ours.receive(now).expect("memory") > 0 {}
        while ours.shard().next_event().is_some() {}
        their.adapter.now = now;
        their.interface.poll(their_time(now), &mut their.adapter, &mut their.sockets);
        let socket = their.sockets.get_mut::<Socket<'static>>(their.socket);
        if is_over(ours, socket, now) {
            return;
        }
        ours.transmit(now, &()).expect("memory");
        their.interface.poll(their_time(now), &mut their.adapter, &mut their.sockets);
        ours.transmit(now, &()).expect("memory");
        let wakes = their.interface.poll_at(their_time(now), &their.sockets);
        let wakes =
            wakes.map_or(Instant::NEVER, |at| Instant::from_nanos(at.total_micros() as u64 * 1000));
        // Frames that smoltcp has just sent arrive at once: look again soon.
        let soon = now + Duration::from_micros(100);
        now = ours.wakes_at().min(wakes).clamp(soon, now + Duration::from_secs(1));
    }
    let socket = their.sockets.get::<Socket<'_>>(their.socket);
    let counters = ours.shard().counters();
    panic!("the transfer does not end: smoltcp is in {} at {now:?}, {counters:?}", socket.state());
}

fn our_turn(ours: &mut Netstack<Impair<Mem>>, id: FlowId, stream: &mut Stream, len: usize) {
    let mut buffer = [0; 4096];
    loop {
        match ours.shard().read(id, &mut buffer) {
            0 => break,
            got => stream.take(&buffer[..got]),
        }
    }
    while stream.written < len {
        let next = stream.next(len);
        match ours.shard().write(id, &next) {
            0 => break,
            taken => stream.written += taken,
        }
    }
}

fn our_echo(ours: &mut Netstack<Impair<Mem>>, id: FlowId, now: Instant) {
    let mut buffer = [0; 4096];
    let shard = ours.shard();
    loop {
        let fits = shard.writable_len(id).min(buffer.len());
        match shard.read(id, &mut buffer[..fits]) {
            0 => break,
            got => assert_eq!(shard.write(id, &buffer[..got]), got),
        }
    }
    if shard.connection(id).is_some_and(|machine| machine.is_peer_closed()) {
        shard.close(now, id);
    }
}

fn their_echo(socket: &mut Socket<'_>) {
    while socket.can_recv() && socket.can_send() {
        let free_len = socket.send_capacity() - socket.send_queue();
        let bytes = socket.recv(|bytes| {
            let len = bytes.len().min(free_len);
            (len, bytes[..len].to_vec())
        });
        let bytes = bytes.expect("the socket can receive");
        assert_eq!(socket.send_slice(&bytes), Ok(bytes.len()));
    }
    if socket.state() == State::CloseWait && socket.send_queue() == 0 {
        socket.close();
    }
}
