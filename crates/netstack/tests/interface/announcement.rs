//! Unprompted messages of an interface: its addresses, its groups, and router solicitations.

use std::net::Ipv6Addr;
use std::time::Duration;

use netstack::device::{Capabilities, mem};
use netstack::ip::Prefix;
use netstack::wire::Protocol;
use netstack::wire::ethernet::{EthernetAddress, EthernetHeader};
use netstack::wire::icmpv6::Icmpv6Message;
use netstack::wire::ipv6::Ipv6Header;
use netstack::wire::mld;
use netstack::wire::ndp::{NdpMessage, RouterAdvertisement};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as theirs;

use crate::world::*;

fn address(host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host)
}

/// `count` addresses of IPv6, from 2001:db8::1 on.
fn addresses(count: u16) -> Vec<Prefix> {
    let prefix = |host| Prefix { address: address(host).into(), len: 64 };
    (1..=count).map(prefix).collect()
}

#[test]
fn addresses_are_announced_first() {
    let mut world = World::new();
    world.interface.announce(START);
    let sent = world.sent();
    assert_eq!(sent.len(), 7);
    // It listens to the group before it asks, so that it hears the answer. RFC 4862 5.4.2
    assert_eq!(reported(&sent[0]).1, [OUR_GROUP]);
    let (link, packet) = parsed_arp(&sent[1]);
    assert_eq!(link.dst, EthernetAddress::BROADCAST);
    assert_eq!((packet.sender_ip, packet.target_ip), (OUR_V4, OUR_V4));
    let (link, header, message) = parsed_v6(&sent[2]);
    assert_eq!(link.dst, EthernetAddress::of_multicast_v6(OUR_GROUP));
    assert_eq!((header.src, header.dst), (Ipv6Addr::UNSPECIFIED, OUR_GROUP));
    let target = OUR_V6;
    let source = None;
    let question = NdpMessage::NeighborSolicitation { target, source };
    assert_eq!(message, Icmpv6Message::Ndp(question));
    let (_, header, message) = parsed_v6(&sent[3]);
    assert_eq!((header.src, header.hop_limit), (OUR_V6, 255));
    assert!(matches!(
        message,
        Icmpv6Message::Ndp(NdpMessage::NeighborAdvertisement {
            target: OUR_V6,
            link: Some(OUR_MAC),
            is_solicited: false,
            is_override: true,
            ..
        })
    ));
    // The same frames for its link-local address lie in between.
    assert!(is_router_solicitation(&sent[6]));
}

/// Seen: of 31 addresses of IPv6 the question for a router was dropped, and of more the addresses
/// themselves. Cause: each sends two frames, and the queue of own frames has room for 64. Cure:
/// what fits leaves, and the rest later.
#[test]
fn all_of_many_addresses_are_announced() {
    for count in [30, 31, 32, 100, 5000] {
        let mut world = World::with(|config| config.addresses = addresses(count));
        world.interface.announce(START);
        // A router is asked for again after 4 s.
        let sent = world.sent_until(START + Duration::from_millis(3900));
        let (mut asked, mut advertised, mut joined) = (vec![], vec![], vec![]);
        let mut routers_asked = 0;
        for frame in &sent {
            if frame[20] == Protocol::HOP_BY_HOP.0 {
                joined.extend(reported(frame).1);
                continue;
            }
            match parsed_v6(frame).2 {
                Icmpv6Message::Ndp(NdpMessage::NeighborSolicitation { target, .. }) => {
                    let [.., low] = target.segments();
                    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, low);
                    assert!(joined.contains(&group), "the solicitation for {target} was too early");
                    asked.push(target);
                }
                Icmpv6Message::Ndp(NdpMessage::NeighborAdvertisement { target, .. }) => {
                    advertised.push(target);
                }
                _ => routers_asked += usize::from(is_router_solicitation(frame)),
            }
        }
        let own = (1..=count).map(address);
        let own: Vec<_> = own.chain(["fe80::ff:fe00:1".parse().unwrap()]).collect();
        assert_eq!((&asked, &advertised), (&own, &own), "{count} addresses");
        // Each group twice: its first report may be lost.
        assert_eq!((joined.len(), routers_asked), (2 * usize::from(count), 1));
        assert_eq!(world.counters().own_dropped, 0);
    }
}

/// Seen: frames that did not fit into the device were dropped, never resent. Cure: they wait.
#[test]
fn announcements_wait_for_a_full_device() {
    let mut world = World::new();
    (world.device, world.link) = mem::pair(Capabilities::plain(MTU), 2);
    world.interface.announce(START);
    let mut sent = Vec::new();
    for _ in 0..4 {
        assert_eq!(world.interface.is_held_up(), !sent.is_empty() && sent.len() < 7);
        sent.extend(world.sent());
    }
    assert!(!world.interface.is_held_up());
    assert_eq!((sent.len(), world.counters().own_dropped), (7, 0));
    assert!(is_router_solicitation(&sent[6]));
}

#[test]
fn a_router_is_solicited_three_times() {
    // RFC 4861 6.3.7, 10: MAX_RTR_SOLICITATIONS, RTR_SOLICITATION_INTERVAL
    let asked_at = |answer: Option<(u64, u16)>| {
        let mut world = World::new();
        world.interface.announce(START);
        let mut asked_at = Vec::new();
        for second in 0..30 {
            world.now = START + Duration::from_secs(second);
            let asked = world.sent();
            let asked = asked.iter().filter(|it| is_router_solicitation(it));
            asked_at.extend(asked.map(|_| second));
            if let Some((_, lifetime_s)) = answer.filter(|(at, _)| *at == second) {
                let advertisement = RouterAdvertisement {
                    lifetime: Duration::from_secs(lifetime_s.into()),
                    source: Some(PEER_MAC),
                    ..Default::default()
                };
                let all = "ff02::1".parse().unwrap();
                let message = NdpMessage::RouterAdvertisement(advertisement);
                assert_eq!(world.deliver(&ndp(ROUTER, all, message)), [[0; 0]; 0]);
            }
        }
        assert_eq!(world.interface.wakes_at(), None);
        asked_at
    };
    assert_eq!(asked_at(None), [0, 4, 8]);
    assert_eq!(asked_at(Some((5, 1800))), [0, 4]);
    // A router that is no default router is no answer.
    assert_eq!(asked_at(Some((5, 0))), [0, 4, 8]);
}

#[test]
fn a_named_gateway_is_not_solicited() {
    let mut world = World::with(|config| config.gateway_v6 = Some(PEER_V6));
    world.interface.announce(START);
    let sent = world.sent_until(START + Duration::from_secs(30));
    assert!(!sent.iter().any(|frame| is_router_solicitation(frame)));
}

fn is_router_solicitation(frame: &[u8]) -> bool {
    // A report has a hop-by-hop header.
    if frame[12..14] != [0x86, 0xdd] || frame[20] != Protocol::ICMPV6.0 {
        return false;
    }
    let (link, header, message) = parsed_v6(frame);
    let source = Some(OUR_MAC);
    let is_one = message == Icmpv6Message::Ndp(NdpMessage::RouterSolicitation { source });
    if is_one {
        assert_eq!(link.dst.to_string(), "33:33:00:00:00:02");
        assert_eq!(header.src.to_string(), "fe80::ff:fe00:1");
        assert_eq!((header.dst.to_string().as_str(), header.hop_limit), ("ff02::2", 255));
    }
    is_one
}

// ---- Groups

#[test]
fn groups_are_reported_twice_at_the_start() {
    let other = Prefix { address: "2001:db8::5".parse().unwrap(), len: 64 };
    let mut world = World::with(|config| {
        config.addresses.push(other);
        config.gateway_v6 = Some(PEER_V6);
    });
    world.interface.announce(START);
    // Its link-local address ends as the first one does, so they have one group.
    let groups = vec![OUR_GROUP, "ff02::1:ff00:5".parse().unwrap()];
    let expected = (theirs::MldRecordType::ChangeToExclude, groups);
    assert_eq!(reported(&world.sent()[0]), expected);
    assert_eq!(world.sent(), [[0; 0]; 0]);
    world.now = world.interface.wakes_at().unwrap();
    assert!(START < world.now && world.now.since(START) <= Duration::from_secs(1));
    let sent = world.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(reported(&sent[0]), expected);
    assert_eq!(world.interface.wakes_at(), None);
}

#[test]
fn without_ipv6_no_group_is_reported() {
    let mut world = World::with(|config| config.addresses.truncate(1));
    world.interface.announce(START);
    assert_eq!(world.sent().len(), 1);
    assert_eq!(world.interface.wakes_at(), None);
}

#[test]
fn many_groups_take_several_reports() {
    let count = 2 * mld::REPORT_GROUPS_MAX as u16;
    // With the link-local one, which has the group of the first, as many as two reports have.
    let mut world = World::with(|config| config.addresses = addresses(count));
    let sent = world.deliver(&query(ROUTER, 1, 0, &asks(Ipv6Addr::UNSPECIFIED)));
    let groups: Vec<_> = sent.iter().flat_map(|frame| reported(frame).1).collect();
    let expected = (1..=count).map(|host| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, host));
    assert_eq!((sent.len(), groups), (2, expected.collect()));
}

#[test]
fn queries_are_answered_once_and_soonest() {
    let mut world = World::new();
    for delay_ms in [10_000, 2_000, 5_000] {
        let query = query(ROUTER, 1, delay_ms, &asks(Ipv6Addr::UNSPECIFIED));
        assert_eq!(world.deliver(&query), [[0; 0]; 0]);
    }
    world.now = world.interface.wakes_at().unwrap();
    assert!(world.now.since(START) <= Duration::from_secs(2));
    let sent = world.sent();
    assert_eq!(sent.len(), 1);
    let expected = (theirs::MldRecordType::ModeIsExclude, vec![OUR_GROUP]);
    assert_eq!(reported(&sent[0]), expected);
    assert_eq!(world.interface.wakes_at(), None);
    // A query that allows no delay.
    let sent = world.deliver(&query(ROUTER, 1, 0, &asks(OUR_GROUP)));
    assert_eq!(reported(&sent[0]), expected);
}

#[test]
fn mldv1_queries_get_mldv1_answers() {
    let mut world = World::new();
    let sent = world.deliver(&query(ROUTER, 1, 0, &asks(OUR_GROUP)[..16]));
    assert_eq!(sent.len(), 1);
    let (header, message) = message_to_routers(&sent[0]);
    assert_eq!(header.dst, OUR_GROUP);
    let report = Icmpv6Message::Other { kind: 131, code: 0, word: 0, data: &OUR_GROUP.octets() };
    assert_eq!(Icmpv6Message::parse(header.src, header.dst, message), Ok(report));
}

/// Seen: of a hundred groups 64 were reported. Version 1 has a report for each, and the queue of
/// own frames has room for 64.
#[test]
fn mldv1_answers_for_each_group() {
    let mut world = World::with(|config| config.addresses = addresses(100));
    let query = query(ROUTER, 1, 0, &asks(Ipv6Addr::UNSPECIFIED)[..16]);
    let mut sent = world.deliver(&query);
    // Asked again in the middle: the answer begins when this one is over.
    sent.extend(world.deliver(&query));
    sent.extend(world.sent_until(START + Duration::from_secs(1)));
    let groups: Vec<_> = sent.iter().map(|it| message_to_routers(it).0.dst).collect();
    let own = (1..=100).map(|host| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, host));
    let own: Vec<_> = own.collect();
    assert_eq!(groups, [&own[..], &own[..]].concat());
    assert_eq!(world.counters().own_dropped, 0);
}

#[test]
fn bad_queries_are_not_answered() {
    let mut world = World::new();
    let all = asks(Ipv6Addr::UNSPECIFIED);
    let other = asks("ff02::1:ff00:9".parse().unwrap());
    for query in [
        query(PEER_V6, 1, 0, &all),
        query(ROUTER, 2, 0, &all),
        query(ROUTER, 1, 0, &all[..19]),
        query(ROUTER, 1, 0, &other),
    ] {
        assert_eq!(world.deliver(&query), [[0; 0]; 0]);
    }
    let counters = world.counters();
    assert_eq!((counters.bad_sources, counters.malformed), (2, 1));
}

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);

/// Part of a version 2 query behind its delay.
fn asks(group: Ipv6Addr) -> Vec<u8> {
    [&group.octets()[..], &[2, 125, 0, 0]].concat()
}

fn query(src: Ipv6Addr, hop_limit: u8, delay_ms: u16, data: &[u8]) -> Vec<u8> {
    let header = Ipv6Header {
        dst: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
        hop_limit,
        ..v6_header(src, Protocol::HOP_BY_HOP)
    };
    let message =
        Icmpv6Message::Other { kind: mld::QUERY, code: 0, word: u32::from(delay_ms) << 16, data };
    let mut bytes = [0; 100];
    bytes[..8].copy_from_slice(&ROUTER_ALERT);
    let len = 8 + message.emit(src, header.dst, &mut bytes[8..]);
    v6(header, &bytes[..len])
}

/// RFC 2711 2.1: in a hop-by-hop header, padded.
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

/// Content of a packet for routers.
fn message_to_routers(frame: &[u8]) -> (Ipv6Header, &[u8]) {
    let (link, packet) = EthernetHeader::parse(frame).unwrap();
    let (header, payload) = Ipv6Header::parse(packet).unwrap();
    assert_eq!(link.dst, EthernetAddress::of_multicast_v6(header.dst));
    assert!(header.src.is_unicast_link_local());
    assert_eq!((header.hop_limit, header.next_header.0), (1, 0));
    assert_eq!(payload[..8], ROUTER_ALERT);
    (header, &payload[8..])
}

/// Version 2 report as smoltcp reads it: record type and groups.
fn reported(frame: &[u8]) -> (theirs::MldRecordType, Vec<Ipv6Addr>) {
    let (header, message) = message_to_routers(frame);
    assert_eq!(header.dst.to_string(), "ff02::16");
    let packet = theirs::Icmpv6Packet::new_checked(message).unwrap();
    let checked = ChecksumCapabilities::default();
    let read = theirs::Icmpv6Repr::parse(&header.src, &header.dst, &packet, &checked);
    let Ok(theirs::Icmpv6Repr::Mld(theirs::MldRepr::Report { nr_mcast_addr_rcrds: count, data })) =
        read
    else {
        panic!("{read:?}");
    };
    assert_eq!(data.len(), 20 * usize::from(count));
    let records = || {
        let records = data.chunks(20).map(theirs::MldAddressRecord::new_checked);
        records.map(Result::unwrap)
    };
    let kind = records().next().unwrap().record_type();
    assert!(records().all(|it| (it.record_type(), it.num_srcs()) == (kind, 0)));
    (kind, records().map(|it| it.mcast_addr()).collect())
}
