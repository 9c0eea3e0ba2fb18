//! One interface on a link in memory: its answers, deliveries and drops.

extern crate weftwork_netstack as netstack;

mod announcement;
mod path;
mod world;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netstack::device::{Capabilities, Device, Frame, Offload, OutgoingFrame, Verified, mem};
use netstack::ip::{ANSWERS_BURST, ANSWERS_PER_S, Delivery, NoRoute, OWN_FRAMES_MAX, Prefix};
use netstack::neighbor::{INCOMPLETE_MAX, NEIGHBORS_MAX};
use netstack::wire::arp::{ArpOperation, ArpPacket};
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use netstack::wire::icmpv4::{self, IcmpEcho, Icmpv4Message};
use netstack::wire::icmpv6::{self, Icmpv6Message};
use netstack::wire::ipv4::Ipv4Header;
use netstack::wire::ipv6::Ipv6Header;
use netstack::wire::ndp::{NdpMessage, RouterAdvertisement};
use netstack::wire::tcp::{self};
use netstack::wire::udp::UdpHeader;
use netstack::wire::{Ecn, Protocol};

use world::*;

// ---- ARP

#[test]
fn arp_requests_are_answered() {
    let mut world = World::new();
    let sent = world.deliver(&arp(ArpOperation::Request, PEER_V4, OUR_V4));
    assert_eq!(sent.len(), 1);
    let (link, reply) = parsed_arp(&sent[0]);
    assert_eq!((link.dst, link.src), (PEER_MAC, OUR_MAC));
    let expected = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: OUR_MAC,
        sender_ip: OUR_V4,
        target_mac: PEER_MAC,
        target_ip: PEER_V4,
    };
    assert_eq!(reply, expected);
    // The host is known now, so an answer to its ping needs no question.
    let sent = world.deliver(&icmp_v4(PEER_V4, Icmpv4Message::EchoRequest(ECHO)));
    assert_eq!(parsed_v4(&sent[0]).0.dst, PEER_MAC);
}

#[test]
fn arp_for_others_is_not_answered() {
    let mut world = World::new();
    let sent = world.deliver(&arp(ArpOperation::Request, PEER_V4, GATEWAY_V4));
    assert_eq!(sent, [[0; 0]; 0]);
    assert!(world.interface.neighbors().is_empty());
}

#[test]
fn arp_probes_make_no_neighbour() {
    // RFC 5227 2.1.1: the sender has no address yet.
    let mut world = World::new();
    let sent = world.deliver(&arp(ArpOperation::Request, Ipv4Addr::UNSPECIFIED, OUR_V4));
    assert_eq!(parsed_arp(&sent[0]).1.target_ip, Ipv4Addr::UNSPECIFIED);
    assert!(world.interface.neighbors().is_empty());
}

#[test]
fn off_link_arp_makes_no_neighbour() {
    let mut world = World::new();
    world.deliver(&arp(ArpOperation::Request, FAR_V4, OUR_V4));
    assert!(world.interface.neighbors().is_empty());
}

#[test]
fn address_conflicts_are_counted() {
    let mut world = World::new();
    assert_eq!(world.deliver(&arp(ArpOperation::Request, OUR_V4, OUR_V4)), [[0; 0]; 0]);
    assert_eq!(world.counters().conflicts, 1);
}

// ---- Neighbour discovery

#[test]
fn solicitations_are_answered() {
    let mut world = World::new();
    let question = NdpMessage::NeighborSolicitation { target: OUR_V6, source: Some(PEER_MAC) };
    let sent = world.deliver(&ndp(PEER_V6, OUR_GROUP, question));
    let (link, header, message) = parsed_v6(&sent[0]);
    assert_eq!((link.dst, header.src, header.dst), (PEER_MAC, OUR_V6, PEER_V6));
    assert!(matches!(
        message,
        Icmpv6Message::Ndp(NdpMessage::NeighborAdvertisement {
            target: OUR_V6,
            link: Some(OUR_MAC),
            is_solicited: true,
            ..
        })
    ));
}

#[test]
fn routed_solicitations_are_dropped() {
    let mut world = World::new();
    let question = NdpMessage::NeighborSolicitation { target: OUR_V6, source: Some(PEER_MAC) };
    let mut frame = ndp(PEER_V6, OUR_V6, question);
    frame[14 + 7] = 254;
    assert_eq!(world.deliver(&frame), [[0; 0]; 0]);
    assert_eq!(world.counters().bad_sources, 1);
}

#[test]
fn duplicate_address_probes_are_answered() {
    // RFC 4862 5.4.3; the answer goes to all, because the asker has no address.
    let mut world = World::new();
    let question = NdpMessage::NeighborSolicitation { target: OUR_V6, source: None };
    let sent = world.deliver(&ndp(Ipv6Addr::UNSPECIFIED, OUR_GROUP, question));
    let (_, header, _) = parsed_v6(&sent[0]);
    assert_eq!(header.dst.to_string(), "ff02::1");
    assert_eq!(world.counters().conflicts, 1);
}

#[test]
fn both_hosts_learn_of_a_conflict() {
    // RFC 4862 5.4.4
    let mut first = World::new();
    let mut second = World::with(|config| config.mac = PEER_MAC);
    second.interface.announce(START);
    for question in second.sent() {
        for answer in first.deliver(&question) {
            second.deliver(&answer);
        }
    }
    // The first by the announcement of IPv4, and by question and advertisement of IPv6.
    let conflicts = [&first, &second].map(|world| world.counters().conflicts);
    assert_eq!(conflicts, [3, 1]);
}

#[test]
fn advertised_routers_are_used_until_they_end() {
    let mut world = World::new();
    let router: Ipv6Addr = "fe80::1234".parse().unwrap();
    assert_eq!(send_to(&mut world, FAR_V6.into()), Err(NoRoute::NoGateway));
    let advertisement = RouterAdvertisement {
        lifetime: Duration::from_secs(100),
        source: Some(PEER_MAC),
        mtu: Some(1400),
        ..Default::default()
    };
    let all = "ff02::1".parse().unwrap();
    world.deliver(&ndp(router, all, NdpMessage::RouterAdvertisement(advertisement)));
    assert_eq!(send_to(&mut world, FAR_V6.into()), Ok(true));
    assert_eq!(world.interface.mtu_to(world.now, FAR_V6.into()), 1400);
    assert_eq!(world.interface.mtu_to(world.now, FAR_V4.into()), MTU);
    world.now += Duration::from_secs(100);
    assert_eq!(send_to(&mut world, FAR_V6.into()), Err(NoRoute::NoGateway));
}

#[test]
fn advertised_mtus_below_1280_are_ignored() {
    let mut world = World::new();
    let advertisement = RouterAdvertisement { mtu: Some(100), ..Default::default() };
    let router = "fe80::1".parse().unwrap();
    let all = "ff02::1".parse().unwrap();
    world.deliver(&ndp(router, all, NdpMessage::RouterAdvertisement(advertisement)));
    assert_eq!(world.interface.mtu_to(START, PEER_V6.into()), 1280);
}

/// Seen: after 64 solicitations from strangers behind a router, each of which was resolved on the
/// link, no other neighbour could be resolved for three seconds. RFC 4861 7.2.4: the answer is
/// routed like every packet to that address.
#[test]
fn off_link_solicitations_make_no_neighbour() {
    let mut world = World::new();
    for host in 1..=INCOMPLETE_MAX as u16 {
        let far = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, host);
        let target = OUR_V6;
        let source = None;
        let question = NdpMessage::NeighborSolicitation { target, source };
        assert_eq!(world.deliver(&ndp(far, OUR_V6, question)), [[0; 0]; 0]);
    }
    assert!(world.interface.neighbors().is_empty());
    assert_eq!(send_to(&mut world, PEER_V6.into()), Ok(false));
}

/// Seen: each solicitation of a stranger evicted a neighbour from a full cache, and the stranger
/// was resolved before it got its answer. ARP requests evict at most one in a millisecond.
#[test]
fn a_full_cache_still_answers_strangers() {
    let mut world = World::new();
    let address = |host| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 1, 0, host);
    let solicited_by = |src| {
        let target = OUR_V6;
        let source = Some(PEER_MAC);
        ndp(src, OUR_V6, NdpMessage::NeighborSolicitation { target, source })
    };
    for host in 0..NEIGHBORS_MAX as u16 + 100 {
        let sent = world.deliver(&solicited_by(address(host)));
        let (link, header, _) = parsed_v6(&sent[0]);
        assert_eq!((sent.len(), link.dst, header.dst), (1, PEER_MAC, address(host)));
    }
    let counters = world.interface.counters().1;
    assert_eq!((counters.evicted, counters.asked), (1, 0));
}

#[test]
fn unspecified_solicitations_are_checked() {
    // RFC 4861 7.1.1: to the group, and without an address on the link.
    let mut world = World::new();
    let none = Ipv6Addr::UNSPECIFIED;
    for (dst, source) in [(OUR_V6, None), (OUR_GROUP, Some(PEER_MAC))] {
        let target = OUR_V6;
        let question = NdpMessage::NeighborSolicitation { target, source };
        assert_eq!(world.deliver(&ndp(none, dst, question)), [[0; 0]; 0]);
    }
    let counters = world.counters();
    assert_eq!((counters.conflicts, counters.malformed), (0, 2));
}

// ---- Departures

/// Seen: while a neighbour sent requests as fast as it could, others could not be resolved. Cause:
/// answers had filled the queue before the question. Cure: the question is queued when they have
/// left.
#[test]
fn questions_leave_beside_many_answers() {
    let mut world = World::new();
    for _ in 0..OWN_FRAMES_MAX {
        let request = arp(ArpOperation::Request, PEER_V4, OUR_V4);
        world.interface.receive(START, complete(&request));
    }
    assert_eq!(send_to(&mut world, GATEWAY_V4.into()), Ok(false));
    let sent = world.sent();
    assert_eq!((sent.len(), world.counters().own_dropped), (OWN_FRAMES_MAX + 1, 0));
    let question = parsed_arp(sent.last().unwrap()).1;
    assert_eq!((question.operation, question.target_ip), (ArpOperation::Request, GATEWAY_V4));
}

#[test]
fn questions_wait_for_a_full_device() {
    let mut world = World::new();
    (world.device, world.link) = mem::pair(Capabilities::plain(MTU), 1);
    let count = INCOMPLETE_MAX as u8;
    let peers = (10..10 + count).map(|host| Ipv4Addr::new(10, 0, 0, host));
    for peer in peers.clone() {
        assert_eq!(send_to(&mut world, peer.into()), Ok(false));
    }
    for _ in 0..OWN_FRAMES_MAX {
        let request = arp(ArpOperation::Request, PEER_V4, OUR_V4);
        world.interface.receive(START, complete(&request));
    }
    let mut sent = Vec::new();
    for _ in 0..OWN_FRAMES_MAX + usize::from(count) {
        sent.extend(world.sent());
    }
    let asked = sent.iter().map(|frame| parsed_arp(frame).1);
    let asked = asked.filter(|it| it.operation == ArpOperation::Request);
    let asked: Vec<_> = asked.map(|it| it.target_ip).collect();
    assert_eq!(asked, peers.collect::<Vec<_>>());
    assert_eq!(world.counters().own_dropped, 0);
    // A packet that waited for a neighbour waits for the device as well.
    let filler = OutgoingFrame { headers: &[0; 60], payload: &[], offload: Offload::None };
    world.device.transmit(START, &filler).unwrap();
    assert_eq!(world.deliver(&arp(ArpOperation::Reply, [10, 0, 0, 10].into(), OUR_V4)).len(), 1);
    assert!(world.interface.is_held_up());
    let sent = world.sent();
    assert_eq!(parsed_v4(&sent[0]).1.dst, Ipv4Addr::new(10, 0, 0, 10));
}

/// Seen: a host of the link that pings from addresses that no host has kept the gateway from being
/// resolved, and with it all clients beyond. Cause: it took the last entry for neighbours in
/// resolution. Cure: one is always left for a router.
#[test]
fn the_gateway_is_always_resolved() {
    let mut world = World::new();
    for host in 0..INCOMPLETE_MAX as u8 + 1 {
        let absent = Ipv4Addr::new(10, 0, 0, 100 + host);
        let ping = icmp_v4(absent, Icmpv4Message::EchoRequest(ECHO));
        world.interface.receive(world.now, complete(&ping));
        world.now += Duration::from_millis(1);
    }
    assert_eq!(send_to(&mut world, PEER_V4.into()), Err(NoRoute::Crowded));
    assert_eq!(send_to(&mut world, FAR_V4.into()), Ok(false));
    let asked = world.sent();
    let asked = asked.iter().map(|frame| parsed_arp(frame).1.target_ip);
    assert!(
        asked.eq((100..100 + INCOMPLETE_MAX as u8)
            .map(|host| Ipv4Addr::new(10, 0, 0, host))
            .chain([GATEWAY_V4]))
    );
    world.deliver(&arp(ArpOperation::Reply, GATEWAY_V4, OUR_V4));
    assert_eq!(send_to(&mut world, FAR_V4.into()), Ok(true));
}

#[test]
fn segments_wait_for_arp() {
    let mut world = World::new();
    assert_eq!(send_to(&mut world, PEER_V4.into()), Ok(false));
    let sent = world.sent();
    let (link, question) = parsed_arp(&sent[0]);
    assert_eq!((link.dst, question.target_ip), (EthernetAddress::BROADCAST, PEER_V4));
    assert_eq!(sent.len(), 1);
    let sent = world.deliver(&arp(ArpOperation::Reply, PEER_V4, OUR_V4));
    let (link, header, payload) = parsed_v4(&sent[0]);
    assert_eq!((link.dst, header.dst, header.src), (PEER_MAC, PEER_V4, OUR_V4));
    assert_eq!((header.ecn, header.dont_fragment, header.identification), (Ecn::Capable0, true, 0));
    let pseudo = Sum::pseudo_header_v4(OUR_V4, PEER_V4, 6, 20);
    assert!(tcp::checksum_fits(pseudo, payload));
    assert_eq!(send_to(&mut world, PEER_V4.into()), Ok(true));
}

#[test]
fn ipv6_segments_wait_for_an_advertisement() {
    let mut world = World::new();
    assert_eq!(send_to(&mut world, PEER_V6.into()), Ok(false));
    let sent = world.sent();
    let (link, header, question) = parsed_v6(&sent[0]);
    assert_eq!(link.dst.to_string(), "33:33:ff:00:00:02");
    assert_eq!(header.dst.to_string(), "ff02::1:ff00:2");
    let expected = NdpMessage::NeighborSolicitation { target: PEER_V6, source: Some(OUR_MAC) };
    assert_eq!(question, Icmpv6Message::Ndp(expected));
    let answer = NdpMessage::NeighborAdvertisement {
        target: PEER_V6,
        link: Some(PEER_MAC),
        is_router: false,
        is_solicited: true,
        is_override: true,
    };
    let sent = world.deliver(&ndp(PEER_V6, OUR_V6, answer));
    let (link, packet) = EthernetHeader::parse(&sent[0]).unwrap();
    let (header, payload) = Ipv6Header::parse(packet).unwrap();
    assert_eq!((link.dst, header.dst, header.next_header), (PEER_MAC, PEER_V6, Protocol::TCP));
    assert!(tcp::checksum_fits(Sum::pseudo_header_v6(OUR_V6, PEER_V6, 6, 20), payload));
}

#[test]
fn off_link_segments_go_by_the_gateway() {
    let mut world = World::new();
    assert_eq!(send_to(&mut world, FAR_V4.into()), Ok(false));
    assert_eq!(parsed_arp(&world.sent()[0]).1.target_ip, GATEWAY_V4);
}

#[test]
fn progress_confirms_the_gateway() {
    let mut world = World::new();
    send_to(&mut world, FAR_V4.into()).unwrap();
    world.deliver(&arp(ArpOperation::Reply, GATEWAY_V4, OUR_V4));
    for _ in 0..20 {
        world.now += Duration::from_secs(20);
        assert_eq!(send_to(&mut world, FAR_V4.into()), Ok(true));
        world.interface.confirm(world.now, FAR_V4.into());
        // The segment, and no question.
        assert_eq!(world.sent().len(), 1);
    }
}

#[test]
fn no_route_to_groups_or_off_link() {
    let mut world = World::with(|config| config.gateway_v4 = None);
    for dst in ["192.0.2.7", "10.0.0.255", "10.0.0.0", "10.0.0.1", "255.255.255.255"] {
        let dst: Ipv4Addr = dst.parse().unwrap();
        assert_eq!(send_to(&mut world, dst.into()), Err(NoRoute::NoGateway), "{dst}");
    }
    let mut world = World::new();
    for dst in ["224.0.0.1", "127.0.0.1", "0.0.0.0", "10.0.0.255", "10.0.0.1"] {
        let dst: Ipv4Addr = dst.parse().unwrap();
        assert_eq!(send_to(&mut world, dst.into()), Err(NoRoute::NoGateway), "{dst}");
    }
}

#[test]
fn prefixes_of_31_bits_have_no_broadcast() {
    // RFC 3021
    let prefix = Prefix { address: Ipv4Addr::new(10, 0, 0, 1).into(), len: 31 };
    let mut world = World::with(|config| config.addresses = vec![prefix]);
    assert_eq!(send_to(&mut world, Ipv4Addr::new(10, 0, 0, 0).into()), Ok(false));
}

#[test]
fn the_source_is_on_the_destinations_link() {
    let world = World::new();
    let source = |dst: &str| world.interface.source_for(dst.parse().unwrap()).unwrap().to_string();
    assert_eq!(source("10.0.0.9"), "10.0.0.1");
    assert_eq!(source("192.0.2.1"), "10.0.0.1");
    assert_eq!(source("fe80::9"), "fe80::ff:fe00:1");
    assert_eq!(source("2001:db8:9::9"), "2001:db8::1");
}

// ---- Arrivals

#[test]
fn segments_are_handed_up() {
    let mut world = World::new();
    let frame = segment_v4(FAR_V4);
    let Delivery::Segment(arrived) = world.interface.receive(START, complete(&frame)) else {
        panic!("a segment was not handed up");
    };
    assert_eq!((arrived.src, arrived.dst), (FAR_V4.into(), OUR_V4.into()));
    assert_eq!(arrived.segment, segment().0);
    assert_eq!(world.counters().segments, 1);
}

#[test]
fn ipv6_segments_behind_options_are_handed_up() {
    let mut world = World::new();
    let (expected, mut bytes) = segment();
    let pseudo = Sum::pseudo_header_v6(FAR_V6, OUR_V6, Protocol::TCP.0, 20);
    tcp::write_checksum(&mut bytes, pseudo, Sum::ZERO);
    let behind = [&[Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0], &bytes[..]].concat();
    for (next_header, payload) in [(Protocol::TCP, &bytes), (Protocol(60), &behind)] {
        let frame = v6(v6_header(FAR_V6, next_header), payload);
        let Delivery::Segment(arrived) = world.interface.receive(START, complete(&frame)) else {
            panic!("a segment was not handed up");
        };
        assert_eq!((arrived.src, arrived.segment), (FAR_V6.into(), expected));
    }
}

#[test]
fn wrong_checksums_are_dropped_unless_verified() {
    let mut world = World::new();
    let mut frame = segment_v4(PEER_V4);
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(world.interface.receive(START, complete(&frame)), Delivery::Nothing);
    assert_eq!(world.counters().checksums, 1);
    let verified =
        Frame { verified: Verified::Transport, segment_len: Some(1448), ..complete(&frame) };
    let delivery = world.interface.receive(START, verified);
    assert!(matches!(delivery, Delivery::Segment(arrived) if arrived.segment_len == Some(1448)));
}

#[test]
fn impossible_packets_are_dropped_and_counted() {
    let mut world = World::new();
    let from = |src: [u8; 4]| segment_v4(src.into());
    let mut to_other = segment_v4(PEER_V4);
    to_other[5] = 9;
    let mut to_all = segment_v4(PEER_V4);
    to_all[..6].fill(0xff);
    let mut from_group = segment_v4(PEER_V4);
    from_group[6] |= 1;
    let mut loops = segment_v4(PEER_V4);
    loops[6..12].copy_from_slice(&OUR_MAC.0);
    let broadcast = Ipv4Header { dst: [10, 0, 0, 255].into(), ..v4_header(PEER_V4, Protocol::TCP) };
    let fragment = Ipv4Header { more_fragments: true, ..v4_header(PEER_V4, Protocol::TCP) };
    let mut bad_header = segment_v4(PEER_V4);
    bad_header[14 + 8] ^= 1;
    let cases = [
        ("another host", to_other),
        ("all hosts", to_all),
        ("all hosts", v4(broadcast, &[])),
        ("from a group", from_group),
        ("from this host", loops),
        ("from itself", from([10, 0, 0, 1])),
        ("from loopback", from([127, 0, 0, 1])),
        ("from a group", from([224, 0, 0, 1])),
        ("from all", from([255, 255, 255, 255])),
        ("from all of the link", from([10, 0, 0, 255])),
        ("from none", from([0, 0, 0, 0])),
        ("a fragment", v4(fragment, &[0; 8])),
        ("a bad header", bad_header),
        ("nothing known", ethernet(OUR_MAC, EtherType(0x88cc), &[0; 40])),
        ("too short", vec![0; 13]),
    ];
    for (what, frame) in &cases {
        assert_eq!(world.deliver(frame), [[0; 0]; 0], "{what}");
    }
    let counters = world.counters();
    assert_eq!((counters.to_other_hosts, counters.bad_sources), (3, 8));
    assert_eq!((counters.fragments, counters.checksums), (1, 1));
    assert_eq!((counters.unknown, counters.malformed), (1, 1));
    assert_eq!(counters.frames, cases.len() as u64);
    assert_eq!((counters.answered, counters.segments), (0, 0));
}

#[test]
fn echo_requests_are_answered() {
    let mut world = World::acquainted();
    let sent = world.deliver(&icmp_v4(PEER_V4, Icmpv4Message::EchoRequest(ECHO)));
    let (_, header, payload) = parsed_v4(&sent[0]);
    assert_eq!((header.src, header.dst), (OUR_V4, PEER_V4));
    assert_eq!(Icmpv4Message::parse(payload), Ok(Icmpv4Message::EchoReply(ECHO)));
    let sent = world.deliver(&icmp_v6(PEER_V6, OUR_V6, Icmpv6Message::EchoRequest(ECHO)));
    assert_eq!(parsed_v6(&sent[0]).2, Icmpv6Message::EchoReply(ECHO));
}

#[test]
fn echo_requests_to_groups_are_not_answered() {
    let mut world = World::acquainted();
    let all = "ff02::1".parse().unwrap();
    let sent = world.deliver(&icmp_v6(PEER_V6, all, Icmpv6Message::EchoRequest(ECHO)));
    assert_eq!(sent, [[0; 0]; 0]);
}

#[test]
fn the_longest_echo_fills_the_frame() {
    let mut world = World::acquainted();
    let data = [9; MTU - 28];
    let echo = IcmpEcho { data: &data, ..ECHO };
    let sent = world.deliver(&icmp_v4(PEER_V4, Icmpv4Message::EchoRequest(echo)));
    assert_eq!(sent[0].len(), 14 + MTU);
}

#[test]
fn datagrams_get_port_unreachable() {
    let mut world = World::acquainted();
    let datagram = |src, dst: IpAddr, is_right: bool| {
        let mut bytes = vec![0; 8];
        let mut header = UdpHeader { src_port: 53, dst_port: 1000, checksum: 0 };
        header.emit(4, &mut bytes);
        bytes.extend_from_slice(b"data");
        let pseudo = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Sum::pseudo_header_v4(src, dst, 17, 12),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Sum::pseudo_header_v6(src, dst, 17, 12),
            _ => unreachable!("one family"),
        };
        header.checksum = (pseudo + Sum::of(&bytes)).checksum() ^ u16::from(!is_right);
        header.emit(4, &mut bytes);
        bytes
    };
    let bytes = datagram(PEER_V4.into(), OUR_V4.into(), true);
    let frame = v4(v4_header(PEER_V4, Protocol::UDP), &bytes);
    let sent = world.deliver(&frame);
    let unreachable =
        Icmpv4Message::Unreachable { code: icmpv4::PORT_UNREACHABLE, mtu: 0, quoted: &frame[14..] };
    assert_eq!(Icmpv4Message::parse(parsed_v4(&sent[0]).2), Ok(unreachable));

    let bytes = datagram(PEER_V6.into(), OUR_V6.into(), true);
    let frame = v6(v6_header(PEER_V6, Protocol::UDP), &bytes);
    let sent = world.deliver(&frame);
    let unreachable =
        Icmpv6Message::Unreachable { code: icmpv6::PORT_UNREACHABLE, quoted: &frame[14..] };
    assert_eq!(parsed_v6(&sent[0]).2, unreachable);

    // The ports of a datagram with a wrong checksum are not trusted.
    let bytes = datagram(PEER_V4.into(), OUR_V4.into(), false);
    assert_eq!(world.deliver(&v4(v4_header(PEER_V4, Protocol::UDP), &bytes)), [[0; 0]; 0]);
}

#[test]
fn icmp_errors_quote_within_the_limit() {
    let mut world = World::acquainted();
    let sent = world.deliver(&v4(v4_header(PEER_V4, Protocol(99)), &[1; 1400]));
    assert_eq!(sent[0].len(), 14 + 576);
    let sent = world.deliver(&v6(v6_header(PEER_V6, Protocol(99)), &[1; 1400]));
    assert_eq!(sent[0].len(), 14 + 1280);
    let message = parsed_v6(&sent[0]).2;
    let Icmpv6Message::ParameterProblem { code, pointer, .. } = message else {
        panic!("{message:?}");
    };
    assert_eq!((code, pointer), (icmpv6::UNKNOWN_NEXT_HEADER, 6));
}

#[test]
fn unknown_options_get_parameter_problem() {
    let mut world = World::acquainted();
    // RFC 8200 4.2: type 0x9e, of which the highest bits say so.
    let payload = [59, 0, 0x9e, 4, 0, 0, 0, 0];
    let to_group =
        Ipv6Header { dst: "ff02::1".parse().unwrap(), ..v6_header(PEER_V6, Protocol(60)) };
    let sent = world.deliver(&v6(to_group, &payload));
    let (_, header, message) = parsed_v6(&sent[0]);
    assert_eq!((header.src, header.dst), (OUR_V6, PEER_V6));
    assert!(matches!(message, Icmpv6Message::ParameterProblem { code: 2, pointer: 42, .. }));
}

#[test]
fn icmp_errors_are_not_answered() {
    let mut world = World::acquainted();
    let inner = [0; 28];
    let message = Icmpv4Message::Unreachable { code: 1, mtu: 0, quoted: &inner };
    assert_eq!(world.deliver(&icmp_v4(PEER_V4, message)), [[0; 0]; 0]);
}

#[test]
fn answers_have_a_rate() {
    let mut world = World::acquainted();
    let request = icmp_v4(PEER_V4, Icmpv4Message::EchoRequest(ECHO));
    let mut answered = 0;
    for _ in 0..1000 {
        answered += world.deliver(&request).len() as u64;
    }
    assert_eq!(answered, ANSWERS_BURST);
    assert_eq!(world.counters().limited, 1000 - ANSWERS_BURST);
    world.now += Duration::from_millis(10);
    for _ in 0..1000 {
        answered += world.deliver(&request).len() as u64;
    }
    assert_eq!(answered, ANSWERS_BURST + ANSWERS_PER_S / 100);
}

#[test]
fn answers_that_wait_have_a_limit() {
    let mut world = World::acquainted();
    for _ in 0..OWN_FRAMES_MAX + 10 {
        let request = arp(ArpOperation::Request, PEER_V4, OUR_V4);
        world.interface.receive(START, complete(&request));
    }
    assert_eq!(world.counters().own_dropped, 10);
    assert_eq!(world.sent().len(), OWN_FRAMES_MAX);
}
