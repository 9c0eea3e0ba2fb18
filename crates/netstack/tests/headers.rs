//! Headers below TCP: emitted headers parse back, etherparse and smoltcp agree, and invalid input
//! is refused.

extern crate weftwork_netstack as netstack;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice};
use netstack::wire::arp::{ArpOperation, ArpPacket};
use netstack::wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use netstack::wire::icmpv4::{IcmpEcho, Icmpv4Message};
use netstack::wire::icmpv6::Icmpv6Message;
use netstack::wire::ipv4::Ipv4Header;
use netstack::wire::ipv6::{EXTENSIONS_MAX, ExtensionError, Ipv6Header, UpperLayer, upper_layer};
use netstack::wire::ndp::{NdpMessage, PrefixInformation, RouterAdvertisement};
use netstack::wire::quoted::QuotedSegment;
use netstack::wire::tcp::SeqNumber;
use netstack::wire::udp::UdpHeader;
use netstack::wire::vnet::{VnetChecksum, VnetGso, VnetHeader};
use netstack::wire::{DSCP_MAX, Ecn, Malformed, Protocol};
use proptest::array::uniform4;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as theirs;

// ---- Strategies

fn mac() -> impl Strategy<Value = EthernetAddress> {
    any::<[u8; 6]>().prop_map(EthernetAddress)
}

fn v4() -> impl Strategy<Value = Ipv4Addr> {
    any::<[u8; 4]>().prop_map(Ipv4Addr::from)
}

fn v6() -> impl Strategy<Value = Ipv6Addr> {
    any::<[u8; 16]>().prop_map(Ipv6Addr::from)
}

fn target() -> impl Strategy<Value = Ipv6Addr> {
    v6().prop_filter("a target is one host's", |address| !address.is_multicast())
}

fn ecn() -> impl Strategy<Value = Ecn> {
    (0u8..4).prop_map(Ecn::of_traffic_class)
}

fn ipv4_header() -> impl Strategy<Value = Ipv4Header> {
    let fields =
        (v4(), v4(), any::<(u8, u8, u16, bool, bool)>(), (0..=DSCP_MAX, ecn()), 0u16..1 << 13);
    fields.prop_map(|(src, dst, fields, (dscp, ecn), offset)| Ipv4Header {
        src,
        dst,
        protocol: Protocol(fields.0),
        hop_limit: fields.1,
        dscp,
        ecn,
        identification: fields.2,
        dont_fragment: fields.3,
        more_fragments: fields.4,
        fragment_offset: offset * 8,
    })
}

fn ipv6_header() -> impl Strategy<Value = Ipv6Header> {
    let fields = (v6(), v6(), any::<(u8, u8)>(), (0..=DSCP_MAX, ecn()), 0u32..1 << 20);
    fields.prop_map(|(src, dst, fields, (dscp, ecn), flow_label)| Ipv6Header {
        src,
        dst,
        next_header: Protocol(fields.0),
        hop_limit: fields.1,
        dscp,
        ecn,
        flow_label,
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..100)
}

fn ndp() -> impl Strategy<Value = NdpMessage> {
    let millis = || any::<u32>().prop_map(|millis| Duration::from_millis(millis.into()));
    let prefix = (v6(), 0u8..=128, any::<(bool, bool, u32, u32)>());
    let prefix = prefix.prop_map(|(prefix, len, rest)| PrefixInformation {
        prefix,
        len,
        is_on_link: rest.0,
        is_autonomous: rest.1,
        valid_s: rest.2,
        preferred_s: rest.3,
    });
    let router = (
        any::<(u8, u16)>(),
        millis(),
        millis(),
        option::of(mac()),
        option::of(any::<u32>()),
        uniform4(option::of(prefix)),
    );
    let router = router.prop_map(|(fields, reachable, retransmit, source, mtu, mut prefixes)| {
        // The present prefixes come first.
        prefixes.sort_by_key(Option::is_none);
        RouterAdvertisement {
            hop_limit: fields.0,
            lifetime: Duration::from_secs(fields.1.into()),
            reachable,
            retransmit,
            source,
            mtu,
            prefixes,
        }
    });
    let flags = any::<(bool, bool, bool)>();
    prop_oneof![
        option::of(mac()).prop_map(|source| NdpMessage::RouterSolicitation { source }),
        router.prop_map(NdpMessage::RouterAdvertisement),
        (target(), option::of(mac()))
            .prop_map(|(target, source)| NdpMessage::NeighborSolicitation { target, source }),
        (target(), option::of(mac()), flags).prop_map(|(target, link, flags)| {
            NdpMessage::NeighborAdvertisement {
                target,
                link,
                is_router: flags.0,
                is_solicited: flags.1,
                is_override: flags.2,
            }
        }),
    ]
}

// ---- What is emitted is parsed

proptest! {
    #[test]
    fn ethernet(dst in mac(), src in mac(), ethertype in any::<u16>(), payload in payload()) {
        let header = EthernetHeader { dst, src, ethertype: EtherType(ethertype) };
        let mut bytes = vec![0xaa; 14];
        prop_assert_eq!(header.emit(&mut bytes), 14);
        let theirs = theirs::EthernetFrame::new_unchecked(&bytes);
        prop_assert_eq!(theirs.dst_addr().0, dst.0);
        prop_assert_eq!(theirs.src_addr().0, src.0);
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(EthernetHeader::parse(&bytes), Ok((header, &payload[..])));
    }

    #[test]
    fn arp(is_reply in any::<bool>(), macs in (mac(), mac()), ips in (v4(), v4())) {
        let packet = ArpPacket {
            operation: if is_reply { ArpOperation::Reply } else { ArpOperation::Request },
            sender_mac: macs.0,
            sender_ip: ips.0,
            target_mac: macs.1,
            target_ip: ips.1,
        };
        let mut bytes = [0xaa; 28];
        prop_assert_eq!(packet.emit(&mut bytes), 28);
        prop_assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
        let operation = if is_reply {
theirs::ArpOperation::Reply
} else {
theirs::ArpOperation::Request
};
        let repr = theirs::ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: theirs::EthernetAddress(macs.0.0),
            source_protocol_addr: ips.0,
            target_hardware_addr: theirs::EthernetAddress(macs.1.0),
            target_protocol_addr: ips.1,
        };
        let read = theirs::ArpRepr::parse(&theirs::ArpPacket::new_unchecked(&bytes));
        prop_assert_eq!(read, Ok(repr));
    }

    #[test]
    fn ipv4(header in ipv4_header(), payload in payload(), padding in vec(any::<u8>(), 0..9)) {
        let mut bytes = vec![0xaa; 20];
        prop_assert_eq!(header.emit(payload.len(), &mut bytes), 20);
        bytes.extend_from_slice(&payload);
        bytes.extend_from_slice(&padding);
        prop_assert_eq!(Ipv4Header::parse(&bytes), Ok((header, &payload[..])));
        agree_v4(&header, &Ipv4HeaderSlice::from_slice(&bytes).unwrap());
    }

    #[test]
    fn any_ipv4_is_read_as_by_etherparse(
        mut bytes in vec(any::<u8>(), 0..100),
        words in 0u8..16,
        len in 0u8..100,
    ) {
        if bytes.len() >= 4 {
            bytes[0] = 4 << 4 | words;
            bytes[2..4].copy_from_slice(&[0, len]);
        }
        mend_checksum(&mut bytes);
        match (Ipv4Header::parse(&bytes), Ipv4HeaderSlice::from_slice(&bytes)) {
            (Ok((ours, payload)), Ok(theirs)) => {
                agree_v4(&ours, &theirs);
                let len = usize::from(theirs.total_len());
                prop_assert_eq!(payload, &bytes[theirs.slice().len()..len]);
            }
            (Err(_), Err(_)) => {}
            // It leaves the packet's length to its caller.
            (Err(malformed), Ok(theirs)) => {
                let header = theirs.slice().len();
                let total = usize::from(theirs.total_len());
                let expected = if total < header {
Malformed::Header
} else {
Malformed::Truncated
};
                prop_assert!(total < header || total > bytes.len());
                prop_assert_eq!(malformed, expected);
            }
            (Ok(ours), Err(theirs)) => panic!("{ours:?} but {theirs:?}"),
        }
    }

    #[test]
    fn ipv4_with_a_flipped_bit_is_malformed(header in ipv4_header(), bit in 0usize..160) {
        let mut bytes = [0; 20];
        header.emit(0, &mut bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Ipv4Header::parse(&bytes).is_err());
    }

    #[test]
    fn ipv6(header in ipv6_header(), payload in payload(), padding in vec(any::<u8>(), 0..9)) {
        let mut bytes = vec![0xaa; 40];
        prop_assert_eq!(header.emit(payload.len(), &mut bytes), 40);
        bytes.extend_from_slice(&payload);
        bytes.extend_from_slice(&padding);
        prop_assert_eq!(Ipv6Header::parse(&bytes), Ok((header, &payload[..])));
        agree_v6(&header, &Ipv6HeaderSlice::from_slice(&bytes).unwrap());
    }

    #[test]
    fn any_ipv6_is_read_as_by_etherparse(
        mut bytes in vec(any::<u8>(), 0..100),
        len in 0u8..100,
    ) {
        if bytes.len() >= 6 {
            bytes[0] = bytes[0] & 0x0f | 0x60;
            bytes[4..6].copy_from_slice(&[0, len]);
        }
        match (Ipv6Header::parse(&bytes), Ipv6HeaderSlice::from_slice(&bytes)) {
            (Ok((ours, payload)), Ok(theirs)) => {
                agree_v6(&ours, &theirs);
                prop_assert_eq!(payload.len(), usize::from(theirs.payload_length()));
            }
            (Err(Malformed::Truncated), theirs) => {
                let is_cut_off = bytes.len() < 40 || usize::from(len) > bytes.len() - 40;
                prop_assert!(is_cut_off, "{:?}", theirs);
            }
            (ours, theirs) => panic!("{ours:?} but {theirs:?}"),
        }
    }

    #[test]
    fn udp(fields in any::<(u16, u16, u16)>(), payload in payload()) {
        let header = UdpHeader { src_port: fields.0, dst_port: fields.1, checksum: fields.2 };
        let mut bytes = vec![0xaa; 8];
        prop_assert_eq!(header.emit(payload.len(), &mut bytes), 8);
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(UdpHeader::parse(&bytes), Ok((header, &payload[..])));
        let theirs = etherparse::UdpHeaderSlice::from_slice(&bytes).unwrap();
        prop_assert_eq!((theirs.source_port(), theirs.destination_port()), (fields.0, fields.1));
        prop_assert_eq!(usize::from(theirs.length()), bytes.len());
    }

    #[test]
    fn icmpv4(fields in any::<(u8, u8, u32)>(), data in payload()) {
        let word = fields.2;
        let echo = IcmpEcho {
            identifier: (word >> 16) as u16,
            sequence: word as u16,
            data: &data,
        };
        let messages = [
            Icmpv4Message::EchoRequest(echo),
            Icmpv4Message::EchoReply(echo),
            Icmpv4Message::Unreachable { code: fields.1, mtu: word as u16, quoted: &data },
            Icmpv4Message::TimeExceeded { code: fields.1, quoted: &data },
            Icmpv4Message::ParameterProblem { code: fields.1, pointer: fields.0, quoted: &data },
            Icmpv4Message::Other { kind: 13, code: fields.1, word, data: &data },
        ];
        for message in messages {
            let mut bytes = vec![0xaa; 8 + data.len()];
            prop_assert_eq!(message.emit(&mut bytes), bytes.len());
            prop_assert_eq!(Icmpv4Message::parse(&bytes), Ok(message));
            prop_assert!(theirs::Icmpv4Packet::new_checked(&bytes[..]).unwrap().verify_checksum());
        }
    }

    #[test]
    fn icmpv6(ends in (v6(), v6()), fields in any::<(u8, u32)>(), data in payload()) {
        let (code, word) = fields;
        let echo = IcmpEcho {
            identifier: (word >> 16) as u16,
            sequence: word as u16,
            data: &data,
        };
        let messages = [
            Icmpv6Message::Unreachable { code, quoted: &data },
            Icmpv6Message::PacketTooBig { mtu: word, quoted: &data },
            Icmpv6Message::TimeExceeded { code, quoted: &data },
            Icmpv6Message::ParameterProblem { code, pointer: word, quoted: &data },
            Icmpv6Message::EchoRequest(echo),
            Icmpv6Message::EchoReply(echo),
            Icmpv6Message::Other { kind: 200, code, word, data: &data },
        ];
        for message in messages {
            let mut bytes = vec![0xaa; 8 + data.len()];
            prop_assert_eq!(message.emit(ends.0, ends.1, &mut bytes), bytes.len());
            prop_assert_eq!(Icmpv6Message::parse(ends.0, ends.1, &bytes), Ok(message));
            let packet = theirs::Icmpv6Packet::new_checked(&bytes[..]);
            prop_assert!(packet.is_err() || packet.unwrap().verify_checksum(&ends.0, &ends.1));
        }
    }

    #[test]
    fn neighbour_discovery(ends in (v6(), v6()), message in ndp()) {
        let message = Icmpv6Message::Ndp(message);
        let mut bytes = vec![0xaa; 400];
        let len = message.emit(ends.0, ends.1, &mut bytes);
        bytes.truncate(len);
        prop_assert_eq!(Icmpv6Message::parse(ends.0, ends.1, &bytes), Ok(message));
        for cut in 0..len {
            // A shorter message has another checksum; nothing may be read beyond its end.
            prop_assert!(Icmpv6Message::parse(ends.0, ends.1, &bytes[..cut]).is_err());
        }
        smoltcp_reads(ends, &bytes, &message);
    }

    #[test]
    fn virtio_net(
        sum in option::of(any::<(u16, u16)>()),
        is_valid in any::<bool>(),
        gso in option::of(any::<(bool, bool, u16, u16)>()),
        frame in payload(),
    ) {
        let checksum = match (sum, is_valid) {
            (Some((start, offset)), _) => VnetChecksum::Needed { start, offset },
            (None, true) => VnetChecksum::Valid,
            (None, false) => VnetChecksum::Unknown,
        };
        let gso = gso.map(|(is_v6, has_cwr, headers_len, segment_len)| VnetGso {
            is_v6,
            has_cwr,
            headers_len,
            segment_len,
        });
        let header = VnetHeader { checksum, gso };
        let mut bytes = vec![0xaa; 10];
        prop_assert_eq!(header.emit(&mut bytes), 10);
        bytes.extend_from_slice(&frame);
        prop_assert_eq!(VnetHeader::parse(&bytes), Ok((header, &frame[..])));
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in vec(any::<u8>(), 0..200), ends in (v6(), v6())) {
        let _ = EthernetHeader::parse(&bytes);
        let _ = ArpPacket::parse(&bytes);
        let _ = Ipv4Header::parse(&bytes);
        let _ = Ipv6Header::parse(&bytes);
        let _ = Icmpv4Message::parse(&bytes);
        let _ = Icmpv6Message::parse(ends.0, ends.1, &bytes);
        let _ = QuotedSegment::parse_v4(&bytes);
        let _ = QuotedSegment::parse_v6(&bytes);
        let _ = UdpHeader::parse(&bytes);
        let _ = VnetHeader::parse(&bytes);
        let next = bytes.first().copied().unwrap_or_default();
        let _ = upper_layer(Protocol(next), &bytes);
    }
}

fn agree_v4(ours: &Ipv4Header, theirs: &Ipv4HeaderSlice<'_>) {
    assert_eq!((ours.src, ours.dst), (theirs.source_addr(), theirs.destination_addr()));
    assert_eq!(ours.protocol.0, theirs.protocol().0);
    assert_eq!((ours.hop_limit, ours.identification), (theirs.ttl(), theirs.identification()));
    assert_eq!(ours.dscp, theirs.dcp().value());
    assert_eq!(ours.ecn.bits(), theirs.ecn().value());
    assert_eq!(ours.dont_fragment, theirs.dont_fragment());
    assert_eq!(ours.more_fragments, theirs.more_fragments());
    assert_eq!(ours.fragment_offset, theirs.fragments_offset().byte_offset());
    assert_eq!(ours.is_fragment(), theirs.is_fragmenting_payload());
}

fn agree_v6(ours: &Ipv6Header, theirs: &Ipv6HeaderSlice<'_>) {
    assert_eq!((ours.src, ours.dst), (theirs.source_addr(), theirs.destination_addr()));
    assert_eq!((ours.next_header.0, ours.hop_limit), (theirs.next_header().0, theirs.hop_limit()));
    assert_eq!(ours.dscp, theirs.dscp().value());
    assert_eq!(ours.ecn.bits(), theirs.ecn().value());
    assert_eq!(ours.flow_label, theirs.flow_label().value());
}

/// Makes the header's checksum right, if there is a header.
fn mend_checksum(bytes: &mut [u8]) {
    let header_len = usize::from(bytes.first().copied().unwrap_or_default() & 0x0f) * 4;
    let Some(header) = bytes.get_mut(..header_len).filter(|header| header.len() >= 20) else {
        return;
    };
    header[10..12].fill(0);
    let checksum = netstack::wire::checksum::Sum::of(header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

fn smoltcp_reads(ends: (Ipv6Addr, Ipv6Addr), bytes: &[u8], message: &Icmpv6Message<'_>) {
    let packet = theirs::Icmpv6Packet::new_checked(bytes).unwrap();
    let read =
        theirs::Icmpv6Repr::parse(&ends.0, &ends.1, &packet, &ChecksumCapabilities::default());
    let Icmpv6Message::Ndp(ours) = message else {
        unreachable!("a message of neighbour discovery");
    };
    match (ours, read.unwrap()) {
        (
            NdpMessage::NeighborSolicitation { target, source },
            theirs::Icmpv6Repr::Ndisc(theirs::NdiscRepr::NeighborSolicit { target_addr, lladdr }),
        ) => {
            assert_eq!(*target, target_addr);
            assert_eq!(
                source.map(|it| it.0.to_vec()),
                lladdr.map(|it| it.as_bytes()[..6].to_vec())
            );
        }
        (
            NdpMessage::NeighborAdvertisement {
                target,
                link,
                is_router,
                is_solicited,
                is_override,
            },
            theirs::Icmpv6Repr::Ndisc(theirs::NdiscRepr::NeighborAdvert {
                flags,
                target_addr,
                lladdr,
            }),
        ) => {
            assert_eq!(*target, target_addr);
            assert_eq!(link.map(|it| it.0.to_vec()), lladdr.map(|it| it.as_bytes()[..6].to_vec()));
            assert_eq!(*is_router, flags.contains(theirs::NdiscNeighborFlags::ROUTER));
            assert_eq!(*is_solicited, flags.contains(theirs::NdiscNeighborFlags::SOLICITED));
            assert_eq!(*is_override, flags.contains(theirs::NdiscNeighborFlags::OVERRIDE));
        }
        // It keeps one prefix and drops times of zero.
        (
            NdpMessage::RouterAdvertisement(router),
            theirs::Icmpv6Repr::Ndisc(theirs::NdiscRepr::RouterAdvert {
                hop_limit,
                router_lifetime,
                mtu,
                ..
            }),
        ) => {
            assert_eq!((router.hop_limit, router.mtu), (hop_limit, mtu));
            assert_eq!(router.lifetime.as_secs(), router_lifetime.secs());
        }
        (
            NdpMessage::RouterSolicitation { source },
            theirs::Icmpv6Repr::Ndisc(theirs::NdiscRepr::RouterSolicit { lladdr }),
        ) => {
            assert_eq!(
                source.map(|it| it.0.to_vec()),
                lladdr.map(|it| it.as_bytes()[..6].to_vec())
            );
        }
        (ours, theirs) => panic!("{ours:?} but {theirs:?}"),
    }
}

// ---- Invalid input

#[test]
fn arp_about_other_addresses_is_refused() {
    let packet = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: EthernetAddress::BROADCAST,
        sender_ip: Ipv4Addr::LOCALHOST,
        target_mac: EthernetAddress::ZERO,
        target_ip: Ipv4Addr::LOCALHOST,
    };
    let mut bytes = [0; 28];
    packet.emit(&mut bytes);
    // Hardware, protocol, their lengths, operation.
    for at in [1, 3, 4, 5, 7] {
        let mut other = bytes;
        other[at] ^= 0x40;
        assert_eq!(ArpPacket::parse(&other), Err(Malformed::Header), "byte {at}");
    }
    assert_eq!(ArpPacket::parse(&bytes[..27]), Err(Malformed::Truncated));
}

#[test]
fn addresses_of_groups() {
    let v6 = EthernetAddress::of_multicast_v6("ff02::1:ff12:3456".parse().unwrap());
    assert_eq!(v6.to_string(), "33:33:ff:12:34:56");
    assert!(!v6.is_unicast() && !EthernetAddress::BROADCAST.is_unicast());
    assert!(!EthernetAddress::ZERO.is_unicast());
    assert!(EthernetAddress([2, 0, 0, 0, 0, 1]).is_unicast());
}

#[test]
fn ndp_options_of_length_0_are_malformed() {
    // RFC 4861 4.6: it would never end.
    let ends: (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let solicitation = |options: &[u8]| {
        let data = [&[0x20; 16], options].concat();
        let message = Icmpv6Message::Other { kind: 135, code: 0, word: 0, data: &data };
        let mut bytes = vec![0; 8 + data.len()];
        message.emit(ends.0, ends.1, &mut bytes);
        let parsed = Icmpv6Message::parse(ends.0, ends.1, &bytes);
        parsed.map(|_| ())
    };
    assert_eq!(solicitation(&[]), Ok(()));
    assert_eq!(solicitation(&[1, 0, 0, 0, 0, 0, 0, 0]), Err(Malformed::Header));
    assert_eq!(solicitation(&[1, 2, 0, 0, 0, 0, 0, 0]), Err(Malformed::Truncated));
    // An unknown option is skipped.
    assert_eq!(solicitation(&[99, 1, 0, 0, 0, 0, 0, 0]), Ok(()));
}

#[test]
fn eight_quoted_bytes_name_the_segment() {
    let src = Ipv4Addr::new(10, 0, 0, 1);
    let dst = Ipv4Addr::new(10, 0, 0, 2);
    let header = Ipv4Header {
        src,
        dst,
        protocol: Protocol::TCP,
        hop_limit: 1,
        dscp: 0,
        ecn: Ecn::NotCapable,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    };
    let mut bytes = [0; 28];
    header.emit(1400, &mut bytes);
    bytes[20..].copy_from_slice(&[0x30, 0x39, 0, 80, 0xde, 0xad, 0xbe, 0xef]);
    // A router has counted down the hop limit and not mended the checksum.
    bytes[8] -= 1;
    let quoted = QuotedSegment {
        src: SocketAddr::from((src, 12345)),
        dst: SocketAddr::from((dst, 80)),
        seq: SeqNumber(0xdead_beef),
        packet_len: 1420,
    };
    assert_eq!(QuotedSegment::parse_v4(&bytes), Ok(quoted));
    assert_eq!(QuotedSegment::parse_v4(&bytes[..27]), Err(Malformed::Truncated));
    bytes[9] = Protocol::UDP.0;
    assert_eq!(QuotedSegment::parse_v4(&bytes), Err(Malformed::Header));
}

// ---- Extension headers of IPv6

const TCP: u8 = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const OPTIONS: u8 = 60;

fn walk(first: u8, payload: &[u8]) -> Result<UpperLayer<'_>, ExtensionError> {
    upper_layer(Protocol(first), payload)
}

fn problem(code: u8, pointer: u32, even_of_group: bool) -> ExtensionError {
    ExtensionError::ParameterProblem { code, pointer, even_of_group }
}

#[test]
fn extension_headers_are_passed_over() {
    let payload = [
        &[OPTIONS, 0, 1, 4, 0, 0, 0, 0][..],
        &[ROUTING, 1, 1, 0, 0, 0, 1, 8],
        &[0; 8],
        &[TCP, 0, 2, 0, 0, 0, 0, 0],
        b"segment",
    ]
    .concat();
    let upper = walk(HOP_BY_HOP, &payload).unwrap();
    assert_eq!((upper.protocol, upper.payload), (Protocol::TCP, &b"segment"[..]));
    assert_eq!((upper.is_fragment, upper.next_header_at), (false, 40 + 24));
    // Each cut leaves too little.
    for cut in 0..payload.len() - 7 {
        let cut = walk(HOP_BY_HOP, &payload[..cut]);
        assert_eq!(cut, Err(ExtensionError::Malformed(Malformed::Truncated)));
    }
}

#[test]
fn hop_by_hop_options_come_first() {
    let payload = [&[HOP_BY_HOP, 0, 1, 4, 0, 0, 0, 0][..], &[TCP, 0, 1, 4, 0, 0, 0, 0]].concat();
    // RFC 8200 4.1; the pointer is to the byte that said so.
    assert_eq!(walk(OPTIONS, &payload), Err(problem(1, 40, false)));
}

#[test]
fn unknown_ipv6_options_say_what_to_do() {
    // RFC 8200 4.2, the two highest bits of its type.
    let with = |kind: u8| walk(OPTIONS, &[TCP, 0, kind, 4, 0, 0, 0, 0]).map(|it| it.protocol);
    assert_eq!(with(0x1e), Ok(Protocol::TCP));
    assert_eq!(with(0x5e), Err(ExtensionError::Dropped));
    assert_eq!(with(0x9e), Err(problem(2, 42, true)));
    assert_eq!(with(0xde), Err(problem(2, 42, false)));
}

#[test]
fn options_beyond_their_header_are_malformed() {
    let walked = walk(OPTIONS, &[TCP, 0, 1, 5, 0, 0, 0, 0]);
    assert_eq!(walked, Err(ExtensionError::Malformed(Malformed::Truncated)));
    let walked = walk(OPTIONS, &[TCP, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(walked, Err(ExtensionError::Malformed(Malformed::Truncated)));
}

#[test]
fn unfinished_routing_headers_are_errors() {
    // RFC 5095 3, RFC 8200 4.4
    let walked = walk(ROUTING, &[TCP, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(walked, Err(problem(0, 42, false)));
    assert!(walk(ROUTING, &[TCP, 0, 0, 0, 0, 0, 0, 0]).is_ok());
}

#[test]
fn atomic_fragments_are_whole_packets() {
    // RFC 6946: no offset and no more to come.
    let is_fragment = |offset: [u8; 2]| {
        let header = [TCP, 0, offset[0], offset[1], 0, 0, 0, 1];
        walk(FRAGMENT, &header).map(|upper| upper.is_fragment)
    };
    assert_eq!(is_fragment([0, 0]), Ok(false));
    assert_eq!(is_fragment([0, 6]), Ok(false));
    assert_eq!(is_fragment([0, 1]), Ok(true));
    assert_eq!(is_fragment([0, 8]), Ok(true));
    assert_eq!(is_fragment([0xff, 0xf8]), Ok(true));
}

#[test]
fn long_header_chains_are_dropped() {
    let header = [OPTIONS, 0, 1, 4, 0, 0, 0, 0];
    let chain = |count: usize| {
        let mut headers = header.repeat(count);
        headers[8 * (count - 1)] = TCP;
        headers
    };
    let most = chain(EXTENSIONS_MAX);
    assert!(walk(OPTIONS, &most).is_ok());
    let more = chain(EXTENSIONS_MAX + 1);
    assert_eq!(walk(OPTIONS, &more), Err(ExtensionError::Dropped));
    // 70 options of one byte.
    let mut padded = vec![0; 72];
    padded[..2].copy_from_slice(&[TCP, 8]);
    assert_eq!(walk(OPTIONS, &padded), Err(ExtensionError::Dropped));
}
