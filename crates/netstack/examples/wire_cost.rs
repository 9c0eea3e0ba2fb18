//! What a packet costs below TCP, in nanoseconds: the least of many rounds.
//!
//! ```text
//! cargo run --release --package weftwork-netstack --example wire_cost
//! ```

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant as Clock};

use netstack::device::{Frame, Verified};
use netstack::ip::{HEADERS_LEN_MAX, Interface, InterfaceConfig, IpFields, Prefix};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::checksum::{PrefixSums, Sum};
use netstack::wire::ethernet::EthernetAddress;
use netstack::wire::tcp::{self, Flags, Segment, SeqNumber, TcpOptions};

const MSS: usize = 1448;
const ROUNDS: usize = 300;
const CALLS: u32 = 1000;

fn main() {
    let file: Vec<u8> = (0..1_000_000).map(|index| (index * 7 / 3) as u8).collect();
    let segment = &file[..MSS];
    show("sum of a segment, 1448 bytes", || {
        Sum::of(black_box(segment))
    });
    show("sum of 64 KiB", || Sum::of(black_box(&file[..1 << 16])));
    for stride in [2, 64] {
        let sums = PrefixSums::of(&file, stride);
        let mut at = 0;
        show(
            &format!("the same of a slice, by prefix sums every {stride}"),
            || {
                at = (at + MSS) % (file.len() - MSS);
                sums.of_slice(black_box(&file), at..at + MSS)
            },
        );
    }

    let header = Segment {
        src_port: 80,
        dst_port: 4000,
        seq: SeqNumber(1),
        ack: Some(SeqNumber(2)),
        flags: Flags::PSH,
        window: 1000,
        urgent: 0,
        options: TcpOptions {
            timestamps: Some((1, 2)),
            ..TcpOptions::NONE
        },
        payload: &[],
    };
    let mut bytes = [0; 32];
    show("a segment's header written", || {
        black_box(&header).emit(&mut bytes)
    });
    show("and parsed", || Segment::parse(black_box(&bytes)));

    let (mut near, mut far) = (interface(1), interface(2));
    let mut room = [0; HEADERS_LEN_MAX + 32];
    let fields = IpFields {
        src: address(1),
        dst: address(2),
        ecn: Ecn::NotCapable,
        len: 32 + MSS,
    };
    show("Ethernet's and IP's headers written", || {
        near.write_headers(Instant::START, black_box(&fields), &mut room)
    });
    let written = near
        .write_headers(Instant::START, &fields, &mut room)
        .expect("a route");
    let len = written.len + header.emit(&mut room[written.len..]);
    let sum = Sum::of(segment);
    tcp::write_checksum(&mut room[written.len..len], written.pseudo_header, sum);
    let frame = [&room[..len], segment].concat();
    for verified in [Verified::No, Verified::Transport] {
        let frame = Frame {
            bytes: &frame,
            verified,
            segment_len: None,
        };
        show(
            &format!("a frame received, verified by the device: {verified:?}"),
            || far.receive(Instant::START, black_box(frame)),
        );
    }
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

fn mac(number: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, number])
}

fn interface(number: u8) -> Interface {
    let mut interface = Interface::new(InterfaceConfig {
        mac: mac(number),
        mtu: 1500,
        addresses: vec![Prefix {
            address: address(number),
            len: 24,
        }],
        gateway_v4: None,
        gateway_v6: None,
    });
    let peer = 3 - number;
    interface
        .neighbors()
        .fix(Instant::START, address(peer), mac(peer));
    interface
}

/// Prints what a call takes.
fn show<R>(what: &str, mut call: impl FnMut() -> R) {
    let round = |_| {
        let began = Clock::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        began.elapsed()
    };
    let least = (0..ROUNDS).map(round).min().unwrap_or(Duration::ZERO);
    println!(
        "{:8.1} ns  {what}",
        least.as_nanos() as f64 / f64::from(CALLS)
    );
}
