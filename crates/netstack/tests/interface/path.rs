//! Routers' reports of dropped segments.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netstack::ip::{Delivery, MTU_MIN_V4, PATH_MTU_FOR, PATHS_MAX, PathErrorKind};
use netstack::wire::Protocol;
use netstack::wire::checksum::Sum;
use netstack::wire::icmpv4::{self, Icmpv4Message};
use netstack::wire::icmpv6::Icmpv6Message;
use netstack::wire::ipv4::Ipv4Header;
use netstack::wire::ipv6::Ipv6Header;
use netstack::wire::tcp::SeqNumber;

use crate::world::*;

/// A packet of `len` bytes that this host has sent to a far one, as a router quotes it.
fn quoted_v4(src: Ipv4Addr, len: usize) -> Vec<u8> {
    let header = Ipv4Header { dst: FAR_V4, ..v4_header(src, Protocol::TCP) };
    let mut bytes = vec![0; 20];
    header.emit(len - 20, &mut bytes);
    bytes.extend_from_slice(&[0, 80, 0x0f, 0xa0, 0, 0, 0, 42]);
    bytes
}

fn too_big(mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let message = Icmpv4Message::Unreachable { code: icmpv4::FRAGMENTATION_NEEDED, mtu, quoted };
    icmp_v4(GATEWAY_V4, message)
}

fn error_of(world: &mut World, frame: &[u8]) -> Option<PathErrorKind> {
    match world.interface.receive(world.now, complete(frame)) {
        Delivery::Error(error) => {
            let ends = (SocketAddr::from((OUR_V4, 80)), SocketAddr::from((FAR_V4, 4000)));
            assert_eq!((error.local, error.remote), ends);
            assert_eq!(error.seq, SeqNumber(42));
            Some(error.kind)
        }
        Delivery::Nothing => None,
        Delivery::Segment(segment) => panic!("{segment:?}"),
    }
}

#[test]
fn plausible_path_mtu_reports_are_believed() {
    let mut world = World::new();
    let quoted = quoted_v4(OUR_V4, 1500);
    let is = |mtu| Some(PathErrorKind::TooBig { mtu });
    assert_eq!(error_of(&mut world, &too_big(1400, &quoted)), is(1400));
    // RFC 1191 5: the next lower plateau.
    assert_eq!(error_of(&mut world, &too_big(0, &quoted)), is(1492));
    // RFC 5927 7.2: the MTU is below the length that did not fit; and no link takes less than 68.
    for mtu in [1500, 1501, 67, 1] {
        assert_eq!(error_of(&mut world, &too_big(mtu, &quoted)), None, "{mtu}");
    }
    // The host has not sent that segment.
    assert_eq!(error_of(&mut world, &too_big(1400, &quoted_v4(PEER_V4, 1500))), None);
    // Too little is quoted to say whose it was.
    assert_eq!(error_of(&mut world, &too_big(1400, &quoted[..27])), None);
    assert_eq!(world.counters().path_errors, 2);
    assert_eq!(world.counters().malformed, 6);
}

#[test]
fn hard_errors_come_from_the_host() {
    let mut world = World::new();
    let quoted = quoted_v4(OUR_V4, 1500);
    // Net, host, protocol, port, administratively prohibited. RFC 1122 4.2.3.9
    let kinds = [(0, false), (1, false), (2, true), (3, true), (13, false)];
    for (code, is_hard) in kinds {
        let message = Icmpv4Message::Unreachable { code, mtu: 0, quoted: &quoted };
        let expected = if is_hard { PathErrorKind::Hard } else { PathErrorKind::Soft };
        assert_eq!(error_of(&mut world, &icmp_v4(FAR_V4, message)), Some(expected), "{code}");
    }
    let message = Icmpv4Message::TimeExceeded { code: 0, quoted: &quoted };
    let kind = error_of(&mut world, &icmp_v4(GATEWAY_V4, message));
    assert_eq!(kind, Some(PathErrorKind::Soft));
}

#[test]
fn packet_too_big_counts_from_1280() {
    let mut world = World::new();
    let mut quoted = vec![0; 48];
    let header = Ipv6Header { dst: FAR_V6, ..v6_header(OUR_V6, Protocol::TCP) };
    header.emit(1460, &mut quoted);
    let report = |world: &mut World, mtu| {
        let message = Icmpv6Message::PacketTooBig { mtu, quoted: &quoted };
        let frame = icmp_v6(FAR_V6, OUR_V6, message);
        match world.interface.receive(START, complete(&frame)) {
            Delivery::Error(error) => Some(error.kind),
            _ => None,
        }
    };
    assert_eq!(report(&mut world, 1280), Some(PathErrorKind::TooBig { mtu: 1280 }));
    for mtu in [0, 1279, 1500, u32::MAX] {
        assert_eq!(report(&mut world, mtu), None, "{mtu}");
    }
}

#[test]
fn path_mtus_expire() {
    let mut world = World::new();
    let far = FAR_V4.into();
    assert_eq!(world.interface.mtu_to(START, far), MTU);
    assert!(world.interface.path_mtu_lowered(START, far, 1400));
    assert_eq!(world.interface.mtu_to(START, far), 1400);
    // Only time makes the path wider again.
    assert!(!world.interface.path_mtu_lowered(START, far, 1450));
    assert_eq!(world.interface.mtu_to(START, far), 1400);
    assert_eq!(world.interface.mtu_to(START, PEER_V4.into()), MTU);
    assert_eq!(world.interface.mtu_to(START + PATH_MTU_FOR, far), MTU);
}

#[test]
fn least_packets_may_be_fragmented() {
    let mut world = World::acquainted();
    assert!(world.interface.path_mtu_lowered(START, PEER_V4.into(), 100));
    assert_eq!(world.interface.mtu_to(START, PEER_V4.into()), MTU_MIN_V4);
    let mut seen = Vec::new();
    for _ in 0..2 {
        send_to(&mut world, PEER_V4.into()).unwrap();
        let sent = world.sent();
        let header = parsed_v4(&sent[0]).1;
        assert!(!header.dont_fragment);
        seen.push(header.identification);
    }
    assert_ne!(seen[0], seen[1]);
    // IPv6 has no such length.
    assert!(!world.interface.path_mtu_lowered(START, PEER_V6.into(), 100));
}

#[test]
fn path_mtus_have_a_limit() {
    let mut world = World::new();
    let host = |number: u32| IpAddr::from(Ipv4Addr::from(0x0a01_0000 + number));
    for number in 0..PATHS_MAX as u32 + 1 {
        let at = START + Duration::from_millis(number.into());
        assert!(world.interface.path_mtu_lowered(at, host(number), 1400));
    }
    assert_eq!(world.interface.mtu_to(START, host(0)), MTU);
    assert_eq!(world.interface.mtu_to(START, host(1)), 1400);
}

#[test]
fn source_quench_is_dropped() {
    // RFC 9293 3.9.2.2, MUST-55; RFC 6633 3
    let mut world = World::new();
    let mut quench = too_big(0, &quoted_v4(OUR_V4, 1500));
    let icmp = 14 + 20;
    (quench[icmp], quench[icmp + 1]) = (4, 0);
    (quench[icmp + 2], quench[icmp + 3]) = (0, 0);
    let sum = Sum::of(&quench[icmp..]).checksum();
    quench[icmp + 2..icmp + 4].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(error_of(&mut world, &quench), None);
    assert_eq!(world.sent().len(), 0);
    // The report was read, and not dropped for another reason.
    assert_eq!(world.interface.counters().0.malformed, 0);
    assert_eq!(world.interface.counters().0.checksums, 0);
}
