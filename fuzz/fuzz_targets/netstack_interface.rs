//! Any frames, one after the other, to an interface, which must stay within its limits and send
//! only frames that it would accept itself.
//!
//! A byte before each frame gives its length, and says whether time passes and whether checksums
//! are corrected, so that the code behind their check is reached.

#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use netstack::device::mem;
use netstack::device::{Capabilities, Device, Frame, ReceiveBurst, Verified};
use netstack::ip::{
    Delivery, HEADERS_LEN_MAX, Interface, IpConfig, IpFields, OWN_FRAMES_MAX, Prefix,
};
use netstack::neighbor::NEIGHBORS_MAX;
use netstack::time::Instant;
use netstack::wire::arp::ArpPacket;
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use netstack::wire::ipv4::Ipv4Header;
use netstack::wire::ipv6::Ipv6Header;
use netstack::wire::{Ecn, Protocol};

const MTU: usize = 1500;
const OURS: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

fuzz_target!(|input: &[u8]| {
    let (v4, v6) = (Ipv4Addr::new(10, 0, 0, 1), "fd00::1".parse::<Ipv6Addr>().unwrap());
    let prefix = |address, len| Prefix { address, len };
    let mut interface = Interface::new(IpConfig {
        mac: OURS,
        mtu: MTU,
        addresses: vec![prefix(v4.into(), 24), prefix(v6.into(), 64)],
        gateway_v4: Some([10, 0, 0, 254].into()),
        gateway_v6: None,
    });
    let (mut device, mut link) = mem::pair(Capabilities::plain(MTU), 4 * OWN_FRAMES_MAX);
    let mut burst = ReceiveBurst::new(4 * OWN_FRAMES_MAX, link.capabilities().receive_len_max);
    let mut now = Instant::START;
    let mut rest = input;
    while let [how, len, after @ ..] = rest {
        let (bytes, after) = after.split_at(after.len().min(usize::from(*len)));
        rest = after;
        let mut frame = bytes.to_vec();
        if how & 1 != 0 {
            mend(&mut frame);
        }
        if how & 2 != 0 {
            now += Duration::from_millis(700);
        }
        let whole = Frame { bytes: &frame, verified: Verified::No, segment_len: None };
        if let Delivery::Segment(arrived) = interface.receive(now, whole) {
            assert!(interface.is_own(arrived.dst) && !interface.is_own(arrived.src));
            answer(&mut interface, now, arrived.dst, arrived.src);
        }
        interface.on_timer(now);
        interface.transmit(now, &mut device);
        assert!(interface.neighbors().len() <= NEIGHBORS_MAX);
        burst.clear();
        link.receive(now, &mut burst).unwrap();
        burst.frames().for_each(|frame| check(frame.bytes));
    }
});

fn answer(interface: &mut Interface, now: Instant, src: std::net::IpAddr, dst: std::net::IpAddr) {
    let mut room = [0; HEADERS_LEN_MAX];
    let fields = IpFields { src, dst, dscp: 0, ecn: Ecn::NotCapable, len: 0 };
    if let Ok(written) = interface.write_headers(now, &fields, &mut room)
        && !written.is_resolved
    {
        interface.hold(now, dst, &room[..written.len], &[]);
    }
}

/// Checks a frame that the interface sent.
fn check(frame: &[u8]) {
    let (header, packet) = EthernetHeader::parse(frame).unwrap();
    assert_eq!(header.src, OURS);
    assert!(header.dst != EthernetAddress::ZERO && header.dst != OURS);
    match header.ethertype {
        EtherType::ARP => drop(ArpPacket::parse(packet).unwrap()),
        EtherType::IPV4 => drop(Ipv4Header::parse(packet).unwrap()),
        EtherType::IPV6 => drop(Ipv6Header::parse(packet).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Corrects the checksums of an IPv4 header and of the payload of IPv4 or IPv6.
fn mend(frame: &mut [u8]) {
    let Some((ethernet, packet)) = frame.split_at_mut_checked(14) else {
        return;
    };
    let ethertype = u16::from_be_bytes([ethernet[12], ethernet[13]]);
    match EtherType(ethertype) {
        EtherType::IPV4 if packet.len() >= 20 => {
            let header_len = usize::from(packet[0] & 0x0f) * 4;
            mend_at(packet, 0..header_len, 10, Sum::ZERO);
            let Ok((header, payload)) = Ipv4Header::parse(packet) else {
                return;
            };
            let len = payload.len();
            let pseudo =
                Sum::pseudo_header_v4(header.src, header.dst, header.protocol.0, len as u32);
            let pseudo = if header.protocol == Protocol::ICMP { Sum::ZERO } else { pseudo };
            mend_upper(packet, header_len..header_len + len, header.protocol, pseudo);
        }
        EtherType::IPV6 if packet.len() >= 40 => {
            let Ok((header, payload)) = Ipv6Header::parse(packet) else {
                return;
            };
            let protocol = header.next_header;
            let len = payload.len();
            let pseudo = Sum::pseudo_header_v6(header.src, header.dst, protocol.0, len as u32);
            mend_upper(packet, 40..40 + len, protocol, pseudo);
        }
        _ => {}
    }
}

fn mend_upper(packet: &mut [u8], at: std::ops::Range<usize>, protocol: Protocol, pseudo: Sum) {
    let field = match protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        Protocol::ICMP | Protocol::ICMPV6 => 2,
        _ => return,
    };
    mend_at(packet, at, field, pseudo);
}

fn mend_at(packet: &mut [u8], at: std::ops::Range<usize>, field: usize, pseudo: Sum) {
    if let Some(summed) = packet.get_mut(at).filter(|summed| summed.len() >= field + 2) {
        summed[field..field + 2].fill(0);
        let checksum = (pseudo + Sum::of(summed)).checksum();
        summed[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}
