//! An interface and the other end of its link, and frames to give to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netstack::device::mem::{self, Mem};
use netstack::device::{
    Capabilities, Device, Frame, Offload, OutgoingFrame, ReceiveBurst, Verified,
};
use netstack::ip::{Delivery, HEADERS_LEN_MAX, Interface, IpConfig, IpFields, NoRoute, Prefix};
use netstack::time::Instant;
use netstack::wire::arp::{ArpOperation, ArpPacket};
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use netstack::wire::icmpv4::{IcmpEcho, Icmpv4Message};
use netstack::wire::icmpv6::Icmpv6Message;
use netstack::wire::ipv4::Ipv4Header;
use netstack::wire::ipv6::Ipv6Header;
use netstack::wire::ndp::NdpMessage;
use netstack::wire::tcp::{self, Flags, Segment, SeqNumber, TcpOptions};
use netstack::wire::{Ecn, Protocol};

pub(crate) const MTU: usize = 1500;
pub(crate) const START: Instant = Instant::START;
pub(crate) const OUR_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
pub(crate) const PEER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);
pub(crate) const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
pub(crate) const FAR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
pub(crate) const OUR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(crate) const PEER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
pub(crate) const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 7);
pub(crate) const OUR_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);

/// An interface and the other end of its link.
pub(crate) struct World {
    pub(crate) interface: Interface,
    pub(crate) device: Mem,
    pub(crate) link: Mem,
    pub(crate) now: Instant,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut IpConfig)) -> World {
        let prefix = |address: IpAddr, len| Prefix { address, len };
        let mut config = IpConfig {
            mac: OUR_MAC,
            mtu: MTU,
            addresses: vec![prefix(OUR_V4.into(), 24), prefix(OUR_V6.into(), 64)],
            gateway_v4: Some(GATEWAY_V4),
            gateway_v6: None,
        };
        change(&mut config);
        let (device, link) = mem::pair(Capabilities::plain(MTU), 1000);
        World { interface: Interface::new(config), device, link, now: START }
    }

    /// A world whose interface knows its peer.
    pub(crate) fn acquainted() -> World {
        let mut world = World::new();
        for peer in [IpAddr::from(PEER_V4), GATEWAY_V4.into(), PEER_V6.into()] {
            world.interface.neighbors().fix(START, peer, PEER_MAC);
        }
        world
    }

    /// Shows a frame to the interface and returns what it sends.
    pub(crate) fn deliver(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let delivery = self.interface.receive(self.now, complete(frame));
        assert_eq!(delivery, Delivery::Nothing);
        self.sent()
    }

    pub(crate) fn sent(&mut self) -> Vec<Vec<u8>> {
        self.interface.on_timer(self.now);
        self.interface.transmit(self.now, &mut self.device);
        let mut burst = ReceiveBurst::new(1000, self.link.capabilities().receive_len_max);
        self.link.receive(self.now, &mut burst).unwrap();
        burst.frames().map(|frame| frame.bytes.to_vec()).collect()
    }

    /// Lets time pass, and returns what it sends until then.
    pub(crate) fn sent_until(&mut self, end: Instant) -> Vec<Vec<u8>> {
        let mut sent = self.sent();
        while let Some(at) = self.interface.wakes_at().filter(|at| *at <= end) {
            assert!(at > self.now, "{at:?} is not after {:?}", self.now);
            self.now = at;
            sent.extend(self.sent());
        }
        sent
    }

    pub(crate) fn counters(&self) -> netstack::ip::IpCounters {
        self.interface.counters().0
    }
}

pub(crate) fn complete(bytes: &[u8]) -> Frame<'_> {
    Frame { bytes, verified: Verified::No, segment_len: None }
}

pub(crate) fn ethernet(dst: EthernetAddress, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14];
    let header = EthernetHeader { dst, src: PEER_MAC, ethertype };
    header.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

pub(crate) fn arp(operation: ArpOperation, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Vec<u8> {
    let packet = ArpPacket {
        operation,
        sender_mac: PEER_MAC,
        sender_ip,
        target_mac: EthernetAddress::ZERO,
        target_ip,
    };
    let mut bytes = [0; 28];
    packet.emit(&mut bytes);
    let dst = match operation {
        ArpOperation::Request => EthernetAddress::BROADCAST,
        ArpOperation::Reply => OUR_MAC,
    };
    // Short frames are padded to 60 bytes.
    let mut frame = ethernet(dst, EtherType::ARP, &bytes);
    frame.resize(60, 0);
    frame
}

pub(crate) fn v4_header(src: Ipv4Addr, protocol: Protocol) -> Ipv4Header {
    Ipv4Header {
        src,
        dst: OUR_V4,
        protocol,
        hop_limit: 64,
        dscp: 0,
        ecn: Ecn::NotCapable,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    }
}

pub(crate) fn v4(header: Ipv4Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    header.emit(payload.len(), &mut bytes);
    bytes.extend_from_slice(payload);
    ethernet(OUR_MAC, EtherType::IPV4, &bytes)
}

pub(crate) fn v6_header(src: Ipv6Addr, next_header: Protocol) -> Ipv6Header {
    Ipv6Header {
        src,
        dst: OUR_V6,
        next_header,
        hop_limit: 255,
        dscp: 0,
        ecn: Ecn::NotCapable,
        flow_label: 0,
    }
}

pub(crate) fn v6(header: Ipv6Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    header.emit(payload.len(), &mut bytes);
    bytes.extend_from_slice(payload);
    let dst = if header.dst.is_multicast() {
        EthernetAddress::of_multicast_v6(header.dst)
    } else {
        OUR_MAC
    };
    ethernet(dst, EtherType::IPV6, &bytes)
}

pub(crate) fn icmp_v4(src: Ipv4Addr, message: Icmpv4Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 1480];
    let len = message.emit(&mut bytes);
    v4(v4_header(src, Protocol::ICMP), &bytes[..len])
}

pub(crate) fn icmp_v6(src: Ipv6Addr, dst: Ipv6Addr, message: Icmpv6Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 1440];
    let len = message.emit(src, dst, &mut bytes);
    let header = Ipv6Header { dst, ..v6_header(src, Protocol::ICMPV6) };
    v6(header, &bytes[..len])
}

pub(crate) fn ndp(src: Ipv6Addr, dst: Ipv6Addr, message: NdpMessage) -> Vec<u8> {
    icmp_v6(src, dst, Icmpv6Message::Ndp(message))
}

pub(crate) const ECHO: IcmpEcho<'_> =
    IcmpEcho { identifier: 7, sequence: 1, data: b"are you there" };

/// A segment to this host.
pub(crate) fn segment() -> (Segment<'static>, Vec<u8>) {
    let segment = Segment {
        src_port: 4000,
        dst_port: 80,
        seq: SeqNumber(1),
        ack: None,
        flags: Flags::SYN,
        window: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
        payload: &[],
    };
    let mut bytes = vec![0; 20];
    segment.emit(&mut bytes);
    (segment, bytes)
}

pub(crate) fn segment_v4(src: Ipv4Addr) -> Vec<u8> {
    let (_, mut bytes) = segment();
    let pseudo = Sum::pseudo_header_v4(src, OUR_V4, Protocol::TCP.0, 20);
    tcp::write_checksum(&mut bytes, pseudo, Sum::ZERO);
    v4(v4_header(src, Protocol::TCP), &bytes)
}

pub(crate) fn parsed_v4(frame: &[u8]) -> (EthernetHeader, Ipv4Header, &[u8]) {
    let (link, packet) = EthernetHeader::parse(frame).unwrap();
    let (header, payload) = Ipv4Header::parse(packet).unwrap();
    (link, header, payload)
}

pub(crate) fn parsed_v6(frame: &[u8]) -> (EthernetHeader, Ipv6Header, Icmpv6Message<'_>) {
    let (link, packet) = EthernetHeader::parse(frame).unwrap();
    let (header, payload) = Ipv6Header::parse(packet).unwrap();
    let message = Icmpv6Message::parse(header.src, header.dst, payload).unwrap();
    (link, header, message)
}

pub(crate) fn parsed_arp(frame: &[u8]) -> (EthernetHeader, ArpPacket) {
    let (link, packet) = EthernetHeader::parse(frame).unwrap();
    (link, ArpPacket::parse(packet).unwrap())
}

/// Writes the headers of a segment, and says whether the frame could leave at once.
pub(crate) fn send_to(world: &mut World, dst: IpAddr) -> Result<bool, NoRoute> {
    let src = world.interface.source_for(dst).unwrap();
    let mut buffer = [0; HEADERS_LEN_MAX + 20];
    let fields = IpFields { src, dst, dscp: 0, ecn: Ecn::Capable0, len: 20 };
    let written = world.interface.write_headers(world.now, &fields, &mut buffer)?;
    let (_, segment) = segment();
    let frame = &mut buffer[..written.len + 20];
    frame[written.len..].copy_from_slice(&segment);
    tcp::write_checksum(&mut frame[written.len..], written.pseudo_header, Sum::ZERO);
    if written.is_resolved {
        let whole = OutgoingFrame { headers: frame, payload: &[], offload: Offload::None };
        world.device.transmit(world.now, &whole).unwrap();
    } else {
        world.interface.hold(world.now, dst, frame, &[]);
    }
    Ok(written.is_resolved)
}
