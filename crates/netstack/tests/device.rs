//! Devices in memory and their wrappers: what goes in comes out, or is counted.

extern crate weftwork_netstack as netstack;

use std::time::Duration;

use netstack::device::impair::{Impair, ImpairCounters, Impairment};
use netstack::device::mem::{self, Mem};
use netstack::device::packet::Packet;
use netstack::device::siblings::{INBOX_FRAMES_MAX, Sibling};
use netstack::device::tap::Tap;
use netstack::device::xdp::Xdp;
use netstack::device::{
    Capabilities, Device, Offload, OutgoingFrame, PartialChecksum, ReceiveBurst, Segmentation,
    TransmitError, Verified,
};
use netstack::time::Instant;
use netstack::wire::arp::{self, ArpOperation, ArpPacket};
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{self, EtherType, EthernetAddress, EthernetHeader};
use netstack::wire::ipv4::{self, Ipv4Header};
use netstack::wire::{Ecn, Protocol};

const MTU: usize = 1500;

fn at_millis(millis: u64) -> Instant {
    Instant::START + Duration::from_millis(millis)
}

fn plain(bytes: &[u8]) -> OutgoingFrame<'_> {
    OutgoingFrame { headers: bytes, payload: &[], offload: Offload::None }
}

fn pair(frames_max: usize) -> (Mem, Mem) {
    mem::pair(Capabilities::plain(MTU), frames_max)
}

/// The frames that have arrived.
fn received(device: &mut impl Device, now: Instant) -> Vec<Vec<u8>> {
    let mut burst = ReceiveBurst::new(1000, device.capabilities().receive_len_max);
    device.receive(now, &mut burst).unwrap();
    burst.frames().map(|frame| frame.bytes.to_vec()).collect()
}

#[test]
fn frames_arrive_in_order() {
    let (mut a, mut b) = pair(8);
    a.transmit(Instant::START, &plain(b"headers only")).unwrap();
    let gathered = OutgoingFrame {
        headers: b"headers ",
        payload: &[b"and", b"", b" payload"],
        offload: Offload::None,
    };
    a.transmit(Instant::START, &gathered).unwrap();
    b.transmit(Instant::START, &plain(b"back")).unwrap();
    assert_eq!(received(&mut b, Instant::START), [&b"headers only"[..], b"headers and payload"]);
    assert_eq!(received(&mut a, Instant::START), [b"back"]);
    assert_eq!(received(&mut a, Instant::START), [[0; 0]; 0]);
}

#[test]
fn a_full_lane_refuses_and_counts() {
    let (mut a, mut b) = pair(2);
    for _ in 0..2 {
        a.transmit(Instant::START, &plain(b"x")).unwrap();
    }
    let refused = a.transmit(Instant::START, &plain(b"x"));
    assert!(matches!(refused, Err(TransmitError::Full)), "{refused:?}");
    assert_eq!((a.refused(), b.refused()), (1, 0));
    assert_eq!(received(&mut b, Instant::START).len(), 2);
    a.transmit(Instant::START, &plain(b"x")).unwrap();
}

#[test]
fn a_full_burst_leaves_the_rest() {
    let (mut a, mut b) = pair(8);
    for number in 0..5 {
        a.transmit(Instant::START, &plain(&[number; 100])).unwrap();
    }
    let mut burst = ReceiveBurst::new(3, b.capabilities().receive_len_max);
    b.receive(Instant::START, &mut burst).unwrap();
    assert_eq!(burst.len(), 3);
    assert_eq!(burst.frame(2).bytes, [2; 100]);
    // A full burst takes nothing, a cleared one the rest.
    b.receive(Instant::START, &mut burst).unwrap();
    assert_eq!(burst.len(), 3);
    burst.clear();
    assert!(burst.is_empty());
    b.receive(Instant::START, &mut burst).unwrap();
    assert_eq!(burst.len(), 2);
    assert_eq!(burst.frame(0).bytes, [3; 100]);
}

#[test]
fn long_frames_share_a_bursts_memory() {
    let (mut a, mut b) = mem::pair(Capabilities::offloading(MTU), 64);
    let long = vec![7; 60_000];
    for _ in 0..4 {
        let frame = OutgoingFrame { offload: cut(1448), ..plain(&long) };
        a.transmit(Instant::START, &frame).unwrap();
    }
    let mut burst = ReceiveBurst::new(1, b.capabilities().receive_len_max);
    let mut seen = 0;
    for _ in 0..4 {
        burst.clear();
        b.receive(Instant::START, &mut burst).unwrap();
        seen += burst.len();
        assert_eq!(burst.frame(0).bytes, long);
    }
    assert_eq!(seen, 4);
}

fn cut(segment_len: u16) -> Offload {
    Offload::Segmentation(Segmentation {
        checksum: PartialChecksum { start: 34, offset: 16 },
        is_v6: false,
        segment_len,
        has_cwr: false,
    })
}

#[test]
fn an_offload_goes_across_as_it_is() {
    let (mut a, mut b) = mem::pair(Capabilities::offloading(MTU), 8);
    let bytes = [1; 3000];
    let checksum = Offload::Checksum(PartialChecksum { start: 34, offset: 16 });
    for (len, offload) in [(100, Offload::None), (100, checksum), (3000, cut(1448))] {
        let frame = OutgoingFrame { offload, ..plain(&bytes[..len]) };
        a.transmit(Instant::START, &frame).unwrap();
    }
    let mut burst = ReceiveBurst::new(8, b.capabilities().receive_len_max);
    b.receive(Instant::START, &mut burst).unwrap();
    let seen: Vec<_> = burst
        .frames()
        .map(|frame| (frame.bytes.len(), frame.verified, frame.segment_len))
        .collect();
    assert_eq!(
        seen,
        [
            (100, Verified::No, None),
            (100, Verified::Transport, None),
            (3000, Verified::Transport, Some(1448)),
        ]
    );
}

#[test]
#[should_panic(expected = "has_checksum_offload: false")]
fn unsupported_offloads_are_not_requested() {
    let (mut a, _b) = pair(8);
    let frame = OutgoingFrame { offload: cut(1448), ..plain(&[0; 100]) };
    let _ = a.transmit(Instant::START, &frame);
}

#[test]
#[should_panic(expected = "a frame of 1515 bytes")]
fn frames_above_the_mtu_panic() {
    let (mut a, _b) = pair(8);
    let _ = a.transmit(Instant::START, &plain(&[0; 1515]));
}

// ---- Impair

/// Sends `count` numbered frames, one a millisecond, and returns arrival times and frames. The
/// numbers follow the Ethernet header.
fn run(impairment: Impairment, count: u16, seed: u64) -> (Vec<(Instant, Vec<u8>)>, ImpairCounters) {
    let (a, mut b) = pair(10_000);
    let mut a = Impair::new(a, impairment, Impairment::NONE, seed);
    let mut seen = Vec::new();
    let mut now = Instant::START;
    let mut sent = 0;
    loop {
        if sent < count {
            let mut frame = [0; 64];
            frame[14..16].copy_from_slice(&sent.to_be_bytes());
            a.transmit(now, &plain(&frame)).unwrap();
            sent += 1;
        }
        a.flush(now).unwrap();
        seen.extend(received(&mut b, now).into_iter().map(|frame| (now, frame)));
        let next_send = (sent < count).then(|| at_millis(sent.into()));
        let next = [next_send, a.wakes_at()].into_iter().flatten().min();
        match next {
            Some(next) => now = next,
            None => return (seen, a.counters().0),
        }
    }
}

fn numbers(seen: &[(Instant, Vec<u8>)]) -> Vec<u16> {
    let number = |frame: &Vec<u8>| u16::from_be_bytes([frame[14], frame[15]]);
    seen.iter().map(|(_, frame)| number(frame)).collect()
}

#[test]
fn no_impairment_passes_everything() {
    let (seen, counters) = run(Impairment::NONE, 100, 1);
    assert_eq!(numbers(&seen), (0..100).collect::<Vec<_>>());
    assert!((0..100).all(|index| seen[index as usize].0 == at_millis(index)));
    assert_eq!((counters.came, counters.left), (100, 100));
}

#[test]
fn the_seed_determines_the_run() {
    let bad = Impairment {
        loss: 0.1,
        duplication: 0.1,
        corruption: 0.1,
        reordering: 0.1,
        reordering_by: Duration::from_millis(3),
        jitter: Duration::from_millis(2),
        ..Impairment::NONE
    };
    let (first, counters) = run(bad, 1000, 7);
    assert_eq!((first.clone(), counters), run(bad, 1000, 7));
    assert_ne!(first, run(bad, 1000, 8).0);
    assert_eq!(counters.came + counters.doubled, counters.left + counters.lost);
    for count in [counters.lost, counters.doubled, counters.corrupted, counters.reordered] {
        // About 100 of a thousand are expected: fewer than 50 or more than 200 is not chance.
        assert!((50..200).contains(&count), "{counters:?}");
    }
}

#[test]
fn jitter_keeps_the_order() {
    let slow = Impairment {
        delay: Duration::from_millis(20),
        jitter: Duration::from_millis(10),
        ..Impairment::NONE
    };
    let (seen, _) = run(slow, 200, 3);
    assert_eq!(numbers(&seen), (0..200).collect::<Vec<_>>());
    for (index, (at, _)) in seen.iter().enumerate() {
        let took = *at - at_millis(index as u64);
        assert!((20..=30).contains(&took.as_millis()), "{took:?}");
    }
}

#[test]
fn reordered_frames_arrive_later() {
    let mixed = Impairment {
        reordering: 0.05,
        reordering_by: Duration::from_millis(5),
        ..Impairment::NONE
    };
    let (seen, counters) = run(mixed, 500, 3);
    let mut sorted = numbers(&seen);
    assert!(counters.reordered > 0 && !sorted.is_sorted());
    sorted.sort_unstable();
    assert_eq!(sorted, (0..500).collect::<Vec<_>>());
}

#[test]
fn rates_space_frames_and_drop_at_the_limit() {
    // 64 bytes at 32,000 bytes/s take 2 ms, and one comes each millisecond: the queue of 640 bytes
    // fills up, and then half of them are dropped.
    let narrow =
        Impairment { rate_bytes_per_s: Some(32_000), queue_bytes_max: 640, ..Impairment::NONE };
    let (seen, counters) = run(narrow, 1000, 3);
    for two in seen.windows(2) {
        assert!(two[1].0 - two[0].0 >= Duration::from_millis(2));
    }
    assert_eq!(counters.left + counters.overflowed, 1000);
    assert!((490..=510).contains(&counters.left), "{counters:?}");
}

#[test]
fn frames_beyond_the_limit_are_dropped() {
    let long = Impairment { delay: Duration::from_secs(1), frames_max: 10, ..Impairment::NONE };
    let (seen, counters) = run(long, 100, 3);
    assert_eq!((seen.len(), counters.overflowed), (10, 90));
}

/// Seen: behind a link without any impairment, frames were lost for which the device had no room,
/// and were counted as the link's losses. Cure: they wait, and are sent in order when it has room.
#[test]
fn frames_wait_for_a_full_device() {
    let (a, mut b) = pair(2);
    let mut a = Impair::new(a, Impairment::NONE, Impairment::NONE, 1);
    for number in 0..5 {
        a.transmit(Instant::START, &plain(&[number; 20])).unwrap();
    }
    let mut now = Instant::START;
    let mut seen = Vec::new();
    while let Some(at) = a.wakes_at() {
        assert!(at > now, "the device wakes without a pause");
        seen.extend(received(&mut b, now));
        now = at;
        a.flush(now).unwrap();
    }
    seen.extend(received(&mut b, now));
    let expected: Vec<_> = (0..5).map(|number| vec![number; 20]).collect();
    assert_eq!(seen, expected);
    let (counters, _) = a.counters();
    assert_eq!((counters.left, counters.overflowed), (5, 0));
}

#[test]
fn checksums_notice_a_flipped_bit() {
    let bad = Impairment { corruption: 1.0, ..Impairment::NONE };
    let (seen, counters) = run(bad, 200, 3);
    assert_eq!(counters.corrupted, 200);
    for (number, (_, frame)) in seen.iter().enumerate() {
        let mut sent = [0; 64];
        sent[14..16].copy_from_slice(&(number as u16).to_be_bytes());
        let flipped: u32 = frame.iter().zip(sent).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((flipped, &frame[..14]), (1, &sent[..14]));
        assert_ne!(Sum::of(frame), Sum::of(&sent));
    }
}

#[test]
fn received_frames_are_impaired_too() {
    let (mut a, b) = mem::pair(Capabilities::offloading(MTU), 100);
    let bad = Impairment { corruption: 1.0, delay: Duration::from_millis(10), ..Impairment::NONE };
    let mut b = Impair::new(b, Impairment::NONE, bad, 3);
    let bytes = [0; 100];
    let frame = OutgoingFrame {
        offload: Offload::Checksum(PartialChecksum { start: 34, offset: 16 }),
        ..plain(&bytes)
    };
    a.transmit(Instant::START, &frame).unwrap();
    assert!(received(&mut b, Instant::START).is_empty());
    assert_eq!(b.wakes_at(), Some(at_millis(10)));
    let mut burst = ReceiveBurst::new(8, b.capabilities().receive_len_max);
    b.receive(at_millis(10), &mut burst).unwrap();
    assert_eq!(burst.frame(0).verified, Verified::No);
    assert_eq!(b.wakes_at(), None);
}

#[test]
fn only_ecn_capable_packets_are_marked() {
    let marking = Impairment { marking: 1.0, ..Impairment::NONE };
    let (a, mut b) = pair(100);
    let mut a = Impair::new(a, marking, Impairment::NONE, 3);
    for ecn in [Ecn::Capable0, Ecn::NotCapable] {
        a.transmit(Instant::START, &plain(&packet(ecn))).unwrap();
    }
    let seen = received(&mut b, Instant::START);
    let headers = seen.iter().map(|frame| {
        let (_, packet) = EthernetHeader::parse(frame).unwrap();
        // This checks the header's checksum as well.
        Ipv4Header::parse(packet).unwrap().0.ecn
    });
    let headers: Vec<_> = headers.collect();
    assert_eq!(headers, [Ecn::Congested, Ecn::NotCapable]);
    assert_eq!(a.counters().0.marked, 1);
}

fn packet(ecn: Ecn) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
    let ethernet = EthernetHeader {
        dst: Default::default(),
        src: Default::default(),
        ethertype: EtherType::IPV4,
    };
    let at = ethernet.emit(&mut frame);
    let header = Ipv4Header {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        protocol: Protocol::TCP,
        hop_limit: 64,
        dscp: 0,
        ecn,
        identification: 1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
    };
    header.emit(0, &mut frame[at..]);
    frame
}

// ---- Devices of the kernel, as far as they go without root: the system suite has the rest

#[test]
fn bad_names_and_zero_queues_are_refused() {
    let kind = |opened: std::io::Result<usize>| opened.map_err(|error| error.kind());
    let refused = Err(std::io::ErrorKind::InvalidInput);
    for name in ["", "a/b", "sixteen-bytes-it", "a\0b"] {
        let packets = Packet::open(name, 1).map(|opened| opened.len());
        assert_eq!(kind(packets), refused, "{name:?}");
        assert_eq!(kind(Xdp::open(name, 1).map(|opened| opened.len())), refused, "{name:?}");
    }
    for queues in [0, 10_000] {
        assert_eq!(kind(Tap::open("a", queues, true).map(|opened| opened.len())), refused);
        assert_eq!(kind(Packet::open("a", queues).map(|opened| opened.len())), refused);
        assert_eq!(kind(Xdp::open("a", queues).map(|opened| opened.len())), refused);
    }
}

/// Seen: one of two shards asked for its neighbour, and the answer came to the queue of the other,
/// so every second connection got no answer. Cause: an answer belongs to no flow. Cure: frames
/// about the link go to all siblings, except questions, which all siblings would answer.
#[test]
fn link_answers_reach_every_queue() {
    let frame = |ethertype, payload: &[u8]| {
        let header = EthernetHeader {
            dst: EthernetAddress::BROADCAST,
            src: EthernetAddress([2, 0, 0, 0, 0, 1]),
            ethertype,
        };
        let mut bytes = vec![0; ethernet::HEADER_LEN];
        header.emit(&mut bytes);
        [&bytes, payload].concat()
    };
    let arp = |operation| {
        let packet = ArpPacket {
            operation,
            sender_mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            sender_ip: "192.0.2.1".parse().unwrap(),
            target_mac: EthernetAddress([2, 0, 0, 0, 0, 2]),
            target_ip: "192.0.2.2".parse().unwrap(),
        };
        let mut buffer = [0; arp::PACKET_LEN];
        packet.emit(&mut buffer);
        frame(EtherType::ARP, &buffer)
    };
    // Seen: a gateway announced its new Ethernet address (RFC 5227 2.3), and only one shard got the
    // frame; the others sent to the old address until their probes had failed.
    let announcement = {
        let address = "192.0.2.1".parse().unwrap();
        let packet = ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            sender_ip: address,
            target_mac: EthernetAddress::ZERO,
            target_ip: address,
        };
        let mut buffer = [0; arp::PACKET_LEN];
        packet.emit(&mut buffer);
        frame(EtherType::ARP, &buffer)
    };
    let icmpv6 = |kind: u8| {
        let mut packet = [0; 48];
        packet[0] = 0x60;
        packet[6] = Protocol::ICMPV6.0;
        packet[40] = kind;
        frame(EtherType::IPV6, &packet)
    };
    let icmpv4 = |kind: u8| {
        let mut packet = [0; 32];
        packet[0] = 0x46; // With an option.
        packet[9] = Protocol::ICMP.0;
        packet[24] = kind;
        frame(EtherType::IPV4, &packet)
    };
    let for_all = [arp(ArpOperation::Reply), announcement, icmpv6(136), icmpv6(2), icmpv4(3)];
    let for_one = [arp(ArpOperation::Request), icmpv6(135), icmpv4(8), vec![1; 20]];
    let (mut near, far): (Vec<_>, Vec<_>) = (0..3).map(|_| pair(64)).unzip();
    let mut siblings = Sibling::family(far).unwrap();
    for bytes in for_all.iter().chain(&for_one) {
        near[1].transmit(Instant::START, &plain(bytes)).unwrap();
    }
    let all = [&for_all[..], &for_one].concat();
    assert_eq!(received(&mut siblings[1], Instant::START), all);
    for other in [0, 2] {
        assert_eq!(received(&mut siblings[other], Instant::START), for_all);
        assert!(received(&mut siblings[other], Instant::START).is_empty());
    }
    // Frames that are not taken do not pile up.
    for _ in 0..2 * INBOX_FRAMES_MAX {
        near[0].transmit(Instant::START, &plain(&for_all[0])).unwrap();
        received(&mut siblings[0], Instant::START);
    }
    let kept = received(&mut siblings[2], Instant::START);
    assert_eq!(kept.len(), INBOX_FRAMES_MAX);
    let lost = siblings[2].losses().overflowed;
    assert_eq!(lost, INBOX_FRAMES_MAX as u64);
}

/// Seen (in review): while a queue had as many frames as a burst takes, what its siblings had left
/// for it waited, so a flood kept a shard from its neighbours. Cause: the inbox had the room that
/// the queue left. Cure: some of its frames come first.
#[test]
fn queue_and_inbox_share_a_burst() {
    let header = EthernetHeader {
        dst: EthernetAddress::BROADCAST,
        src: EthernetAddress([2, 0, 0, 0, 0, 1]),
        ethertype: EtherType::IPV6,
    };
    // An advertisement of a neighbour, which is for all queues.
    let mut answer = [0; ethernet::HEADER_LEN + 48];
    header.emit(&mut answer);
    answer[ethernet::HEADER_LEN] = 0x60;
    answer[ethernet::HEADER_LEN + 6] = Protocol::ICMPV6.0;
    answer[ethernet::HEADER_LEN + 40] = 136;
    let other = [1; 20];
    let (mut near, far): (Vec<_>, Vec<_>) = (0..2).map(|_| pair(64)).unzip();
    let mut siblings = Sibling::family(far).unwrap();
    let mut burst = ReceiveBurst::new(16, siblings[0].capabilities().receive_len_max);
    for answers in [1, INBOX_FRAMES_MAX] {
        for _ in 0..answers {
            near[1].transmit(Instant::START, &plain(&answer)).unwrap();
            assert_eq!(received(&mut siblings[1], Instant::START), [answer]);
        }
        for _ in 0..16 {
            near[0].transmit(Instant::START, &plain(&other)).unwrap();
        }
        burst.clear();
        siblings[0].receive(Instant::START, &mut burst).unwrap();
        let count = |bytes: &[u8]| burst.frames().filter(|it| it.bytes == bytes).count();
        assert!(count(&answer) > 0, "no answer of {answers} came");
        assert!(count(&other) > 0, "no other frame came beside {answers} answers");
        assert_eq!(count(&answer) + count(&other), 16);
    }
    // A frame from a sibling is not forwarded again.
    assert!(received(&mut siblings[1], Instant::START).is_empty());
}
