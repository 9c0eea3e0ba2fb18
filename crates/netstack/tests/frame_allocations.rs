//! Nothing is allocated for a packet: counted by an allocator, once buffers have gone round.

#![allow(unsafe_code)]

extern crate weftwork_netstack as netstack;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netstack::device::impair::{Impair, Impairment};
use netstack::device::mem;
use netstack::device::{Capabilities, Device, Offload, OutgoingFrame, ReceiveBurst};
use netstack::ip::{Delivery, HEADERS_LEN_MAX, Interface, IpConfig, IpFields, Prefix};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::EthernetAddress;
use netstack::wire::icmpv4::{IcmpEcho, Icmpv4Message};
use netstack::wire::tcp::{self, Flags, Segment, SeqNumber, TcpOptions};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: it hands everything on to the system's allocator, and its counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MTU: usize = 1500;

/// One end: a device with its interface.
struct End<D> {
    device: D,
    interface: Interface,
    address: IpAddr,
    burst: ReceiveBurst,
    segments: u64,
}

impl<D: Device> End<D> {
    fn new(device: D, number: u8) -> End<D> {
        let address = Ipv4Addr::new(10, 0, 0, number).into();
        let config = IpConfig {
            mac: EthernetAddress([2, 0, 0, 0, 0, number]),
            mtu: MTU,
            addresses: vec![Prefix { address, len: 24 }],
            gateway_v4: None,
            gateway_v6: None,
        };
        End {
            burst: ReceiveBurst::new(64, device.capabilities().receive_len_max),
            device,
            interface: Interface::new(config),
            address,
            segments: 0,
        }
    }

    fn turn(&mut self, now: Instant) {
        self.burst.clear();
        self.device.receive(now, &mut self.burst).unwrap();
        for frame in self.burst.frames() {
            let delivery = self.interface.receive(now, frame);
            self.segments += u64::from(matches!(delivery, Delivery::Segment(_)));
        }
        self.interface.on_timer(now);
        self.interface.transmit(now, &mut self.device);
        self.device.flush(now).unwrap();
    }

    fn send(&mut self, now: Instant, dst: IpAddr, payload: &[u8]) {
        let segment = Segment {
            src_port: 1,
            dst_port: 2,
            seq: SeqNumber(3),
            ack: Some(SeqNumber(4)),
            flags: Flags::PSH,
            window: 5,
            urgent: 0,
            options: TcpOptions { timestamps: Some((6, 7)), ..TcpOptions::NONE },
            payload: &[],
        };
        let mut buffer = [0; HEADERS_LEN_MAX + tcp::HEADER_LEN_MAX];
        let fields = IpFields {
            src: self.address,
            dst,
            dscp: 0,
            ecn: Ecn::NotCapable,
            len: segment.header_len() + payload.len(),
        };
        let written = self.interface.write_headers(now, &fields, &mut buffer).unwrap();
        let end = written.len + segment.emit(&mut buffer[written.len..]);
        let header = &mut buffer[written.len..end];
        tcp::write_checksum(header, written.pseudo_header, Sum::of(payload));
        let frame =
            OutgoingFrame { headers: &buffer[..end], payload: &[payload], offload: Offload::None };
        if written.is_resolved {
            self.device.transmit(now, &frame).unwrap()
        } else {
            self.interface.hold(now, dst, frame.headers, frame.payload)
        }
    }
}

/// A ping that a peer behind the same device sends.
fn ping(from: &mut End<impl Device>, now: Instant, dst: IpAddr) {
    let echo = IcmpEcho { identifier: 1, sequence: 2, data: &[3; 56] };
    // The headers are those of a segment; protocol and header checksum are changed to ICMP's.
    let mut buffer = [0; 200];
    let fields = IpFields { src: from.address, dst, dscp: 0, ecn: Ecn::NotCapable, len: 64 };
    let written = from.interface.write_headers(now, &fields, &mut buffer).unwrap();
    Icmpv4Message::EchoRequest(echo).emit(&mut buffer[written.len..]);
    let old = Sum::of_word(u16::from(buffer[23]));
    let new = Sum::of_word(1);
    buffer[23] = 1;
    let before = u16::from_be_bytes([buffer[24], buffer[25]]);
    let after = netstack::wire::checksum::update(before, old, new);
    buffer[24..26].copy_from_slice(&after.to_be_bytes());
    let frame = OutgoingFrame {
        headers: &buffer[..written.len + 64],
        payload: &[],
        offload: Offload::None,
    };
    from.device.transmit(now, &frame).unwrap();
}

#[test]
fn nothing_is_allocated_for_a_packet() {
    let link = Impairment {
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(1),
        loss: 0.01,
        duplication: 0.01,
        corruption: 0.01,
        ..Impairment::NONE
    };
    let (near, far) = mem::pair(Capabilities::plain(MTU), 256);
    let mut near = End::new(Impair::new(near, link, link, 1), 1);
    let mut far = End::new(far, 2);
    let to_far = far.address;
    let to_near = near.address;
    let payload = [9; 1400];
    let mut now = Instant::START;
    let mut run = |turns: u32| {
        for turn in 0..turns {
            near.send(now, to_far, &payload);
            far.send(now, to_near, &payload[..turn as usize % 1400]);
            if turn % 10 == 0 && turn > 0 {
                ping(&mut far, now, to_near);
            }
            near.turn(now);
            far.turn(now);
            now += Duration::from_millis(1);
        }
        (near.segments, far.segments, near.interface.counters().0.answered)
    };
    // Neighbours are learned, and buffers grow to their length.
    run(3000);
    let before = ALLOCATIONS.get();
    let (near_segments, far_segments, answered) = run(4000);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(near_segments > 6000 && far_segments > 6000 && answered > 500);
}
