//! What a packet costs below TCP, in nanoseconds: the least of many rounds.
//!
//! ```text
//! cargo run --release --package weftwork-netstack --example wire_cost
//! ```

mod segment;

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use netstack::device::{Frame, Verified};
use netstack::ip::{HEADERS_LEN_MAX, IpFields};
use netstack::time::Instant;
use netstack::wire::Ecn;
use netstack::wire::checksum::{PrefixSums, Sum};
use netstack::wire::tcp::{self, Segment};
use segment::{SEGMENT, TCP_LEN, address, interface};

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

    let mut bytes = [0; TCP_LEN];
    show("a segment's header written", || {
        black_box(&SEGMENT).emit(&mut bytes)
    });
    show("and parsed", || Segment::parse(black_box(&bytes)));

    let (mut near, mut far) = (interface(1, 2), interface(2, 1));
    let mut room = [0; HEADERS_LEN_MAX + TCP_LEN];
    let fields = IpFields {
        src: address(1),
        dst: address(2),
        dscp: 0,
        ecn: Ecn::NotCapable,
        len: TCP_LEN + MSS,
    };
    show("Ethernet's and IP's headers written", || {
        near.write_headers(Instant::START, black_box(&fields), &mut room)
    });
    let written = near
        .write_headers(Instant::START, &fields, &mut room)
        .expect("a route");
    let len = written.len + SEGMENT.emit(&mut room[written.len..]);
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
