//! Any bytes as each of the headers that netstack parses: parsing, writing and parsing again gives
//! the same header, and no read goes beyond the end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netstack::wire::Protocol;
use netstack::wire::arp::ArpPacket;
use netstack::wire::checksum::{Sum, table_of};
use netstack::wire::ethernet::EthernetHeader;
use netstack::wire::icmpv4::Icmpv4Message;
use netstack::wire::icmpv6::Icmpv6Message;
use netstack::wire::ipv4::Ipv4Header;
use netstack::wire::ipv6::{Ipv6Header, upper_layer};
use netstack::wire::quoted::QuotedSegment;
use netstack::wire::tcp::{HEADER_LEN_MAX, Segment, TcpOptions};
use netstack::wire::udp::UdpHeader;
use netstack::wire::vnet::VnetHeader;

fuzz_target!(|input: &[u8]| {
    let Some((&kind, bytes)) = input.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    let mut room = vec![0; bytes.len() + 512];
    match kind % 11 {
        0 => {
            if let Ok((header, payload)) = EthernetHeader::parse(&bytes) {
                let len = header.emit(&mut room);
                room[len..len + payload.len()].copy_from_slice(payload);
                assert_eq!(room[..bytes.len()], bytes);
            }
        }
        1 => {
            if let Ok(packet) = ArpPacket::parse(&bytes) {
                let len = packet.emit(&mut room);
                assert_eq!(room[..len], bytes[..len]);
            }
        }
        2 => {
            let header_len = usize::from(bytes.first().copied().unwrap_or_default() & 0x0f) * 4;
            mend(&mut bytes, header_len, 10, Sum::ZERO);
            if let Ok((header, payload)) = Ipv4Header::parse(&bytes) {
                let len = header.emit(payload.len(), &mut room);
                room[len..len + payload.len()].copy_from_slice(payload);
                assert_eq!(Ipv4Header::parse(&room), Ok((header, payload)));
            }
        }
        3 => {
            if let Ok((header, payload)) = Ipv6Header::parse(&bytes) {
                let len = header.emit(payload.len(), &mut room);
                room[len..len + payload.len()].copy_from_slice(payload);
                assert_eq!(Ipv6Header::parse(&room), Ok((header, payload)));
            }
        }
        4 => {
            let whole = bytes.len();
            mend(&mut bytes, whole, 2, Sum::ZERO);
            if let Ok(message) = Icmpv4Message::parse(&bytes) {
                let len = message.emit(&mut room);
                assert_eq!(Icmpv4Message::parse(&room[..len]), Ok(message));
            }
        }
        5 => {
            let (src, dst) = ([7; 16].into(), [9; 16].into());
            let whole = bytes.len();
            let pseudo = Sum::pseudo_header_v6(src, dst, Protocol::ICMPV6.0, whole as u32);
            mend(&mut bytes, whole, 2, pseudo);
            if let Ok(message) = Icmpv6Message::parse(src, dst, &bytes) {
                let len = message.emit(src, dst, &mut room);
                assert_eq!(Icmpv6Message::parse(src, dst, &room[..len]), Ok(message));
            }
        }
        6 => {
            if let Ok(segment) = Segment::parse(&bytes) {
                assert!(bytes.ends_with(segment.payload));
                let options = TcpOptions { has_illegal_length: false, ..segment.options };
                let segment = Segment { options, ..segment };
                if segment.header_len() <= HEADER_LEN_MAX {
                    let len = segment.emit(&mut room);
                    room[len..len + segment.payload.len()].copy_from_slice(segment.payload);
                    let again = Segment::parse(&room[..len + segment.payload.len()]);
                    assert_eq!(again, Ok(segment));
                }
            }
        }
        7 => {
            if let Ok((header, payload)) = UdpHeader::parse(&bytes) {
                let len = header.emit(payload.len(), &mut room);
                room[len..len + payload.len()].copy_from_slice(payload);
                assert_eq!(room[..len + payload.len()], bytes[..len + payload.len()]);
            }
        }
        8 => {
            if let Ok((header, frame)) = VnetHeader::parse(&bytes) {
                let len = header.emit(&mut room);
                room[len..len + frame.len()].copy_from_slice(frame);
                assert_eq!(VnetHeader::parse(&room[..bytes.len()]), Ok((header, frame)));
            }
        }
        9 => {
            let next = bytes.first().copied().unwrap_or_default();
            if let Ok(upper) = upper_layer(Protocol(next), &bytes) {
                assert!(bytes.ends_with(upper.payload));
            }
            let _ = QuotedSegment::parse_v4(&bytes);
            let _ = QuotedSegment::parse_v6(&bytes);
        }
        _ => {
            let (front, rest) = bytes.split_at(bytes.len() / 3);
            let (middle, back) = rest.split_at(rest.len() / 2);
            let more = Sum::of_word(1);
            let sums = [front, middle, back].map(|piece| (piece.len(), Sum::of(piece)));
            let pieces = Sum::joined(sums.into_iter()) + more;
            assert_eq!(pieces.checksum(), (Sum::of(&bytes) + more).checksum());
            let slice = Sum::of_slice(&bytes, &table_of(&bytes), front.len()..bytes.len()) + more;
            assert_eq!(slice.checksum(), (Sum::of(&bytes[front.len()..]) + more).checksum());
        }
    }
});

/// Corrects the checksum at `at` of the first `len` bytes, if there is one.
fn mend(bytes: &mut [u8], len: usize, at: usize, pseudo: Sum) {
    if let Some(summed) = bytes.get_mut(..len).filter(|summed| summed.len() >= at + 2) {
        summed[at..at + 2].fill(0);
        let checksum = (pseudo + Sum::of(summed)).checksum();
        summed[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}
